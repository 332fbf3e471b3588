"""Connections to PostgreSQL: one for the writer, with its lock, and a few for readers. Lost ones are reopened."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from pilotage.model.settings.settings import without_password
from pilotage.ports import JournalBusy, JournalError, JournalFull, JournalLost, JournalUnavailable

Connection = psycopg.Connection[tuple[Any, ...]]
Answer = TypeVar("Answer")

VERSION_MIN = 15
READERS_MAX = 4
READ_SECONDS_MAX = 60
_ENDING_MILLISECONDS_MAX = 10_000

# A dead peer is noticed within a minute.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}


def journal_error(fault: psycopg.Error, *, where: str) -> JournalError:
    """Turn an error of PostgreSQL into an error of the journal."""
    state = fault.sqlstate or ""
    message = str(fault).strip().partition("\n")[0]
    if isinstance(fault, errors.DiskFull):
        return JournalFull("no room left to write", subject=where, next_step="free space; it goes on by itself")
    if isinstance(fault, errors.QueryCanceled):
        return JournalError(
            f"the answer took longer than {READ_SECONDS_MAX} seconds", subject=where, next_step="ask for less"
        )
    # 08: connection, 25006: a standby, 40: the victim of a deadlock, 53: resources, 55P03: a lock, 57: shut down.
    lost = isinstance(fault, psycopg.OperationalError | psycopg.InterfaceError) and not state
    if lost or state.startswith(("08", "25006", "40", "53", "55P03", "57")):
        return JournalUnavailable(f"PostgreSQL does not answer: {message}", subject=where, next_step="try again")
    return JournalError(f"PostgreSQL refused: {message}", subject=where, got=f"SQLSTATE {state}" if state else "")


@contextmanager
def journal_errors(where: str) -> Iterator[None]:
    """Turn errors of PostgreSQL into errors of the journal."""
    try:
        yield
    except psycopg.Error as fault:
        raise journal_error(fault, where=where) from fault


class Server:
    """The database of a URL, and how to connect to it."""

    def __init__(self, url: str) -> None:
        """Parse the URL; nothing is opened yet."""
        self.where = without_password(url)
        try:
            given = conninfo_to_dict(url)
            self._address = make_conninfo(url, **{n: v for n, v in _DEFAULTS.items() if n not in given})
        except psycopg.Error:
            # libpq's message about a bad URL may contain the password, and so may the traceback.
            raise JournalError(
                "not the URL of a PostgreSQL database",
                subject=self.where,
                expected="postgresql://USER@HOST:PORT/DATABASE",
            ) from None

    def connect(self, name: str) -> Connection:
        """Open a connection with an application name."""
        try:
            connection = psycopg.connect(self._address, autocommit=True, application_name=name)
        except psycopg.Error as fault:
            message = str(fault).strip().partition("\n")[0]
            raise JournalUnavailable(
                f"PostgreSQL cannot be reached: {message}",
                subject=self.where,
                next_step="check that it runs and that the URL is right; acknowledged events are safe",
            ) from fault
        try:
            self._check(connection)
            connection.adapters.register_loader("json", TextLoader)
            connection.execute("SET jit = off")
        except psycopg.Error as fault:
            connection.close()
            raise journal_error(fault, where=self.where) from fault
        except JournalError:
            connection.close()
            raise
        return connection

    def _check(self, connection: Connection) -> None:
        if connection.info.server_version < VERSION_MIN * 10_000:
            version = f"{connection.info.server_version // 10_000}"
            raise JournalError(
                "this PostgreSQL is too old", subject=self.where, expected=f"{VERSION_MIN} or newer", got=version
            )
        if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
            raise JournalError(
                "the database cannot store every character",
                subject=self.where,
                expected="encoding UTF8",
                got=f"{encoding}",
                next_step="create another one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            )


_GENERATION = "SELECT value FROM counters WHERE name = 'generation'"
# One round trip for both, so that the fence costs nothing. A process that takes the book over must wait for the end.
_BEGIN = f"BEGIN; {_GENERATION} FOR SHARE"
_TAKE_OVER = (
    "INSERT INTO counters AS c VALUES ('generation', 1)"
    " ON CONFLICT (name) DO UPDATE SET value = c.value + 1 RETURNING c.value"
)


class Writer:
    """The connection of the one writer. Its session holds an advisory lock, so a pooler in between must keep sessions.

    The lock belongs to the session, so a transaction of unknown outcome is over before another writer starts. It is
    released with the session, and may be taken again unless another process became the writer meanwhile: each new
    writer increments a generation number in the database, and every transaction checks that the number is still its
    own.
    """

    def __init__(self, server: Server, *, lock_wait_seconds: float) -> None:
        """Connect and become the writer; raises `JournalBusy` if another process is."""
        self._server = server
        self._lock_wait_seconds = lock_wait_seconds
        self._name = f"pilotage writer {secrets.token_hex(8)}"
        self._connection: Connection | None = None
        self._generation: int | None = None  # set when it becomes the writer of a book
        self._lost: JournalLost | None = None
        self.trouble = ""
        self.on_change: Callable[[], None] = lambda: None
        self.connection()

    def connection(self) -> Connection:
        """The writer's connection; reopens a lost one and takes the lock again. Raises `JournalLost` if another took it."""
        if self._connection is None or self._connection.closed:
            if self._lost is not None:
                raise self._lost
            again = self._connection is not None
            try:
                self._connection = self._connect(again=again)
            except JournalUnavailable as fault:
                self.trouble = str(fault)
                raise
            except JournalBusy as fault:
                if again and self._lost is None:
                    raise self._is_lost("another process writes this book now") from fault
                raise
            self.trouble = ""
            self.on_change()
        return self._connection

    @property
    def socket(self) -> int:
        """The descriptor of the connection's socket, to be watched; -1 if there is none."""
        connection = self._connection
        if connection is None or connection.closed:
            return -1
        try:
            return connection.fileno()
        except psycopg.Error:
            return -1

    def revive(self) -> None:
        """Check the connection, and reopen it if it is lost."""
        connection = self._connection
        if connection is not None and self.socket >= 0:
            try:
                connection.execute("SELECT 1")
            except psycopg.Error as fault:
                self.trouble = str(journal_error(fault, where=self._server.where))
                connection.close()
        self.connection()

    def take_over(self, connection: Connection) -> None:
        """Become the writer of the book, within a transaction: the previous writer can write no more."""
        found = connection.execute(_TAKE_OVER).fetchone()
        self._generation = int(found[0]) if found is not None else None

    def begin(self) -> Connection:
        """Begin a transaction. If the connection was lost since the last one, reconnect: nothing was in progress."""
        connection = self.connection()
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            raise JournalError("a transaction is open already", subject=self._server.where)
        try:
            self._begin(connection)
        except psycopg.Error:
            if not connection.closed:
                raise
            connection = self.connection()
            self._begin(connection)
        return connection

    def _begin(self, connection: Connection) -> None:
        if self._generation is None:
            connection.execute("BEGIN")
            return
        cursor = connection.execute(_BEGIN, prepare=False)
        cursor.nextset()
        found = cursor.fetchone()
        if found is None or found[0] != self._generation:
            raise self._is_lost("another process has written this book meanwhile")

    def _is_lost(self, why: str) -> JournalLost:
        self._lost = JournalLost(
            why,
            subject=self._server.where,
            next_step="leave the book to one service: stop the other one, then start this one again; it continues from the book",
        )
        return self._lost

    @property
    def lost(self) -> str:
        """Why this process may write no more, and what to do; empty while it may."""
        return "" if self._lost is None else str(self._lost)

    def commit(self, connection: Connection) -> None:
        """Commit a transaction. PostgreSQL answers the COMMIT of a failed or ended one without an error."""
        if connection.info.transaction_status in (TransactionStatus.INERROR, TransactionStatus.IDLE):
            raise JournalError("the transaction failed before its end, and was rolled back", subject=self._server.where)
        connection.execute("COMMIT")

    def undo(self) -> None:
        """Roll the transaction back; a connection that cannot is closed."""
        connection = self._connection
        if connection is None:
            return
        if not connection.closed and connection.info.transaction_status is not TransactionStatus.IDLE:
            try:
                connection.execute("ROLLBACK")
            except psycopg.Error:
                connection.close()
        if connection.closed:
            self.on_change()  # its lock is gone, though nothing may be written for long

    def close(self) -> None:
        """Close the connection and release the lock."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self, *, again: bool) -> Connection:
        connection = self._server.connect(self._name)
        try:
            with journal_errors(self._server.where):
                if again:
                    # A session of ours that we gave up may still be open at the server, and hold the lock.
                    connection.execute(
                        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
                        " WHERE application_name = %s AND pid <> pg_backend_pid() AND datname = current_database()",
                        (_ENDING_MILLISECONDS_MAX, self._name),
                    )
                self._lock(connection)
                if self._generation is not None:
                    found = connection.execute(_GENERATION).fetchone()
                    if found is None or found[0] != self._generation:
                        raise self._is_lost("another process has written this book meanwhile")
                connection.execute("SET synchronous_commit = on")
                connection.execute("SET statement_timeout = 0")
                connection.execute("SET idle_in_transaction_session_timeout = 0")
                # All access is by key; a sequential scan could only come from outdated statistics.
                for method in ("seqscan", "hashjoin", "mergejoin"):
                    connection.execute(f"SET enable_{method} = off")
        except BaseException:  # whatever fails, close the connection and raise it again
            connection.close()
            raise
        return connection

    def _lock(self, connection: Connection) -> None:
        schema = schema_of(connection, where=self._server.where)
        key = int.from_bytes(hashlib.sha256(f"pilotage {schema}".encode()).digest()[:8], "big", signed=True)
        connection.execute(f"SET lock_timeout = {max(1, round(self._lock_wait_seconds * 1000))}")
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", (key,))
        except errors.LockNotAvailable as fault:
            raise JournalBusy(
                "another process writes this book",
                subject=self._server.where,
                next_step="stop it with `pilotage serve --stop` where it runs, or ask it instead",
            ) from fault
        connection.execute("SET lock_timeout = 0")


def schema_of(connection: Connection, *, where: str) -> str:
    """The schema with the tables: the first of the search path that exists."""
    found = connection.execute("SELECT current_schema()").fetchone()
    if found is None or found[0] is None:
        raise JournalError("no schema of the search path exists", subject=where, next_step="create the one it names")
    return str(found[0])


class Readers:
    """A few connections for reading, shared by all threads; lost ones are replaced."""

    def __init__(self, server: Server, *, count_max: int = READERS_MAX) -> None:
        """Open connections at the first read."""
        self._server = server
        self._room = threading.Semaphore(count_max)
        self._idle: list[Connection] = []
        self._guard = threading.Lock()
        self._closed = False

    def read(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run one statement; repeat it if an idle connection turned out to be lost."""
        with self._room:
            while (connection := self._take()) is not None:
                try:
                    return self._ask(connection, work)
                except psycopg.Error as fault:
                    if not connection.closed:
                        raise journal_error(fault, where=self._server.where) from fault
            with journal_errors(self._server.where):
                return self._ask(self._connect(), work)

    def read_snapshot(self, work: Callable[[Connection], Answer]) -> Answer:
        """Run several statements that all see the same commits."""

        def within(connection: Connection) -> Answer:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return work(connection)

        return self.read(within)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection of its own for a long read that sees the same commits throughout."""
        with self._room, journal_errors(self._server.where):
            connection = self._begin()
            try:
                yield connection
            finally:
                try:
                    connection.rollback()
                except psycopg.Error:
                    connection.close()
                self._give_back(connection)

    def _begin(self) -> Connection:
        statement = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        while (connection := self._take()) is not None:
            try:
                connection.execute(statement)
            except psycopg.Error:
                connection.close()  # an idle one that turned out to be lost
            else:
                return connection
        connection = self._connect()
        connection.execute(statement)
        return connection

    def close(self) -> None:
        """Close all connections; one in use is closed when it is returned."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> Connection | None:
        with self._guard:
            if self._closed:
                raise JournalError("the journal was closed", subject=self._server.where)
            return self._idle.pop() if self._idle else None

    def _connect(self) -> Connection:
        connection = self._server.connect("pilotage reader")
        connection.execute(f"SET statement_timeout = {READ_SECONDS_MAX * 1000}")
        # The best index depends on the values, above all on states that an index leaves out.
        connection.execute("SET plan_cache_mode = force_custom_plan")
        return connection

    def _ask(self, connection: Connection, work: Callable[[Connection], Answer]) -> Answer:
        try:
            return work(connection)
        finally:
            self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        with self._guard:
            usable = not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE
            if usable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


# Text in PostgreSQL: neither text nor JSON there can contain a NUL, so it is escaped.
#
# Programs do write NULs, into output and tags. A NUL is stored as SUB and `0`, a SUB as SUB and `1`: reading
# returns exactly what was written, and equal texts stay equal.

_NUL, _SUB = "\x00", "\x1a"
_SPELT = {_NUL: _SUB + "0", _SUB: _SUB + "1"}
_MEANT = {spelt: meant for meant, spelt in _SPELT.items()}
_TO_SPELL = re.compile("[\x00\x1a]")
_TO_READ = re.compile("\x1a[01]")
# In JSON both are escape sequences already. An even number of backslashes before one are themselves escaped.
_JSON_TO_SPELL = re.compile(r"(?<!\\)((?:\\\\)*)\\u(0000|001[aA])")
_JSON_TO_READ = re.compile(r"(?<!\\)((?:\\\\)*)\\u(001[aA])([01])")


def stored_text(text: str) -> str:
    """Encode a text for storage."""
    if _NUL in text or _SUB in text:
        return _TO_SPELL.sub(lambda found: _SPELT[found[0]], text)
    return text


def loaded_text(stored: str) -> str:
    """Decode a stored text."""
    return _TO_READ.sub(lambda found: _MEANT[found[0]], stored) if _SUB in stored else stored


def stored_json(text: str) -> str:
    """Encode a JSON text for storage: the same document with encoded strings."""
    if "\\u00" not in text:
        return text
    return _JSON_TO_SPELL.sub(lambda found: found[1] + ("\\u001a0" if found[2] == "0000" else f"\\u{found[2]}1"), text)


def loaded_json(stored: str) -> str:
    """Decode a stored JSON text."""
    if "\\u001" not in stored:
        return stored
    return _JSON_TO_READ.sub(lambda found: found[1] + ("\\u0000" if found[3] == "0" else f"\\u{found[2]}"), stored)
