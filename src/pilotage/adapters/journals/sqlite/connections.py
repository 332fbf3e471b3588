"""Connections to SQLite files: the writer of the live book, a pool of its readers, and readers of sealed jobs."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilotage.ports import JournalError, JournalFull, JournalUnavailable

CHECKPOINT_PAGES = 512
"""Pages of 8 KiB in the WAL before a checkpoint: with the largest commit it stays below 8 MB."""
LOG_BYTES_MAX = 5 * 2**20
"""A longer WAL could not restart because of readers: it is truncated as soon as there are none."""
CUT_MILLISECONDS = 100
"""How long to wait for readers: most reads take less, or come in slices."""
WAIT_BYTES = 6 * 2**20
WAIT_MILLISECONDS = 1000
"""How long to wait from that size of the WAL on: counting in a large job takes longer."""
_GROWTH_BYTES = 2**19
IDLE_MAX = 8
"""Further readers are closed after use, not kept."""


def make_private(path: Path) -> None:
    """Make an empty private file, unless it exists; SQLite gives the files beside it the same mode.

    A book contains the secrets of webhooks.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect_writer(path: Path, *, rollback_journal: bool = False, durable: bool = True) -> sqlite3.Connection:
    """The connection of the one writer; with a rollback journal if shared memory is not reliable."""
    make_private(path)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512, check_same_thread=False)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute(f"PRAGMA journal_mode = {'DELETE' if rollback_journal else 'WAL'}")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    # KiB: enough for the pages of some thousand packages in flight. More would hold pages that are not used again, at the
    # cost of memory and processor caches; evicted pages are still in the system's cache.
    connection.execute("PRAGMA cache_size = -24576")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")  # truncates a long WAL when it restarts
    return connection


class LogCutter:
    """Keeps a book's WAL short: the writer calls it after each commit."""

    def __init__(self, writer: sqlite3.Connection, book: Path) -> None:
        """Take the writer's connection, and the file of the book."""
        self._writer = writer
        self._log = f"{book}-wal"
        self._next_bytes = LOG_BYTES_MAX

    def look(self) -> None:
        """Truncate a WAL that is too long; if readers prevent it, again only after it has grown further."""
        try:
            size_bytes = os.stat(self._log).st_size  # noqa: PTH116 # after each commit: no Path is made for it
        except OSError:
            return  # a book with a rollback journal has no WAL
        if size_bytes < self._next_bytes:
            if size_bytes < LOG_BYTES_MAX:
                self._next_bytes = LOG_BYTES_MAX
            return
        before = self._writer.execute("PRAGMA busy_timeout").fetchone()[0]
        patience = CUT_MILLISECONDS if size_bytes < WAIT_BYTES else WAIT_MILLISECONDS
        self._writer.execute(f"PRAGMA busy_timeout = {patience}")
        try:
            (busy, *_) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:  # mostly a full disk: the next write reports it
            busy = 1
        finally:
            self._writer.execute(f"PRAGMA busy_timeout = {before}")
        self._next_bytes = size_bytes + _GROWTH_BYTES if busy else LOG_BYTES_MAX


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection."""
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)
    connection.create_function("real_of", 1, _real_of, deterministic=True)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cache_size = -8192")
    return connection


@contextmanager
def sealed_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the file of a sealed job; FileNotFoundError if it does not exist."""
    if not path.is_file():
        raise FileNotFoundError(path)
    # A sealed file never changes, so it needs no lock, and on a read-only file system there is none.
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
    """Connections for reading one file; each query has its own, within one snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection on which all reads see one snapshot."""
        connection = self._take()
        try:
            connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as fault:
            raise journal_error(fault, self._path) from fault
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
            raise journal_error(fault, self._path) from fault

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close idle connections; those in use are closed after use."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


_PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
"""Transient errors; all others stay however often one tries."""


def journal_error(fault: sqlite3.Error, path: Path) -> JournalError:
    """Turn an error of SQLite into an error of the journal."""
    code = getattr(fault, "sqlite_errorcode", 0) & 0xFF  # the primary code, without the extension
    if code == sqlite3.SQLITE_FULL:
        return JournalFull(
            "no room left to write", subject=str(path), next_step="free space on the disk; it goes on by itself"
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
