"""Which files of a folder are ours by the book: the manifests of what was granted decide, whatever became of the index."""

from __future__ import annotations

import logging
import threading

import msgspec

from pilotage.book.query import EVERYTHING, parse
from pilotage.book.rows import JobRow
from pilotage.model.payloads import OutputFile
from pilotage.ports import Journal, JournalError, WorkIndex
from pilotage.service.running.resuming import origin_of

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

    def __init__(self, journal: Journal, index: WorkIndex) -> None:
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
