"""The part of JSON Schema (draft 4) that a descriptor's own `invocation-schema` is written in.

bosh writes such schemas itself; a keyword that neither it nor this module knows is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pilotage.language.boutiques.values import Value, first_repeated, is_integer, is_number, kind_of, same, shown

_DRAFT_4 = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-04/schema")
_SILENT = frozenset({"$schema", "id", "title", "description", "default", "format", "definitions"})

Fault = tuple[tuple[str | int, ...], str]
"""Where in the value, and what is wrong there."""


class SchemaError(Exception):
    """The schema itself cannot be used; the text says why."""


def faults(value: Value, schema: Value, *, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Every fault of a value; raises `SchemaError` when the schema is no schema or needs more than is known here."""
    if not isinstance(schema, dict):
        raise SchemaError(f"expected an object as a schema, found {kind_of(schema)}")
    if schema.get("$schema", _DRAFT_4[0]) not in _DRAFT_4:
        raise SchemaError(f"only draft 4 of JSON Schema is known here, not {shown(schema['$schema'])}")
    for name, rule in schema.items():
        if name in _SILENT:
            continue
        check = _CHECKS.get(name)
        if check is None:
            raise SchemaError(f"the keyword {shown(name)} of JSON Schema is not known here")
        yield from check(value, rule, schema, path)


def _needs(rule: Value, expected: type | tuple[type, ...], name: str) -> None:
    if not isinstance(rule, expected):
        raise SchemaError(f"the keyword {name!r} cannot be {kind_of(rule)}")


_TYPES: dict[str, Callable[[Value], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "null": lambda value: value is None,
    "number": is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}

_Path = tuple[str | int, ...]
_Schema = dict[str, Value]


def _type(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    names = rule if isinstance(rule, list) else [rule]
    if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
        raise SchemaError(f"{shown(rule)} is not a type of JSON Schema")
    if not any(_TYPES[str(name)](value) for name in names):
        yield path, f"expected {' or '.join(str(name) for name in names)}, found {kind_of(value)}"


def _enum(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    if not isinstance(rule, list) or not rule or first_repeated(rule) >= 0:
        raise SchemaError("the keyword 'enum' needs a list of different values")
    if not any(same(value, other=item) for item in rule):
        yield path, f"expected one of {shown(rule)}, found {kind_of(value)}"


def _bound(value: Value, rule: Value, schema: _Schema, path: _Path, *, name: str, sign: int) -> Iterator[Fault]:
    if not is_number(rule):
        raise SchemaError(f"the keyword {name!r} cannot be {kind_of(rule)}")
    if not is_number(value):
        return
    assert isinstance(value, (int, float))
    assert isinstance(rule, (int, float))
    exclusive = schema.get("exclusive" + name.capitalize()) is True
    beyond = value < rule if sign < 0 else value > rule
    if beyond or (exclusive and value == rule):
        words = {(-1, False): "at least", (-1, True): "more than", (1, False): "at most", (1, True): "less than"}
        yield path, f"expected {words[sign, exclusive]} {rule}, found {value}"


def _minimum(value: Value, rule: Value, schema: _Schema, path: _Path) -> Iterator[Fault]:
    yield from _bound(value, rule, schema, path, name="minimum", sign=-1)


def _maximum(value: Value, rule: Value, schema: _Schema, path: _Path) -> Iterator[Fault]:
    yield from _bound(value, rule, schema, path, name="maximum", sign=1)


def _exclusive(_value: Value, rule: Value, schema: _Schema, _path: _Path) -> Iterator[Fault]:
    _needs(rule, bool, "exclusive bound")
    if ("exclusiveMinimum" in schema and "minimum" not in schema) or (
        "exclusiveMaximum" in schema and "maximum" not in schema
    ):
        raise SchemaError("an exclusive bound needs its bound beside it")
    yield from ()


def _size(name: str, kind: type, *, sign: int) -> Callable[[Value, Value, _Schema, _Path], Iterator[Fault]]:
    def check(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
        if not is_integer(rule) or not isinstance(rule, int) or rule < 0:
            raise SchemaError(f"the keyword {name!r} cannot be {kind_of(rule)}")
        if isinstance(value, kind) and isinstance(value, (str, list, dict)) and (len(value) - rule) * sign > 0:
            yield path, f"expected a length of at {'least' if sign < 0 else 'most'} {rule}, found {len(value)}"

    return check


def _unique(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    _needs(rule, bool, "uniqueItems")
    if rule is True and isinstance(value, list) and first_repeated(value) >= 0:
        yield (*path, first_repeated(value)), "the same item stands in the list before"


def _items(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    _needs(rule, dict, "items")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from faults(item, rule, path=(*path, index))


def _properties(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    if not isinstance(rule, dict):
        raise SchemaError(f"the keyword 'properties' cannot be {kind_of(rule)}")
    if isinstance(value, dict):
        for key, inner in rule.items():
            if key in value:
                yield from faults(value[key], inner, path=(*path, key))


def _additional(value: Value, rule: Value, schema: _Schema, path: _Path) -> Iterator[Fault]:
    _needs(rule, (bool, dict), "additionalProperties")
    known = schema.get("properties")
    if not isinstance(value, dict) or rule is True:
        return
    for key, item in value.items():
        if isinstance(known, dict) and key in known:
            continue
        if rule is False:
            yield (*path, key), f"{shown(key)} is not known here"
        else:
            yield from faults(item, rule, path=(*path, key))


def _names(rule: Value, name: str) -> list[str]:
    if not isinstance(rule, list) or not rule or not all(isinstance(item, str) for item in rule):
        raise SchemaError(f"the keyword {name!r} needs a list of names")
    return [str(item) for item in rule]


def _required(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    for key in _names(rule, "required"):
        if isinstance(value, dict) and key not in value:
            yield path, f"{key!r} is missing"


def _dependencies(value: Value, rule: Value, schema: _Schema, path: _Path) -> Iterator[Fault]:
    if not isinstance(rule, dict):
        raise SchemaError(f"the keyword 'dependencies' cannot be {kind_of(rule)}")
    for key, inner in rule.items():
        if isinstance(value, dict) and key in value:
            found = (
                _required(value, inner, schema, path) if isinstance(inner, list) else faults(value, inner, path=path)
            )
            for place, message in found:
                yield place, f"with {key!r} given: {message}"


def _alternatives(value: Value, rule: Value, name: str, path: _Path) -> list[list[Fault]]:
    if not isinstance(rule, list) or not rule:
        raise SchemaError(f"the keyword {name!r} needs a list of schemas")
    return [list(faults(value, inner, path=path)) for inner in rule]


def _all_of(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    for found in _alternatives(value, rule, "allOf", path):
        yield from found


def _any_of(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    tried = _alternatives(value, rule, "anyOf", path)
    if all(tried):
        yield path, "none of these holds: " + "; ".join(found[0][1] for found in tried)


def _one_of(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    tried = _alternatives(value, rule, "oneOf", path)
    fitting = sum(not found for found in tried)
    if fitting != 1:
        yield path, f"expected exactly one of {len(tried)} rules to hold, found {fitting}"


def _not(value: Value, rule: Value, _schema: _Schema, path: _Path) -> Iterator[Fault]:
    if not list(faults(value, rule, path=path)):
        yield path, f"{kind_of(value)} may not stand here"


_CHECKS: dict[str, Callable[[Value, Value, _Schema, _Path], Iterator[Fault]]] = {
    "type": _type,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "minLength": _size("minLength", str, sign=-1),
    "maxLength": _size("maxLength", str, sign=1),
    "minItems": _size("minItems", list, sign=-1),
    "maxItems": _size("maxItems", list, sign=1),
    "minProperties": _size("minProperties", dict, sign=-1),
    "maxProperties": _size("maxProperties", dict, sign=1),
    "uniqueItems": _unique,
    "items": _items,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "dependencies": _dependencies,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
}
