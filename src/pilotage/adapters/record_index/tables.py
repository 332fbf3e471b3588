"""An index of records in tables of a database; SQLite and PostgreSQL differ in how they are opened and locked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Protocol

import msgspec

from pilotage.adapters.record_index import statements
from pilotage.adapters.record_index.statements import Cursor, Sql, Start, read_cursor, term_of
from pilotage.model.events.payloads import AccessRule
from pilotage.ports.record_index import (
    FoundRecord,
    FoundRecords,
    IndexedAttributes,
    IndexQuery,
    OtherAttributes,
    Readable,
    RecordEntry,
    Value,
    number_of,
)

VERSION = 1
_CHUNK_MIN = 100

Rows = list[tuple[Any, ...]]

_access = msgspec.json.Decoder(tuple[AccessRule, ...])
_attributes = msgspec.json.Decoder(IndexedAttributes)


class Statements(Protocol):
    """A connection: runs statements whose placeholders are `?`."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement, and return its rows."""
        ...

    def run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of some values."""
        ...


class TableIndex(ABC):
    """An index of records in tables; any thread may use it."""

    CONTAINS: str
    """The database's function that tells where a text is in another, from 1."""
    SCHEMA: str
    """Statements that make the tables where they are not there, with a semicolon between them."""

    def __init__(self, attributes: IndexedAttributes) -> None:
        """Take the attributes; the database is opened by `prepare`."""
        self.attributes = attributes
        self._numbers: dict[str, int] = {}  # of attributes, by name

    @abstractmethod
    def writing(self) -> AbstractContextManager[Statements]:
        """A transaction, the only one that writes; its statements take effect together."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Statements]:
        """A connection for reading."""

    def prepare(self, *, rebuild: bool) -> None:
        """Make the tables if there are none; with `rebuild`, remove all content. Raises `OtherAttributes`."""
        with self.writing() as connection:
            for statement in self.SCHEMA.split(";"):
                connection.run(statement)
            found: dict[str, str] = dict(connection.run("SELECT name, value FROM index_about"))
            about = {"version": str(VERSION), "attributes": msgspec.json.encode(self.attributes).decode()}
            if found and found != about and not rebuild:
                raise OtherAttributes(
                    "this index was made for other attributes",
                    subject=self.where,
                    next_step="name the same attributes again, or make it anew with --rebuild",
                )
            if rebuild or not found:
                for table in (
                    "terms",
                    "entries",
                    "storages",
                    "about",
                ):  # numbers of attributes stay, since others may know them
                    connection.run(f"DELETE FROM index_{table}")
                connection.run_many("INSERT INTO index_about (name, value) VALUES (?, ?)", about.items())
            self._numbers = dict(connection.run("SELECT name, attribute FROM index_attributes"))

    @property
    @abstractmethod
    def where(self) -> str:
        """The database, for messages."""

    # --- feeding ---

    def position(self, storage: str) -> int:
        """How far a storage was read; 0: not at all."""
        return self.storages().get(storage, 0)

    def storages(self) -> Mapping[str, int]:
        """How far each storage was read."""
        with self.reading() as connection:
            return dict(connection.run("SELECT name, position FROM index_storages"))

    def take(self, storage: str, entries: Sequence[RecordEntry], *, position: int = 0) -> None:
        """Take entries, in any order and any number of times: of each job the one with the highest position counts."""
        with self.writing() as connection:
            connection.run("INSERT INTO index_storages (name) VALUES (?) ON CONFLICT (name) DO NOTHING", (storage,))
            [(number,)] = connection.run("SELECT storage FROM index_storages WHERE name = ?", (storage,))
            for entry in entries:
                self._take(connection, number, entry)
            connection.run(
                "UPDATE index_storages SET position = ? WHERE storage = ? AND position < ?",
                (position, number, position),
            )

    def _take(self, connection: Statements, storage: int, entry: RecordEntry) -> None:
        known = connection.run(
            "SELECT entry, position FROM index_entries WHERE job = ? AND storage = ?", (entry.job, storage)
        )
        if known and known[0][1] >= entry.position:
            return
        access = msgspec.json.encode(entry.access).decode()
        at = entry.submitted_at or 0.0
        [(number,)] = connection.run(
            "INSERT INTO index_entries (storage, job, position, removed, revision, owner, access, name, state, submitted_at, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (job, storage) DO UPDATE SET position = excluded.position, removed = excluded.removed,"
            " revision = excluded.revision, owner = excluded.owner, access = excluded.access, name = excluded.name,"
            " state = excluded.state, submitted_at = excluded.submitted_at, at = excluded.at RETURNING entry",
            (
                storage, entry.job, entry.position, int(entry.removed), entry.revision, entry.owner, access, entry.name,
                entry.state, entry.submitted_at, at,
            ),
        )  # fmt: skip
        if known:
            connection.run("DELETE FROM index_terms WHERE entry = ?", (number,))
        connection.run_many(
            "INSERT INTO index_terms (entry, attribute, term, long_text, number, is_number, indexed, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (number, self._number_of(connection, name), *term_row(value), int(self.attributes.serves(name)), at)
                for name, values in entry.values.items()
                if not entry.removed and self.attributes.keeps(name)
                for value in values
            ],
        )

    def _number_of(self, connection: Statements, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            connection.run("INSERT INTO index_attributes (name) VALUES (?) ON CONFLICT (name) DO NOTHING", (name,))
            [(number,)] = connection.run("SELECT attribute FROM index_attributes WHERE name = ?", (name,))
            self._numbers[name] = number
        return number

    def forget(self, storage: str) -> None:
        """Remove all of a storage."""
        with self.writing() as connection:
            entries = "SELECT entry FROM index_entries JOIN index_storages s USING (storage) WHERE s.name = ?"
            connection.run(f"DELETE FROM index_terms WHERE entry IN ({entries})", (storage,))
            connection.run(
                "DELETE FROM index_entries WHERE storage IN (SELECT storage FROM index_storages WHERE name = ?)",
                (storage,),
            )
            connection.run("DELETE FROM index_storages WHERE name = ?", (storage,))

    # --- finding ---

    def find(
        self, query: IndexQuery, *, readable: Readable | None, limit: int, after: str | None = None
    ) -> FoundRecords:
        """The newest revisions that match, of those that may be read (None: all); `after` is the `next` of the page before."""
        cursor = None if after is None else read_cursor(after, query)
        found: list[FoundRecord] = []
        last: Cursor | None = None
        owner = None if readable is None else readable.owner
        chunk = max(limit + 1, _CHUNK_MIN)
        with self.reading() as connection:
            start = self.start_of(connection, query, cursor)
            while True:
                sql = statements.find(
                    query, start=start, owner=owner, after=cursor, limit=chunk, contains=self.CONTAINS
                )
                rows = connection.run(*sql)
                for order, entry, storage, job, revision, position, owned_by, access, name, state, submitted_at in rows:
                    cursor = Cursor(order, entry, start.range_clause)
                    if readable is not None and not readable.may(owned_by, _access.decode(access)):
                        continue
                    if len(found) == limit:
                        return FoundRecords(records=tuple(found), next=str(last))
                    last = cursor
                    found.append(
                        FoundRecord(
                            storage=storage,
                            job=job,
                            revision=revision,
                            position=position,
                            owner=owned_by,
                            name=name,
                            state=state,
                            submitted_at=submitted_at,
                        )
                    )
                if len(rows) < chunk:
                    return FoundRecords(records=tuple(found))

    def start_of(self, connection: Statements, query: IndexQuery, cursor: Cursor | None) -> Start:
        """Start from the rarest clause if that has few records, else from one that gives records in an order."""
        if cursor is not None and cursor.range_clause is not None:
            return Start(range_clause=cursor.range_clause)
        served = [(at, clause) for at, clause in enumerate(query.clauses) if self.attributes.serve(clause)]
        counts = [(connection.run(*statements.count_few(clause))[0][0], at) for at, clause in served]
        if counts and (fewest := min(counts))[0] < statements.FEW:
            return Start(few=query.clauses[fewest[1]])
        equal = next((clause[0] for _, clause in served if statements.is_equal(clause)), None)
        if equal is not None or cursor is not None:  # the pages of a cursor are ordered by time
            return Start(equal=equal)
        return Start(range_clause=next((at for at, clause in served if statements.is_range(clause)), None))

    def contents(self) -> Iterator[tuple[str, RecordEntry]]:
        """Every record of the index with its storage, ordered by storage and job."""
        with self.reading() as connection:
            entries = connection.run(
                f"SELECT {statements.RECORD} FROM index_entries e JOIN index_storages s ON s.storage = e.storage"
                " WHERE e.removed = 0"
            )
            terms = connection.run(
                "SELECT t.entry, a.name, t.is_number, coalesce(t.long_text, t.term), t.number FROM index_terms t"
                " JOIN index_attributes a ON a.attribute = t.attribute ORDER BY t.entry"
            )
        values = {entry: _values(rows) for entry, rows in groupby(terms, key=lambda row: row[0])}
        for row in sorted(entries, key=lambda each: (each[1], each[2])):
            entry, storage, job, revision, position, owner, access, name, state, submitted_at = row
            yield (
                storage,
                RecordEntry(
                    job=job,
                    position=position,
                    revision=revision,
                    owner=owner,
                    access=_access.decode(access),
                    name=name,
                    state=state,
                    submitted_at=submitted_at,
                    values=values.get(entry, {}),
                ),
            )


def term_row(value: Value) -> tuple[str, str | None, float | None, int]:
    """The columns of a value: its term, its text if that is long, the number that orders it, and whether it is one."""
    if not isinstance(value, str):
        return term_of(value), None, float(value), 1
    term = term_of(value)
    return term, (value if term != value else None), number_of(value), 0


def _values(rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[Value, ...]]:
    found: dict[str, list[Value]] = {}
    for _, name, is_number, text, number in rows:
        found.setdefault(name, []).append(float(number) if is_number else text)
    return {name: tuple(sorted(each, key=lambda one: (str(type(one)), one))) for name, each in sorted(found.items())}


__all__ = ["Sql", "Statements", "TableIndex", "term_row"]
