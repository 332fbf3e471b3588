"""Compiles a checked query to SQL, for SQLite and PostgreSQL; finds the same rows as `matches`.

One clause of the query, served by an index, gives candidates in the order of their keys (`plan`); the whole query is
the filter that each candidate must pass (`Compiler.filter`). The aliases are `j` for jobs, `p` for package_facts, `e`
for events, `s` for streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pilotage.book.query import (
    Ago,
    Clause,
    Condition,
    Operator,
    Query,
    QueryError,
    QueryTooBroad,
    Target,
    Value,
    check_target,
    served_by,
)
from pilotage.book.query.attributes import ATTRIBUTES, TAG, TAG_PREFIX, Kind
from pilotage.book.rows.rows import Row
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.model.events.events import parse_dotted
from pilotage.model.states import State

UNINDEXED_STATES = (State.DONE.value, State.CLEARED.value)
"""Final states of nearly all packages: the state index leaves them out, so they are looked up by job."""

DEFAULT_INDEXED = frozenset({"owner", "state", "site", "tag", "submitted", "name", "parent"})
"""Attributes indexed by default: `book.query.default_indexed` for jobs and packages."""

INDEXABLE: dict[Target, frozenset[str]] = {
    Target.JOBS: frozenset({"owner", "name", "parent", "state", "submitted", "entered", "updated", "cause", TAG}),
    Target.PACKAGES: frozenset({
        "owner", "name", "parent", "submitted", "state", "site", "node", "exit_code", "reason", "cause", "activity",
        "entered", "updated", "attempts", TAG,
    }),
    Target.EVENTS: frozenset(),
}  # fmt: skip
"""Attributes that can have an index, besides job ids and positions, which always have one."""


class Sql(msgspec.Struct, frozen=True):
    """A piece of SQL and the values of its placeholders, in order."""

    text: str
    parameters: tuple[Any, ...] = ()


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between the two databases: placeholders, access to facts, and stored texts."""

    placeholder: str
    fact: Callable[[str], str]
    number_fact: Callable[[str], str]
    attempts: str
    pilot: str
    text: Callable[[str], str] = str


def _sqlite_number(name: str) -> str:
    # `real_of` is Python's: SQLite rounds some decimal numbers to a neighbouring double.
    return f"real_of(p.facts -> '{name}')"


SQLITE = Dialect(
    placeholder="?",
    fact=lambda name: f"p.facts ->> '{name}'",
    number_fact=_sqlite_number,
    attempts="(SELECT count(*) FROM json_each(p.facts, '$.attempts'))",
    pilot="json_extract(p.facts, '$.attempts.\"' || (p.facts ->> 'attempt') || '\".pilot')",
)


def postgresql(text: Callable[[str], str]) -> Dialect:
    """The dialect of PostgreSQL, where facts are `json`; `text` encodes a stored text."""
    return Dialect(
        placeholder="%s",
        fact=lambda name: f"(p.facts ->> '{name}')",
        number_fact=lambda name: f"(p.facts ->> '{name}')::double precision",
        attempts="(SELECT count(*) FROM json_object_keys(p.facts -> 'attempts'))",
        pilot="(p.facts -> 'attempts' -> (p.facts ->> 'attempt') ->> 'pilot')",
        text=text,
    )


class Compiler:
    """Compiles conditions for one target in one dialect. Relative times must be resolved before."""

    def __init__(self, dialect: Dialect, target: Target) -> None:
        self._dialect = dialect
        self._target = target
        match target:
            case Target.JOBS:
                self._columns = _JOB_COLUMNS
            case Target.PACKAGES:
                self._columns = _package_columns(dialect)
            case Target.EVENTS:
                self._columns = _EVENT_COLUMNS
        self._place = {Target.PACKAGES: "p", Target.EVENTS: "e"}.get(target, "")

    def filter(self, query: Query) -> Sql:
        """The condition that is true for exactly the rows of a query; for others it is false or NULL."""
        return self._joined((self.clause(clause) for clause in query.clauses), word="AND", empty="TRUE")

    def clause(self, clause: Clause) -> Sql:
        """One of several conditions."""
        return self._joined((self.condition(condition) for condition in clause), word="OR", empty="FALSE")

    def condition(self, condition: Condition) -> Sql:
        """One comparison; a missing value is equal to nothing, and has no order."""
        if condition.about.kind is Kind.PACKAGE:
            return self._package(condition)
        found = self._found(condition)
        values = tuple(self._value(value) for value in condition.values)
        mark = self._dialect.placeholder
        several = f"({', '.join([mark] * len(values))})"
        match condition.operator:
            case Operator.EQUAL | Operator.IN:
                text = f"{found.text} IN {several}"
            case Operator.NOT_EQUAL | Operator.NOT_IN:
                text = f"({found.text} NOT IN {several}) IS NOT FALSE"
            case Operator.WITHIN:
                return Sql(
                    f"({found.text} >= {mark} AND {found.text} < {mark})",
                    (*found.parameters, values[0], *found.parameters, values[1]),
                )
            case order:
                text = f"{found.text} {order} {mark}"
        return Sql(text, (*found.parameters, *values))

    def _found(self, condition: Condition) -> Sql:
        if condition.attribute != TAG:
            return Sql(self._columns[condition.attribute])
        row = "p" if self._target is Target.PACKAGES else "j"
        place = [f"t.{part} = {'p.' + part if row == 'p' else '0'}" for part in ("stage", "line", "number")]
        where = " AND ".join([f"t.job_id = {row}.job_id", *place, f"t.name = {self._dialect.placeholder}"])
        return Sql(f"(SELECT t.value FROM tags AS t WHERE {where})", (self._dialect.text(condition.tag),))

    def _package(self, condition: Condition) -> Sql:
        mark, row = self._dialect.placeholder, self._place
        one = f"({row}.stage = {mark} AND {row}.line = {mark} AND {row}.number = {mark})"
        places = [parse_dotted(str(value)) for value in condition.values]
        parameters = [part for place in places if place for part in (place.stage, place.line, place.number)]
        text = f"({' OR '.join([one] * len(places))})"
        return Sql(f"NOT {text}" if condition.operator.denies else text, tuple(parameters))

    def _value(self, value: Value) -> Any:
        if isinstance(value, Ago):
            raise QueryError(
                "a relative time must be resolved before it is compiled", next_step="resolve the query first"
            )
        if isinstance(value, bool):
            return int(value)
        return self._dialect.text(value) if isinstance(value, str) else value

    def _joined(self, parts: Iterable[Sql], *, word: str, empty: str) -> Sql:
        several = list(parts)
        if len(several) < 2:
            return several[0] if several else Sql(empty)
        text = f" {word} ".join(f"({part.text})" for part in several)
        return Sql(text, tuple(value for part in several for value in part.parameters))


_JOB_COLUMNS = {
    "job": "j.job", "name": "j.name", "parent": "j.parent", "owner": "j.owner", "state": "j.state", "held": "j.held",
    "cause": "j.cause", "submitted": "j.submitted_at", "entered": "j.entered_at", "updated": "j.updated_at",
}  # fmt: skip

_EVENT_COLUMNS = {
    "job": "j.job", "position": "e.position", "pilot": "e.pilot", "site": "e.site", "type": "e.type",
    "source": "s.source", "stream": "s.stream", "attempt": "NULLIF(e.attempt, 0)", "time": "e.time",
}  # fmt: skip


def _package_columns(dialect: Dialect) -> dict[str, str]:
    fact, number = dialect.fact, dialect.number_fact
    return {
        "job": "j.job", "name": "j.name", "parent": "j.parent", "owner": "j.owner", "submitted": "j.submitted_at",
        "state": "p.state", "site": "p.site", "node": fact("node"), "exit_code": fact("exit_code"),
        "activity": fact("activity"), "reason": fact("reason"), "cause": fact("cause"),
        "pilot": dialect.pilot, "attempts": dialect.attempts,
        "entered": number("entered_at"), "updated": f"COALESCE({number('updated_at')}, 0.0)",
        "held": f"COALESCE({number('held')}, 0)", "dropped": f"COALESCE({number('dropped')}, 0)",
    }  # fmt: skip


def serving_clause(query: Query, target: Target, *, indexed: frozenset[str]) -> Clause | None:
    """The clause that indexes serve best, or None if the order of the keys does; else raises `QueryTooBroad`.

    `indexed` are the attributes, of any target, for which the journal has indexes.
    """
    clauses = serving_clauses(query, target, indexed=indexed)
    return clauses[0] if clauses else None


def serving_clauses(query: Query, target: Target, *, indexed: frozenset[str]) -> list[Clause]:
    """All clauses that indexes serve, the best first; empty if the order of the keys serves."""
    plan = served_by(query, target, indexed=_useful(indexed, target))
    if plan.clause is None:
        return []
    order = [plan.clause, *(number for number in plan.serving if number != plan.clause)]
    clauses = [query.clauses[number] for number in order]
    if target is Target.PACKAGES:
        clauses = [clause for clause in clauses if not any(_ends(condition) for condition in clause)]
    if not clauses:
        raise QueryTooBroad(
            "nearly every package ends as DONE or CLEARED: no index has them, and all would have to be read",
            subject="query",
            expected="a job beside such a state, or another state",
            got=" or ".join(str(condition) for condition in query.clauses[plan.clause]),
            next_step="name the job, for example `job=ID and state=DONE`, or its owner, name or parent",
        )
    return clauses


def narrowing_clauses(query: Query, *, indexed: frozenset[str]) -> list[Clause]:
    """The clauses by which an index finds packages within a known job."""
    check_target(query, Target.PACKAGES)
    try:
        clauses = serving_clauses(query, Target.PACKAGES, indexed=indexed)
    except QueryTooBroad:
        return []
    return [clause for clause in clauses if not any(_of_all_jobs(condition) for condition in clause)]


OF_JOBS = frozenset({"job", "owner", "name", "parent", "submitted"})
"""Attributes that a package has from its job."""


def is_span(condition: Condition) -> bool:
    """Tell whether an index finds it as a range of values, not in the order of jobs and places."""
    return condition.operator.orders or condition.about.kind is Kind.TIME


def _of_all_jobs(condition: Condition) -> bool:
    """Tell whether an index that serves it cannot separate the packages of one job from the others."""
    return condition.attribute in OF_JOBS or is_span(condition)


def check_indexable(names: Iterable[str]) -> None:
    """Refuse a setting that names an attribute without a possible index."""
    everything = frozenset().union(*INDEXABLE.values()) | {"job", "position"}
    wrong = [name for name in sorted(names) if name not in everything and not name.startswith(TAG_PREFIX)]
    if wrong:
        raise QueryError(
            f"{', '.join(wrong)} cannot be indexed",
            subject="query.indexed",
            expected=f"some of {', '.join(name for name in ATTRIBUTES if name in everything)}, tag.NAME",
        )


def _useful(indexed: frozenset[str], target: Target) -> frozenset[str]:
    able = INDEXABLE[target]
    return frozenset(name for name in indexed if name in able or (TAG in able and name.startswith(TAG_PREFIX)))


def _ends(condition: Condition) -> bool:
    return condition.attribute == "state" and any(value in UNINDEXED_STATES for value in condition.values)


def named_jobs(query: Query) -> tuple[str, ...] | None:
    """The only jobs that a query can match, if it names some: the ids of its shortest such clause."""
    naming = [
        tuple(sorted({str(value) for condition in clause for value in condition.values}))
        for clause in query.clauses
        if all(condition.attribute == "job" and not condition.operator.denies for condition in clause)
    ]
    return min(naming, key=len, default=None)


def bounds(query: Query, *, after: int) -> tuple[int, int | None]:
    """The positions of possible events: after the first, and up to the second if there is one."""
    last: int | None = None
    for clause in query.clauses:
        if len(clause) != 1 or clause[0].attribute != "position":
            continue
        low, high = _span(clause[0])
        after = max(after, low - 1)
        if high is not None:
            last = high if last is None else min(last, high)
    return after, last


def _span(condition: Condition) -> tuple[int, int | None]:
    values: Sequence[int] = [value for value in condition.values if isinstance(value, int)]
    match condition.operator:
        case Operator.EQUAL | Operator.IN:
            return min(values), max(values)
        case Operator.WITHIN:
            return values[0], values[1] - 1
        case Operator.GREATER:
            return values[0] + 1, None
        case Operator.GREATER_OR_EQUAL:
            return values[0], None
        case Operator.LESS:
            return 0, values[0] - 1
        case Operator.LESS_OR_EQUAL:
            return 0, values[0]
        case _:
            return 0, None


# SQL to find and remove rows by the key of their table: the same text for SQLite and PostgreSQL.

Statement = tuple[str, list[Any]]
"""A text and its parameters."""


def find_statement(
    row: type[Row],
    *,
    having: Mapping[str, str | int],
    after: tuple[str | int, ...],
    limit: int | None,
    mark: str,
) -> Statement:
    """Select rows with some values in the order of their key, after a key; `mark` is the placeholder."""
    table = TABLE_BY_ROW[row]
    where, parameters = _where(row, having, key=after, order=">", mark=mark)
    text = f"SELECT {', '.join(table.columns)} FROM {table.name}{where} ORDER BY {', '.join(table.key)}"
    return (text, parameters) if limit is None else (f"{text} LIMIT {mark}", [*parameters, limit])


def remove_statement(
    row: type[Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...], mark: str
) -> Statement:
    """Delete rows with some values, up to a key if given."""
    where, parameters = _where(row, having, key=through, order="<=", mark=mark)
    return f"DELETE FROM {TABLE_BY_ROW[row].name}{where}", parameters


def _where(
    row: type[Row], having: Mapping[str, str | int], *, key: tuple[str | int, ...], order: str, mark: str
) -> Statement:
    conditions = [f"{column} = {mark}" for column in having]
    if key:
        columns = TABLE_BY_ROW[row].key
        conditions.append(f"({', '.join(columns)}) {order} ({', '.join([mark] * len(columns))})")
    return f" WHERE {' AND '.join(conditions)}" if conditions else "", [*having.values(), *key]
