"""The SQLite journal: one live book in WAL mode, one writer, and a file for each sealed job."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.journals.dump import load_lines
from pilotage.adapters.journals.network_folders import MOUNTS, network_kind
from pilotage.adapters.journals.queries import DEFAULT_INDEXED, check_indexable
from pilotage.adapters.journals.sqlite import schema
from pilotage.adapters.journals.sqlite.connections import LogCutter, connect_reader, connect_writer, journal_error
from pilotage.adapters.journals.sqlite.ledger import RowCache, SqliteLedger
from pilotage.adapters.journals.sqlite.locations import BOOK
from pilotage.adapters.journals.sqlite.reader import SCANNED_MAX, SqliteReader
from pilotage.adapters.journals.sqlite.sealing import Sealing
from pilotage.book.rows.rows import JobRow, PackageRow, Row, StageRow, TagRow, written_facts
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.ports import JournalBusy, JournalError

__all__ = ["BOOK", "SqliteJournal"]

log = logging.getLogger(__name__)


class SqliteJournal(SqliteReader):
    """A folder with the live book and the files of sealed jobs. This process is its one writer."""

    def __init__(
        self,
        folder: Path,
        *,
        indexed: frozenset[str] = DEFAULT_INDEXED,
        scanned_max: int = SCANNED_MAX,
        durable: bool = True,
        mounts: Path = MOUNTS,
    ) -> None:
        """Open the book of a folder for writing; makes it if needed. A temporary book need not be durable."""
        check_indexable(indexed)
        make_closed(folder)
        super().__init__(folder, indexed=indexed, scanned_max=scanned_max)
        self._lock_file = only_writer(folder)
        self._writing = threading.RLock()
        self._cache = RowCache()
        try:
            self._writer = self._open(network=network_kind(folder, mounts=mounts), durable=durable)
            self._log_cutter = LogCutter(self._writer, folder / BOOK)
            try:
                self._prepare(indexed)
                # Not before: building an index over a large book needs the disk. Later, each statement journals some pages in
                # case it fails, which would make and remove a file at every commit.
                self._writer.execute("PRAGMA temp_store = MEMORY")
                self._sealing = Sealing(self, self._transact)
                self._sealing.resume()
            except BaseException:  # whatever fails, close the connection and raise it again
                self._writer.close()
                raise
        except BaseException:  # whatever fails, release the lock and raise it again
            super().close()
            os.close(self._lock_file)
            raise

    def _open(self, *, network: str, durable: bool) -> sqlite3.Connection:
        if network:
            log.warning(
                "%s is on a network file system (%s): slower, with a rollback journal, and only as safe as its locks",
                self.folder,
                network,
            )
        try:
            return connect_writer(self.folder / BOOK, rollback_journal=bool(network), durable=durable)
        except sqlite3.Error as fault:
            raise journal_error(fault, self.folder / BOOK) from fault
        except OSError as fault:
            raise JournalError(f"cannot make the book: {fault.strerror}", subject=str(self.folder / BOOK)) from fault

    def _prepare(self, indexed: frozenset[str]) -> None:
        with self._transact() as connection:
            version = schema.version_of(connection)
            if version > schema.SCHEMA_VERSION:
                raise JournalError(
                    "the book was written by a newer pilotage",
                    subject=str(self.folder / BOOK),
                    expected=f"schema {schema.SCHEMA_VERSION} or older",
                    got=f"schema {version}",
                    next_step="use the newer pilotage, or dump the jobs with it and load them here",
                )
            if version == 0:
                schema.create(connection, indexed=indexed)
            else:
                schema.migrate(connection, to=schema.SCHEMA_VERSION, migrations=schema.MIGRATIONS)
                schema.reindex(connection, indexed=indexed)
                # SQLite also opens a file that it may not write, and reports that only at the first write.
                connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[SqliteLedger]:
        """One durable transaction; an exception rolls it back."""
        with self._exclusive() as connection:
            yield SqliteLedger(connection, self._cache)

    @contextmanager
    def _transact(self) -> Iterator[sqlite3.Connection]:
        """The same, for writes without a ledger; clears the ledger's cache."""
        with self._exclusive() as connection:
            self._cache.clear()
            yield connection

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            connection = self._writer
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as fault:
                self._undo()
                raise journal_error(fault, self.folder / BOOK) from fault
            except BaseException:  # whatever ends the block, roll back and raise it again
                self._undo()
                raise
            self._log_cutter.look()

    def _undo(self) -> None:
        self._cache.clear()
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    @property
    def lost(self) -> str:
        """Empty: a file lock stays with its process."""
        return ""

    @property
    def trouble(self) -> str:
        """Empty: a full disk is noticed only at the next write."""
        return ""

    def close(self) -> None:
        """Close the book."""
        super().close()
        with self._writing:
            self._writer.close()
            if self._lock_file >= 0:
                os.close(self._lock_file)
                self._lock_file = -1

    # --- jobs ---

    def put_content(self, content: bytes) -> str:
        """Store bytes and return their sha256."""
        return self.put_contents((content,))[0]

    def put_contents(self, contents: Collection[bytes]) -> list[str]:
        """Store bytes in one transaction and return their sha256, in order."""
        named = [(hashlib.sha256(each).hexdigest(), each) for each in contents]
        known = "SELECT 1 FROM contents WHERE sha256 = ?"
        with self.live() as book:
            new = [each for each in named if book.execute(known, each[:1]).fetchone() is None]
        if new:
            with self._transact() as book:
                book.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", new)
        return [sha256 for sha256, _ in named]

    def seal(self, job: str) -> None:
        """Move an ended job into a file of its own, in slices; its row stays."""
        self._sealing.seal(job)

    def unseal(self, jobs: Collection[str]) -> None:
        """Move sealed jobs back into the live book."""
        self._sealing.unseal(jobs)

    def purge(self, job: str, *, at: float) -> None:
        """Delete a job except its row, which records that it was purged."""
        self._sealing.purge(job, at=at)

    def load(self, lines: Iterable[bytes]) -> str:
        """Load a dumped job and return its id. The job must be unknown here."""
        return load_lines(self, lines)

    def count_parked(self, *, before: float) -> int:
        """Number of events parked since before a time."""
        with self.live() as book:
            return int(book.execute("SELECT count(*) FROM parked WHERE received < ?", (before,)).fetchone()[0])

    def drop_parked(self, *, before: float) -> int:
        """Delete events parked since before a time; returns their number."""
        with self._transact() as book:
            dropped = book.execute("DELETE FROM parked WHERE received < ?", (before,)).rowcount
            book.execute("UPDATE counters SET value = value + ? WHERE name = 'forgotten'", (dropped,))
            return dropped

    # --- repair ---

    def replace_job(
        self, job: JobRow, *, stages: Iterable[StageRow], packages: Iterable[PackageRow], tags: Iterable[TagRow]
    ) -> None:
        """Replace all rows derived from the events of a live job, in one transaction."""
        with self._transact() as book:
            for table in ("stages", "package_facts", "tags"):
                book.execute(f"DELETE FROM {table} WHERE job_id = ?", (job.job_id,))
            _put(book, [job])
            _put(book, stages)
            _put(book, tags)
            book.executemany(
                "INSERT INTO package_facts VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        row.job_id,
                        row.stage,
                        row.line,
                        row.number,
                        row.facts.state,
                        row.facts.site,
                        written_facts(row.facts),
                    )
                    for row in packages
                ),
            )


def _put(book: sqlite3.Connection, rows: Iterable[Row]) -> None:
    for row in rows:
        table = TABLE_BY_ROW[type(row)]
        places = ", ".join("?" * len(table.columns))
        book.execute(
            f"INSERT OR REPLACE INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})",
            msgspec.structs.astuple(row),
        )


def only_writer(folder: Path) -> int:
    """Lock the book of a folder for this process as its writer, until the descriptor is closed."""
    path = folder / "book.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise JournalError(
            f"cannot write the folder of the book: {fault.strerror}",
            subject=str(path.parent),
            next_step="let this user write there; `ls -ld` shows who may",
        ) from fault
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)  # the last holder has removed the folder
    except OSError as fault:
        os.close(descriptor)
        raise JournalBusy(
            "another process writes this book",
            subject=str(path.parent),
            next_step="stop it with `pilotage serve --stop`, or ask it instead",
        ) from fault
    return descriptor


# Removes a book that a service made without using it, with its lock held.

_ANYTHING = """
SELECT EXISTS (SELECT 1 FROM counters WHERE name = 'job_id' AND value > 0)
    OR EXISTS (SELECT 1 FROM streams WHERE source <> 'service')
    OR EXISTS (SELECT 1 FROM subscriptions)
"""


def remove_unused(folder: Path) -> bool:
    """Remove a folder whose book has no job and no events except its service's own; returns whether it was removed.

    A book that is being written stays. A process that opens it at this moment finds the lock taken, or a new folder.
    """
    if not (folder / BOOK).is_file():
        return False
    try:
        lock = only_writer(folder)
    except JournalError:
        return False
    try:
        if not _is_unused(folder):
            return False
        aside = folder.with_name(f"{folder.name}-{os.getpid()}")
        with suppress(OSError):  # it only takes some space
            folder.rename(aside)  # other processes see a complete folder, or none
            shutil.rmtree(aside)
        return not folder.exists()
    finally:
        os.close(lock)


def _is_unused(folder: Path) -> bool:
    try:
        with closing(connect_reader(folder / BOOK)) as book:
            return not book.execute(_ANYTHING).fetchone()[0]
    except sqlite3.Error:
        return False
