"""One transaction of the PostgreSQL journal: reads rows by key, and writes rows in batches, one statement each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals.postgres.connection import (
    Connection,
    loaded_json,
    loaded_text,
    stored_json,
    stored_text,
)
from pilotage.adapters.journals.postgres.schema import JSON_COLUMNS, PackageRecord, column_types, table_of
from pilotage.adapters.journals.queries import find_statement, remove_statement
from pilotage.book.rows import rows
from pilotage.book.rows.fast_rows import begun_rows, ended_rows
from pilotage.book.rows.ledger import Changes, EventLookup, PackageKey
from pilotage.book.rows.rows import EventRow, PackageRow, ParkedRow, Row, read_facts, written_facts
from pilotage.book.rows.tables import PACKAGE_KEY
from pilotage.book.statistics import statistics

# Rows to and from PostgreSQL: a batch is one JSON document, so that one statement carries any number of rows.

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
    return PackageRow(job_id, stage, line, number, read_facts(loaded_json(facts)))


def insert(connection: Connection, changed: Sequence[Row], *, schema: str = "") -> None:
    """Insert or replace rows of one table by key; an existing event is an error."""
    if changed:
        connection.execute(_insert_statement(type(changed[0]), schema), (document(changed),))


def copy_events(connection: Connection, events: Iterable[Sequence[Any]], *, schema: str = "") -> None:
    """Append events, given as column values."""
    columns = ", ".join(EventRow.__struct_fields__)
    target = f"{schema}.events" if schema else "events"
    with connection.cursor() as cursor, cursor.copy(f"COPY {target} ({columns}) FROM STDIN".encode()) as copy:
        for event in events:
            # Only the payload may contain a NUL: names and types were validated.
            copy.write_row((*event[:-1], stored_json(event[-1])))


def select(
    connection: Connection, row: type[AnyRow], by: tuple[str, ...], keys: Collection[tuple[Any, ...]], where: str = ""
) -> Iterator[AnyRow]:
    """The rows of a table with one of some keys, in one statement."""
    table = table_of(row)
    for found in by_keys(connection, table.name, table.columns, by, keys, where):
        yield loaded_row(row, found)


def by_keys(
    connection: Connection,
    table: str,
    columns: tuple[str, ...],
    by: tuple[str, ...],
    keys: Collection[tuple[Any, ...]],
    where: str = "",
) -> list[tuple[Any, ...]]:
    """Columns of the rows with one of some keys."""
    if not keys:
        return []
    wanted = [
        {f"k{at}": stored_text(value) if type(value) is str else value for at, value in enumerate(key)} for key in keys
    ]
    kinds = tuple("text" if type(value) is str else "bigint" for value in next(iter(keys)))
    statement = _select_statement(table, columns, by, kinds, where)
    return connection.execute(statement, (_encode(wanted).decode(),)).fetchall()


def loaded_row(row: type[AnyRow], found: Sequence[Any]) -> AnyRow:
    """A row from its column values."""
    table = table_of(row)
    json = JSON_COLUMNS.get(table.name, set())
    values = {}
    for column, value in zip(table.columns, found, strict=True):
        if type(value) is str:
            values[column] = loaded_json(value) if column in json else loaded_text(value)
        else:
            values[column] = value
    return row(**values)


def document(changed: Sequence[Row]) -> str:
    """Rows of one table as a JSON text whose strings PostgreSQL can store."""
    text = _encode(changed)
    # Control characters are escape sequences by now, also in nested JSON: without one there is nothing to encode.
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
    # In JSON bytes are base64; a JSON column is sent as a string, which `json_to_recordset` would quote again.
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


LedgerRow = TypeVar("LedgerRow", bound=rows.Row)

_PACKAGES = f"SELECT {', '.join(PACKAGE_COLUMNS)} FROM package_facts"


class PostgresLedger:
    """An open transaction of the one writer."""

    def __init__(self, connection: Connection) -> None:
        """Use a connection with an open transaction."""
        self._connection = connection
        self._counters: dict[str, int] | None = None
        self._counted: set[str] = set()

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[rows.StreamRow]:
        """The known streams among some (source, stream)."""
        return select(self._connection, rows.StreamRow, ("source", "stream"), names)

    def jobs(self, jobs: Collection[str]) -> Iterable[rows.JobRow]:
        """The known jobs among some ids."""
        return select(self._connection, rows.JobRow, ("job",), [(job,) for job in jobs])

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[rows.StageRow]:
        """The known stages among some (job_id, stage)."""
        return select(self._connection, rows.StageRow, ("job_id", "stage"), keys)

    def stages_of(self, job_id: int) -> list[rows.StageRow]:
        """Every stage of a job."""
        return list(select(self._connection, rows.StageRow, ("job_id",), [(job_id,)]))

    def packages(self, keys: Collection[PackageKey]) -> Iterable[rows.PackageRow]:
        """The packages among some that have a row."""
        return map(package_of, by_keys(self._connection, "package_facts", PACKAGE_COLUMNS, PACKAGE_KEY, keys))

    def packages_of(self, job_id: int, *, stage: int) -> list[rows.PackageRow]:
        """The packages of a stage that have a row."""
        return self._packages(f"{_PACKAGES} WHERE job_id = %s AND stage = %s", (job_id, stage))

    def idle_packages(self, job_id: int) -> list[rows.PackageRow]:
        """The packages of a job with a row, without a final fact, and without a queued or running attempt."""
        return self._packages(
            f"{_PACKAGES} WHERE job_id = %s AND state NOT IN ('SCHEDULED', 'RUNNING', 'DONE', 'CLEARED')"
            " AND facts ->> 'cancelled_at' IS NULL AND facts ->> 'aborted_at' IS NULL",
            (job_id,),
        )

    def _packages(self, statement: str, parameters: Sequence[Any]) -> list[rows.PackageRow]:
        return [package_of(found) for found in self._connection.execute(statement.encode(), parameters)]

    def pilots(self, names: Collection[str]) -> Iterable[rows.PilotRow]:
        """The known pilots among some."""
        return select(self._connection, rows.PilotRow, ("pilot",), [(name,) for name in names])

    def nodes(self, names: Collection[str]) -> Iterable[rows.NodeRow]:
        """The known nodes among some."""
        return select(self._connection, rows.NodeRow, ("node",), [(name,) for name in names])

    def sites(self, names: Collection[str]) -> Iterable[rows.SiteRow]:
        """The known sites among some."""
        return select(self._connection, rows.SiteRow, ("site",), [(name,) for name in names])

    def stored(self, wanted: Collection[EventLookup]) -> Iterable[rows.EventRow | rows.ParkedRow]:
        """The stored events among some, parked ones too."""
        identities = {(one.stream_id, one.n) for one in wanted}
        yield from select(self._connection, rows.ParkedRow, ("stream_id", "n"), identities)
        plain = {(one.stream_id, one.n) for one in wanted if one.package is None}
        yield from select(self._connection, rows.EventRow, ("stream_id", "n"), plain, where="t.stage = 0")
        packages = self.packages({one.package for one in wanted if one.package is not None})
        positions = {(position,) for row in packages for position in row.facts.positions}
        for event in select(self._connection, rows.EventRow, ("position",), positions):
            if (event.stream_id, event.n) in identities:
                yield event

    def parked(self, job: str) -> list[rows.ParkedRow]:
        """The parked events of an unregistered job, in the order of their identities."""
        found = select(self._connection, rows.ParkedRow, ("job",), [(job,)])
        return sorted(found, key=lambda row: (row.stream_id, row.n))

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[rows.StatisticRow]:
        """The existing slices of statistics among some (width_seconds, slice, site, activity)."""
        return select(self._connection, rows.StatisticRow, ("width_seconds", "slice", "site", "activity"), keys)

    def next_stream_id(self) -> int:
        """An unused stream id."""
        return self._next("stream_id")

    def next_job_id(self) -> int:
        """An unused job id."""
        return self._next("job_id")

    def position(self) -> int:
        """The position of the last event."""
        return self._loaded()["position"]

    def advance(self, position: int) -> None:
        """Raise the last position to this one, if it is lower."""
        if position > self.position():
            self._set("position", position)

    def write(self, changes: Changes) -> None:
        """Insert or replace all rows by key, and add observations to existing statistics."""
        counted = [*changes.statistics, *statistics.statistic_rows(self, changes.observed)]
        if position := changes.last_position:
            copy_events(self._connection, changes.all_events())
            self._set("position", position)
        records = [record_of(row) for row in changes.packages]
        ended = chain(changes.lived_packages.items(), changes.ended_packages.items())
        records += [PackageRecord(*row) for row in chain(begun_rows(changes.begun_packages.items()), ended_rows(ended))]
        insert(self._connection, records)
        if changes.unparked:
            self._connection.execute("DELETE FROM parked WHERE job = ANY(%s)", (changes.unparked,))
        for group in (
            changes.streams, changes.jobs, changes.stages, changes.pilots, changes.nodes, changes.sites, changes.tags,
            changes.cached_files, changes.knowledge, changes.parked, counted,
        ):  # fmt: skip
            insert(self._connection, group)
        if counted:
            self._forget_statistics(changes.received)
        if changes.forgotten:
            self._connection.execute(
                "UPDATE counters SET value = value + %s WHERE name = 'forgotten'", (changes.forgotten,)
            )

    def find_rows(
        self,
        row: type[LedgerRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[LedgerRow]:
        """Rows with these values, in the order of the table's key; after a whole key, if given."""
        statement, values = find_statement(row, having=having, after=after, limit=limit, mark="%s")
        return [
            loaded_row(row, found) for found in self._connection.execute(statement.encode(), _stored_values(values))
        ]

    def rows_by_keys(
        self, row: type[LedgerRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[LedgerRow]:
        """The rows among some keys, given as values of some columns; in any order."""
        return select(self._connection, row, by, keys)

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Insert or replace rows of one table by key."""
        insert(self._connection, changed)

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; only up to and including a whole key, if given."""
        statement, values = remove_statement(row, having=having, through=through, mark="%s")
        self._connection.execute(statement.encode(), _stored_values(values))

    def finish(self) -> None:
        """Write the changed counters; the last step before the commit."""
        if self._counted:
            changed = [(value, name) for name, value in self._loaded().items() if name in self._counted]
            values, names = zip(*changed, strict=True)
            self._connection.execute(
                "UPDATE counters AS c SET value = u.value FROM unnest(%s::bigint[], %s::text[]) AS u(value, name)"
                " WHERE c.name = u.name",
                (list(values), list(names)),
            )
            self._counted.clear()

    def _forget_statistics(self, now: float) -> None:
        for width, seconds in statistics.KEPT_SECONDS.items():
            oldest = int(now - seconds) // width
            self._connection.execute("DELETE FROM statistics WHERE width_seconds = %s AND slice < %s", (width, oldest))

    def _loaded(self) -> dict[str, int]:
        if self._counters is None:
            self._counters = dict(self._connection.execute("SELECT name, value FROM counters").fetchall())
        return self._counters

    def _next(self, counter: str) -> int:
        return self._set(counter, self._loaded()[counter] + 1)

    def _set(self, counter: str, value: int) -> int:
        self._loaded()[counter] = value
        self._counted.add(counter)
        return value


def _stored_values(values: Sequence[Any]) -> list[Any]:
    return [stored_text(value) if type(value) is str else value for value in values]
