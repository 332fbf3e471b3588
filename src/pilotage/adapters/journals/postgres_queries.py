"""Questions to PostgreSQL: a query of the book as one statement, over the live tables or those of named jobs, sealed or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pilotage.adapters.journals.postgres_opening import Schemas
from pilotage.adapters.journals.postgres_schema import SEALED_TABLES, TAG_INDEXED_LENGTH, columns_of
from pilotage.adapters.journals.postgres_text import stored_text
from pilotage.adapters.journals.queries import Compiler, Sql, named_jobs, postgresql, serving_clause
from pilotage.book.query import Condition, Query, Target
from pilotage.book.query.attributes import TAG
from pilotage.book.tables import PACKAGE_KEY

_DIALECT = postgresql(stored_text)
_COUNTS = Compiler(msgspec.structs.replace(_DIALECT, attempts="attempts_of(p.facts)"), Target.PACKAGES)
_COMPILERS = {target: Compiler(_DIALECT, target) for target in Target}
_ROWS = {Target.JOBS: "j", Target.PACKAGES: "p", Target.EVENTS: "e"}
_FROM = {
    Target.JOBS: "jobs AS j",
    Target.PACKAGES: "package_facts AS p JOIN jobs AS j ON j.job_id = p.job_id",
    Target.EVENTS: "events AS e JOIN streams AS s ON s.stream_id = e.stream_id LEFT JOIN jobs AS j ON j.job_id = e.job_id",
}


class Question(msgspec.Struct, frozen=True):
    """What to put before SELECT, after FROM and after WHERE, with the values in that order."""

    with_: str
    source: str
    where: Sql

    def select(self, columns: str, *, also: Sql = Sql("TRUE"), order: str = "") -> tuple[bytes, tuple[Any, ...]]:  # noqa: B008 # frozen
        """The whole statement, and its values."""
        text = f"{self.with_}SELECT {columns} FROM {self.source} WHERE {self.where.text} AND {also.text}{order}"
        return text.encode(), (*self.where.parameters, *also.parameters)


def question(
    query: Query, target: Target, *, schemas: Schemas, indexed: frozenset[str], job_ids: Sequence[int] | None = None
) -> Question:
    """A query as SQL: of some jobs wherever they are kept, or of all that are live. Raises `QueryTooBroad`."""
    parts = [_COMPILERS[target].filter(query)]
    row = _ROWS[target]
    if job_ids is not None:
        parts.append(_among(f"{row}.job_id", job_ids))
        return Question(everywhere(schemas), _FROM[target], _all(parts))
    clause = serving_clause(query, target, indexed=indexed)
    if clause is not None and target is not Target.EVENTS:
        parts.append(_any([_served(condition, target) for condition in clause]))
        if target is Target.PACKAGES and all(condition.attribute == "state" for condition in clause):
            parts.append(Sql("p.state NOT IN ('DONE', 'CLEARED')"))  # what the index is limited to
    if target is Target.PACKAGES:
        parts.append(Sql("j.place = 'live'"))
    if target is Target.EVENTS:
        parts.append(Sql("e.job_id IS NULL OR j.place = 'live'"))
    return Question("", _FROM[target], _all(parts))


def everywhere(schemas: Schemas) -> str:
    """The tables that a job may have left, as if it had not, under their usual names; to be asked for named jobs only."""
    tables = []
    for table in SEALED_TABLES:
        columns = ", ".join(columns_of(table))
        # Without a condition of their own: only then does PostgreSQL see through to the indexes, and to their order.
        each = (f"SELECT {columns} FROM {schema}.{table}" for schema in (schemas.live, schemas.sealed))
        tables.append(f"{table} AS NOT MATERIALIZED ({' UNION ALL '.join(each)})")
    return f"WITH {', '.join(tables)} "


def _among(column: str, job_ids: Sequence[int]) -> Sql:
    # Of one job the keys are in order already, which they are not for PostgreSQL where it looks for one of several.
    return Sql(f"{column} = %s", tuple(job_ids)) if len(job_ids) == 1 else Sql(f"{column} = ANY(%s)", (list(job_ids),))


def jobs_named(query: Query) -> tuple[str, ...] | None:
    """The jobs that a query names, which may then be sealed."""
    return named_jobs(query)


def _served(condition: Condition, target: Target) -> Sql:
    """A condition the way an index has it: a tag is looked for among tags, by the beginning of its value.

    Attempts are counted by the function that their index has.
    """
    if condition.attribute == "attempts":
        return _COUNTS.condition(condition)
    if condition.attribute != TAG:
        return _COMPILERS[target].condition(condition)
    values = [stored_text(str(value)) for value in condition.values]
    key, where = ("j.job_id", "t.stage = 0 AND ") if target is Target.JOBS else (_package("p"), "")
    found = "t.job_id" if target is Target.JOBS else _package("t")
    text = (
        f"({key}) IN (SELECT {found} FROM tags AS t WHERE {where}t.name = %s"
        f" AND left(t.value, {TAG_INDEXED_LENGTH}) = ANY(%s) AND t.value = ANY(%s))"
    )
    return Sql(text, (stored_text(condition.tag), [value[:TAG_INDEXED_LENGTH] for value in values], values))


def _package(row: str) -> str:
    return ", ".join(f"{row}.{column}" for column in PACKAGE_KEY)


def _all(parts: Sequence[Sql]) -> Sql:
    text = " AND ".join(f"({part.text})" for part in parts)
    return Sql(text, tuple(value for part in parts for value in part.parameters))


def _any(parts: Sequence[Sql]) -> Sql:
    text = " OR ".join(f"({part.text})" for part in parts)
    return Sql(text, tuple(value for part in parts for value in part.parameters))
