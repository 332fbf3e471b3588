"""Opening a book in PostgreSQL: its schema is made, brought up to date, or refused because a newer pilotage made it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from psycopg import sql

from pilotage.adapters.journals.postgres_connection import Connection, schema_of
from pilotage.adapters.journals.postgres_schema import ATTEMPTS_OF, MAKE_ATTEMPTS_OF, Migration, wanted_indexes
from pilotage.book.query import ATTRIBUTES
from pilotage.ports import JournalError

SEALED = "sealed"


class Schemas(msgspec.Struct, frozen=True):
    """The two schemas of a book, as SQL writes them: what is live, and what belongs to sealed jobs."""

    live: str
    sealed: str


def schemas_of(connection: Connection, *, where: str) -> Schemas:
    """The schemas of the book that a connection is about. Beside `public` it is `sealed`, beside another `NAME_sealed`."""
    live = schema_of(connection, where=where)
    sealed = SEALED if live == "public" else f"{live}_{SEALED}"
    return Schemas(*(sql.Identifier(name).as_string(connection) for name in (live, sealed)))


def prepare(
    connection: Connection, schemas: Schemas, *, indexed: frozenset[str], migrations: Sequence[Migration], where: str
) -> None:
    """Bring the schema to the newest version, within a transaction of the writer; make and drop indexes as is wanted."""
    found = version_of(connection, schemas)
    newest = migrations[-1].version
    if found > newest:
        raise JournalError(
            "the book was written by a newer pilotage",
            subject=where,
            expected=f"schema {newest} or older",
            got=f"schema {found}",
            next_step="use the newer pilotage, or dump the jobs with it and load them here",
        )
    if found == 0:
        connection.execute(_made("CREATE TABLE {schema}.schema_version (version bigint NOT NULL)", schemas))
        connection.execute(_made("INSERT INTO {schema}.schema_version VALUES (0)", schemas))
    for migration in migrations:
        if migration.version > found:
            for statement in migration.statements:
                connection.execute(_made(statement, schemas))
            connection.execute(_made("UPDATE {schema}.schema_version SET version = %s", schemas), (migration.version,))
    _index(connection, schemas, indexed)


def version_of(connection: Connection, schemas: Schemas) -> int:
    """The version of the schema of a book; 0 where there is none."""
    exists = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schemas.live}.schema_version",)).fetchone()
    if exists is None or not exists[0]:
        return 0
    found = connection.execute(_made("SELECT version FROM {schema}.schema_version", schemas)).fetchone()
    return int(found[0]) if found is not None else 0


def _index(connection: Connection, schemas: Schemas, indexed: frozenset[str]) -> None:
    possible = wanted_indexes(frozenset(ATTRIBUTES))
    wanted = wanted_indexes(indexed)
    named = connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
    existing = {name for (name,) in named}
    for name in sorted(existing & possible.keys() - wanted.keys()):
        connection.execute(_made(f"DROP INDEX {{schema}}.{name}", schemas))
    _count_attempts(connection, schemas, is_wanted="attempts" in indexed)
    for name in sorted(wanted.keys() - existing):
        connection.execute(_made(wanted[name], schemas))


def _count_attempts(connection: Connection, schemas: Schemas, *, is_wanted: bool) -> None:
    function = ATTEMPTS_OF.format(schema=schemas.live)
    found = connection.execute("SELECT to_regprocedure(%s) IS NOT NULL", (function,)).fetchone()
    is_there = found is not None and bool(found[0])
    if is_wanted and not is_there:
        connection.execute(_made(MAKE_ATTEMPTS_OF, schemas))
    elif is_there and not is_wanted:
        connection.execute(_made(f"DROP FUNCTION {ATTEMPTS_OF}", schemas))


def _made(statement: str, schemas: Schemas) -> bytes:
    return statement.format(schema=schemas.live, sealed=schemas.sealed).encode()
