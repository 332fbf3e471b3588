"""Which names jobs of one folder have, while several of them are worked on: asked before what they made is granted.

Names that are known before are compared when a job comes (`service/jobs/resubmission.py`). What a pattern makes is known when it is made: who
comes second with another file of the same name is not granted it. So nothing counts as done that cannot get its names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from pilotage.book.query import EVERYTHING, parse
from pilotage.book.rows.rows import JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import ActivePackage
from pilotage.language import Expansion
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import JobTree, Journal, JournalError, ResultsIndex, StoreError
from pilotage.service.jobs.active_jobs import ActiveJob, ActiveJobs
from pilotage.service.jobs.resubmission import origin_of, unfinished_jobs
from pilotage.service.works.manifests import Manifest, Manifests

NAMES_MAX = 100_000
"""Names that were granted lately: those before them are published, and found in the folder."""


class Claims:
    """The guard of an engine. It is asked in the engine's thread; jobs are told of from another one."""

    def __init__(self, jobs: ActiveJobs, manifests: Manifests, tree: JobTree) -> None:
        """Take the jobs, what attempts made, and where the files are."""
        self._jobs = jobs
        self._manifests = manifests
        self._tree = tree
        self.contested: frozenset[str] = frozenset()  # the jobs of which another one may make the same
        self._made: dict[AttemptRef, Manifest] = {}  # of attempts that wait for a grant
        self._names: dict[tuple[str, str], tuple[str, str]] = {}  # by folder and name: whose it is, and its sha256
        self._lock = threading.Lock()
        jobs.on_let_go = self.forget

    def watch(self, engine: Engine) -> None:
        """Guard an engine that starts from the book, with the jobs that it has.

        What was refused is asked about again, though the other job may be over by now.
        """
        unfinished = unfinished_jobs(engine)
        refused = (
            job for job in unfinished if any(_waits(work) for work in engine.state.jobs.by_id[job].work.values())
        )
        self.contested = frozenset(refused)
        by_folder: dict[str, dict[str, Expansion]] = {}
        for job in unfinished:
            at_work = self._jobs.get(job)
            if at_work is not None:
                by_folder.setdefault(at_work.folder, {})[job] = at_work.expansion
        for jobs in by_folder.values():
            if len(jobs) > 1 and any(map(_makes_unknown, jobs.values())):
                self.contested |= jobs.keys()
        engine.state.output_guard = self

    def contest(self, job: str, expansion: Expansion, beside: Iterable[tuple[str, Expansion]]) -> None:
        """A job comes beside others of its folder that are not over: from now on each of them is asked about."""
        # Whatever else they make was compared when they came.
        unknown = _makes_unknown(expansion)
        concurrent = [other for other, its in beside if unknown or _makes_unknown(its)]
        if concurrent:
            with self._lock:
                self.contested = self.contested | {job, *concurrent}

    def forget(self, job: str) -> None:
        """A job is over: what it made is under its names, and asked about there."""
        with self._lock:
            if job in self.contested:
                self.contested = self.contested - {job}
                self._names = {name: claim for name, claim in self._names.items() if claim[0] != job}
                self._made = {ref: manifest for ref, manifest in self._made.items() if ref.job != job}

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """An attempt has staged these files."""
        self._made[ref] = tuple(manifest)

    def refusal(self, ref: AttemptRef) -> str:
        """Why an attempt cannot have its names; where it can, they are its job's from now on."""
        at_work = self._jobs.get(ref.job)
        manifest = self._made.get(ref) or self._manifests.of(ref) or ()
        if at_work is None:
            return ""
        with self._lock:
            return self._claim(ref, at_work, manifest)

    def _claim(self, ref: AttemptRef, at_work: ActiveJob, manifest: Manifest) -> str:
        folder = at_work.folder
        for file in manifest:
            job, sha256 = self._names.get((folder, file.name), (ref.job, ""))
            if job != ref.job and sha256 != file.sha256 and self._jobs.were_concurrent(ref.job, job):
                return f"{file.name}: the job {job}, which is not over, has made another file of this name"
        try:
            concurrent = partial(self._jobs.were_concurrent, ref.job)
            self._tree.check(folder, manifest, is_rival=concurrent, in_the_way=at_work.in_the_way)
        except StoreError as fault:
            return f"{fault.subject}: {fault.what}"
        self._names.update(((folder, file.name), (ref.job, file.sha256)) for file in manifest)
        while len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]
        self._made.pop(ref, None)
        return ""


def _waits(work: ActivePackage) -> bool:
    """Whether a package has succeeded and is held: it was refused its grant."""
    return work.held and bool(work.candidates)


def _makes_unknown(expansion: Expansion) -> bool:
    """Whether a job makes files whose names are not known before."""
    return bool(expansion.late) or any(
        output.expression or block.makes_pattern(output) for block in expansion.blocks for _, output in block.outputs()
    )


# Which files of a folder are ours by the book: the manifests of what was granted decide, whatever became of the
# index.

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1000
_MADE_OR_GRANTED = parse("type = OutputsStaged or type = AttemptFinished or type = CommitGranted")


class _Made(msgspec.Struct, frozen=True):
    manifest: tuple[OutputFile, ...] | None = None


_made = msgspec.json.Decoder(_Made).decode


_Attempt = tuple[int, int, int, int]  # stage, line, number, attempt


class GrantedFiles:
    """Tells the index what the book knows of the files of a folder; threads may ask at once.

    The book is read only where a file stands in the way that the index does not know, each of its events once.
    """

    def __init__(self, journal: Journal, index: ResultsIndex) -> None:
        """Take the book, and the index that is to know as much."""
        self._journal = journal
        self._index = index
        self._lock = threading.Lock()
        self._beginnings = index.beginnings
        self._folders: dict[str, str] = {}  # of jobs; empty: it was not run here
        self._read_to: dict[str, int] = {}  # of jobs: the position of the last event that was read
        self._ungranted: dict[str, dict[_Attempt, tuple[OutputFile, ...]]] = {}  # of jobs: what was told by then

    def learn(self, folder: str) -> bool:
        """Have the index claim what was granted in a folder, as far as that was not done; whether there was any."""
        with self._lock:
            if self._beginnings != self._index.beginnings:  # what it was told is gone
                self._beginnings = self._index.beginnings
                self._read_to.clear()
                self._ungranted.clear()
            found = 0
            for row in sorted(self._jobs_of(folder), key=lambda row: row.submitted_at or 0.0):  # the last maker counts
                try:
                    found += self._learn_of(row, folder)
                except JournalError as fault:
                    log.warning("which files of %s are those of %s is not known: %s", folder, row.job, fault)
            if found:
                log.info("%d files of %s are ours by the book, though the index did not know them all", found, folder)
            return bool(found)

    def _jobs_of(self, folder: str) -> list[JobRow]:
        rows: list[JobRow] = []
        after: str | None = None
        while True:
            page = self._journal.find_jobs(EVERYTHING, after=after, limit=_ROWS_AT_ONCE)
            for row in page.items:
                after = row.job
                if row.job not in self._folders:
                    origin = origin_of(self._journal, row) if row.place != "purged" else None
                    self._folders[row.job] = origin.folder if origin is not None else ""
                if self._folders[row.job] == folder and row.place != "purged":
                    rows.append(row)
            if not page.more:
                return rows
            after = page.scanned_to if page.scanned_to is not None else after

    def _learn_of(self, row: JobRow, folder: str) -> int:
        """Claim the files that a job was granted; how many they are."""
        found, after = 0, self._read_to.get(row.job, 0)
        made = self._ungranted.setdefault(row.job, {})
        while True:
            page = self._journal.find_events(_MADE_OR_GRANTED, after=after, limit=_ROWS_AT_ONCE, job=row)
            granted: list[OutputFile] = []
            for event in page.items:
                after = event.row.position
                attempt = (event.row.stage, event.row.line, event.row.number, event.row.attempt)
                if event.row.type == "CommitGranted":
                    granted += made.pop(attempt, ())
                elif (told := _made(event.row.data).manifest) is not None:
                    made[attempt] = told
            if granted:
                self._index.claim(folder, row.job, granted)
                found += len(granted)
            self._read_to[row.job] = after
            if not page.more:
                return found
            after = page.scanned_to if page.scanned_to is not None else after
