"""The SQLite file beside the book with the index of results and the logs.

It can be lost without harm: then no result is adopted, logs are gone, and the book tells which files are ours. So it is
not synced at every write, and a damaged one is set aside for a new one.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.journals.network_folders import MOUNTS, network_kind
from pilotage.adapters.journals.sqlite.connections import make_private
from pilotage.model.events.events import parse_dotted
from pilotage.ports.job_tree import StoreError

# The tables, and their migrations.

VERSION = 3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (name_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS made (
    made_id INTEGER PRIMARY KEY,  -- a later one has the greater number
    folder INTEGER NOT NULL, key BLOB NOT NULL, document INTEGER NOT NULL,
    stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, fields BLOB NOT NULL, manifest BLOB NOT NULL,
    UNIQUE (folder, key));
CREATE INDEX IF NOT EXISTS made_places ON made (folder, document, stage, line, number);
CREATE TABLE IF NOT EXISTS files (
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL, inode INTEGER NOT NULL, changed_ns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (folder, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS folders (folder INTEGER PRIMARY KEY, used_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ours (  -- every content that was made under a name: the one before may still be there
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL, size_bytes INTEGER NOT NULL,
    job INTEGER,  -- the last that made it
    PRIMARY KEY (folder, name, sha256)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS disposed (  -- removed on purpose, and still counted as made; no version of its own, like `runs`
    folder INTEGER NOT NULL, name TEXT NOT NULL, sha256 BLOB NOT NULL,
    PRIMARY KEY (folder, name, sha256)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS put_copies (  -- in stores, of attempts that are not granted yet; no version of its own either
    job TEXT NOT NULL, package TEXT NOT NULL, attempt INTEGER NOT NULL, locator TEXT NOT NULL,
    sha256 TEXT NOT NULL, owner TEXT NOT NULL, put INTEGER NOT NULL,
    PRIMARY KEY (job, package, attempt, locator)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS times (
    folder INTEGER NOT NULL, document INTEGER NOT NULL, activity TEXT NOT NULL,
    count INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (folder, document, activity)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (  -- what packages took; no version of its own, since earlier programs can leave it alone
    run_id INTEGER PRIMARY KEY,  -- a later one has the greater number
    folder INTEGER NOT NULL, document INTEGER NOT NULL, activity TEXT NOT NULL, software TEXT NOT NULL,
    size_class INTEGER NOT NULL,  -- of the input: its power of two; -1: unknown
    seconds REAL NOT NULL, input_bytes INTEGER, output_bytes INTEGER NOT NULL, scratch_bytes INTEGER NOT NULL,
    memory_bytes INTEGER);
CREATE INDEX IF NOT EXISTS runs_kinds ON runs (folder, document, activity, software, size_class);
CREATE INDEX IF NOT EXISTS runs_software ON runs (software) WHERE software <> '';
CREATE TABLE IF NOT EXISTS logs (
    job INTEGER NOT NULL, stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    attempt INTEGER NOT NULL, stream TEXT NOT NULL,
    head BLOB NOT NULL, tail BLOB NOT NULL, dropped_bytes INTEGER NOT NULL, final INTEGER NOT NULL,
    PRIMARY KEY (job, stage, line, number, attempt, stream)) WITHOUT ROWID;
"""

_MORE = {
    1: "ALTER TABLE ours ADD COLUMN job INTEGER;",
    2: "ALTER TABLE files ADD COLUMN changed_ns INTEGER NOT NULL DEFAULT 0;",
}


def to_version(version: int) -> str:
    """The statements that bring the tables from a version, or from none (0), to the current one."""
    more = " ".join(_MORE[each] for each in range(version, VERSION)) if version else ""
    return f"{_SCHEMA} {more} PRAGMA user_version = {VERSION};"


FILE = "work.sqlite"
DAMAGED = f"{FILE}.damaged"
"""The name of a damaged database that was set aside."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

log = logging.getLogger(__name__)


class WorkDatabase:
    """The database of a state folder, open while it has users; safe for threads."""

    def __init__(self, folder: Path, *, mounts: Path = MOUNTS) -> None:
        """Open the database of a state folder; makes it if it is missing or damaged."""
        self.path = folder / FILE
        self.beginnings = 0  # how often it was started anew, without its content
        self._mounts = mounts
        self.lock = threading.RLock()
        self.names: dict[str, int] = {}  # cached numbers of names
        self._users: list[WorkTables] = []
        try:
            self._book = self._open()
        except StoreError as fault:
            if not _is_damage(fault.__cause__):
                raise
            self._set_aside(fault)
            self._book = self._open()

    def begin_anew(self, damage: StoreError, *, beginning: int) -> None:
        """Set a damaged database aside and start an empty one.

        `beginning` is the value of `beginnings` before the damage: another thread may have replaced the database already.
        """
        with self.lock:
            if self.beginnings != beginning:
                return
            self._book.close()
            self._set_aside(damage)
            self.names.clear()
            for user in self._users:
                user.lost()
            self._book = self._open()
            self.beginnings += 1

    def use(self, user: WorkTables) -> None:
        """Add a user of some tables."""
        self._users.append(user)

    def release(self, user: WorkTables) -> None:
        """Remove a user; the last one closes the database."""
        with self.lock:
            if user in self._users:
                self._users.remove(user)
            if not self._users:
                self._book.close()

    def _set_aside(self, damage: StoreError) -> None:
        try:
            self.path.replace(self.path.with_name(DAMAGED))
            for ending in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    self.path.with_name(f"{FILE}{ending}").unlink()
        except OSError as fault:
            raise _store_error(fault, self.path) from fault
        log.warning(
            "%s: %s; it is kept as %s, and a new one is started: earlier results are not adopted, and their logs are gone",
            self.path,
            damage.what,
            DAMAGED,
        )

    def _open(self) -> sqlite3.Connection:
        folder = self.path.parent
        try:
            make_closed(folder)
            make_private(self.path)
            book = self._book = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as fault:
            raise _store_error(fault, self.path) from fault
        try:
            network = network_kind(folder, mounts=self._mounts)
            if network:
                log.warning("%s is on a network file system (%s): slower, with a rollback journal", folder, network)
            self._book.execute(f"PRAGMA journal_mode = {'DELETE' if network else 'WAL'}")
            self._book.execute("PRAGMA synchronous = NORMAL")
            self._book.execute("PRAGMA cache_size = -16384")
            # Keys are random, so every write touches many pages: larger checkpoints are cheaper.
            self._book.execute("PRAGMA wal_autocheckpoint = 4000")
            self._prepare()
        except sqlite3.Error as fault:
            self._book.close()
            raise _store_error(fault, self.path) from fault
        except StoreError:
            self._book.close()
            raise
        return book

    def _prepare(self) -> None:
        version = int(self._book.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise StoreError(
                "the index of earlier results was written by a later version of pilotage",
                subject=str(self.path),
                next_step="use that version, or remove the file: only results to adopt and logs are lost",
            )
        self._book.executescript(f"BEGIN IMMEDIATE; {to_version(version)} COMMIT;")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection within a transaction; raises `StoreError`, and then nothing was written."""
        with self.reading() as book:
            book.execute("BEGIN IMMEDIATE")
            try:
                yield book
            except BaseException:  # whatever ends the block, the transaction is rolled back and the error raised again
                if book.in_transaction:
                    book.execute("ROLLBACK")
                self.names.clear()  # some may have been added by this transaction
                raise
            book.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread only; raises `StoreError`."""
        with self.lock:
            try:
                yield self._book
            except (sqlite3.Error, OverflowError) as fault:
                raise _store_error(fault, self.path) from fault

    def number(self, name: str) -> int | None:
        """The number of a name, if it has one."""
        if name not in self.names:
            row = self._book.execute("SELECT name_id FROM names WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            self.names[name] = row[0]
        return self.names[name]

    def numbered(self, name: str) -> int:
        """The number of a name; assigns one if needed."""
        found = self.number(name)
        if found is None:
            row = self._book.execute("INSERT INTO names (name) VALUES (?) RETURNING name_id", (name,)).fetchone()
            found = self.names[name] = int(row[0])
        return found


def place_of(package: str) -> tuple[int, int, int]:
    """Stage, line and number of a package; raises `StoreError` if malformed."""
    place = parse_dotted(package)
    if place is None:
        raise StoreError("not a package number", subject=package[:80], expected="a number such as 1.2.1")
    return place.stage, place.line, place.number


def _is_damage(fault: BaseException | None) -> bool:
    """Tell whether SQLite reports a damaged file."""
    return getattr(fault, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _store_error(fault: Exception, path: Path) -> StoreError:
    error = StoreError(
        f"the index of earlier results cannot be used: {fault}",
        subject=str(path),
        next_step="free space, or let this user write there",
    )
    error.retryable = getattr(fault, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
    return error


class WorkTables:
    """A user of some tables of the database."""

    def __init__(self, database: WorkDatabase) -> None:
        self._database = database
        database.use(self)

    def lost(self) -> None:
        """React to a database that was started anew without its content."""

    def close(self) -> None:
        """Release the database."""
        self._database.release(self)


Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Tables = TypeVar("Tables", bound=WorkTables)


def retried_if_damaged(
    method: Callable[Concatenate[Tables, Given], Answer],
) -> Callable[Concatenate[Tables, Given], Answer]:
    """Repeat a query on a new database if the old one turns out to be damaged."""

    @wraps(method)
    def mended(self: Tables, /, *words: Given.args, **more: Given.kwargs) -> Answer:
        beginning = self._database.beginnings
        try:
            return method(self, *words, **more)
        except StoreError as fault:
            if not _is_damage(fault.__cause__):
                raise
            self._database.begin_anew(fault, beginning=beginning)
            return method(self, *words, **more)

    return mended
