"""Finds and removes files that a document no longer makes: through the running service, or without one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.settings.settings_files import load_settings, state_folder
from pilotage.app.jobs.submit import RunSettings, Source, submission
from pilotage.app.service.session import running_service, state_paths
from pilotage.app.state_folder import SystemClock, local_user, open_journal, open_reader
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.ports import JournalBusy

if TYPE_CHECKING:
    from pilotage.app.job_stores import JobStores
    from pilotage.model.settings.settings import Settings
    from pilotage.ports import Journal

ANSWER_SECONDS = 3600.0
"""How long to wait for a service: it may have to read large files before it removes them."""
ASKED_MAX = 3
"""How often to look again for the owner of the book, if another process opens or closes it at the same moment."""


def obsolete_files(source: Source) -> ObsoleteFiles:
    """The files of earlier runs that a document no longer makes; removes nothing. Raises `DocumentError`."""
    return _asked(source, {})


def remove_obsolete(source: Source, shown: ObsoleteFiles) -> ObsoleteFiles:
    """Remove the files shown, if unchanged; returns the outcome."""
    return _asked(source, {file.name: file.sha256 for file in shown.files})


def _asked(source: Source, remove: Mapping[str, str]) -> ObsoleteFiles:
    loaded = source.load()
    # Nothing is stored: files that a job would bring along are only named.
    sent = submission(source, loaded, RunSettings(), keep=lambda data: hashlib.sha256(data).hexdigest())
    request = CleanRequest(submission=sent, read=loaded.files_read, remove=dict(remove))
    for _ in range(ASKED_MAX - 1):
        try:
            return _asked_once(source.folder, request)
        except JournalBusy:  # a service started, or another command has the book for a moment
            continue
    return _asked_once(source.folder, request)


def _asked_once(folder: Path, request: CleanRequest) -> ObsoleteFiles:
    server = running_service(folder, answer_seconds=ANSWER_SECONDS)
    if server is not None:
        from pilotage.client.jobs import Jobs

        with server:
            return Jobs(server).clean(request)
    settings = _settings_of_book(folder)
    if settings is None:
        return ObsoleteFiles(job=request.submission.definition["job"], folder=request.submission.folder)
    owner = request.submission.owner or local_user()
    request = msgspec.structs.replace(request, submission=msgspec.structs.replace(request.submission, owner=owner))
    state = state_folder(settings, folder=folder).absolute()
    return _removed(settings, state, request) if request.remove else _looked_at(settings, state, request)


def _settings_of_book(folder: Path) -> Settings | None:
    """The settings with the book for jobs of a folder: its own, or the nearest above it; None if there is none."""
    from pilotage.adapters.journals.sqlite.locations import BOOK

    settings = load_settings(environment=os.environ, folder=folder, flags={})
    if settings.journal.address.kind != "sqlite":
        return settings
    for state in state_paths(folder, os.environ):
        if (state / BOOK).is_file():
            return load_settings(environment=os.environ, folder=folder, flags={"journal.url": f"sqlite:{state}"})
    return None


def _looked_at(settings: Settings, state: Path, request: CleanRequest) -> ObsoleteFiles:
    """Search without writing anything, next to the writer of the book."""
    from pilotage.app.job_stores import copied_job_stores

    reader = open_reader(settings)
    if reader is None:  # of an older version: upgrade it first
        with closing(_own(settings, state)):
            pass
        reader = open_reader(settings)
        assert reader is not None
    with closing(reader), copied_job_stores(state) as stores:
        return _cleaned(request, reader, stores)


def _removed(settings: Settings, state: Path, request: CleanRequest) -> ObsoleteFiles:
    """Remove, with the book locked for this process: no service starts meanwhile."""
    from pilotage.app.job_stores import open_job_stores
    from pilotage.service.jobs.clean import removal_notes
    from pilotage.service.journal.writer import Batch, BatchCommitter

    with closing(_own(settings, state)) as journal, closing(open_job_stores(state)) as stores:
        found = _cleaned(request, journal, stores)
        clock = SystemClock()
        if notes := removal_notes(found, journal=journal, clock=clock):
            committer = BatchCommitter(journal, clock=clock)
            committer.commit_together([Batch(*committer.codec.check_all(notes), own=True)])
        return found


def _own(settings: Settings, state: Path) -> Journal:
    """The book, locked for this process; raises `JournalBusy`."""
    from pilotage.service.announcement import refuse_second

    refuse_second(state)
    return open_journal(settings)


def _cleaned(request: CleanRequest, journal: Journal, stores: JobStores) -> ObsoleteFiles:
    from pilotage.service.jobs.clean import clean
    from pilotage.service.jobs.output_claims import GrantedFiles

    learn = GrantedFiles(journal, stores.index).learn
    return clean(request, journal=journal, tree=stores.tree, index=stores.index, learn=learn)
