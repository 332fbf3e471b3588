"""Whole books in the simplest stores the join can work on, and what any store holds, as one value."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals.sqlite import schema
from pilotage.adapters.journals.sqlite.ledger import RowCache, SqliteLedger
from pilotage.book.codec import Checked, Codec
from pilotage.book.fold.join import Joined, join
from pilotage.book.rows import rows
from pilotage.book.rows.ledger import Ledger, PackageKey
from pilotage.book.rows.rows import JobRow, PackageFacts, TagRow
from pilotage.book.rows.tables import TABLES
from pilotage.simulator.world.ledger import MemoryLedger

AnyRow = TypeVar("AnyRow", bound=rows.Row)


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
        return self.memory.find_rows(kind, having={})

    def packages(self) -> dict[PackageKey, PackageFacts]:
        """All packages that have a row."""
        jobs = sorted(row.job_id for row in self.rows(JobRow))
        keys = [key for job_id in jobs for key, _ in self.memory.states(job_id)]
        return {(row.job_id, row.stage, row.line, row.number): row.facts for row in self.memory.packages(keys)}


class SqliteBook(Book):
    """A book in an SQLite database that is never on disk: the ledger's own statements, without the cost of durability."""

    def __init__(self) -> None:
        """Begin with an empty schema."""
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        schema.create(self.connection, indexed=frozenset({"owner", "state", "site", "tag"}))
        self.cache = RowCache(rows_max=3)  # so few that most must be read again
        super().__init__(SqliteLedger(self.connection, self.cache))

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
