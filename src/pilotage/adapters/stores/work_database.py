"""The SQLite file beside the book that the index of results and the logs share.

It can be lost without harm: then nothing is adopted, logs are gone, and which files are ours is learned from the book. So it
does not wait for the disk at every write, and one that is damaged is set aside for a new one.
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

# The tables, and how those of an earlier version become these.

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
CREATE TABLE IF NOT EXISTS times (
    folder INTEGER NOT NULL, document INTEGER NOT NULL, activity TEXT NOT NULL,
    count INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (folder, document, activity)) WITHOUT ROWID;
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
    """The statements that make the tables of this version of those of another, or of none (0)."""
    more = " ".join(_MORE[each] for each in range(version, VERSION)) if version else ""
    return f"{_SCHEMA} {more} PRAGMA user_version = {VERSION};"


FILE = "work.sqlite"
DAMAGED = f"{FILE}.damaged"
"""What a damaged index is called from then on."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

log = logging.getLogger(__name__)


class WorkDatabase:
    """The database of a state folder, open as long as somebody uses it; for several threads, one at a time."""

    def __init__(self, folder: Path, *, mounts: Path = MOUNTS) -> None:
        """Open the database of a state folder; it is made where there is none, and anew where it is damaged."""
        self.path = folder / FILE
        self.beginnings = 0  # how often it was begun anew: what it knew is gone then
        self._mounts = mounts
        self.lock = threading.RLock()
        self.names: dict[str, int] = {}  # the numbers of names that were asked for
        self._users: list[WorkTables] = []
        try:
            self._book = self._open()
        except StoreError as fault:
            if not _is_damage(fault.__cause__):
                raise
            self._set_aside(fault)
            self._book = self._open()

    def begin_anew(self, damage: StoreError, *, beginning: int) -> None:
        """Set a damaged database aside and begin with an empty one.

        `beginning` is the value of `beginnings` when the damage was met: another thread may have met it, too, and been first.
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
        """Somebody uses some of the tables."""
        self._users.append(user)

    def release(self, user: WorkTables) -> None:
        """Somebody uses it no longer; the last one closes it."""
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
            raise _told(fault, self.path) from fault
        log.warning(
            "%s: %s; it is kept as %s, and a new one begins: nothing made so far is adopted, and its logs are gone",
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
            raise _told(fault, self.path) from fault
        try:
            network = network_kind(folder, mounts=self._mounts)
            if network:
                log.warning("%s is on %s, a network file system: slower, with a rollback journal", folder, network)
            self._book.execute(f"PRAGMA journal_mode = {'DELETE' if network else 'WAL'}")
            self._book.execute("PRAGMA synchronous = NORMAL")
            self._book.execute("PRAGMA cache_size = -16384")
            # Keys are in no order, so every write touches many pages: the more of them are moved together, the better.
            self._book.execute("PRAGMA wal_autocheckpoint = 4000")
            self._prepare()
        except sqlite3.Error as fault:
            self._book.close()
            raise _told(fault, self.path) from fault
        except StoreError:
            self._book.close()
            raise
        return book

    def _prepare(self) -> None:
        version = int(self._book.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise StoreError(
                "the index of earlier work was written by a later version of pilotage",
                subject=str(self.path),
                next_step="use that version, or remove the file: only what could be adopted is forgotten",
            )
        self._book.executescript(f"BEGIN IMMEDIATE; {to_version(version)} COMMIT;")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection within a transaction; raises `StoreError`, and nothing was written then."""
        with self.reading() as book:
            book.execute("BEGIN IMMEDIATE")
            try:
                yield book
            except BaseException:
                if book.in_transaction:
                    book.execute("ROLLBACK")
                self.names.clear()  # some may have been new
                raise
            book.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone; raises `StoreError`."""
        with self.lock:
            try:
                yield self._book
            except (sqlite3.Error, OverflowError) as fault:
                raise _told(fault, self.path) from fault

    def number(self, name: str) -> int | None:
        """The number of a name, if it has one."""
        if name not in self.names:
            row = self._book.execute("SELECT name_id FROM names WHERE name = ?", (name,)).fetchone()
            if row is None:
                return None
            self.names[name] = row[0]
        return self.names[name]

    def numbered(self, name: str) -> int:
        """The number of a name; it gets one where it has none."""
        found = self.number(name)
        if found is None:
            row = self._book.execute("INSERT INTO names (name) VALUES (?) RETURNING name_id", (name,)).fetchone()
            found = self.names[name] = int(row[0])
        return found


def place_of(package: str) -> tuple[int, int, int]:
    """The place of a package as it is stored; raises `StoreError` where it is none."""
    place = parse_dotted(package)
    if place is None:
        raise StoreError("this is no place of a package", subject=package[:80], expected="a place such as 1.2.1")
    return place.stage, place.line, place.number


def _is_damage(fault: BaseException | None) -> bool:
    """Whether SQLite says that a file is not what it was written as."""
    return getattr(fault, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _told(fault: Exception, path: Path) -> StoreError:
    error = StoreError(
        f"the index of earlier work cannot be used: {fault}",
        subject=str(path),
        next_step="make room or let this user write there",
    )
    error.retryable = getattr(fault, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
    return error


class WorkTables:
    """Who uses some tables of a database."""

    def __init__(self, database: WorkDatabase) -> None:
        """Use a database until it is closed here."""
        self._database = database
        database.use(self)

    def lost(self) -> None:
        """The database was begun anew: nothing of what was written there is known any longer."""

    def close(self) -> None:
        """Close it."""
        self._database.release(self)


Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Tables = TypeVar("Tables", bound=WorkTables)


def mending(
    method: Callable[Concatenate[Tables, Given], Answer],
) -> Callable[Concatenate[Tables, Given], Answer]:
    """A question that is asked again of a new database where the one that there was turns out to be damaged."""

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
