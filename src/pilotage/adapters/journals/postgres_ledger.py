"""One transaction of the PostgreSQL journal: rows in by their keys, rows out in batches, each in one statement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from pilotage.adapters.journals.postgres_connection import Connection
from pilotage.adapters.journals.postgres_rows import (
    PACKAGE_COLUMNS,
    by_keys,
    copy_events,
    insert,
    package_of,
    record_of,
    select,
    told_row,
)
from pilotage.adapters.journals.postgres_schema import PackageRecord
from pilotage.adapters.journals.postgres_text import stored_text
from pilotage.adapters.journals.row_statements import find_statement, remove_statement
from pilotage.book import rows, statistics
from pilotage.book.ledger import Changes, PackageKey, Sought
from pilotage.book.short_rows import Begun, begun_rows, ended_rows
from pilotage.book.tables import PACKAGE_KEY

AnyRow = TypeVar("AnyRow", bound=rows.Row)

_PACKAGES = f"SELECT {', '.join(PACKAGE_COLUMNS)} FROM package_facts"


class PostgresLedger:
    """An open transaction of the one writer."""

    def __init__(self, connection: Connection) -> None:
        """Work on a connection on which a transaction was begun."""
        self._connection = connection
        self._counters: dict[str, int] | None = None
        self._counted: set[str] = set()

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[rows.StreamRow]:
        """The streams that are known among some (source, stream)."""
        return select(self._connection, rows.StreamRow, ("source", "stream"), names)

    def streams_at_hand(self) -> None:
        """They are asked for by name."""

    def jobs(self, jobs: Collection[str]) -> Iterable[rows.JobRow]:
        """The jobs that are known among some ids."""
        return select(self._connection, rows.JobRow, ("job",), [(job,) for job in jobs])

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[rows.StageRow]:
        """The stages that are known among some (job_id, stage)."""
        return select(self._connection, rows.StageRow, ("job_id", "stage"), keys)

    def stages_of(self, job_id: int) -> list[rows.StageRow]:
        """Every stage of a job."""
        return list(select(self._connection, rows.StageRow, ("job_id",), [(job_id,)]))

    def packages(self, keys: Collection[PackageKey]) -> Iterable[rows.PackageRow]:
        """The packages that have a row among some."""
        return map(package_of, by_keys(self._connection, "package_facts", PACKAGE_COLUMNS, PACKAGE_KEY, keys))

    def begun_packages(self) -> Mapping[PackageKey, Begun]:
        """None: nothing is remembered between transactions."""
        return {}

    def packages_of(self, job_id: int, *, stage: int) -> list[rows.PackageRow]:
        """Every package of a stage that has a row."""
        return self._packages(f"{_PACKAGES} WHERE job_id = %s AND stage = %s", (job_id, stage))

    def idle_packages(self, job_id: int) -> list[rows.PackageRow]:
        """The packages of a job that have a row, no final fact, and no attempt in a queue or running."""
        return self._packages(
            f"{_PACKAGES} WHERE job_id = %s AND state NOT IN ('SCHEDULED', 'RUNNING', 'DONE', 'CLEARED')"
            " AND facts ->> 'cancelled_at' IS NULL AND facts ->> 'aborted_at' IS NULL",
            (job_id,),
        )

    def _packages(self, statement: str, parameters: Sequence[Any]) -> list[rows.PackageRow]:
        return [package_of(found) for found in self._connection.execute(statement.encode(), parameters)]

    def pilots(self, names: Collection[str]) -> Iterable[rows.PilotRow]:
        """The pilots that are known among some."""
        return select(self._connection, rows.PilotRow, ("pilot",), [(name,) for name in names])

    def nodes(self, names: Collection[str]) -> Iterable[rows.NodeRow]:
        """The nodes that are known among some."""
        return select(self._connection, rows.NodeRow, ("node",), [(name,) for name in names])

    def sites(self, names: Collection[str]) -> Iterable[rows.SiteRow]:
        """The sites that are known among some."""
        return select(self._connection, rows.SiteRow, ("site",), [(name,) for name in names])

    def stored(self, wanted: Collection[Sought]) -> Iterable[rows.EventRow | rows.ParkedRow]:
        """The events that are stored among some, those that are parked too."""
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
        """The events that wait for a job to be registered, in the order of their identities."""
        found = select(self._connection, rows.ParkedRow, ("job",), [(job,)])
        return sorted(found, key=lambda row: (row.stream_id, row.n))

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[rows.StatisticRow]:
        """The slices of statistics that exist among some (width_seconds, slice, site, activity)."""
        return select(self._connection, rows.StatisticRow, ("width_seconds", "slice", "site", "activity"), keys)

    def next_stream_id(self) -> int:
        """A number that no stream has."""
        return self._next("stream_id")

    def next_job_id(self) -> int:
        """A number that no job ever had."""
        return self._next("job_id")

    def position(self) -> int:
        """The position of the last event."""
        return self._loaded()["position"]

    def advance(self, position: int) -> None:
        """Go on from a position, if the last one is lower."""
        if position > self.position():
            self._set("position", position)

    def write(self, changes: Changes) -> None:
        """Put all rows in place of those with the same keys, and add what was observed to those that there are."""
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
            changes.parked, counted,
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
        row: type[AnyRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[AnyRow]:
        """Rows with these values, in the order of the table's key; behind a whole key, where one is given."""
        statement, values = find_statement(row, having=having, after=after, limit=limit, mark="%s")
        return [told_row(row, found) for found in self._connection.execute(statement.encode(), _stored(values))]

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """The rows that there are among some keys, given as the values of some columns; in any order."""
        return select(self._connection, row, by, keys)

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Put rows of one table in place of those with the same keys."""
        insert(self._connection, changed)

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; of those only up to a whole key and with it, where one is given."""
        statement, values = remove_statement(row, having=having, through=through, mark="%s")
        self._connection.execute(statement.encode(), _stored(values))

    def finish(self) -> None:
        """Write the counters that went on; the last thing before the commit."""
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


def _stored(values: Sequence[Any]) -> list[Any]:
    return [stored_text(value) if type(value) is str else value for value in values]
