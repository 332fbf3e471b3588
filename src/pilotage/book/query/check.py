"""Checks parsed conditions, from text or JSON: one set of rules for both forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pilotage.book.query.attributes import (
    ATTRIBUTES,
    TAG,
    TAG_PREFIX,
    Attribute,
    Kind,
    Target,
    default_indexed,
    find_attribute,
    name_hint,
)
from pilotage.book.query.clauses import RawCondition, RawValue, too_long, too_many_conditions, too_many_values
from pilotage.book.query.conditions import (
    CONDITIONS_MAX,
    LENGTH_BYTES_MAX,
    TAG_NAME_MAX,
    VALUES_MAX,
    Clause,
    Condition,
    Operator,
    Query,
    canonical,
)
from pilotage.book.query.errors import QueryError, QueryPlace, QueryTooBroad, shown
from pilotage.book.query.values import (
    DAY_SECONDS,
    WITHIN_FORM,
    Ago,
    Value,
    is_date,
    is_duration,
    read_duration,
    read_package,
    read_value,
    write_text,
)
from pilotage.model.jobs.layout import PackageId

BookCondition = RawCondition[Operator]
RawClause = Sequence[BookCondition]

Named = Callable[[str, str], PackageId | None]
"""Finds a package by job and name; the job is empty if the query names none, or several."""


def check_query(
    clauses: Sequence[RawClause], *, target: Target | None, place: QueryPlace, named: Named | None = None
) -> Query:
    """Check a query; raises its first fault. With `named`, packages may be given by name."""
    check_sizes(clauses, place=place)
    if named is not None:
        clauses = _with_places(clauses, named)
    checked: list[Clause] = []
    for clause in clauses:
        checked += _check_clause(clause, target)
    query = Query(tuple(checked))
    if sum(len(clause) for clause in checked) > CONDITIONS_MAX:
        raise too_many_conditions(place)
    # A query that is short in one form may be long in the other; it must fit in both.
    if len(canonical(query).encode()) > LENGTH_BYTES_MAX:
        raise too_long(place)
    return query


def check_sizes(clauses: Sequence[RawClause], *, place: QueryPlace) -> None:
    """Refuse an oversized query before it is checked."""
    if sum(len(clause) for clause in clauses) > CONDITIONS_MAX:
        raise too_many_conditions(place)
    if sum(len(condition.values) for clause in clauses for condition in clause) > VALUES_MAX:
        raise too_many_values(place)


def check_target(query: Query, target: Target) -> None:
    """Refuse a query with an attribute that the target does not have."""
    for condition in query.conditions:
        _check_applies(condition.about, name=condition.name, target=target, place=QueryPlace())


def _with_places(clauses: Sequence[RawClause], named: Named) -> list[RawClause]:
    """Replace names of packages by their numbers."""
    jobs = {
        str(condition.values[0].value)
        for clause in clauses
        for condition in clause
        if len(clause) == 1 and condition.operator is Operator.EQUAL and len(condition.values) == 1
        if (found := find_attribute(condition.attribute)) is not None and found.kind is Kind.JOB
    }
    job = jobs.pop() if len(jobs) == 1 else ""
    return [[_with_place(condition, job, named) for condition in clause] for clause in clauses]


def _with_place(condition: BookCondition, job: str, named: Named) -> BookCondition:
    attribute = find_attribute(condition.attribute)
    if attribute is None or attribute.kind is not Kind.PACKAGE or condition.operator.orders:
        return condition
    values = []
    for each in condition.values:
        if not isinstance(each.value, str) or read_package(each.value)[1] is not None:
            values.append(each)
            continue
        found = named(job, each.value)
        if found is None:
            raise _no_name(each, job)
        values.append(RawValue(found.dotted, each.place))
    return msgspec.structs.replace(condition, values=values)


def _no_name(value: RawValue, job: str) -> QueryError:
    name = shown(value.value)
    if job:
        step = f"see what there is: pilotage query job={job}"
        return value.place.error(f"the job has no package named {name}", next_step=step)
    step = f"write job=ID and package={write_text(str(value.value))}, or its number, such as 1.2.1"
    return value.place.error(f"{name} names a package only within one job", next_step=step)


def _check_clause(clause: RawClause, target: Target | None) -> list[Clause]:
    """Mostly one clause; a DØ path that names its job gives two."""
    split = _split_path(clause[0]) if len(clause) == 1 else ()
    if split:
        return [(_check_condition(condition, target),) for condition in split]
    return [tuple(_check_condition(condition, target) for condition in clause)]


def _split_path(condition: BookCondition) -> Sequence[BookCondition]:
    attribute = find_attribute(condition.attribute)
    if attribute is None or attribute.kind is not Kind.PACKAGE or condition.operator is not Operator.EQUAL:
        return ()
    job, package = read_package(condition.values[0].value) if len(condition.values) == 1 else ("", None)
    if not job or package is None:
        return ()
    place = condition.values[0].place
    name = msgspec.structs.replace(condition, attribute="name", values=[RawValue(job, place)])
    return name, msgspec.structs.replace(condition, values=[RawValue(package.dotted, place)])


def _check_condition(raw: BookCondition, target: Target | None) -> Condition:
    attribute, tag = _check_attribute(raw, target)
    if raw.operator.orders and not attribute.kind.ordered:
        raise raw.operator_place.error(
            f"{attribute.name} has no order",
            expected="=, !=, in or not in",
            got=str(raw.operator),
            next_step="only times and counts are compared with <, <=, >, >= and within",
        )
    values = _check_values(attribute, raw)
    return Condition(attribute=attribute.name, tag=tag, operator=raw.operator, values=values)


def _check_attribute(raw: BookCondition, target: Target | None) -> tuple[Attribute, str]:
    name, place = raw.attribute, raw.place
    is_tag = name[: len(TAG_PREFIX)].lower() == TAG_PREFIX
    tag = name[len(TAG_PREFIX) :] if is_tag else ""
    attribute = find_attribute(TAG if is_tag else name)
    if attribute is None:
        raise place.error(f"no such attribute: {shown(name)}", next_step=name_hint(name, target))
    if attribute.name == TAG and not 0 < len(tag) <= TAG_NAME_MAX:
        raise place.error(
            "a tag needs its name", expected=f"tag.NAME, at most {TAG_NAME_MAX} characters", got=shown(name)
        )
    if tag:
        read_value(Kind.TEXT, tag, place)
    if target is not None:
        _check_applies(attribute, name=name, target=target, place=place)
    return attribute, tag


def _check_applies(attribute: Attribute, *, name: str, target: Target, place: QueryPlace) -> None:
    if target not in attribute.targets:
        has = " and ".join(attribute.targets)
        hint = f"ask for {' or '.join(attribute.targets)}; {name_hint('', target)}"
        raise place.error(f"{target} have no {shown(name)}, which is an attribute of {has}", next_step=hint)


def _check_values(attribute: Attribute, raw: BookCondition) -> tuple[Value, ...]:
    match raw.operator:
        case Operator.WITHIN:
            return _check_range(attribute, raw)
        case Operator.IN | Operator.NOT_IN:
            if not raw.values:
                raise raw.operator_place.error("an empty list", expected="at least one value")
        case _ if len(raw.values) != 1:
            raise raw.operator_place.error("the wrong number of values", expected="one", got=str(len(raw.values)))
    for each in raw.values:
        if attribute.kind is Kind.TIME and is_date(each.value) and not raw.operator.orders:
            hint = f"write {attribute.name} within {each.value} for that day"
            raise each.place.error("a day is not a moment", next_step=hint)
    return tuple(read_value(attribute.kind, each.value, each.place) for each in raw.values)


def _check_range(attribute: Attribute, raw: BookCondition) -> tuple[Value, Value]:
    kind = attribute.kind
    match raw.values:
        case [only] if kind is Kind.TIME and is_duration(only.value):
            seconds = read_duration(str(only.value))
            if not seconds:
                raise only.place.error(
                    "not a usable duration", expected="more than zero, up to a hundred years", got=shown(only.value)
                )
            return Ago(seconds), Ago(0.0)
        case [only] if kind is Kind.TIME and is_date(only.value):
            start = read_value(kind, only.value, only.place)
            end = read_value(kind, start + DAY_SECONDS if isinstance(start, float) else start, only.place)
            return start, end
        case [first, second]:
            start = read_value(kind, first.value, first.place)
            end = read_value(kind, second.value, second.place)
            if _is_empty(start, end):
                hint = "the start is part of a range and the end is not: within 1..3 means 1 and 2"
                raise second.place.error("this range is empty", next_step=hint)
            return start, end
        case _:
            expected = WITHIN_FORM if kind is Kind.TIME else "within START..END"
            got = f"{len(raw.values)} values" if len(raw.values) != 1 else shown(raw.values[0].value)
            raise raw.operator_place.error("not a range", expected=expected, got=got)


def _is_empty(start: Value, end: Value) -> bool:
    match start, end:
        case Ago(seconds=longer), Ago(seconds=shorter):
            return longer <= shorter
        case int() | float(), int() | float():
            return start >= end
        case _:
            return False  # one of them is relative: unknown


# Chooses the clause of a query that an index serves; a query without one is refused before it scans a million rows.

_RANKS = {name: rank for rank, name in enumerate(ATTRIBUTES)}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to execute a query: by the index of the clause with that number, or, if None, in the order of the keys.

    `attributes` are those of the clause, tags as `tag.NAME`; `serving` are the numbers of all clauses with an index.
    """

    target: Target
    clause: int | None = None
    attributes: tuple[str, ...] = ()
    serving: tuple[int, ...] = ()


def served_by(query: Query, target: Target, indexed: frozenset[str] | None = None) -> Plan:
    """The plan for a query, or `QueryTooBroad`; the default of `indexed` are the attributes indexed by default.

    An index serves a clause if each alternative compares an indexed attribute by `=`, `in` or a range. Job ids always
    have an index, and so do positions of events. Only jobs can be listed without a condition, by key.
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
    """Sort key: values before ranges, then the most selective attribute, then fewer values."""
    ranges = sum(condition.operator.orders for condition in clause)
    rank = max(_RANKS[condition.attribute] for condition in clause)
    return ranges, rank, sum(len(condition.values) for condition in clause)


def _too_broad(query: Query, *, target: Target, names: frozenset[str]) -> QueryTooBroad:
    # In the order of the table, with single tags in place of `tag`.
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
    # Events of sites have no job: they are read from a position on.
    such_as = "`job=ID and …`, or `position>N and …`" if target is Target.EVENTS else "`job=ID and …`"
    return QueryTooBroad(
        f"no index serves this query over {target}, and all of them would have to be read",
        subject="query",
        expected=f"a clause with =, in or a range on one of {listed}",
        got=got or "no condition",
        next_step=f"narrow it down, for example {such_as}; the setting query.indexed lists the indexed attributes",
    )


def _why_not(condition: Condition, names: frozenset[str]) -> str:
    if not _is_indexed(condition, names):
        return f"{condition.name}, which is not indexed"
    word = "not in" if condition.operator is Operator.NOT_IN else "!="
    return f"{condition.name} {word}, which no index serves"
