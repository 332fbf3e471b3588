"""The PostgreSQL journal: one database, one writer by an advisory lock, and readers beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from pilotage.adapters.journals.postgres.connection import Connection, Readers, Server, Writer, journal_error
from pilotage.adapters.journals.postgres.ledger import PostgresLedger
from pilotage.adapters.journals.postgres.lifecycle import Mover, PostgresLifecycle
from pilotage.adapters.journals.postgres.lock_watch import ConnectionWatch
from pilotage.adapters.journals.postgres.reader import PostgresReading
from pilotage.adapters.journals.postgres.schema import (
    MIGRATIONS,
    SCHEMA_VERSION,
    Migration,
    prepare,
    schemas_of,
    version_of,
)
from pilotage.adapters.journals.queries import DEFAULT_INDEXED, check_indexable
from pilotage.ports import JournalError

LOCK_WAIT_SECONDS = 2.0
"""How long a writer waits for the lock: enough for the server to notice that the last session has ended."""


class PostgresReader(PostgresReading):
    """A book in a PostgreSQL database, opened read-only: needs no lock, and does not disturb the writer."""

    def __init__(self, url: str, *, indexed: frozenset[str] = DEFAULT_INDEXED) -> None:
        """Check the database; raises `JournalError` if it has no book that this version can read."""
        server = Server(url)
        self._readers = Readers(server)
        self._indexed = indexed
        try:
            self._schemas = self._readers.read(lambda reader: schemas_of(reader, where=server.where))
            found = self._readers.read(lambda reader: version_of(reader, self._schemas))
            if found != SCHEMA_VERSION:
                raise JournalError(
                    "there is no book that this version can read",
                    subject=server.where,
                    expected=f"schema {SCHEMA_VERSION}",
                    got=f"schema {found}" if found else "none",
                    next_step="open it once with the service of this version, or use the pilotage that wrote it",
                )
        except BaseException:  # whatever fails, close the connections and raise it again
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._readers.close()


class PostgresJournal(PostgresLifecycle):
    """A book in a PostgreSQL database, in the first schema of the search path that exists."""

    def __init__(
        self,
        url: str,
        *,
        indexed: frozenset[str] = DEFAULT_INDEXED,
        lock_wait_seconds: float = LOCK_WAIT_SECONDS,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        """Open the book of a database for writing; makes it if needed."""
        check_indexable(indexed)
        self._server = Server(url)
        self._writing = threading.RLock()
        self._closed = False
        self._watch: ConnectionWatch | None = None
        self._writer = Writer(self._server, lock_wait_seconds=lock_wait_seconds)
        self._readers = Readers(self._server)
        self._indexed = indexed
        try:
            self._schemas = schemas_of(self._writer.connection(), where=self._server.where)
            with self._transaction() as connection:
                prepare(connection, self._schemas, indexed=indexed, migrations=migrations, where=self._server.where)
                self._writer.take_over(connection)
            self._mover = Mover(self._transaction, self._schemas)
            self._mover.take_up()
        except BaseException:  # whatever fails, close the connections and raise it again
            self.close()
            raise
        self._watch = watch = ConnectionWatch(socket_of=lambda: self._writer.socket, revive=self._revive)
        self._writer.on_change = watch.changed
        watch.start()

    def _revive(self) -> None:
        with self._writing:
            if not self._closed:
                self._writer.revive()

    @property
    def lost(self) -> str:
        """Why this process may write no more; empty while it may."""
        return self._writer.lost

    @property
    def trouble(self) -> str:
        """Why nothing can be written at the moment; empty while it can."""
        return self._writer.lost or self._writer.trouble

    @contextmanager
    def transaction(self) -> Iterator[PostgresLedger]:
        """One durable transaction; an exception rolls it back.

        If the connection is lost at the commit, its outcome is unknown: send again, duplicates are recognised.
        """
        with self._transaction() as connection:
            ledger = PostgresLedger(connection)
            yield ledger
            ledger.finish()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._writing:
            try:
                connection = self._writer.begin()
                yield connection
                self._writer.commit(connection)
            except psycopg.Error as fault:
                self._writer.undo()
                raise journal_error(fault, where=self._server.where) from fault
            except BaseException:  # whatever ends the block, roll back and raise it again
                self._writer.undo()
                raise

    def close(self) -> None:
        """Close the connections."""
        self._readers.close()
        with self._writing:
            self._closed = True
            self._writer.close()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.stop()
