"""Which clause of a query an index can serve; a query that none can serve is refused before it scans a million rows."""

from __future__ import annotations

import msgspec

from pilotage.book.query.attributes import ATTRIBUTES, TAG, Target, default_indexed
from pilotage.book.query.check import check_target
from pilotage.book.query.conditions import Clause, Condition, Operator, Query
from pilotage.book.query.errors import QueryTooBroad

_RANKS = {name: rank for rank, name in enumerate(ATTRIBUTES)}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a query is served: by the clause of that number, or, where it is None, by the order of the keys alone.

    `attributes` are those of the clause, tags as `tag.NAME`; `serving` are the numbers of all clauses that could serve.
    """

    target: Target
    clause: int | None = None
    attributes: tuple[str, ...] = ()
    serving: tuple[int, ...] = ()


def served_by(query: Query, target: Target, indexed: frozenset[str] | None = None) -> Plan:
    """The plan for a query, or `QueryTooBroad`; without `indexed`, the attributes that are indexed by default.

    A clause serves when each of its alternatives compares an indexed attribute by `=`, `in` or a range. A job id always
    serves, and so does the position of events. Everything can only be asked of jobs, which are listed by key.
    """
    check_target(query, target)
    names = (default_indexed(target) if indexed is None else indexed) | _always(target)
    if not query.clauses and target is Target.JOBS:
        return Plan(target=target)
    serving = [number for number, clause in enumerate(query.clauses) if all(_serves(each, names) for each in clause)]
    if not serving:
        raise _too_broad(query, target=target, names=names)
    best = min(serving, key=lambda number: _cost(query.clauses[number]))
    attributes = tuple(dict.fromkeys(condition.name for condition in query.clauses[best]))
    return Plan(target=target, clause=best, attributes=attributes, serving=tuple(serving))


def _always(target: Target) -> frozenset[str]:
    return frozenset({"job", "position"} if target is Target.EVENTS else {"job"})


def _serves(condition: Condition, names: frozenset[str]) -> bool:
    return not condition.operator.denies and _is_indexed(condition, names)


def _is_indexed(condition: Condition, names: frozenset[str]) -> bool:
    return condition.attribute in names or (condition.attribute == TAG and condition.name in names)


def _cost(clause: Clause) -> tuple[int, int, int]:
    """Values before ranges, then what narrows most by the order of the table, then fewer values."""
    ranges = sum(condition.operator.orders for condition in clause)
    rank = max(_RANKS[condition.attribute] for condition in clause)
    return ranges, rank, sum(len(condition.values) for condition in clause)


def _too_broad(query: Query, *, target: Target, names: frozenset[str]) -> QueryTooBroad:
    # The order of the table, with single tags where the table has tags.
    useful = sorted(
        (
            name
            for name in names
            if (attribute := ATTRIBUTES.get(name.partition(".")[0])) and target in attribute.targets
        ),
        key=lambda name: (_RANKS[name.partition(".")[0]], name),
    )
    listed = ", ".join("tag.NAME" if name == TAG else name for name in useful)
    got = "; ".join(
        dict.fromkeys(_why_not(condition, names) for condition in query.conditions if not _serves(condition, names))
    )
    # Events of sites are of no job: whoever wants them reads on from a position.
    such_as = "`job=ID and …`, or `position>N and …`" if target is Target.EVENTS else "`job=ID and …`"
    return QueryTooBroad(
        f"no index serves this query over {target}, and all of them would have to be read",
        subject="query",
        expected=f"a clause with =, in or a range on one of {listed}",
        got=got or "no condition",
        next_step=f"ask for less, for example {such_as}; which attributes are indexed is the setting query.indexed",
    )


def _why_not(condition: Condition, names: frozenset[str]) -> str:
    if not _is_indexed(condition, names):
        return f"{condition.name}, which is not indexed"
    word = "not in" if condition.operator is Operator.NOT_IN else "!="
    return f"{condition.name} {word}, which no index answers"
