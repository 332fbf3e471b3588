"""Connections to SQLite files: the one that writes the live book, a pool of those that read it, and those to sealed jobs."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilotage.ports import JournalError, JournalFull, JournalUnavailable

CHECKPOINT_PAGES = 512
"""So many pages of 8 KiB wait beside the book before they are moved into it: with the largest commit they stay below 8 MB."""
LOG_BYTES_MAX = 5 * 2**20
"""A log that is longer was kept from beginning anew by who reads: it is cut off as soon as nobody does."""
CUT_MILLISECONDS = 100
"""How long readers are waited for: most of what they ask is answered in less, or in slices."""
WAIT_BYTES = 6 * 2**20
WAIT_MILLISECONDS = 1000
"""How long they are waited for from that length of the log on: what is counted in a large job takes longer."""
_GROWTH_BYTES = 2**19
IDLE_MAX = 8
"""Readers beyond this are closed when they are done, not kept."""


def make_private(path: Path) -> None:
    """Make an empty file that only its owner may read, unless there is one; SQLite gives what it puts beside it the same mode.

    A book holds the secrets of webhooks.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect_writer(path: Path, *, rollback_journal: bool = False, durable: bool = True) -> sqlite3.Connection:
    """The connection of the one writer; with a rollback journal where shared memory cannot be relied on."""
    make_private(path)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512, check_same_thread=False)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute(f"PRAGMA journal_mode = {'DELETE' if rollback_journal else 'WAL'}")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    # KiB: room for what some thousand packages in flight come back to. With more, pages that nobody comes back to take
    # memory, and with it the processor's caches; what falls out is still in those of the system.
    connection.execute("PRAGMA cache_size = -24576")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")  # a long log that begins anew is cut off
    return connection


class LogCutter:
    """Keeps the log beside a book (its WAL) short: the writer asks it after each commit."""

    def __init__(self, writer: sqlite3.Connection, book: Path) -> None:
        """Take the connection of the writer, and the file that the log is beside."""
        self._writer = writer
        self._log = f"{book}-wal"
        self._next_bytes = LOG_BYTES_MAX

    def look(self) -> None:
        """Cut the log off where it has grown too long; while somebody reads, only again when it has grown further."""
        try:
            size_bytes = os.stat(self._log).st_size  # noqa: PTH116 # after each commit: no Path is made for it
        except OSError:
            return  # there is none, where the book has a rollback journal
        if size_bytes < self._next_bytes:
            if size_bytes < LOG_BYTES_MAX:
                self._next_bytes = LOG_BYTES_MAX
            return
        before = self._writer.execute("PRAGMA busy_timeout").fetchone()[0]
        patience = CUT_MILLISECONDS if size_bytes < WAIT_BYTES else WAIT_MILLISECONDS
        self._writer.execute(f"PRAGMA busy_timeout = {patience}")
        try:
            (busy, *_) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:  # no room, most often: what is written next says so
            busy = 1
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {before}")
        self._next_bytes = size_bytes + _GROWTH_BYTES if busy else LOG_BYTES_MAX


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)
    connection.create_function("real_of", 1, _real_of, deterministic=True)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cache_size = -8192")
    return connection


@contextmanager
def sealed_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the file of a sealed job, which must exist; FileNotFoundError where it does not."""
    if not path.is_file():
        raise FileNotFoundError(path)
    # A sealed file never changes, so that no lock is needed, and none may be had on a file system that is read-only.
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as fault:
        raise FileNotFoundError(path) from fault
    try:
        connection.create_function("real_of", 1, _real_of, deterministic=True)
        yield connection
    finally:
        connection.close()


def _real_of(text: str | None) -> float | None:
    return None if text is None else float(text)


class ReaderPool:
    """Connections that read one file; each question has one to itself, within one snapshot."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection on which everything that is read is of one moment."""
        connection = self._take()
        try:
            connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as fault:
            raise told(fault, self._path) from fault
        finally:
            self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise JournalError("the book is closed", subject=str(self._path))
            if self._idle:
                return self._idle.pop()
        try:
            return connect_reader(self._path)
        except sqlite3.Error as fault:
            raise told(fault, self._path) from fault

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


_PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
"""What may be otherwise in a moment; anything else stays as it is however often one tries."""


def told(fault: sqlite3.Error, path: Path) -> JournalError:
    """What SQLite says, as an error of the journal."""
    code = getattr(fault, "sqlite_errorcode", 0) & 0xFF  # the rest of it tells kinds of the same apart
    if code == sqlite3.SQLITE_FULL:
        return JournalFull(
            "no room left to write", subject=str(path), next_step="make room on the disk; it goes on by itself"
        )
    if code == sqlite3.SQLITE_READONLY:
        return JournalUnavailable(
            "the book can be read, but not written",
            subject=str(path),
            next_step="let this user write the file and its folder; `ls -ld` shows who may",
        )
    if code in _PASSING:
        return JournalUnavailable(f"the book cannot be used: {fault}", subject=str(path))
    return JournalError(f"the book cannot be used: {fault}", subject=str(path))
