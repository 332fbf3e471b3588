"""The query language of records: that of the book's queries, with attributes of records, `exists`, `~`, days and months.

An attribute may have many values. A condition holds if it does for one of them; `!=`, `not in` and `not exists` hold if no value
denies them. Texts are ordered by the number or the time that they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from pilotage.book.query.attributes import Kind
from pilotage.book.query.clauses import (
    ClauseParser,
    Grammar,
    RawCondition,
    RawValue,
    check_length,
    too_many_conditions,
    too_many_values,
)
from pilotage.book.query.conditions import CONDITIONS_MAX, TAG_NAME_MAX, VALUES_MAX, Operator
from pilotage.book.query.errors import QueryPlace, QueryTooBroad, shown
from pilotage.book.query.values import Ago, is_duration, read_duration, read_value
from pilotage.ports.record_index import (
    PREFIXES,
    IndexClause,
    IndexCondition,
    IndexedAttributes,
    IndexQuery,
    Value,
    calendar_span,
    number_of,
)
from pilotage.provenance.index.attributes import (
    DEFAULT,
    RecordAttribute,
    either,
    find_attribute,
    name_hint,
    shown_names,
)

WITHIN_FORM = "within START..END, within 2026-01, within 2026-01-31 or within 2h"
TIME_FORM = "a time such as 2026-01, 2026-01-31, 2026-01-31T10:00, now or 2h ago"
_RAW = RawCondition[Operator]
_AFTER_ALL = {Operator.GREATER: Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL: Operator.LESS}


def parse(text: str, *, attributes: IndexedAttributes = DEFAULT, now: float | None) -> IndexQuery:
    """Parse a query for an index with these attributes. Raises `QueryError`. Without `now`, relative times are refused."""
    check_length(text)
    grammar = Grammar(
        operators={str(each): each for each in Operator},
        lists=(Operator.IN, Operator.NOT_IN),
        ranges=(Operator.WITHIN,),
        alone=(Operator.EXISTS, Operator.NOT_EXISTS),
        prefixes=PREFIXES,
        is_time=lambda name: (found := find_attribute(name)) is not None and found.kind == "time",
        is_known=lambda name: find_attribute(name) is not None,
        hint=lambda name: name_hint(name, attributes),
    )
    clauses: list[IndexClause] = []
    for raw in ClauseParser(text, grammar).clauses():
        alternatives = [each for condition in raw for each in _checked(condition, attributes, now)]
        if any(len(each) > 1 for each in alternatives) and len(alternatives) > 1:
            clause = raw[0]
            raise clause.place.error(
                f"{shown(clause.attribute)} stands for two attributes, which cannot be denied among alternatives",
                next_step="write the condition for each of them, joined by `and`",
            )
        if len(alternatives) == 1:
            clauses += [(each,) for each in alternatives[0]]
        else:
            clauses.append(tuple(each for (each,) in alternatives))
    query = IndexQuery(tuple(clauses))
    _check_sizes(query)
    return query


def _check_sizes(query: IndexQuery) -> None:
    if sum(map(len, query.clauses)) > CONDITIONS_MAX:
        raise too_many_conditions(QueryPlace())
    if sum(len(each.values) for clause in query.clauses for each in clause) > VALUES_MAX:
        raise too_many_values(QueryPlace())
    check_length(str(query))


def _checked(raw: _RAW, attributes: IndexedAttributes, now: float | None) -> list[tuple[IndexCondition, ...]]:
    """Alternatives, each of conditions that must all hold: one, unless the name stands for several attributes."""
    names = either(raw.attribute)
    if not names:
        return [(_condition(raw, _attribute(raw, raw.attribute, attributes), now),)]
    both = tuple(_condition(raw, _attribute(raw, name, attributes), now) for name in names)
    return [both] if raw.operator.denies else [(each,) for each in both]


def _attribute(raw: _RAW, name: str, attributes: IndexedAttributes) -> RecordAttribute:
    found = find_attribute(name)
    if found is None:
        raise raw.place.error(f"no such attribute: {shown(name)}", next_step=name_hint(name, attributes))
    if len(found.name) > TAG_NAME_MAX:
        raise raw.place.error("the name is too long", expected=f"at most {TAG_NAME_MAX} characters")
    read_value(Kind.TEXT, found.name, raw.place)
    if not attributes.keeps(found.name):
        raise raw.place.error(
            f"this index does not have {found.name}",
            next_step=f"attributes of this index: {', '.join(shown_names(attributes.queryable))}",
        )
    return found


def _condition(raw: _RAW, attribute: RecordAttribute, now: float | None) -> IndexCondition:
    chosen = raw.operator
    values, is_time = _values(raw, attribute, now)
    if is_time and chosen in _AFTER_ALL and calendar_span(str(raw.values[0].value).strip()) is not None:
        # After a day or a month means after all of it, and until a day or a month means until its end.
        start, end = _span(raw.values[0], now)
        if end > start:
            chosen, values = _AFTER_ALL[chosen], (end,)
    return IndexCondition(attribute=attribute.name, operator=chosen, values=values, is_time=is_time)


def _values(raw: _RAW, attribute: RecordAttribute, now: float | None) -> tuple[tuple[Value, ...], bool]:
    """The values of a condition, and whether they are times."""
    kind, is_time = attribute.kind, attribute.kind == "time"
    match raw.operator:
        case Operator.EXISTS | Operator.NOT_EXISTS:
            return (), False
        case Operator.CONTAINS:
            if kind != "text":
                raise raw.operator_place.error(
                    f"{attribute.name} is a {kind}, not a text", expected="=, <, > or within"
                )
            text = _text(raw.values[0])
            if not text:
                raise raw.values[0].place.error(
                    "every text has an empty part", next_step=f"write {attribute.name} exists"
                )
            return (text,), False
        case Operator.WITHIN:
            return _range(raw, attribute, now)
        case order if order.orders:
            value = raw.values[0]
            if is_time or (kind == "text" and calendar_span(str(value.value)) is not None):
                return (_span(value, now)[0],), True
            return (_number(value),), False
    if kind == "text":
        return tuple(_text(each) for each in raw.values), False
    if is_time:
        for each in raw.values:
            start, end = _span(each, now)
            if end > start:
                hint = f"write {attribute.name} within {each.value}"
                raise each.place.error("a day or a month is not a moment", next_step=hint)
        return tuple(_span(each, now)[0] for each in raw.values), True
    return tuple(_number(each) for each in raw.values), False


def _range(raw: _RAW, attribute: RecordAttribute, now: float | None) -> tuple[tuple[Value, Value], bool]:
    kind = attribute.kind
    match raw.values:
        case [only] if is_duration(only.value):
            seconds = read_duration(str(only.value))
            if not seconds:
                raise only.place.error("not a usable duration", expected="more than zero, up to a hundred years")
            present = _now(only, now)
            return (max(0.0, present - seconds), present), True
        case [only] if (span := calendar_span(str(only.value))) is not None and span[1] > span[0]:
            return _span(only, now), True
        case [first, second]:
            is_time = kind == "time" or (kind == "text" and calendar_span(str(first.value)) is not None)
            if is_time:
                # A range of days or months has all of its last one.
                start, end = _span(first, now)[0], _span(second, now)[1]
            else:
                start, end = _number(first), _number(second)
            if start >= end:
                raise second.place.error(
                    "this range is empty", next_step="the end of a range of moments or numbers is not part of it"
                )
            return (start, end), is_time
        case _:
            got = shown(raw.values[0].value)
            raise raw.operator_place.error(
                "not a range", expected=WITHIN_FORM if kind != "number" else "within START..END", got=got
            )


def _text(raw: RawValue) -> str:
    return str(read_value(Kind.TEXT, raw.value, raw.place))


def _number(raw: RawValue) -> float:
    found = number_of(str(raw.value)) if calendar_span(str(raw.value)) is None else None
    if found is None or not math.isfinite(found):
        raise raw.place.error("not a number", expected="a number such as 4 or 2.5, or a time", got=shown(raw.value))
    return found


def _span(raw: RawValue, now: float | None) -> tuple[float, float]:
    """The start and the end of a month, a day or a moment."""
    span = calendar_span(str(raw.value).strip())
    if span is not None:
        return _moment(raw, span[0]), _moment(raw, span[1])
    found = read_value(Kind.TIME, raw.value, raw.place)
    if isinstance(found, Ago):
        moment = max(0.0, round(_now(raw, now) - found.seconds, 6))
        return moment, moment
    return float(found), float(found)


def _moment(raw: RawValue, seconds: float) -> float:
    """A time of the calendar that queries allow."""
    return float(read_value(Kind.TIME, seconds, raw.place))  # type: ignore[arg-type] # never relative


def _now(raw: RawValue, now: float | None) -> float:
    if now is None:
        raise raw.place.error("a relative time would mean another one at each feed", next_step="write a day or a month")
    return round(now, 6)


# Evaluates a query on the values of a record: the reference semantics, against which the SQL of every adapter is tested.

_COMPARISONS: dict[Operator, Callable[[float, float], bool]] = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def matches(query: IndexQuery, values: Mapping[str, Sequence[Value]]) -> bool:
    """Whether a record with these values matches."""
    return all(any(holds(each, values.get(each.attribute, ())) for each in clause) for clause in query.clauses)


def holds(condition: IndexCondition, found: Sequence[Value]) -> bool:
    """Whether a condition holds for the values of its attribute."""
    wanted = condition.values
    match condition.operator:
        case Operator.EQUAL | Operator.IN:
            return any(each in wanted for each in found)
        case Operator.NOT_EQUAL | Operator.NOT_IN:
            return not any(each in wanted for each in found)
        case Operator.EXISTS:
            return bool(found)
        case Operator.NOT_EXISTS:
            return not found
        case Operator.CONTAINS:
            return any(isinstance(each, str) and str(wanted[0]) in each for each in found)
    numbers = [number for each in found if (number := ordering_number(each)) is not None]
    if condition.operator is Operator.WITHIN:
        start, end = map(float, wanted)
        return any(start <= each < end for each in numbers)
    return any(_COMPARISONS[condition.operator](each, float(wanted[0])) for each in numbers)


def ordering_number(value: Value) -> float | None:
    """The number by which a value is ordered."""
    return number_of(value) if isinstance(value, str) else value


def require_index(query: IndexQuery, attributes: IndexedAttributes) -> None:
    """Raise `QueryTooBroad` unless an index serves one of the clauses."""
    if any(attributes.serve(clause) for clause in query.clauses):
        return
    got = [_why_not(each, attributes) for clause in query.clauses for each in clause if not attributes.serve((each,))]
    raise QueryTooBroad(
        "no index serves this query, and every record would have to be read",
        subject="query",
        expected=f"a condition with =, in, exists or a range on one of {', '.join(shown_names(('job', *(name for name in attributes.indexed if name != 'job'))))}",
        got="; ".join(dict.fromkeys(got)) or "no condition",
        next_step="add a condition on an indexed attribute, such as submitted within 2026-01",
    )


def _why_not(condition: IndexCondition, attributes: IndexedAttributes) -> str:
    if not attributes.serves(condition.attribute):
        return f"{condition.attribute}, which is not indexed"
    return f"{condition.attribute} {condition.operator}, which no index serves"
