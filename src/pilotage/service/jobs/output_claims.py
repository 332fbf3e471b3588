"""Decides which job may use an output name while several jobs run in one folder; asked before a result is granted.

Known names are compared at submission (`service/jobs/resubmission.py`). The names of a pattern are known only when the
files exist: the second job with a different file of the same name is refused its grant. So only results that can be
published count as done.
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
"""Recently granted names; earlier ones are published, and found in the folder."""


class OutputClaims:
    """The output guard of an engine, asked in the engine's thread; another thread tells it of jobs."""

    def __init__(self, jobs: ActiveJobs, manifests: Manifests, tree: JobTree) -> None:
        """Take the jobs, their manifests, and the tree of files."""
        self._jobs = jobs
        self._manifests = manifests
        self._tree = tree
        self.contested: frozenset[str] = frozenset()  # the jobs that compete with another one
        self._made: dict[AttemptRef, Manifest] = {}  # of attempts waiting for a grant
        self._names: dict[tuple[str, str], tuple[str, str]] = {}  # by folder and name: its job and sha256
        self._lock = threading.Lock()
        jobs.on_let_go = self.forget

    def watch(self, engine: Engine) -> None:
        """Guard a restored engine and its jobs.

        Refused results are checked again, though the other job may be over by now.
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
        """A new job shares its folder with unfinished ones: from now on the results of each are checked."""
        # All other outputs were compared at submission.
        unknown = _makes_unknown(expansion)
        concurrent = [other for other, its in beside if unknown or _makes_unknown(its)]
        if concurrent:
            with self._lock:
                self.contested = self.contested | {job, *concurrent}

    def forget(self, job: str) -> None:
        """A job is over: its outputs are published, and checked in the folder."""
        with self._lock:
            if job in self.contested:
                self.contested = self.contested - {job}
                self._names = {name: claim for name, claim in self._names.items() if claim[0] != job}
                self._made = {ref: manifest for ref, manifest in self._made.items() if ref.job != job}

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """An attempt has staged these files."""
        self._made[ref] = tuple(manifest)

    def refusal(self, ref: AttemptRef) -> str:
        """Why an attempt may not have its names; if it may, they belong to its job from now on."""
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
                return f"{file.name}: the unfinished job {job} has made another file of this name"
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
    """Whether a package succeeded and is held because its grant was refused."""
    return work.held and bool(work.candidates)


def _makes_unknown(expansion: Expansion) -> bool:
    """Whether a job makes files whose names are not known in advance."""
    return bool(expansion.late) or any(
        output.expression or block.makes_pattern(output) for block in expansion.blocks for _, output in block.outputs()
    )


# Which files of a folder pilotage made, according to the book: the manifests of grants decide, even if the index is
# lost.

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1000
_MADE_OR_GRANTED = parse("type = OutputsStaged or type = AttemptFinished or type = CommitGranted")


class _Made(msgspec.Struct, frozen=True):
    manifest: tuple[OutputFile, ...] | None = None


_made = msgspec.json.Decoder(_Made).decode


_Attempt = tuple[int, int, int, int]  # stage, line, number, attempt


class GrantedFiles:
    """Updates the index from the book with the files of a folder; several threads may use it.

    The book is read only for a file in the way that the index does not know, and each event once.
    """

    def __init__(self, journal: Journal, index: ResultsIndex) -> None:
        """Take the book, and the index to update."""
        self._journal = journal
        self._index = index
        self._lock = threading.Lock()
        self._beginnings = index.beginnings
        self._folders: dict[str, str] = {}  # of jobs; empty: it did not run here
        self._read_to: dict[str, int] = {}  # of jobs: the position of the last event read
        self._ungranted: dict[str, dict[_Attempt, tuple[OutputFile, ...]]] = {}  # of jobs: the manifests read by then

    def learn(self, folder: str) -> bool:
        """Add the granted files of a folder to the index, as far as missing; whether there were any."""
        with self._lock:
            if self._beginnings != self._index.beginnings:  # the index lost its entries
                self._beginnings = self._index.beginnings
                self._read_to.clear()
                self._ungranted.clear()
            found = 0
            for row in sorted(self._jobs_of(folder), key=lambda row: row.submitted_at or 0.0):  # the last maker counts
                try:
                    found += self._learn_of(row, folder)
                except JournalError as fault:
                    log.warning("the files of %s that job %s made are unknown: %s", folder, row.job, fault)
            if found:
                log.info("%d files of %s were added to the index from the book", found, folder)
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
        """Add the files that a job was granted; return how many."""
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
                elif (manifest := _made(event.row.data).manifest) is not None:
                    made[attempt] = manifest
            if granted:
                self._index.claim(folder, row.job, granted)
                found += len(granted)
            self._read_to[row.job] = after
            if not page.more:
                return found
            after = page.scanned_to if page.scanned_to is not None else after
