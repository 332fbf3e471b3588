"""What the suite needs of each adapter beside the port itself: to open it, to look at its tables, to age its schema."""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import psycopg
from psycopg.types.string import TextLoader

from pilotage.adapters.journals.postgres.journal import PostgresJournal
from pilotage.adapters.journals.postgres.ledger import PACKAGE_COLUMNS, loaded_row, package_of
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.journals.sqlite.locations import BOOK
from pilotage.book.rows import rows
from pilotage.book.rows.rows import PackageRow, read_facts
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.ports import Journal
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import StandingClock

AnyRow = TypeVar("AnyRow", bound=rows.Row)


class Harness(ABC):
    """One store. It may be opened as often as a test likes; what is open in the end is closed."""

    name: str

    def __init__(self) -> None:
        self._opened: list[Journal] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, **options: Any) -> Journal:
        """Open the store as the writer."""
        journal = self._open(**options)
        self._opened.append(journal)
        return journal

    def close(self) -> None:
        """Close whatever is open."""
        while self._opened:
            self._opened.pop().close()

    def reopen(self) -> Journal:
        """Close, and open again."""
        self.close()
        return self.open()

    @abstractmethod
    def _open(self, **options: Any) -> Journal: ...

    @abstractmethod
    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """What any other program that looks into the store would see, or do."""

    @abstractmethod
    def rows(self, row: type[AnyRow]) -> list[AnyRow]:
        """Every live row of a table."""

    @abstractmethod
    def packages(self) -> list[PackageRow]:
        """Every live package that has a row."""

    @abstractmethod
    def set_schema_version(self, version: int) -> None:
        """Let the store look as if another pilotage had made it."""

    @abstractmethod
    def schema_version(self) -> int:
        """The version that the store says it has."""


class SqliteHarness(Harness):
    """A folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _open(self, **options: Any) -> Journal:
        return SqliteJournal(self.folder, **options)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.folder / BOOK, isolation_level=None)) as connection:
            yield connection

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(statement).fetchall()

    def rows(self, row: type[AnyRow]) -> list[AnyRow]:
        table = TABLE_BY_ROW[row]
        found = self.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")
        return [row(**dict(zip(table.columns, each, strict=True))) for each in found]

    def packages(self) -> list[PackageRow]:
        found = self.execute("SELECT job_id, stage, line, number, facts FROM package_facts")
        return [PackageRow(each[0], each[1], each[2], each[3], read_facts(each[4])) for each in found]

    def set_schema_version(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version}")

    def schema_version(self) -> int:
        return int(self.execute("PRAGMA user_version")[0][0])


class PostgresHarness(Harness):
    """A database of a real server."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self._looking: psycopg.Connection[tuple[Any, ...]] | None = None

    def close(self) -> None:
        super().close()
        if self._looking is not None:
            self._looking.close()

    def _open(self, **options: Any) -> Journal:
        return PostgresJournal(self.url, **{"lock_wait_seconds": 0.2, **options})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection().execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def _connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._looking is not None:
            with contextlib.suppress(psycopg.OperationalError):
                # The server may have been restarted since the last look.
                self._looking.execute("SELECT 1")
        if self._looking is None or self._looking.closed:
            self._looking = psycopg.connect(self.url, autocommit=True)
            self._looking.adapters.register_loader("json", TextLoader)
        return self._looking

    def rows(self, row: type[AnyRow]) -> list[AnyRow]:
        table = TABLE_BY_ROW[row]
        found = self.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")
        return [loaded_row(row, each) for each in found]

    def packages(self) -> list[PackageRow]:
        return [package_of(each) for each in self.execute(f"SELECT {', '.join(PACKAGE_COLUMNS)} FROM package_facts")]

    def set_schema_version(self, version: int) -> None:
        self.execute(f"UPDATE schema_version SET version = {version}")

    def schema_version(self) -> int:
        return int(self.execute("SELECT version FROM schema_version")[0][0])


SINCE_FIVE = (("pilots", "submitted_at"), ("sites", "latencies"))
SINCE_SIX = (("jobs", "forecast"),)
SINCE_NINE = (("jobs", "healing"),)
SINCE_TEN = (("jobs", "activities"),)
SINCE_SEVEN = tuple(("nodes", column) for column in ("os_release", "kernel", "cpu_model", "libc"))


def forget_version_five(harness: Harness) -> None:
    """Remove what version 5 of the schema added, and later ones."""
    _forget_columns(harness, *SINCE_FIVE)
    forget_version_six(harness)


def forget_version_six(harness: Harness) -> None:
    """Remove what version 6 of the schema added, and later ones."""
    _forget_columns(harness, *SINCE_SIX, *SINCE_SEVEN)
    forget_version_eight(harness)


def forget_version_eight(harness: Harness) -> None:
    """Remove what version 8 of the schema added, and later ones."""
    harness.execute("DROP TABLE cached_files")
    forget_version_nine(harness)


def forget_version_nine(harness: Harness) -> None:
    """Remove what version 9 of the schema added, and later ones."""
    _forget_columns(harness, *SINCE_NINE)
    harness.execute("DROP TABLE knowledge")
    forget_version_ten(harness)


def forget_version_ten(harness: Harness) -> None:
    """Remove what version 10 of the schema added."""
    _forget_columns(harness, *SINCE_TEN)


def _forget_columns(harness: Harness, *columns: tuple[str, str]) -> None:
    for table, column in columns:
        harness.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


def keeper(journal: Journal) -> BatchCommitter:
    """A keeper whose clock stands."""
    return BatchCommitter(journal, clock=StandingClock())


Content = dict[str, dict[tuple[Any, ...], Any]]
"""Everything that a store holds, by table and by names instead of numbers."""


def content(harness: Harness) -> Content:
    """What a store holds, with the numbers it gave out itself replaced by what they stand for."""
    jobs = {row.job_id: row.job for row in harness.rows(rows.JobRow)}
    streams = {row.stream_id: (row.source, row.stream) for row in harness.rows(rows.StreamRow)}
    events = {row.position: (*streams[row.stream_id], row.n) for row in harness.rows(rows.EventRow)}
    found: Content = {
        "jobs": {(row.job,): _without(row, "job_id") for row in harness.rows(rows.JobRow)},
        "streams": {(row.source, row.stream): _without(row, "stream_id") for row in harness.rows(rows.StreamRow)},
        "stages": {(jobs[row.job_id], row.stage): _without(row, "job_id") for row in harness.rows(rows.StageRow)},
        "tags": {
            (jobs[row.job_id], row.stage, row.line, row.number, row.name): row.value
            for row in harness.rows(rows.TagRow)
        },
        "events": {
            events[row.position]: (row.job_id and jobs[row.job_id], _without(row, "position", "stream_id", "job_id"))
            for row in harness.rows(rows.EventRow)
        },
        "parked": {
            (*streams[row.stream_id], row.n): _without(row, "stream_id") for row in harness.rows(rows.ParkedRow)
        },
        "packages": {
            (jobs[row.job_id], row.stage, row.line, row.number): _package(row, events) for row in harness.packages()
        },
        "pilots": {(row.pilot,): _without(row) for row in harness.rows(rows.PilotRow)},
        "nodes": {(row.node,): _without(row) for row in harness.rows(rows.NodeRow)},
        "sites": {(row.site,): _without(row) for row in harness.rows(rows.SiteRow)},
    }
    assert sum(len(each) for each in found.values()) == sum(_counts(harness)), "a row has a key that another one has"
    return found


def _counts(harness: Harness) -> list[int]:
    tables = ("jobs", "streams", "stages", "tags", "events", "parked", "package_facts", "pilots", "nodes", "sites")
    return [harness.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


def _without(row: rows.Row, *names: str) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(row).items() if name not in names}


def _package(row: PackageRow, events: dict[int, tuple[Any, ...]]) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(row.facts, str_keys=False)
    facts.pop("counted_with", None)  # depends on when statistics counted it
    facts["positions"] = sorted(events[position] for position in row.facts.positions)
    for attempt in facts.get("attempts", {}).values():
        for name in ("staged_position", "finished_position"):
            if attempt.get(name) is not None:
                attempt[name] = events[attempt[name]]
    return facts
