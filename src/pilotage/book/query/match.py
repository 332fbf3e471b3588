"""Whether a row is what a query asks for: the meaning of the language in a page, against which any SQL is tested.

A missing value (absent or None) equals nothing and has no order: `=`, `in`, `<`, `>` and `within` are false for it, `!=`
and `not in` are true. In SQL: `(site IS NULL OR site <> ?)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from pilotage.book.query.attributes import TAG
from pilotage.book.query.conditions import Condition, Operator, Query
from pilotage.book.query.errors import QueryError
from pilotage.book.query.values import Ago, Value

_COMPARISONS: dict[Operator, Callable[[float, float], bool]] = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def matches(query: Query, row: Mapping[str, object]) -> bool:
    """Whether every clause has an alternative that holds; the row has attributes by name, and tags under `tags`.

    Relative times must be resolved first.
    """
    return all(any(holds(condition, row) for condition in clause) for clause in query.clauses)


def holds(condition: Condition, row: Mapping[str, object]) -> bool:
    """Whether one condition is true of a row."""
    found = _found(condition, row)
    match condition.operator:
        case Operator.EQUAL | Operator.IN:
            return found is not None and any(found == _absolute(value) for value in condition.values)
        case Operator.NOT_EQUAL | Operator.NOT_IN:
            return found is None or all(found != _absolute(value) for value in condition.values)
        case Operator.WITHIN:
            start, end = (_number(value) for value in condition.values)
            return isinstance(found, int | float) and start <= found < end
        case order:
            (value,) = condition.values
            return isinstance(found, int | float) and _COMPARISONS[order](found, _number(value))


def _found(condition: Condition, row: Mapping[str, object]) -> object:
    if condition.attribute != TAG:
        return row.get(condition.attribute)
    tags = row.get("tags")
    return tags.get(condition.tag) if isinstance(tags, Mapping) else None


def _absolute(value: Value) -> Value:
    if isinstance(value, Ago):
        raise QueryError(
            "a relative time has no meaning of its own", next_step="resolve the query first: resolve(query, now=…)"
        )
    return value


def _number(value: Value) -> float:
    absolute = _absolute(value)
    if isinstance(absolute, str | Ago):
        raise QueryError("a text has no order", next_step="make queries with parse or from_json")
    return absolute
