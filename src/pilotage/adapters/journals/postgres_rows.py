"""Rows as PostgreSQL takes them and gives them: a batch is one JSON document, so that a statement carries any number of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals.postgres_connection import Connection
from pilotage.adapters.journals.postgres_schema import JSON_COLUMNS, PackageRecord, column_types, table_of
from pilotage.adapters.journals.postgres_text import stored_json, stored_text, told_json, told_text
from pilotage.book.rows import EventRow, PackageRow, ParkedRow, Row, read_facts, written_facts

AnyRow = TypeVar("AnyRow", bound=Row)

PACKAGE_COLUMNS = ("job_id", "stage", "line", "number", "facts")

_encode = msgspec.json.Encoder().encode


def record_of(row: PackageRow) -> PackageRecord:
    """A package as a row of its table."""
    facts = row.facts
    return PackageRecord(row.job_id, row.stage, row.line, row.number, facts.state, facts.site, written_facts(facts))


def package_of(found: Sequence[Any]) -> PackageRow:
    """A package from `PACKAGE_COLUMNS`."""
    job_id, stage, line, number, facts = found
    return PackageRow(job_id, stage, line, number, read_facts(told_json(facts)))


def insert(connection: Connection, changed: Sequence[Row], *, schema: str = "") -> None:
    """Put rows of one table in place of those with the same keys; an event that is there already is a fault."""
    if changed:
        connection.execute(_insert_statement(type(changed[0]), schema), (document(changed),))


def copy_events(connection: Connection, events: Iterable[Sequence[Any]], *, schema: str = "") -> None:
    """Append events, given as the values of their columns."""
    columns = ", ".join(EventRow.__struct_fields__)
    target = f"{schema}.events" if schema else "events"
    with connection.cursor() as cursor, cursor.copy(f"COPY {target} ({columns}) FROM STDIN".encode()) as copy:
        for event in events:
            # Only the payload may hold a NUL: names and types were held against their patterns.
            copy.write_row((*event[:-1], stored_json(event[-1])))


def select(
    connection: Connection, row: type[AnyRow], by: tuple[str, ...], keys: Collection[tuple[Any, ...]], where: str = ""
) -> Iterator[AnyRow]:
    """The rows of a table that have one of some keys, in one statement."""
    table = table_of(row)
    for found in by_keys(connection, table.name, table.columns, by, keys, where):
        yield told_row(row, found)


def by_keys(
    connection: Connection,
    table: str,
    columns: tuple[str, ...],
    by: tuple[str, ...],
    keys: Collection[tuple[Any, ...]],
    where: str = "",
) -> list[tuple[Any, ...]]:
    """Columns of the rows that have one of some keys."""
    if not keys:
        return []
    wanted = [
        {f"k{at}": stored_text(value) if type(value) is str else value for at, value in enumerate(key)} for key in keys
    ]
    kinds = tuple("text" if type(value) is str else "bigint" for value in next(iter(keys)))
    statement = _select_statement(table, columns, by, kinds, where)
    return connection.execute(statement, (_encode(wanted).decode(),)).fetchall()


def told_row(row: type[AnyRow], found: Sequence[Any]) -> AnyRow:
    """A row from the values of its columns."""
    table = table_of(row)
    json = JSON_COLUMNS.get(table.name, set())
    values = {}
    for column, value in zip(table.columns, found, strict=True):
        if type(value) is str:
            values[column] = told_json(value) if column in json else told_text(value)
        else:
            values[column] = value
    return row(**values)


def document(changed: Sequence[Row]) -> str:
    """Rows of one table as a JSON text whose strings PostgreSQL can keep."""
    text = _encode(changed)
    # Every control character is an escape by now, in JSON within JSON as well: without one there is nothing to do.
    if b"\\u00" in text:
        json = JSON_COLUMNS.get(table_of(type(changed[0])).name, set())
        text = _encode([_stored(row, json) for row in changed])
    return text.decode()


def _stored(row: Row, json: set[str]) -> dict[str, Any]:
    return {
        name: (stored_json(value) if name in json else stored_text(value)) if type(value) is str else value
        for name, value in msgspec.structs.asdict(row).items()
    }


@lru_cache(maxsize=64)
def _insert_statement(row: type[Row], schema: str) -> bytes:
    table = table_of(row)
    types = {column: kind.removesuffix(" NOT NULL") for column, kind in column_types(table).items()}
    # In JSON bytes are base64; a JSON column comes as a string of JSON, which `json_to_recordset` would quote again.
    given = [f"{column} {'text' if kind in ('bytea', 'json') else kind}" for column, kind in types.items()]
    taken = [_taken(column, kind) for column, kind in types.items()]
    target = f"{schema}.{table.name}" if schema else table.name
    statement = (
        f"INSERT INTO {target} ({', '.join(types)}) SELECT {', '.join(taken)}"
        f" FROM json_to_recordset(%s::json) AS r({', '.join(given)})"
    )
    if row not in (EventRow, ParkedRow):
        sets = ", ".join(f"{column} = excluded.{column}" for column in types if column not in table.key)
        statement += f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {sets}"
    return statement.encode()


def _taken(column: str, kind: str) -> str:
    if kind == "bytea":
        return f"decode(r.{column}, 'base64')"
    return f"r.{column}::json" if kind == "json" else f"r.{column}"


@lru_cache(maxsize=256)
def _select_statement(
    table: str, columns: tuple[str, ...], by: tuple[str, ...], kinds: tuple[str, ...], where: str
) -> bytes:
    given = ", ".join(f"k{at} {kind}" for at, kind in enumerate(kinds))
    on = " AND ".join(f"t.{column} = k.k{at}" for at, column in enumerate(by))
    wanted = ", ".join(f"t.{column}" for column in columns)
    also = f" WHERE {where}" if where else ""
    return f"SELECT {wanted} FROM json_to_recordset(%s::json) AS k({given}) JOIN {table} AS t ON {on}{also}".encode()
