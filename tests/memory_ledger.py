"""A ledger of plain dictionaries: the simplest store the join can work on, and what any store holds, as one value."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals import sqlite_schema
from pilotage.adapters.journals.recent import Recent
from pilotage.adapters.journals.sqlite_ledger import SqliteLedger
from pilotage.book import rows, statistics
from pilotage.book.codec import Checked, Codec
from pilotage.book.join import Joined, join
from pilotage.book.ledger import Changes, Ledger, PackageKey, Sought
from pilotage.book.rows import (
    EventRow,
    JobRow,
    NodeRow,
    PackageFacts,
    PackageRow,
    ParkedRow,
    PilotRow,
    SiteRow,
    StageRow,
    StatisticRow,
    StreamRow,
    TagRow,
)
from pilotage.book.tables import TABLE_BY_ROW, TABLES

AnyRow = TypeVar("AnyRow", bound=rows.Row)

TABLE_ROWS: dict[type[rows.Row], str] = {table.row: table.name for table in TABLES}


class MemoryLedger:
    """Every table as a dictionary from its key to a row. Rows are copied on the way in and out, as a database would."""

    def __init__(self) -> None:
        """Begin with an empty book."""
        self.tables: dict[str, dict[tuple[Any, ...], Any]] = {table.name: {} for table in TABLES}
        self.package_rows: dict[PackageKey, tuple[str, str]] = {}  # state, facts
        self._last = {"stream_id": 0, "job_id": 0}
        self._position = 0

    def streams(self, names: Collection[tuple[str, str]]) -> Iterable[StreamRow]:
        """The streams that are known among some (source, stream)."""
        return self._where(StreamRow, lambda row: (row.source, row.stream) in names)

    def jobs(self, jobs: Collection[str]) -> Iterable[JobRow]:
        """The jobs that are known among some ids."""
        return self._where(JobRow, lambda row: row.job in jobs)

    def stages(self, keys: Collection[tuple[int, int]]) -> Iterable[StageRow]:
        """The stages that are known among some (job_id, stage)."""
        return self._where(StageRow, lambda row: (row.job_id, row.stage) in keys)

    def stages_of(self, job_id: int) -> list[StageRow]:
        """Every stage of a job."""
        return self._where(StageRow, lambda row: row.job_id == job_id)

    def packages(self, keys: Collection[PackageKey]) -> Iterable[PackageRow]:
        """The packages that have a row among some."""
        return [self._package(key) for key in keys if key in self.package_rows]

    def packages_of(self, job_id: int, *, stage: int) -> list[PackageRow]:
        """Every package of a stage that has a row."""
        return [self._package(key) for key in self.package_rows if key[:2] == (job_id, stage)]

    def idle_packages(self, job_id: int) -> list[PackageRow]:
        """The packages of a job that have a row, no final fact, and no attempt in a queue or running."""
        found = [self._package(key) for key in self.package_rows if key[0] == job_id]
        return [
            row
            for row in found
            if row.facts.state not in ("SCHEDULED", "RUNNING", "DONE", "CLEARED")
            and row.facts.cancelled_at is None
            and row.facts.aborted_at is None
        ]

    def pilots(self, names: Collection[str]) -> Iterable[PilotRow]:
        """The pilots that are known among some."""
        return self._where(PilotRow, lambda row: row.pilot in names)

    def nodes(self, names: Collection[str]) -> Iterable[NodeRow]:
        """The nodes that are known among some."""
        return self._where(NodeRow, lambda row: row.node in names)

    def sites(self, names: Collection[str]) -> Iterable[SiteRow]:
        """The sites that are known among some."""
        return self._where(SiteRow, lambda row: row.site in names)

    def stored(self, wanted: Collection[Sought]) -> Iterable[EventRow | ParkedRow]:
        """The events that are stored among some, those that are parked too."""
        about = {(one.stream_id, one.n): one.package for one in wanted}
        yield from self._where(ParkedRow, lambda row: (row.stream_id, row.n) in about)
        for row in self._where(EventRow, lambda row: (row.stream_id, row.n) in about):
            package = about[row.stream_id, row.n]
            if (row.stage == 0) if package is None else ((row.job_id, row.stage, row.line, row.number) == package):
                yield row

    def parked(self, job: str) -> list[ParkedRow]:
        """The events that wait for a job to be registered."""
        return self._where(ParkedRow, lambda row: row.job == job)

    def statistics(self, keys: Collection[tuple[int, int, str, str]]) -> Iterable[StatisticRow]:
        """The slices of statistics that exist among some (width_seconds, slice, site, activity)."""
        return self._where(StatisticRow, lambda row: (row.width_seconds, row.slice, row.site, row.activity) in keys)

    def next_stream_id(self) -> int:
        """A number that no stream has."""
        return self._next("stream_id")

    def next_job_id(self) -> int:
        """A number that no job ever had."""
        return self._next("job_id")

    def position(self) -> int:
        """The position of the last event."""
        return self._position

    def advance(self, position: int) -> None:
        """Go on from a position, if the last one is lower."""
        self._position = max(self._position, position)

    def write(self, changes: Changes) -> None:
        """Put all rows in place of those with the same keys."""
        events = [as_event_row(event) for event in changes.events]
        identities = {(row.stream_id, row.n) for row in self.tables["events"].values()}
        for event in events:
            assert event.position == self._position + 1, "positions count on by one"
            assert (event.stream_id, event.n) not in identities, "an event is stored once"
            identities.add((event.stream_id, event.n))
            self._position = event.position
        for parked in changes.parked:
            assert (parked.stream_id, parked.n) not in self.tables["parked"], "an event is parked once"
        for row in changes.packages:
            text = rows.written_facts(row.facts)
            self.package_rows[row.job_id, row.stage, row.line, row.number] = (row.facts.state, text)
        groups: list[Sequence[rows.Row]] = [
            events, changes.streams, changes.jobs, changes.stages, changes.pilots, changes.nodes, changes.sites,
            changes.tags, changes.parked, changes.statistics,
        ]  # fmt: skip
        for table in TABLES:
            for group in groups:
                for one in group:
                    if isinstance(one, table.row):
                        key = tuple(getattr(one, column) for column in table.key)
                        self.tables[table.name][key] = msgspec.structs.replace(one)
        for job in changes.unparked:
            gone = [key for key, row in self.tables["parked"].items() if row.job == job]
            for key in gone:
                del self.tables["parked"][key]
        if changes.statistics:
            self._forget_statistics(changes.received)

    def find_rows(
        self,
        row: type[AnyRow],
        *,
        having: Mapping[str, str | int],
        after: tuple[str | int, ...] = (),
        limit: int | None = None,
    ) -> list[AnyRow]:
        """Rows with these values, in the order of the table's key; behind a whole key, where one is given."""
        table = self.tables[TABLE_ROWS[row]]
        found = [table[key] for key in sorted(table) if key > after and _has(table[key], having)]
        return [msgspec.structs.replace(one) for one in found[:limit]]

    def rows_by_keys(
        self, row: type[AnyRow], *, by: tuple[str, ...], keys: Collection[tuple[Any, ...]]
    ) -> Iterable[AnyRow]:
        """The rows that there are among some keys, given as the values of some columns; in any order."""
        return self._where(row, lambda one: tuple(getattr(one, column) for column in by) in keys)

    def put_rows(self, changed: Sequence[rows.Row]) -> None:
        """Put rows of one table in place of those with the same keys."""
        for one in changed:
            table = TABLE_BY_ROW[type(one)]
            key = tuple(getattr(one, column) for column in table.key)
            self.tables[table.name][key] = msgspec.structs.replace(one)

    def remove_rows(
        self, row: type[rows.Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...] = ()
    ) -> None:
        """Remove the rows with these values; of those only up to a whole key and with it, where one is given."""
        table = self.tables[TABLE_ROWS[row]]
        for key in [key for key in table if (not through or key <= through) and _has(table[key], having)]:
            del table[key]

    def _forget_statistics(self, now: float) -> None:
        for width, seconds in statistics.KEPT_SECONDS.items():
            oldest = int(now - seconds) // width
            for key in [key for key in self.tables["statistics"] if key[0] == width and key[1] < oldest]:
                del self.tables["statistics"][key]

    def _where(self, kind: type[AnyRow], wanted: Any) -> list[AnyRow]:
        table = self.tables[TABLE_ROWS[kind]]
        return [msgspec.structs.replace(row) for row in table.values() if wanted(row)]

    def _package(self, key: PackageKey) -> PackageRow:
        return PackageRow(*key, rows.read_facts(self.package_rows[key][1]))

    def _next(self, counter: str) -> int:
        self._last[counter] += 1
        return self._last[counter]


def _has(row: rows.Row, having: Mapping[str, str | int]) -> bool:
    return all(getattr(row, column) == value for column, value in having.items())


def as_event_row(event: EventRow | tuple[Any, ...]) -> EventRow:
    """An event of some changes as a row, whether it was written as one or as a tuple of its columns."""
    if isinstance(event, EventRow):
        return event
    return EventRow(**dict(zip(EventRow.__struct_fields__, event, strict=True)))


class Book:
    """A book in one ledger, and all its rows to look at."""

    def __init__(self, ledger: Ledger) -> None:
        """Keep the book in a ledger."""
        self.ledger = ledger
        self.codec = Codec()

    def take(self, events: Sequence[dict[str, Any]], *, received: float = 0.0) -> Joined:
        """Take a batch in as it would come over the wire; every event must be well formed."""
        checked, refused, _ = self.codec.read_batch(msgspec.json.encode({"events": list(events)}))
        assert refused == [], refused
        return self.keep(checked, received=received)

    def keep(self, checked: Sequence[Checked], *, received: float = 0.0) -> Joined:
        """Join checked events and write what follows."""
        joined = join(self.ledger, checked, received=received, codec=self.codec)
        self.ledger.write(joined.changes)
        return joined

    def rows(self, kind: type[AnyRow]) -> list[AnyRow]:
        """All rows of a table, by their keys."""
        raise NotImplementedError

    def packages(self) -> dict[PackageKey, PackageFacts]:
        """All packages that have a row."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""

    def job(self, job: str) -> JobRow:
        """One job."""
        return next(row for row in self.rows(JobRow) if row.job == job)

    def package(self, job: str, dotted: str) -> PackageFacts:
        """One package of a job."""
        stage, line, number = (int(part) for part in dotted.split("."))
        return self.packages()[self.job(job).job_id, stage, line, number]

    def tag_rows(self) -> list[TagRow]:
        """All rows of tags."""
        return self.rows(TagRow)


class MemoryBook(Book):
    """A book in dictionaries."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.memory = MemoryLedger()
        super().__init__(self.memory)

    def rows(self, kind: type[AnyRow]) -> list[AnyRow]:
        """All rows of a table, by their keys."""
        table = self.memory.tables[TABLE_ROWS[kind]]
        return [table[key] for key in sorted(table)]

    def packages(self) -> dict[PackageKey, PackageFacts]:
        """All packages that have a row."""
        return {key: rows.read_facts(text) for key, (_, text) in sorted(self.memory.package_rows.items())}


class SqliteBook(Book):
    """A book in an SQLite database that is never on disk: the ledger's own statements, without the cost of durability."""

    def __init__(self) -> None:
        """Begin with an empty schema."""
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        sqlite_schema.create(self.connection, indexed=frozenset({"owner", "state", "site", "tag"}))
        super().__init__(SqliteLedger(self.connection, Recent(rows_max=3)))  # so few that most must be read again

    def keep(self, checked: Sequence[Checked], *, received: float = 0.0) -> Joined:
        """Join in one transaction."""
        self.connection.execute("BEGIN")
        joined = super().keep(checked, received=received)
        self.connection.execute("COMMIT")
        return joined

    def rows(self, kind: type[AnyRow]) -> list[AnyRow]:
        """All rows of a table, by their keys."""
        table = next(table for table in TABLES if table.row is kind)
        columns = ", ".join(table.columns)
        found = self.connection.execute(f"SELECT {columns} FROM {table.name} ORDER BY {', '.join(table.key)}")
        return [kind(**dict(zip(table.columns, values, strict=True))) for values in found]

    def packages(self) -> dict[PackageKey, PackageFacts]:
        """All packages that have a row."""
        found = self.connection.execute(
            "SELECT job_id, stage, line, number, facts FROM package_facts ORDER BY 1, 2, 3, 4"
        )
        return {(a, b, c, d): rows.read_facts(text) for a, b, c, d, text in found}

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()
