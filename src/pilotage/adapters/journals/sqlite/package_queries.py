"""Finds and counts packages of a query in SQLite, in the order of job and place.

Among several clauses with an index it takes the one with the fewest candidates, by a trial: a clause on a site or a
state may match nearly all packages or nearly none.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import msgspec

from pilotage.adapters.journals.queries import (
    OF_JOBS,
    SQLITE,
    Compiler,
    Sql,
    is_span,
    narrowing_clauses,
    serving_clauses,
)
from pilotage.adapters.journals.sqlite import schema
from pilotage.book.query import Clause, Condition, Operator, Query, Target, Value
from pilotage.book.query.attributes import TAG
from pilotage.book.rows.tables import TABLES

# Finds jobs of a query in SQLite: one source per value that an index serves, merged into one order.
#
# A source reads lazily: a page never reads more of the book than it may.

COLLECTED_MAX = 20_000
"""Up to so many jobs or packages from an index in another order are sorted in memory; more are read by key."""

Candidate = tuple[Any, ...]

JOB_COLUMNS = {
    "owner": "owner", "name": "name", "parent": "parent", "state": "state", "cause": "cause",
    "submitted": "submitted_at", "entered": "entered_at", "updated": "updated_at",
}  # fmt: skip
JOB_INDEXES = {
    index.attribute: schema.index_name("jobs", index)
    for table in TABLES
    if table.name == "jobs"
    for index in (*table.indexes, *schema.JOB_INDEXES)
    if index.attribute
}

jobs_sql = Compiler(SQLITE, Target.JOBS)


class ServedValue(msgspec.Struct, frozen=True):
    """One value of one condition that an index serves; a range is one, under its first value."""

    condition: Condition
    value: Value

    @property
    def attribute(self) -> str:
        """The compared attribute."""
        return self.condition.attribute

    @property
    def alone(self) -> Condition:
        """The condition for this value, or for the range."""
        if self.condition.operator.orders:
            return self.condition
        return msgspec.structs.replace(self.condition, operator=Operator.EQUAL, values=(self.value,))


def served(clause: Clause) -> list[ServedValue]:
    """The values of a clause, each once."""
    return list(
        dict.fromkeys(
            ServedValue(condition, value)
            for condition in clause
            for value in (condition.values[:1] if condition.operator.orders else condition.values)
        )
    )


@contextmanager
def merged(sources: Sequence[Iterator[Candidate]], *, key: int) -> Iterator[Iterator[Candidate]]:
    """Merge the candidates of several sources, each once. Closes the sources, so that no snapshot outlives the page."""
    together = heapq.merge(*sources, key=lambda candidate: candidate[:key])
    try:
        if len(sources) == 1:
            yield sources[0]
        else:
            yield (next(several) for _, several in groupby(together, key=lambda candidate: candidate[:key]))
    finally:
        for each in (together, *sources):
            each.close()  # type: ignore[attr-defined] # a generator or a cursor


def job_sources(
    connection: sqlite3.Connection, query: Query, clause: Clause | None, *, after: str
) -> list[Iterator[Candidate]]:
    """Jobs in the order of their ids, from each serving index; (job, job_id, whether it fits)."""
    fits = jobs_sql.filter(query)
    start = f"SELECT j.job, j.job_id, {fits.text} FROM jobs AS j"

    def ordered(where: str, *values: Any, index: str = "") -> Iterator[Candidate]:
        by = f" INDEXED BY {index}" if index else ""
        return connection.execute(
            f"{start}{by} WHERE {where} AND j.job > ? ORDER BY j.job", (*fits.parameters, *values, after)
        )

    if clause is None:
        return [ordered("TRUE")]
    sources: list[Iterator[Candidate]] = []
    for condition in clause:
        if condition.attribute == "job" or not (condition.operator.orders or condition.attribute == TAG):
            column, index = JOB_COLUMNS.get(condition.attribute, "job"), JOB_INDEXES.get(condition.attribute, "")
            values = dict.fromkeys(condition.values)
            sources += [ordered(f"j.{column} = ?", value, index=index) for value in values]
            continue
        found = _unordered_jobs(connection, condition, after=after)
        if found is None:
            return [ordered("TRUE")]  # too many to sort: read all jobs in their order
        sources.append(_each_job(found, lambda job: ordered("j.job = ?", job)))
    return sources


def _unordered_jobs(connection: sqlite3.Connection, condition: Condition, *, after: str) -> list[str] | None:
    """The ids of jobs in a range of times, or with a tag; None if there are too many to sort."""
    if condition.attribute == TAG:
        places = ", ".join("?" * len(condition.values))
        text = (
            "SELECT j.job FROM tags AS t INDEXED BY tags_of_jobs CROSS JOIN jobs AS j ON j.job_id = t.job_id"
            f" WHERE t.name = ? AND t.value IN ({places}) AND t.stage = 0 AND j.job > ? LIMIT ?"
        )
        values: Sequence[Any] = (condition.tag, *condition.values)
    else:
        where = jobs_sql.condition(condition)
        index = JOB_INDEXES[condition.attribute]
        text = f"SELECT j.job FROM jobs AS j INDEXED BY {index} WHERE {where.text} AND j.job > ? LIMIT ?"
        values = where.parameters
    found = connection.execute(text, (*values, after, COLLECTED_MAX + 1)).fetchall()
    return sorted(job for (job,) in found) if len(found) <= COLLECTED_MAX else None


def _each_job(jobs: Sequence[str], look: Callable[[str], Iterator[Candidate]]) -> Iterator[Candidate]:
    for job in jobs:
        yield from look(job)


PackageKey = tuple[int, int, int, int]

_KEY = "p.job_id, p.stage, p.line, p.number"
_TRIED_ROWS = (256, 8192)
_NEAR = 1e-14  # relative; far more than the distance of neighbouring doubles
_sql = Compiler(SQLITE, Target.PACKAGES)
_counts = Compiler(msgspec.structs.replace(SQLITE, attempts="a.attempts"), Target.PACKAGES)


class IndexedBook(msgspec.Struct, frozen=True, kw_only=True):
    """A book to search, its indexed attributes, and the `place` of its jobs."""

    book: sqlite3.Connection
    indexed: frozenset[str]
    place: str = "live"


def indexed_book_of(book: sqlite3.Connection, job_id: int, *, indexed: frozenset[str]) -> IndexedBook:
    """The book that stores a job: the live one, or its own file, with other indexes."""
    (place,) = book.execute("SELECT place FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return IndexedBook(book=book, indexed=schema.SEALED_INDEXED if place == "sealed" else indexed, place=place)


def live_packages(store: IndexedBook, query: Query, *, after: PackageKey) -> list[Iterator[Candidate]]:
    """Packages of all live jobs, from each serving index. Raises `QueryTooBroad`.

    A candidate is job_id, stage, line, number, job, owner, and the facts if it fits.
    """
    clause = _narrowest(store, serving_clauses(query, Target.PACKAGES, indexed=store.indexed))
    assert clause is not None  # packages are never listed by their key alone
    return [_rows(store, query, one, after=after) for one in served(clause)]


def packages_of_job(
    store: IndexedBook, query: Query, job_id: int, *, job: str, after: PackageKey
) -> Iterator[Candidate]:
    """Packages of one job; first an empty candidate, so that jobs without packages count as read, too."""
    if job_id < after[0]:
        return
    place = after[1:] if job_id == after[0] else (0, 0, 0)
    yield (job_id, *place, job, "", None)
    clause = _narrowest(store, narrowing_clauses(query, indexed=store.indexed), job_id=job_id)
    if clause is not None:
        after = (job_id, place[0], place[1], place[2])
        sources = [_by_index(store, query, one, after=after, job_id=job_id) for one in served(clause)]
        with merged(sources, key=4) as candidates:
            yield from candidates
        return
    fits = _sql.filter(query)
    yield from store.book.execute(
        f"SELECT {_KEY}, j.job, j.owner, CASE WHEN {fits.text} THEN p.facts END"
        " FROM package_facts AS p CROSS JOIN jobs AS j ON j.job_id = p.job_id"
        " WHERE p.job_id = ? AND (p.stage, p.line, p.number) > (?, ?, ?) ORDER BY p.stage, p.line, p.number",
        (*fits.parameters, job_id, *place),
    )


def count_live_packages(store: IndexedBook, query: Query) -> int:
    """Number of matching packages of live jobs. Raises `QueryTooBroad`."""
    clause = _narrowest(store, serving_clauses(query, Target.PACKAGES, indexed=store.indexed))
    assert clause is not None
    return _count(store, query, clause)


def count_packages_of_job(store: IndexedBook, query: Query, job_id: int) -> int:
    """Number of matching packages of one job, live or sealed."""
    clause = _narrowest(store, narrowing_clauses(query, indexed=store.indexed), job_id=job_id)
    if clause is not None:
        return _count(store, query, clause, job_id=job_id)
    fits = _sql.filter(query)
    found = store.book.execute(
        "SELECT count(*) FROM package_facts AS p CROSS JOIN jobs AS j ON j.job_id = p.job_id"
        f" WHERE p.job_id = ? AND ({fits.text})",
        (job_id, *fits.parameters),
    ).fetchone()
    return int(found[0])


def _count(store: IndexedBook, query: Query, clause: Clause, *, job_id: int | None = None) -> int:
    """Count each package once, under the first alternative of the clause that matches it."""
    fits = _sql.filter(query)
    total = 0
    for number, condition in enumerate(clause):
        before = _sql.clause(clause[:number])
        # The index range is slightly wider, and another alternative may match the rest.
        exact = _sql.condition(condition) if is_span(condition) and len(clause) > 1 else Sql("TRUE")
        for one in served((condition,)):
            source = _source(store, one, job_id=job_id)
            found = store.book.execute(
                f"SELECT count(*) {source.text} AND ({exact.text}) AND ({fits.text}) AND ({before.text}) IS NOT TRUE",
                (*source.parameters, *exact.parameters, *fits.parameters, *before.parameters),
            ).fetchone()
            total += found[0]
    return total


def _narrowest(store: IndexedBook, clauses: Sequence[Clause], *, job_id: int | None = None) -> Clause | None:
    """The clause with the fewest candidates, by a limited trial; of equals, the first."""
    if len(clauses) < 2:
        return clauses[0] if clauses else None
    sizes: list[int] = []
    for rows in _TRIED_ROWS:
        sizes = [_size(store, clause, job_id=job_id, rows=rows) for clause in clauses]
        if min(sizes) < rows:
            break
    return clauses[sizes.index(min(sizes))]


def _size(store: IndexedBook, clause: Clause, *, job_id: int | None, rows: int) -> int:
    total = 0
    for one in served(clause):
        source = _source(store, one, job_id=job_id)
        statement = f"SELECT count(*) FROM (SELECT 1 {source.text} LIMIT ?)"
        total += store.book.execute(statement, (*source.parameters, rows - total)).fetchone()[0]
        if total >= rows:
            break
    return total


def _rows(store: IndexedBook, query: Query, one: ServedValue, *, after: PackageKey) -> Iterator[Candidate]:
    """The candidates of one value of the serving clause."""
    if one.attribute in OF_JOBS:
        return _by_jobs(store, query, jobs_sql.condition(one.alone), by=_by(one.attribute), after=after)
    if is_span(one.condition):
        return _by_span(store, query, one, after=after)
    return _by_index(store, query, one, after=after)


def _by_jobs(store: IndexedBook, query: Query, where: Sql, *, by: str = "", after: PackageKey) -> Iterator[Candidate]:
    """The packages of a job, or of all jobs of an owner, a name or a parent, or from a time."""
    jobs = store.book.execute(
        f"SELECT j.job_id, j.job FROM jobs AS j {by}"
        f" WHERE {where.text} AND j.{schema.LIVE} AND j.job_id >= ? ORDER BY j.job_id",
        (*where.parameters, after[0]),
    ).fetchall()
    for job_id, job in jobs:
        yield from packages_of_job(store, query, job_id, job=job, after=after)


def _by_span(store: IndexedBook, query: Query, one: ServedValue, *, after: PackageKey) -> Iterator[Candidate]:
    """The candidates from an index range, sorted by job and place."""
    source = _source(store, one)
    found = store.book.execute(
        f"SELECT {_KEY} {source.text} AND ({_KEY}) > (?, ?, ?, ?) LIMIT ?",
        (*source.parameters, *after, COLLECTED_MAX + 1),
    ).fetchall()
    if len(found) > COLLECTED_MAX:  # too many to sort: read all packages in their order
        yield from _by_jobs(store, query, Sql("TRUE"), after=after)
        return
    fits = _sql.filter(query)
    statement = (
        f"SELECT {_KEY}, j.job, j.owner, CASE WHEN {fits.text} THEN p.facts END FROM package_facts AS p"
        f" CROSS JOIN jobs AS j ON j.job_id = p.job_id WHERE ({_KEY}) = (?, ?, ?, ?)"
    )
    for key in sorted(found):
        yield from store.book.execute(statement, (*fits.parameters, *key))


def _by_index(
    store: IndexedBook, query: Query, one: ServedValue, *, after: PackageKey, job_id: int | None = None
) -> Iterator[Candidate]:
    source = _source(store, one, job_id=job_id)
    fits = _sql.filter(query)
    # Within one job, order by place only: with the job's number SQLite would sort what the index has in order.
    parts = ("job_id", "stage", "line", "number") if job_id is None else ("stage", "line", "number")
    row = {TAG: "t", "attempts": "a"}.get(one.attribute, "p")
    key = ", ".join(f"{row}.{part}" for part in parts)
    return store.book.execute(
        f"SELECT {_KEY}, j.job, j.owner, CASE WHEN {fits.text} THEN p.facts END {source.text}"
        f" AND ({key}) > ({', '.join('?' * len(parts))}) ORDER BY {key}",
        (*fits.parameters, *source.parameters, *after[-len(parts) :]),
    )


def _source(store: IndexedBook, one: ServedValue, *, job_id: int | None = None) -> Sql:
    """The tables, the index and the condition that give candidates."""
    joined = f"CROSS JOIN jobs AS j ON j.job_id = p.job_id AND j.place = '{store.place}'"
    row = "p"
    values: tuple[Any, ...] = (one.value,)
    match one.attribute:
        case attribute if attribute in OF_JOBS:
            by = _by(attribute)
            tables = f"jobs AS j {by} CROSS JOIN package_facts AS p ON p.job_id = j.job_id AND j.{schema.LIVE}"
            asked = jobs_sql.condition(one.alone)
            where, values = asked.text, asked.parameters
        case "state":
            tables = f"package_facts AS p INDEXED BY package_facts_state {joined}"
            where = f"p.state = ? AND p.{schema.UNENDED}"
        case "site":
            tables, where = f"package_facts AS p INDEXED BY package_facts_site {joined}", "p.site = ?"
        case attribute if attribute == TAG:
            row = "t"
            index, named, names = _tag_index(one.condition.tag, store.indexed)
            tables = (
                f"tags AS t INDEXED BY {index} CROSS JOIN package_facts AS p ON p.job_id = t.job_id"
                f" AND p.stage = t.stage AND p.line = t.line AND p.number = t.number {joined}"
            )
            where, values = f"{named} AND t.value = ?", (*names, one.value)
        case "attempts":
            row = "a"
            tables = (
                f"{schema.TABLE} AS a INDEXED BY {schema.INDEX} CROSS JOIN package_facts AS p"
                f" ON p.job_id = a.job_id AND p.stage = a.stage AND p.line = a.line AND p.number = a.number {joined}"
            )
            asked = _counts.condition(one.alone)
            where, values = asked.text, asked.parameters
        case attribute if is_span(one.condition):
            fact = schema.PACKAGE_EXPRESSIONS[attribute].replace("facts", "p.facts")
            tables = f"package_facts AS p INDEXED BY package_facts_{attribute} {joined}"
            near = _near(fact, one.alone)
            where, values = f"{near.text} AND {fact} IS NOT NULL", near.parameters
            if not one.condition.operator.orders:  # two values must not find the same row
                asked = _sql.condition(one.alone)
                where, values = f"{where} AND {asked.text}", (*values, *asked.parameters)
        case attribute:
            fact = schema.PACKAGE_EXPRESSIONS[attribute].replace("facts", "p.facts")
            tables = f"package_facts AS p INDEXED BY package_facts_{attribute} {joined}"
            where = f"{fact} = ? AND {fact} IS NOT NULL"
    if job_id is not None:
        where, values = f"{where} AND {row}.job_id = ?", (*values, job_id)
    return Sql(f"FROM {tables} WHERE {where}", values)


def _by(attribute: str) -> str:
    """The index of jobs for an attribute."""
    return f"INDEXED BY {JOB_INDEXES[attribute]}" if attribute in JOB_INDEXES else ""


def _near(fact: str, condition: Condition) -> Sql:
    """A condition on the index for the times that a condition asks for, slightly widened.

    SQLite rounds some decimal numbers to a neighbour of the nearest double, and so has them in the index.
    """
    values = [float(value) for value in condition.values if isinstance(value, int | float)]
    low, high = values[0] - abs(values[0]) * _NEAR, values[-1] + abs(values[-1]) * _NEAR
    match condition.operator:
        case Operator.LESS | Operator.LESS_OR_EQUAL:
            return Sql(f"{fact} <= ?", (high,))
        case Operator.GREATER | Operator.GREATER_OR_EQUAL:
            return Sql(f"{fact} >= ?", (low,))
        case _:
            return Sql(f"{fact} BETWEEN ? AND ?", (low, high))


def _tag_index(tag: str, indexed: frozenset[str]) -> tuple[str, str, tuple[str, ...]]:
    """The index of a tag, the condition that selects this index, and its values."""
    if TAG in indexed:
        tags = next(table for table in TABLES if table.name == "tags")
        return schema.index_name("tags", tags.indexes[0]), "t.name = ?", (tag,)
    return schema.tag_index(tag), f"t.name = {schema.quoted(tag)}", ()
