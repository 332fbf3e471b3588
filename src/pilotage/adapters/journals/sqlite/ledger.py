"""One transaction of the SQLite journal: reads rows by key, and writes rows in batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import chain
from operator import attrgetter, iadd
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from pilotage.adapters.journals.queries import find_statement, remove_statement
from pilotage.book.rows import rows
from pilotage.book.rows.fast_rows import BegunLife, begun_rows, ended_rows
from pilotage.book.rows.ledger import PLAIN_COLUMNS, USUAL, Changes, EventLookup, PackageKey
from pilotage.book.rows.rows import (
    JobRow,
    PackageRow,
    Row,
    StageRow,
    StatisticRow,
    StreamRow,
    read_facts,
    written_facts,
)
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.book.statistics import statistics
from pilotage.model.states import FINAL_NAMES

# The writer's cache between transactions: rows that it soon needs again, and where there are certainly none.
#
# It keeps only packages that are not final, a bounded number of rows, and no large ones: memory does not grow with the
# book.

ROWS_MAX = 8192
TEXT_MAX = 4096  # a row with more text is not cached
STAGES_MAX = 4096
KEPT_MAX = 1024  # cached rows of each table in `KEPT`

AnyRow = TypeVar("AnyRow", bound=Row)

KEPT: dict[type[Row], tuple[str, ...]] = {
    JobRow: ("job",),
    StageRow: ("job_id", "stage"),
    StreamRow: ("source", "stream"),
    StatisticRow: ("width_seconds", "slice", "site", "activity"),
}
"""Rows that nearly every batch reads and changes, and the columns that they are read by."""
_key_of: dict[type[Row], Callable[[Row], Any]] = {kind: attrgetter(*by) for kind, by in KEPT.items()}
_long_of: dict[type[Row], Callable[[Row], tuple[str | bytes, ...]]] = {
    JobRow: attrgetter("lists", "growth", "access", "tags", "keys", "healing", "activities"),
    StageRow: attrgetter("shape", "keys"),
    StreamRow: attrgetter("stream", "ahead"),
    StatisticRow: attrgetter("activity", "sketch"),
}


class RowCache:
    """A cache of packages in flight, of rows that every batch changes, and of the last place with a row in some stages."""

    def __init__(self, *, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._rows: dict[PackageKey, PackageRow] = {}
        self.begun: dict[PackageKey, BegunLife] = {}  # short lives that have not ended
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._kept: dict[type[Row], dict[Any, Row]] = {kind: {} for kind in KEPT}
        self.position: int | None = None  # of the last event, if known
        self.oldest: dict[int, int] = {}  # the first slice of each width; there are none before

    def kept(self, kind: type[AnyRow], keys: Collection[tuple[Any, ...]]) -> tuple[list[AnyRow], list[tuple[Any, ...]]]:
        """Cached rows of a table in `KEPT`, as copies that may be changed, and the keys of the others."""
        here, wanted = self._kept[kind], []
        found: list[Any] = []
        for key in keys:
            row = here.get(key if len(key) > 1 else key[0])
            if row is None:
                wanted.append(key)
            else:
                found.append(msgspec.structs.replace(row))
        return found, wanted

    def before(self, row: Row) -> Row | None:
        """The stored version of a row of a table in `KEPT`, if cached."""
        kind = type(row)
        return self._kept[kind].get(_key_of[kind](row))

    def keep(self, changed: Iterable[Row]) -> None:
        """Cache written rows of a table in `KEPT`, unless they are large; they must not change any more."""
        for row in changed:
            kind = type(row)
            here, key = self._kept[kind], _key_of[kind](row)
            if sum(map(len, _long_of[kind](row))) > TEXT_MAX:
                here.pop(key, None)
                continue
            if len(here) >= KEPT_MAX:
                here.clear()
            here[key] = row

    def forget(self, kind: type[Row]) -> None:
        """Drop the cached rows of a table: some may have been removed."""
        if kind in self._kept:
            self._kept[kind].clear()

    def split(
        self, keys: Collection[PackageKey], last_of: Callable[[int, int], tuple[int, int]]
    ) -> tuple[list[PackageRow], list[PackageKey]]:
        """The cached rows, and the keys to look up; keys beyond the last row of a stage have none."""
        here, wanted = [], []
        rows, last = self._rows, self._last
        where, last_line, last_number = (0, 0), 0, 0
        for key in keys:
            if rows and (row := rows.get(key)) is not None:
                here.append(row)
                continue
            job_id, stage, line, number = key
            if stage != where[1] or job_id != where[0]:
                where = (job_id, stage)
                end = last.get(where)
                if end is None:
                    if len(last) >= STAGES_MAX:
                        last.clear()
                    end = last[where] = last_of(job_id, stage)
                last_line, last_number = end
            if line < last_line or (line == last_line and number <= last_number):
                wanted.append(key)
        return here, wanted

    def written(self, changed: Iterable[PackageRow], lengths: Iterable[int]) -> None:
        """Cache written rows, given the length of their facts; final or large ones are dropped."""
        rows, begun, last = self._rows, self.begun, self._last
        for row, length in zip(changed, lengths, strict=True):
            key = (row.job_id, row.stage, row.line, row.number)
            if length > TEXT_MAX or row.facts.state in FINAL_NAMES:
                rows.pop(key, None)
            else:
                rows[key] = row
            begun.pop(key, None)
            if (end := last.get(key[:2])) is not None and key[2:] > end:
                last[key[:2]] = key[2:]
        self._let_go(rows)

    def written_short(
        self, begun: Mapping[PackageKey, BegunLife], lived: Iterable[PackageKey], ended: Iterable[PackageKey]
    ) -> None:
        """The same for short lives: those with a new row, begun or lived at once, and those that ended."""
        last, where, end = self._last, (0, 0), None
        for job_id, stage, line, number in chain(begun, lived):  # mostly runs of one stage
            if stage != where[1] or job_id != where[0]:
                where = (job_id, stage)
                end = last.get(where)
            if end is not None and (line > end[0] or (line == end[0] and number > end[1])):
                end = last[where] = (line, number)
        let_go = self.begun.pop
        for key in ended:
            let_go(key, None)
        self.begun |= begun
        self._let_go(self.begun)

    def _let_go(self, rows: dict[PackageKey, PackageRow] | dict[PackageKey, BegunLife]) -> None:
        if len(rows) > self._rows_max:
            for key in list(rows)[: len(rows) - self._rows_max]:
                del rows[key]

    def clear(self) -> None:
        """Drop everything: a transaction was rolled back, or rows were changed otherwise."""
        self._rows.clear()
        self.begun.clear()
        self._last.clear()
        self.oldest.clear()
        for here in self._kept.values():
            here.clear()
        self.position = None


LedgerRow = TypeVar("LedgerRow", bound=rows.Row)

Statements = dict[int, str]
"""One statement per number of rows that it writes, largest first."""


def _statements(insert: str, row: str, or_else: str = "") -> Statements:
    """Statements that write many rows: one execution for all of them."""
    return {count: f"{insert} VALUES {', '.join([row] * count)} {or_else}" for count in (100, 10, 1)}


# An update does not touch indexes on columns that it does not set; a replace would write them all.
_PACKAGE = ("INSERT INTO package_facts", "(?, ?, ?, ?, ?, ?, ?)")
# OR ROLLBACK: an error rolls the transaction back anyway, so the statement need not journal its own changes.
_BEGIN_LIVES = _statements("INSERT OR ROLLBACK INTO package_facts", "(?, ?, ?, ?, ?, ?, ?)")
_ON_CONFLICT = "ON CONFLICT (job_id, stage, line, number) DO UPDATE SET state = excluded.state, facts = excluded.facts"
_PUT_PACKAGES = _statements(*_PACKAGE, f"{_ON_CONFLICT}, site = excluded.site")
_END_LIVES = _statements(*_PACKAGE, _ON_CONFLICT)  # the site of a short life stays the same
_WHICH = "WHERE job_id = ? AND stage = ? AND line = ? AND number = ?"
_MOVE_PACKAGE = f"UPDATE package_facts SET state = ?, facts = ? {_WHICH}"
_KEEP_PACKAGE = f"UPDATE package_facts SET facts = ? {_WHICH}"

# Usual values are literals in the statement: each bound value costs time, and None most of all, since Python first
# looks for an adapter.
# The time of receipt is bound once per statement.
_PLAIN = ", ".join(
    [*("NULL" if value is None else str(value) for value in USUAL.values()), "?1", *("?" * len(PLAIN_COLUMNS))]
)
_PUT_PLAINS = _statements(f"INSERT INTO events ({', '.join((*USUAL, 'received', *PLAIN_COLUMNS))})", f"({_PLAIN})")
_KEYS_AT_ONCE = 200  # keys per statement: a constant number keeps the text the same, and it is parsed once


class SqliteLedger:
    """An open transaction of the one writer."""

    def __init__(self, connection: sqlite3.Connection, cache: RowCache | None = None) -> None:
        """Use a connection with an open transaction; `cache` must be cleared if it is rolled back."""
        self._connection = connection
        self._cache = cache if cache is not None else RowCache()

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[rows.StreamRow]:
        """The known streams among some (source, stream)."""
        return self._select(rows.StreamRow, ("source", "stream"), names)

    def jobs(self, jobs: Collection[str]) -> Iterable[rows.JobRow]:
        """The known jobs among some ids."""
        return self._select(rows.JobRow, ("job",), [(job,) for job in jobs])

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[rows.StageRow]:
        """The known stages among some (job_id, stage)."""
        return self._select(rows.StageRow, ("job_id", "stage"), keys)

    def stages_of(self, job_id: int) -> list[rows.StageRow]:
        """Every stage of a job."""
        return list(self._select(rows.StageRow, ("job_id",), [(job_id,)]))

    def begun_packages(self) -> Mapping[PackageKey, BegunLife]:
        """Cached packages whose short life has begun and not ended."""
        return self._cache.begun

    def packages(self, keys: Collection[PackageKey]) -> Iterable[PackageRow]:
        """The packages among some that have a row."""
        columns = ("job_id", "stage", "line", "number", "facts")
        here, wanted = self._cache.split(keys, self._last_place)
        found = _by_keys(self._connection, "package_facts", columns, columns[:4], wanted)
        here += [_package(*values) for values in found]
        return here

    def _last_place(self, job_id: int, stage: int) -> tuple[int, int]:
        found = self._connection.execute(
            "SELECT line, number FROM package_facts WHERE job_id = ? AND stage = ? ORDER BY line DESC, number DESC LIMIT 1",
            (job_id, stage),
        ).fetchone()
        return (found[0], found[1]) if found is not None else (0, 0)

    def packages_of(self, job_id: int, *, stage: int) -> list[PackageRow]:
        """The packages of a stage that have a row."""
        found = self._connection.execute(
            "SELECT job_id, stage, line, number, facts FROM package_facts WHERE job_id = ? AND stage = ?",
            (job_id, stage),
        )
        return [_package(*values) for values in found]

    def idle_packages(self, job_id: int) -> list[PackageRow]:
        """The packages of a job with a row, without a final fact, and without a queued or running attempt."""
        found = self._connection.execute(
            "SELECT job_id, stage, line, number, facts FROM package_facts"
            " WHERE job_id = ? AND state NOT IN ('SCHEDULED', 'RUNNING', 'DONE', 'CLEARED')"
            " AND facts ->> 'cancelled_at' IS NULL AND facts ->> 'aborted_at' IS NULL",
            (job_id,),
        )
        return [_package(*values) for values in found]

    def pilots(self, names: Collection[str]) -> Iterable[rows.PilotRow]:
        """The known pilots among some."""
        return self._select(rows.PilotRow, ("pilot",), [(name,) for name in names])

    def nodes(self, names: Collection[str]) -> Iterable[rows.NodeRow]:
        """The known nodes among some."""
        return self._select(rows.NodeRow, ("node",), [(name,) for name in names])

    def sites(self, names: Collection[str]) -> Iterable[rows.SiteRow]:
        """The known sites among some."""
        return self._select(rows.SiteRow, ("site",), [(name,) for name in names])

    def stored(self, wanted: Collection[EventLookup]) -> Iterable[rows.EventRow | rows.ParkedRow]:
        """The stored events among some, parked ones too."""
        identities = {(one.stream_id, one.n) for one in wanted}
        yield from self._select(rows.ParkedRow, ("stream_id", "n"), identities)
        plain = [(one.stream_id, one.n) for one in wanted if one.package is None]
        yield from self._select(rows.EventRow, ("stream_id", "n"), plain, and_where="t.stage = 0")
        packages = self.packages({one.package for one in wanted if one.package is not None})
        positions = [(position,) for row in packages for position in row.facts.positions]
        for event in self._select(rows.EventRow, ("position",), positions):
            if (event.stream_id, event.n) in identities:
                yield event

    def parked(self, job: str) -> list[rows.ParkedRow]:
        """The parked events of an unregistered job."""
        return list(self._select(rows.ParkedRow, ("job",), [(job,)]))

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[rows.StatisticRow]:
        """The existing slices of statistics among some (width_seconds, slice, site, activity)."""
        return self._select(rows.StatisticRow, ("width_seconds", "slice", "site", "activity"), keys)

    def next_stream_id(self) -> int:
        """An unused stream id."""
        return self._next("stream_id")

    def next_job_id(self) -> int:
        """An unused job id."""
        return self._next("job_id")

    def position(self) -> int:
        """The position of the last event."""
        if self._cache.position is None:
            found = self._connection.execute("SELECT value FROM counters WHERE name = 'position'").fetchone()
            self._cache.position = int(found[0])
        return self._cache.position

    def advance(self, position: int) -> None:
        """Raise the last position to this one, if it is lower."""
        if position > self.position():
            self._go_on_from(position)

    def write(self, changes: Changes) -> None:
        """Insert or replace all rows by key, and add observations to existing statistics."""
        counted = [*changes.statistics, *statistics.statistic_rows(self, changes.observed)]
        if position := changes.last_position:
            self._put_plain(changes.plain_events.values(), changes.received)
            self._each(_insert_statement(rows.EventRow), changes.events)
            self._go_on_from(position)
        if changes.packages:
            self._put_packages(changes.packages)
        begun, lived, ended = changes.begun_packages, changes.lived_packages, changes.ended_packages
        if begun or lived or ended:
            self._put(begun_rows(begun.items()) + ended_rows(lived.items()), _BEGIN_LIVES)
            self._put(ended_rows(ended.items()), _END_LIVES)
            self._cache.written_short(begun, lived, ended)
        self._each("DELETE FROM parked WHERE job = ?", [(job,) for job in changes.unparked])
        for group in (
            changes.streams, changes.jobs, changes.stages, changes.pilots, changes.nodes, changes.sites, changes.tags,
            changes.cached_files, changes.knowledge, changes.parked, counted,
        ):  # fmt: skip
            self._insert(group)
        if counted:
            self._forget_statistics(changes.received)
        if changes.forgotten:
            self._connection.execute(
                "UPDATE counters SET value = value + ? WHERE name = 'forgotten'", (changes.forgotten,)
            )

    def _go_on_from(self, position: int) -> None:
        self._connection.execute("UPDATE counters SET value = ? WHERE name = 'position'", (position,))
        self._cache.position = position

    def _put_plain(self, values: list[Any], received: float) -> None:
        start, width, first = 0, len(PLAIN_COLUMNS), [received]
        for count, statement in _PUT_PLAINS.items():
            end = len(values) - (len(values) - start) % (count * width)
            self._each(statement, [first + values[at : at + count * width] for at in range(start, end, count * width)])
            start = end

    def _put(self, records: Sequence[tuple[Any, ...]], statements: Statements) -> None:
        start = 0
        for count, statement in statements.items():
            end = len(records) - (len(records) - start) % count
            groups = (records[at : at + count] for at in range(start, end, count))
            self._each(statement, [reduce(iadd, group, []) for group in groups])
            start = end

    def _each(self, statement: str, records: Sequence[Sequence[object]]) -> None:
        if records:  # even an empty execution prepares the statement
            self._connection.executemany(statement, records)

    def _put_packages(self, packages: Sequence[PackageRow]) -> None:
        put: list[tuple[object, ...]] = []
        moved: list[tuple[object, ...]] = []
        kept: list[tuple[object, ...]] = []
        lengths: list[int] = []
        buffer = bytearray(4096)
        for row in packages:
            facts, stored = row.facts, row.stored
            state, site, text = facts.state, facts.site, written_facts(facts, buffer)
            lengths.append(len(text))
            if stored is None or stored[1] != site:
                put.append((row.job_id, row.stage, row.line, row.number, state, site, text))
            elif stored[0] != state:
                moved.append((state, text, row.job_id, row.stage, row.line, row.number))
            else:
                kept.append((text, row.job_id, row.stage, row.line, row.number))
            row.stored = (state, site)
        self._put(put, _PUT_PACKAGES)
        self._each(_MOVE_PACKAGE, moved)
        self._each(_KEEP_PACKAGE, kept)
        self._cache.written(packages, lengths)

    def find_rows(
        self,
        row: type[LedgerRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[LedgerRow]:
        """Rows with these values, in the order of the table's key; after a whole key, if given."""
        statement, parameters = find_statement(row, having=having, after=after, limit=limit, mark="?")
        columns = TABLE_BY_ROW[row].columns
        found = self._connection.execute(statement, parameters)
        return [row(**dict(zip(columns, values, strict=True))) for values in found]

    def rows_by_keys(
        self, row: type[LedgerRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[LedgerRow]:
        """The rows among some keys, given as values of some columns; in any order."""
        return self._select(row, by, keys)

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Insert or replace rows of one table by key."""
        self._insert(changed)

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; only up to and including a whole key, if given."""
        self._connection.execute(*remove_statement(row, having=having, through=through, mark="?"))
        self._cache.forget(row)

    def _forget_statistics(self, now: float) -> None:
        for width, seconds in statistics.KEPT_SECONDS.items():
            oldest = int(now - seconds) // width
            if self._cache.oldest.get(width) == oldest:
                continue
            self._cache.oldest[width] = oldest
            statement = "DELETE FROM statistics WHERE width_seconds = ? AND slice < ?"
            if self._connection.execute(statement, (width, oldest)).rowcount:
                self._cache.forget(rows.StatisticRow)

    def _insert(self, changed: Sequence[rows.Row]) -> None:
        if not changed:
            return
        kind = type(changed[0])
        others = changed
        if kind in KEPT:
            others = [row for row in changed if not self._update(row)]
            self._cache.keep(changed)
        self._each(_insert_statement(kind), [astuple(row) for row in others])

    def _update(self, row: rows.Row) -> bool:
        """Update only the changed columns if the stored row is cached, which spares most indexes; returns whether it was."""
        before = self._cache.before(row)
        if before is None:
            return False
        kind = type(row)
        both = zip(kind.__struct_fields__, astuple(row), astuple(before), strict=True)
        columns = tuple([name for name, now, then in both if now != then])
        if columns:
            values = [getattr(row, name) for name in (*columns, *TABLE_BY_ROW[kind].key)]
            self._connection.execute(_update_statement(kind, columns), values)
        return True

    def _next(self, counter: str) -> int:
        found = self._connection.execute(
            "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value", (counter,)
        ).fetchone()
        return int(found[0])

    def _select(
        self, row: type[LedgerRow], by: tuple[str, ...], keys: Collection[tuple[Any, ...]], and_where: str = ""
    ) -> Iterator[LedgerRow]:
        table = TABLE_BY_ROW[row]
        wanted = list(keys)
        if KEPT.get(row) == by:
            here, wanted = self._cache.kept(row, wanted)
            yield from here
        for found in _by_keys(self._connection, table.name, table.columns, by, wanted, and_where):
            yield row(**dict(zip(table.columns, found, strict=True)))


def _package(job_id: int, stage: int, line: int, number: int, text: str) -> PackageRow:
    facts = read_facts(text)
    return PackageRow(job_id, stage, line, number, facts, stored=(facts.state, facts.site))


@lru_cache(maxsize=256)
def _insert_statement(row: type[rows.Row]) -> str:
    table = TABLE_BY_ROW[row]
    verb = "INSERT" if row in (rows.EventRow, rows.ParkedRow) else "INSERT OR REPLACE"
    places = ", ".join("?" * len(table.columns))
    return f"{verb} INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"


@lru_cache(maxsize=256)
def _update_statement(row: type[rows.Row], columns: tuple[str, ...]) -> str:
    table = TABLE_BY_ROW[row]
    changes = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE {table.name} SET {changes} WHERE {' AND '.join(f'{column} = ?' for column in table.key)}"


@lru_cache(maxsize=1024)
def _select_statement(table: str, columns: tuple[str, ...], by: tuple[str, ...], count: int, and_where: str) -> str:
    values = ", ".join([f"({', '.join('?' * len(by))})"] * count)
    names = ", ".join(f"k{at}" for at in range(len(by)))
    on = " AND ".join(f"t.{column} = k{at}" for at, column in enumerate(by))
    wanted = ", ".join(f"t.{column}" for column in columns)
    where = f" WHERE {and_where}" if and_where else ""
    return f"WITH k({names}) AS (VALUES {values}) SELECT {wanted} FROM k CROSS JOIN {table} AS t ON {on}{where}"


def _by_keys(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    by: tuple[str, ...],
    keys: Sequence[tuple[Any, ...]],
    and_where: str = "",
) -> Iterator[tuple[Any, ...]]:
    """The rows of a table with one of some keys, a few hundred at a time."""
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        statement = _select_statement(table, columns, by, len(some), and_where)
        yield from connection.execute(statement, [value for key in some for value in key])
