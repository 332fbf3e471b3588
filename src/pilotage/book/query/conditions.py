"""A checked query: clauses that must all hold, each a list of alternative conditions; and its canonical text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

import msgspec

from pilotage.book.query.attributes import ATTRIBUTES, TAG, TAG_PREFIX, Attribute
from pilotage.book.query.errors import QueryError
from pilotage.book.query.values import TIME_MAX, Ago, Value, write_duration, write_text, write_value

LENGTH_BYTES_MAX = 16 * 1024
CONDITIONS_MAX = 64
VALUES_MAX = 1000
TAG_NAME_MAX = 256

EVERYTHING_WORD = "all"


class Operator(StrEnum):
    """The comparison of an attribute with the values of a condition, in queries of the book and of indexes of records."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"
    NOT_IN = "not in"
    WITHIN = "within"
    EXISTS = "exists"
    NOT_EXISTS = "not exists"
    CONTAINS = "~"

    @property
    def orders(self) -> bool:
        """Tell whether it needs ordered values."""
        return self in _ORDERING

    @property
    def denies(self) -> bool:
        """Tell whether it is negative: true for a missing value, and not served by an index."""
        return self in (Operator.NOT_EQUAL, Operator.NOT_IN, Operator.NOT_EXISTS)


_ORDERING = frozenset({
    Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL, Operator.WITHIN,
})  # fmt: skip

BOOK_OPERATORS = (
    Operator.EQUAL, Operator.NOT_EQUAL, Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL,
    Operator.IN, Operator.NOT_IN, Operator.WITHIN,
)  # fmt: skip
"""Those that a query of the book may have; indexes of records have them all."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison; `values` is one value, a list, or the inclusive start and the exclusive end of a range.

    `tag` is the name of the tag if the attribute is `tag`, else empty.
    """

    attribute: str
    operator: Operator
    values: tuple[Value, ...]
    tag: str = ""

    @property
    def name(self) -> str:
        """The attribute with its tag: `site`, `tag.study`."""
        return TAG_PREFIX + self.tag if self.attribute == TAG else self.attribute

    @property
    def about(self) -> Attribute:
        """The attribute's row of the table."""
        return ATTRIBUTES[self.attribute]

    def __str__(self) -> str:
        """The canonical text of the condition."""
        name = TAG_PREFIX + write_text(self.tag) if self.attribute == TAG else self.attribute
        kind = self.about.kind
        texts = [write_value(kind, value) for value in self.values]
        match self.operator:
            case Operator.IN | Operator.NOT_IN:
                return f"{name} {self.operator} ({', '.join(texts)})"
            case Operator.WITHIN:
                return f"{name} within {_last(self.values) or '..'.join(texts)}"
            case _ if any(isinstance(value, Ago) for value in self.values):
                return f"{name} {self.operator} {texts[0]}"
            case _:
                return f"{name}{self.operator}{texts[0]}"


def _last(values: tuple[Value, ...]) -> str:
    """The duration, if a range is the time from then until now."""
    match values:
        case (Ago(seconds=seconds), Ago(seconds=0)):
            return write_duration(seconds)
        case _:
            return ""


Clause = tuple[Condition, ...]
"""Alternatives: one of them must hold."""


class Query(msgspec.Struct, frozen=True):
    """Clauses that must all hold; without any, everything matches. `parse` and `from_json` make only checked ones."""

    clauses: tuple[Clause, ...] = ()

    @property
    def conditions(self) -> Iterator[Condition]:
        """All conditions, in order."""
        return (condition for clause in self.clauses for condition in clause)

    def __str__(self) -> str:
        """The canonical text: parsing it gives an equal query."""
        return canonical(self)


EVERYTHING = Query()


def canonical(query: Query) -> str:
    """The canonical text: full lower-case names and keywords, quotes only where needed, times in UTC."""
    if not query.clauses:
        return EVERYTHING_WORD
    return " and ".join(_clause_text(clause) for clause in query.clauses)


def _clause_text(clause: Clause) -> str:
    text = " or ".join(str(condition) for condition in clause)
    return f"({text})" if len(clause) > 1 else text


def resolve(query: Query, *, now: float) -> Query:
    """Make all relative times absolute; `now` is in seconds since 1970."""
    if not any(isinstance(value, Ago) for condition in query.conditions for value in condition.values):
        return query
    return Query(tuple(tuple(_resolved(condition, now) for condition in clause) for clause in query.clauses))


def _resolved(condition: Condition, now: float) -> Condition:
    values = tuple(_at(value, now) if isinstance(value, Ago) else value for value in condition.values)
    return msgspec.structs.replace(condition, values=values)


def _at(ago: Ago, now: float) -> float:
    return min(max(round(now - ago.seconds, 6), 0.0), TIME_MAX)


# Evaluates a query on a row: the reference semantics, against which the SQL is tested.
#
# A missing value (absent or None) equals nothing and has no order: `=`, `in`, `<`, `>` and `within` are false for it, `!=`
# and `not in` are true. In SQL: `(site IS NULL OR site <> ?)`.

_COMPARISONS: dict[Operator, Callable[[float, float], bool]] = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def matches(query: Query, row: Mapping[str, object]) -> bool:
    """Tell whether a row matches; the row has attributes by name, and tags under `tags`.

    Relative times must be resolved first.
    """
    return all(any(holds(condition, row) for condition in clause) for clause in query.clauses)


def holds(condition: Condition, row: Mapping[str, object]) -> bool:
    """Tell whether one condition holds for a row."""
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
            "a relative time must be resolved before it is compared",
            next_step="resolve the query first: resolve(query, now=…)",
        )
    return value


def _number(value: Value) -> float:
    absolute = _absolute(value)
    if isinstance(absolute, str | Ago):
        raise QueryError("a text has no order", next_step="make queries with parse or from_json")
    return absolute
