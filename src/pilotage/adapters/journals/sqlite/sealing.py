"""Moves jobs out of the live book into files of their own, back again, or deletes them.

Every move is recorded in `moves` before it begins, works in short transactions, and can be resumed after a crash. The job's row
alone decides where the job is read, and changes in one transaction: leftover or early rows are ignored.

| step | the job is | what is left when the program dies |
|---|---|---|
| copying | live | its file, unfinished or not: removed |
| leaving | sealed | rows in the live book: removed |
| arriving | sealed | rows in the live book: removed |
| arrived | live | its file: removed |
| purging | purged | rows in the live book, its file: removed |
"""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pilotage.adapters.journals.sqlite import locations
from pilotage.adapters.journals.sqlite.connections import journal_error
from pilotage.adapters.journals.sqlite.locations import (
    BOOK,
    FOLDER,
    SLICE_ROWS,
    UNFINISHED,
    SqliteLocations,
    jobs_named,
    sealed_path,
    unfinished_path,
)
from pilotage.book.rows.rows import JobRow
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JournalError, JournalFull, JournalUnavailable, SealedLost

Transact = Callable[[], AbstractContextManager[sqlite3.Connection]]

_TRIES_MAX = 3


class Sealing:
    """Moves jobs. Each job makes one move at a time; different jobs do not wait for each other."""

    def __init__(self, places: SqliteLocations, transact: Transact) -> None:
        self._places = places
        self._transact = transact
        self._moving: set[str] = set()
        self._change = threading.Condition()
        self.reached: Callable[[str], None] = _nobody
        """Called at every point where the program may die; for tests."""

    @property
    def _folder(self) -> Path:
        return self._places.folder

    # --- moves ---

    def seal(self, job: str) -> None:
        """Move an ended job into its own file; no effect if it is sealed."""
        with self._alone(job):
            for _ in range(_TRIES_MAX):
                row = self._row(job)
                if row.place != "live":
                    return
                if row.state not in FINAL_NAMES:
                    raise JournalError(
                        "only a job that has ended can be sealed",
                        subject=f"job {job}",
                        expected=" or ".join(sorted(FINAL_NAMES)),
                        got=row.state,
                        next_step="wait for its end, or cancel it",
                    )
                if self._seal(row):
                    return
            raise JournalUnavailable("the job still receives events", subject=f"job {job}", next_step="seal it later")

    def _seal(self, row: JobRow) -> bool:
        """Seal the job; returns False if events of it were written meanwhile."""
        self._step(row.job, "copying")
        try:
            position, hashes = self._write(row)
        except (OSError, sqlite3.Error) as fault:
            self._finish(row.job, "copying")
            raise _unwritten(fault, sealed_path(self._folder, row.job)) from fault
        # Check most of the new events without blocking the writer.
        quiet, position = self._quiet(row, position)
        self.reached("looked")
        if quiet:
            with self._transact() as book:
                now = jobs_named(book, [row.job])[0]
                moved = _has_events_between(book, row.job_id, after=position, last=_position(book))
                quiet = now.place == "live" and not moved
                if quiet:
                    book.execute("UPDATE jobs SET place = 'sealed' WHERE job_id = ?", (row.job_id,))
                    pointers = [(sha256, row.job) for sha256 in hashes]
                    book.executemany("INSERT OR REPLACE INTO sealed_contents VALUES (?, ?)", pointers)
                    book.execute("UPDATE moves SET step = 'leaving' WHERE job = ?", (row.job,))
        if not quiet:
            self._finish(row.job, "copying")
            return False
        self.reached("sealed")
        self._finish(row.job, "leaving")
        return True

    def _write(self, row: JobRow) -> tuple[int, list[str]]:
        unfinished, path = unfinished_path(self._folder, row.job), sealed_path(self._folder, row.job)
        path.parent.mkdir(exist_ok=True)
        written = locations.write(unfinished, book=self._folder / BOOK, row=row, content=self._places.content)
        self.reached("written")
        locations.put_in_place(unfinished, path)
        self.reached("in place")
        return written

    def _quiet(self, row: JobRow, position: int) -> tuple[bool, int]:
        with self._places.live() as book:
            last = _position(book)
            return not _has_events_between(book, row.job_id, after=position, last=last), last

    def unseal(self, jobs: Collection[str]) -> None:
        """Move sealed jobs back into the live book."""
        for job in jobs:
            with self._alone(job):
                row = self._row(job)
                if row.place == "sealed":
                    self._unseal(row)

    def _unseal(self, row: JobRow) -> None:
        self._step(row.job, "arriving")
        path = sealed_path(self._folder, row.job)
        try:
            with locations.opened(path) as sealed:
                for statement, rows in locations.slices(sealed):
                    with self._transact() as book:
                        book.executemany(statement, rows)
                    self.reached("arriving")
        except FileNotFoundError as missing:
            self._finish(row.job, "arriving")
            raise SealedLost(
                "the file of a sealed job is missing", subject=f"job {row.job}", next_step=f"restore {path}"
            ) from missing
        except SealedLost:
            self._finish(row.job, "arriving")
            raise
        with self._transact() as book:
            book.execute("UPDATE jobs SET place = 'live' WHERE job_id = ?", (row.job_id,))
            book.execute("DELETE FROM sealed_contents WHERE job = ?", (row.job,))
            book.execute("UPDATE moves SET step = 'arrived' WHERE job = ?", (row.job,))
        self.reached("arrived")
        self._finish(row.job, "arrived")

    def purge(self, job: str, *, at: float) -> None:
        """Delete a job except its row, which records that it was purged."""
        with self._alone(job):
            row = self._row(job)
            if row.place == "purged":
                return
            with self._transact() as book:
                if row.place == "sealed":
                    self._forget_sealed(book, row)
                book.execute(
                    "UPDATE jobs SET place = 'purged', purged_at = ?, definition = NULL, lists = '{}', growth = '[]',"
                    " tags = '{}', healing = '', activities = '', keys = X'' WHERE job_id = ?",
                    (at, row.job_id),
                )
                book.execute("DELETE FROM sealed_contents WHERE job = ?", (job,))
                book.execute("INSERT OR REPLACE INTO moves VALUES (?, 'purging')", (job,))
            self.reached("purged")
            self._finish(job, "purging")

    def _forget_sealed(self, book: sqlite3.Connection, row: JobRow) -> None:
        """Count the deleted events of a file, and save contents that another job needs."""
        try:
            with locations.opened(sealed_path(self._folder, row.job)) as sealed:
                (events,) = sealed.execute("SELECT count(*) FROM events").fetchone()
                _forget(book, events)
                for sha256, content in sealed.execute("SELECT sha256, content FROM contents"):
                    if locations.is_used(book, sha256, but_by=row.job_id):
                        book.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (sha256, content))
        except (FileNotFoundError, SealedLost):
            return  # a lost file can be purged, too

    # --- after a move, or after a crash ---

    def resume(self) -> None:
        """Finish every interrupted move; before any other use of the book."""
        with self._places.live() as book:
            moves = book.execute("SELECT job, step FROM moves").fetchall()
        for job, step in moves:
            self._finish(job, step)
        for path in (self._folder / FOLDER).glob(f"*{UNFINISHED}"):
            path.unlink(missing_ok=True)

    def _finish(self, job: str, step: str) -> None:
        """Remove the leftovers of a step, and end the move."""
        row = self._row(job)
        if step in ("leaving", "arriving", "purging"):
            self._clear(row, forgotten=step == "purging")
        if step in ("copying", "arrived", "purging"):
            locations.remove(unfinished_path(self._folder, job))
            locations.remove(sealed_path(self._folder, job))
            self.reached("removed")
        with self._transact() as book:
            book.execute("DELETE FROM moves WHERE job = ?", (job,))

    def _clear(self, row: JobRow, *, forgotten: bool) -> None:
        """Delete a job's rows from the live book in slices; packages with their events, so that none is lost."""
        while True:
            with self._transact() as book:
                packages, events = locations.clear_packages(book, row.job_id)
                if forgotten:
                    _forget(book, events)
            self.reached("clearing")
            if packages < SLICE_ROWS:
                break
        with self._transact() as book:
            hashes = locations.used_contents(book, row.job_id)
            # Contents of a purged job are deleted; those of a sealed job are in its file.
            unused = [each for each in hashes if not locations.is_used(book, each, but_by=row.job_id)]
            book.executemany("DELETE FROM contents WHERE sha256 = ?", [(each,) for each in unused])
            events = locations.clear_job(book, row.job_id, tags_too=forgotten)
            if forgotten:
                _forget(book, events)
        self.reached("cleared")

    def _step(self, job: str, step: str) -> None:
        with self._transact() as book:
            book.execute("INSERT OR REPLACE INTO moves VALUES (?, ?)", (job, step))
        self.reached(step)

    def _row(self, job: str) -> JobRow:
        with self._places.live() as book:
            found = jobs_named(book, [job])
        if not found:
            raise JournalError("no such job", subject=f"job {job}")
        return found[0]

    @contextmanager
    def _alone(self, job: str) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: job not in self._moving)
            self._moving.add(job)
        try:
            yield
        finally:
            with self._change:
                self._moving.discard(job)
                self._change.notify_all()


def _nobody(point: str) -> None:
    """Do nothing."""


def _unwritten(fault: OSError | sqlite3.Error, path: Path) -> JournalError:
    if isinstance(fault, sqlite3.Error):
        return journal_error(fault, path)
    kind = JournalFull if fault.errno in (errno.ENOSPC, errno.EDQUOT) else JournalUnavailable
    return kind(f"the file of a sealed job cannot be written: {fault.strerror}", subject=str(path))


def _position(book: sqlite3.Connection) -> int:
    return int(book.execute("SELECT value FROM counters WHERE name = 'position'").fetchone()[0])


def _has_events_between(book: sqlite3.Connection, job_id: int, *, after: int, last: int) -> bool:
    statement = "SELECT 1 FROM events WHERE position > ? AND position <= ? AND job_id = ? LIMIT 1"
    return book.execute(statement, (after, last, job_id)).fetchone() is not None


def _forget(book: sqlite3.Connection, events: int) -> None:
    book.execute("UPDATE counters SET value = value + ? WHERE name = 'forgotten'", (events,))
