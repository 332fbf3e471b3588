"""An index of records in PostgreSQL, for many records; several processes may ask it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from pilotage.adapters.journals.postgres.connection import Connection, Server
from pilotage.adapters.record_index.tables import Rows, Statements, TableIndex
from pilotage.ports import JournalError
from pilotage.ports.record_index import IndexedAttributes, RecordIndexError

_LOCK = 7_022_617_034_120_385_701
"""The key of the lock of the one transaction that writes."""


class PostgresRecordIndex(TableIndex):
    """An index in a database of PostgreSQL."""

    CONTAINS = "strpos"
    SCHEMA = """
CREATE TABLE IF NOT EXISTS index_about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS index_storages (
    storage BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    position BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS index_attributes (
    attribute BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS index_entries (
    entry BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, storage BIGINT NOT NULL, job TEXT NOT NULL,
    position BIGINT NOT NULL, removed INTEGER NOT NULL, revision BIGINT NOT NULL, owner TEXT NOT NULL,
    access TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, submitted_at DOUBLE PRECISION, at DOUBLE PRECISION NOT NULL,
    UNIQUE (job, storage));
CREATE INDEX IF NOT EXISTS index_entries_by_time ON index_entries (at, entry);
CREATE TABLE IF NOT EXISTS index_terms (
    entry BIGINT NOT NULL, attribute BIGINT NOT NULL, term TEXT NOT NULL, long_text TEXT, number DOUBLE PRECISION,
    is_number INTEGER NOT NULL, indexed INTEGER NOT NULL, at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (entry, attribute, term, is_number));
CREATE INDEX IF NOT EXISTS index_terms_by_term ON index_terms (attribute, term, at, entry, indexed) WHERE indexed = 1;
CREATE INDEX IF NOT EXISTS index_terms_by_number ON index_terms (attribute, number, entry, indexed)
    WHERE indexed = 1 AND number IS NOT NULL
"""

    def __init__(self, url: str, *, attributes: IndexedAttributes, rebuild: bool = False) -> None:
        """Open or make the index. Raises `OtherAttributes`, and `RecordIndexError` if the database cannot be used."""
        super().__init__(attributes)
        self._server = Server(url)
        self._write_guard, self._read_guard = threading.Lock(), threading.Lock()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        try:
            self.prepare(rebuild=rebuild)
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """The database, without its password."""
        return self._server.where

    def close(self) -> None:
        """Close the connections."""
        with self._write_guard, self._read_guard:
            for each in (self._writer, self._reader):
                if each is not None:
                    each.close()
            self._writer = self._reader = None

    @contextmanager
    def writing(self) -> Iterator[Statements]:
        """A transaction, the only one that writes."""
        with self._write_guard, self._errors():
            if self._writer is None or self._writer.closed:
                self._writer = self._server.connect("pilotage index")
            try:
                with self._writer.transaction():
                    self._writer.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                    yield _Connection(self._writer)
            except BaseException:
                self._numbers.clear()  # attributes that were new in this transaction have no numbers
                raise

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """A connection for reading."""
        with self._read_guard, self._errors():
            if self._reader is None or self._reader.closed:
                self._reader = self._server.connect("pilotage find")
                # All access is by key; a sequential scan could only come from outdated statistics.
                for method in ("seqscan", "hashjoin", "mergejoin"):
                    self._reader.execute(f"SET enable_{method} = off")
            yield _Connection(self._reader)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as fault:
            message = str(fault).strip().partition("\n")[0]
            raise RecordIndexError(f"PostgreSQL refused: {message}", subject=self.where) from fault
        except JournalError as fault:
            raise RecordIndexError(fault.what, subject=fault.subject, got=fault.got) from fault


class _Connection:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        done = self._connection.execute(_placed(statement), values)
        return done.fetchall() if done.description is not None else []

    def run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_placed(statement), values)


def _placed(statement: str) -> Any:
    """A statement with the placeholders of psycopg; ours have no other `?` and no `%`."""
    return statement.replace("?", "%s")
