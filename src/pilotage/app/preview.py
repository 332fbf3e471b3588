"""Plans a run: through the running service, or without one; writes nothing."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pilotage.adapters.settings.settings_files import load_settings, state_folder
from pilotage.app.jobs.submit import RunSettings, Source, submission
from pilotage.app.service.session import running_service
from pilotage.app.state_folder import indexed_of, local_user
from pilotage.model.site import executors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pilotage.model.exchange.operations import Refused
    from pilotage.model.jobs.plan import JobPlan
    from pilotage.model.jobs.submission import RunPlan, Submission
    from pilotage.model.settings.settings import Settings
    from pilotage.model.site import Site
    from pilotage.ports import Journal, ResultsIndex
    from pilotage.service.jobs.preview import Admission


def plan_run(source: Source, how: RunSettings) -> RunPlan:
    """The plan of a document; raises `DocumentError` for its faults."""
    loaded = source.load()
    # Nothing is stored: files that a job would bring along are known only by checksum.
    sent = submission(source, loaded, how, keep=lambda data: hashlib.sha256(data).hexdigest())
    server = running_service(source.folder) if how.slots is None else None
    if server is None:
        return _without_a_service(source, sent, how)
    from pilotage.client.jobs import Jobs

    with server:
        return Jobs(server).plan(sent)


def _without_a_service(source: Source, sent: Submission, how: RunSettings) -> RunPlan:
    from pilotage.app.job_stores import copied_job_stores
    from pilotage.app.store_registry import known_stores
    from pilotage.service.jobs.preview import plan

    settings = load_settings(environment=os.environ, folder=source.folder, flags={})
    state = state_folder(settings, folder=source.folder).absolute()
    slots = how.slots or len(os.sched_getaffinity(0))
    sites = _sites(settings, source.folder, state, slots=how.slots)
    admission = _admission(sent, sites, state, settings)
    with copied_job_stores(state, learning=lambda index: partial(_learned, state, settings, index)) as stores:
        return plan(
            sent,
            tree=stores.tree,
            index=stores.index,
            admission=admission,
            now=time.time(),
            executors=executors_of(sites),
            stores=known_stores(settings),
            slots=slots,
        )


def _learned(state: Path, settings: Settings, index: ResultsIndex, folder: str) -> bool:
    """Update an index from the book of a state folder with the files of a folder, if there is a book."""
    from pilotage.service.jobs.output_claims import GrantedFiles

    with _reader(state, settings) as book:
        return book is not None and GrantedFiles(book, index).learn(folder)


@contextmanager
def _reader(state: Path, settings: Settings) -> Iterator[Journal | None]:
    """The book of a state folder, for reading; None if there is none that can be read."""
    from pilotage.adapters.journals.sqlite.reader import SqliteReader
    from pilotage.app.service.offline import is_readable

    if not is_readable(state):
        yield None
        return
    with closing(SqliteReader(state, indexed=indexed_of(settings))) as reader:
        yield cast("Journal", reader)


def _sites(settings: Settings, folder: Path, state: Path, *, slots: int | None) -> list[Site]:
    """The sites of the service that a run would start: this computer, and the configured ones."""
    from pilotage.app.service.serve import this_computer
    from pilotage.app.sites.connections import other_sites
    from pilotage.app.sites.dialects import add_dialects
    from pilotage.app.sites.entries import LOCAL, file_here, known_sites

    add_dialects(state)
    entries = known_sites(file_here(settings, folder=folder)).entries
    own = next((each for each in entries if each.name == LOCAL), None)
    room = next(path for path in (state, *state.parents) if path.is_dir())  # the state folder may not exist yet
    here = this_computer(own, folder=room, slots=slots, idle_seconds=0.0)
    return [*([here.site] if here is not None else []), *(site for _, site in other_sites(entries))]


def _admission(sent: Submission, sites: Sequence[Site], state: Path, settings: Settings) -> Admission:
    """The answer of the service that a run would start: with these settings, and the unfinished jobs of this book."""

    def admission(made: JobPlan) -> Refused | tuple[str, ...]:
        from pilotage.app.service.serve import engine_settings
        from pilotage.engine.engine import Engine
        from pilotage.engine.inbound.admission import consider
        from pilotage.service.jobs.resubmission import unfinished_besides

        owner = sent.owner or local_user()
        with _reader(state, settings) as book:
            unfinished = unfinished_besides(book, sent, owner=owner) if book is not None else 0
        engine = Engine(sites=sites, settings=engine_settings(settings))
        return consider(engine.state, made, owner=owner, unfinished=unfinished)

    return admission
