"""Where candidates of a query for jobs come from in SQLite: a source for each value that an index serves, in one order.

A source reads lazily, and only as far as it is asked: a page never reads more of the book than it may.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import msgspec

from pilotage.adapters.journals import sqlite_schema
from pilotage.adapters.journals.queries import SQLITE, Compiler
from pilotage.book.query import Clause, Condition, Operator, Query, Target, Value
from pilotage.book.query.attributes import TAG
from pilotage.book.tables import TABLES

COLLECTED_MAX = 20_000
"""Jobs or packages that are sorted in memory where an index has them in another order; more are read in that order."""

Candidate = tuple[Any, ...]

JOB_COLUMNS = {
    "owner": "owner", "name": "name", "parent": "parent", "state": "state", "cause": "cause",
    "submitted": "submitted_at", "entered": "entered_at", "updated": "updated_at",
}  # fmt: skip
JOB_INDEXES = {
    index.attribute: sqlite_schema.index_name("jobs", index)
    for table in TABLES
    if table.name == "jobs"
    for index in (*table.indexes, *sqlite_schema.JOB_INDEXES)
    if index.attribute
}

jobs_sql = Compiler(SQLITE, Target.JOBS)


class Served(msgspec.Struct, frozen=True):
    """One value of one condition that an index serves; of a range, which is served whole, the first."""

    condition: Condition
    value: Value

    @property
    def attribute(self) -> str:
        """What is compared."""
        return self.condition.attribute

    @property
    def alone(self) -> Condition:
        """What is asked of it: to have the value, or to be in the range."""
        if self.condition.operator.orders:
            return self.condition
        return msgspec.structs.replace(self.condition, operator=Operator.EQUAL, values=(self.value,))


def served(clause: Clause) -> list[Served]:
    """The values of a clause, each once."""
    return list(
        dict.fromkeys(
            Served(condition, value)
            for condition in clause
            for value in (condition.values[:1] if condition.operator.orders else condition.values)
        )
    )


@contextmanager
def merged(sources: Sequence[Iterator[Candidate]], *, key: int) -> Iterator[Iterator[Candidate]]:
    """Candidates of several sources in one order, each once. Sources are closed, so that no snapshot outlives the page."""
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
    """Jobs in the order of their ids, from each index that serves; (job, job_id, whether it fits)."""
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
            return [ordered("TRUE")]  # so many of all the jobs that their own order is as good
        sources.append(_each_job(found, lambda job: ordered("j.job = ?", job)))
    return sources


def _unordered_jobs(connection: sqlite3.Connection, condition: Condition, *, after: str) -> list[str] | None:
    """The ids of jobs in a range of times, or with a tag; None where there are too many to sort."""
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
