"""The form of a query for programs: `{"all": [{"any": [{"attribute", "operator", "values"}]}]}`, checked like the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage.book.query.attributes import Target
from pilotage.book.query.check import RawCondition, RawValue, check_query, too_many_conditions, too_many_values
from pilotage.book.query.conditions import CONDITIONS_MAX, VALUES_MAX, Condition, Operator, Query
from pilotage.book.query.errors import Place, shown
from pilotage.book.query.values import plain_value
from pilotage.model.errors import did_you_mean

_OPERATORS = {str(operator): operator for operator in Operator}


def to_json(query: Query) -> dict[str, object]:
    """The query as plain values, ready for any JSON writer; times are texts, relative ones such as `2h ago`."""
    return {"all": [{"any": [_plain(condition) for condition in clause]} for clause in query.clauses]}


def _plain(condition: Condition) -> dict[str, object]:
    kind = condition.about.kind
    return {
        "attribute": condition.name,
        "operator": str(condition.operator),
        "values": [plain_value(kind, value) for value in condition.values],
    }


def from_json(value: object, *, target: Target | None = None) -> Query:
    """The query that plain values mean; refuses with a `QueryError` that names the path to the fault."""
    whole = Place(path="the whole")
    fields = _object(value, keys=("all",), place=whole)
    clauses: list[list[RawCondition]] = []
    for number, group in enumerate(_list(fields["all"], place=Place(path="all"), size_max=CONDITIONS_MAX)):
        path = f"all[{number}]"
        any_of = _object(group, keys=("any",), place=Place(path=path))["any"]
        place = Place(path=f"{path}.any")
        alternatives = _list(any_of, place=place, size_max=CONDITIONS_MAX)
        if not alternatives:
            raise place.error("no alternative", expected="at least one condition")
        clauses.append([_condition(each, f"{path}.any[{index}]") for index, each in enumerate(alternatives)])
    return check_query(clauses, target=target, place=whole)


def _condition(value: object, path: str) -> RawCondition:
    fields = _object(value, keys=("attribute", "operator", "values"), place=Place(path=path))
    attribute, operator = fields["attribute"], fields["operator"]
    place, operator_place = Place(path=f"{path}.attribute"), Place(path=f"{path}.operator")
    if not isinstance(attribute, str):
        raise place.error("not an attribute", expected="a name", got=shown(attribute))
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise operator_place.error("no such operator", expected=f"one of {', '.join(_OPERATORS)}", got=shown(operator))
    values = _list(fields["values"], place=Place(path=f"{path}.values"), size_max=VALUES_MAX)
    return RawCondition(
        attribute=attribute,
        operator=_OPERATORS[operator],
        values=[RawValue(each, Place(path=f"{path}.values[{index}]")) for index, each in enumerate(values)],
        place=place,
        operator_place=operator_place,
    )


def _object(value: object, *, keys: tuple[str, ...], place: Place) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise place.error("not an object", expected=f"an object with {', '.join(keys)}", got=shown(value))
    for key in value:
        if key not in keys:
            raise place.error(f"no such key: {shown(key)}", next_step=did_you_mean(str(key)[:40], keys))
    for key in keys:
        if key not in value:
            raise place.error(f"{key} is missing", expected=f"an object with {', '.join(keys)}")
    return value


def _list(value: object, *, place: Place, size_max: int) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise place.error("not a list", expected="a list", got=shown(value))
    if len(value) > size_max:
        raise too_many_values(place) if size_max == VALUES_MAX else too_many_conditions(place)
    return value
