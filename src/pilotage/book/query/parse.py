"""Reads a query of the book from its text or its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from pilotage.book.query.attributes import TAG_PREFIX, Kind, Target, find_attribute, name_hint
from pilotage.book.query.check import BookCondition, Named, check_query, check_sizes
from pilotage.book.query.clauses import (
    ClauseParser,
    Grammar,
    RawCondition,
    RawValue,
    check_length,
    too_many_conditions,
    too_many_values,
)
from pilotage.book.query.conditions import (
    BOOK_OPERATORS,
    CONDITIONS_MAX,
    EVERYTHING,
    EVERYTHING_WORD,
    VALUES_MAX,
    Condition,
    Operator,
    Query,
)
from pilotage.book.query.errors import PackageByName, QueryPlace, shown
from pilotage.book.query.values import plain_value
from pilotage.model.errors import did_you_mean

_SHORT = 200


def parse(text: str, *, target: Target | None = None, named: Named | None = None) -> Query:
    """Parse a query; with a target, its attributes must apply there. Raises `QueryError`.

    With `named`, packages may be given by name; it is called only for those.
    """
    check_length(text)
    try:
        return _parse_short(text, target) if len(text) <= _SHORT else _parse(text, target)
    except PackageByName:
        if named is None:
            raise
        return _parse(text, target, named)  # not cached: another caller may not see this job


@lru_cache(maxsize=256)  # watchers repeat the same query again and again
def _parse_short(text: str, target: Target | None) -> Query:
    return _parse(text, target)


def _parse(text: str, target: Target | None, named: Named | None = None) -> Query:
    clauses = ClauseParser(text, _grammar(target)).clauses()
    if not clauses:
        return EVERYTHING
    place = QueryPlace(text, 0)
    check_sizes(clauses, place=place)
    return check_query(clauses, target=target, place=place, named=named)


_OPERATORS = {str(operator): operator for operator in BOOK_OPERATORS}


@cache
def _grammar(target: Target | None) -> Grammar[Operator]:
    return Grammar(
        operators=_OPERATORS,
        lists=(Operator.IN, Operator.NOT_IN),
        ranges=(Operator.WITHIN,),
        prefixes=(TAG_PREFIX,),
        is_time=_is_time,
        is_known=_is_known,
        hint=lambda name: name_hint(name, target),
        everything=EVERYTHING_WORD,
    )


def _is_time(name: str) -> bool:
    attribute = find_attribute(name)
    return attribute is not None and attribute.kind is Kind.TIME


def _is_known(name: str) -> bool:
    return find_attribute(name) is not None or name[:4].lower() == TAG_PREFIX


# The JSON form of a query: `{"all": [{"any": [{"attribute", "operator", "values"}]}]}`, checked like the text.


def to_json(query: Query) -> dict[str, object]:
    """The query as JSON values; times are texts, relative ones such as `2h ago`."""
    return {"all": [{"any": [_plain(condition) for condition in clause]} for clause in query.clauses]}


def _plain(condition: Condition) -> dict[str, object]:
    kind = condition.about.kind
    return {
        "attribute": condition.name,
        "operator": str(condition.operator),
        "values": [plain_value(kind, value) for value in condition.values],
    }


def from_json(value: object, *, target: Target | None = None) -> Query:
    """The query of JSON values; raises a `QueryError` with the path to the fault."""
    whole = QueryPlace(path="the whole")
    fields = _object(value, keys=("all",), place=whole)
    clauses: list[list[BookCondition]] = []
    for number, group in enumerate(_list(fields["all"], place=QueryPlace(path="all"), size_max=CONDITIONS_MAX)):
        path = f"all[{number}]"
        any_of = _object(group, keys=("any",), place=QueryPlace(path=path))["any"]
        place = QueryPlace(path=f"{path}.any")
        alternatives = _list(any_of, place=place, size_max=CONDITIONS_MAX)
        if not alternatives:
            raise place.error("no alternative", expected="at least one condition")
        clauses.append([_condition(each, f"{path}.any[{index}]") for index, each in enumerate(alternatives)])
    return check_query(clauses, target=target, place=whole)


def _condition(value: object, path: str) -> BookCondition:
    fields = _object(value, keys=("attribute", "operator", "values"), place=QueryPlace(path=path))
    attribute, operator = fields["attribute"], fields["operator"]
    place, operator_place = QueryPlace(path=f"{path}.attribute"), QueryPlace(path=f"{path}.operator")
    if not isinstance(attribute, str):
        raise place.error("not an attribute", expected="a name", got=shown(attribute))
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise operator_place.error("unknown operator", expected=f"one of {', '.join(_OPERATORS)}", got=shown(operator))
    values = _list(fields["values"], place=QueryPlace(path=f"{path}.values"), size_max=VALUES_MAX)
    return RawCondition(
        attribute=attribute,
        operator=_OPERATORS[operator],
        values=[RawValue(each, QueryPlace(path=f"{path}.values[{index}]")) for index, each in enumerate(values)],
        place=place,
        operator_place=operator_place,
    )


def _object(value: object, *, keys: tuple[str, ...], place: QueryPlace) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise place.error("not an object", expected=f"an object with {', '.join(keys)}", got=shown(value))
    for key in value:
        if key not in keys:
            raise place.error(f"unknown key: {shown(key)}", next_step=did_you_mean(str(key)[:40], keys))
    for key in keys:
        if key not in value:
            raise place.error(f"{key} is missing", expected=f"an object with {', '.join(keys)}")
    return value


def _list(value: object, *, place: QueryPlace, size_max: int) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise place.error("not a list", expected="a list", got=shown(value))
    if len(value) > size_max:
        raise too_many_values(place) if size_max == VALUES_MAX else too_many_conditions(place)
    return value
