"""An index of records in a file of SQLite: embedded next to the records, or kept by an index server."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilotage.adapters.journals.sqlite.connections import make_private
from pilotage.adapters.record_index.tables import Rows, Statements, TableIndex
from pilotage.ports.record_index import IndexedAttributes, RecordIndexError

BUSY_SECONDS = 30.0
"""How long one process waits for another that writes the same index."""


class SqliteRecordIndex(TableIndex):
    """An index in one file. Several processes may feed it, one at a time."""

    CONTAINS = "instr"
    SCHEMA = """
CREATE TABLE IF NOT EXISTS index_about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS index_storages (
    storage INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS index_attributes (
    attribute INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS index_entries (
    entry INTEGER PRIMARY KEY, storage INTEGER NOT NULL, job TEXT NOT NULL,
    position INTEGER NOT NULL, removed INTEGER NOT NULL, revision INTEGER NOT NULL, owner TEXT NOT NULL,
    access TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, submitted_at REAL, at REAL NOT NULL,
    UNIQUE (job, storage));
CREATE INDEX IF NOT EXISTS index_entries_by_time ON index_entries (at, entry);
CREATE TABLE IF NOT EXISTS index_terms (
    entry INTEGER NOT NULL, attribute INTEGER NOT NULL, term TEXT NOT NULL, long_text TEXT, number REAL,
    is_number INTEGER NOT NULL, indexed INTEGER NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (entry, attribute, term, is_number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS index_terms_by_term ON index_terms (attribute, term, at, entry, indexed) WHERE indexed = 1;
CREATE INDEX IF NOT EXISTS index_terms_by_number ON index_terms (attribute, number, entry, indexed)
    WHERE indexed = 1 AND number IS NOT NULL
"""

    def __init__(self, file: Path, *, attributes: IndexedAttributes, rebuild: bool = False) -> None:
        """Open or make the index. Raises `OtherAttributes`, and `RecordIndexError` for a damaged file."""
        super().__init__(attributes)
        self._file = file
        self._write_guard, self._read_guard = threading.Lock(), threading.Lock()
        with self._errors():
            make_private(file)
            self._writer = _connect(file)
            try:
                self._reader = _connect(file)
            except BaseException:
                self._writer.close()
                raise
        try:
            self.prepare(rebuild=rebuild)
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """The file."""
        return str(self._file)

    def close(self) -> None:
        """Close the index."""
        with self._write_guard, self._read_guard:
            self._reader.close()
            self._writer.close()

    @contextmanager
    def writing(self) -> Iterator[Statements]:
        """A transaction, the only one that writes."""
        with self._write_guard, self._errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield _Connection(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                self._numbers.clear()  # attributes that were new in this transaction have no numbers
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """A connection for reading."""
        with self._read_guard, self._errors():
            yield _Connection(self._reader)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as fault:
            raise RecordIndexError(
                f"the index cannot be used: {fault}", subject=str(self._file), next_step="make it anew with --rebuild"
            ) from fault


class _Connection:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        return self._connection.execute(statement, values).fetchall()

    def run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(statement, values)


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # what a crash of the computer undoes is fed again
    except BaseException:
        connection.close()
        raise
    return connection
