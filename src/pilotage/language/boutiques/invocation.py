"""Reads an invocation, the values for the inputs of a tool, and checks it against the descriptor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pilotage.language.boutiques import command
from pilotage.language.boutiques.descriptor import Descriptor, Group, Input
from pilotage.language.boutiques.values import (
    Value,
    first_repeated,
    is_integer,
    is_number,
    kind_of,
    same,
    shown,
    value_of,
)
from pilotage.language.text.tree import NOWHERE, Mark, Node, Report, Table
from pilotage.model.errors import did_you_mean

# A validator for the part of JSON Schema (draft 4) that `invocation-schema` of a descriptor uses.
#
# bosh generates such schemas; a keyword that this module does not know is rejected by name.

_DRAFT_4 = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-04/schema")
_SILENT = frozenset({"$schema", "id", "title", "description", "default", "format", "definitions"})

Fault = tuple[tuple[str | int, ...], str]
"""The path in the value, and what is wrong there."""


class SchemaError(Exception):
    """The schema itself is invalid or unsupported; the text says why."""


def faults(value: Value, schema: Value, *, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Every fault of a value; raises `SchemaError` if the schema is invalid or uses an unknown keyword."""
    if not isinstance(schema, dict):
        raise SchemaError(f"expected an object as a schema, found {kind_of(schema)}")
    if schema.get("$schema", _DRAFT_4[0]) not in _DRAFT_4:
        raise SchemaError(f"only draft 4 of JSON Schema is supported, not {shown(schema['$schema'])}")
    for name, rule in schema.items():
        if name in _SILENT:
            continue
        check = _CHECKS.get(name)
        if check is None:
            raise SchemaError(f"the keyword {shown(name)} of JSON Schema is not supported")
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
        yield (*path, first_repeated(value)), "the list already contains this item"


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
            yield (*path, key), f"{shown(key)} is not a known field"
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
        yield path, f"{kind_of(value)} is not allowed here"


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


class Invocation(dict[str, Value]):
    """Values by input id, with their positions in the text."""

    def __init__(self, values: Mapping[str, Value], places: Mapping[str, Mark]) -> None:
        super().__init__(values)
        self.places = dict(places)


def read_invocation(node: Node, report: Report) -> dict[str, Value]:
    """The values of an invocation by input id; empty, with a fault in the report, if the node is not an object."""
    if not isinstance(node, Table):
        report.error("wrong-type", "expected an object that gives inputs their values", node.mark)
        return {}
    values = value_of(node, report)
    places = {key.text: item.mark if item.mark != NOWHERE else key.mark for key, item in node.entries}
    return Invocation(values if isinstance(values, dict) else {}, places)


def check_invocation(descriptor: Descriptor, invocation: Mapping[str, Value], report: Report) -> None:
    """Report every violation of the descriptor by the invocation; defaults count as given."""
    check = _Check(descriptor, invocation, report)
    before = len(report.errors)
    if descriptor.invocation_schema:
        check.own_schema(descriptor.invocation_schema)
    else:
        check.values_of_inputs()
        check.dependencies()
        check.groups()
    if len(report.errors) == before:
        for fault in command.condition_faults(descriptor, invocation):
            report.error("bad-condition", fault)
        check.advice()


class _Check:
    def __init__(self, descriptor: Descriptor, invocation: Mapping[str, Value], report: Report) -> None:
        self.descriptor = descriptor
        self.values = command.completed(descriptor, invocation)
        self.report = report
        self.places = invocation.places if isinstance(invocation, Invocation) else {}
        self.inputs = {input_.id: input_ for input_ in descriptor.inputs}

    def error(self, code: str, message: str, *, at: str = "", hint: str = "") -> None:
        self.report.error(code, message, self.places.get(at, NOWHERE), hint=hint)

    def is_active(self, id_: str) -> bool:
        """Whether an input is used: it has a value, and a flag is not false."""
        if id_ not in self.values:
            return False
        return not (self._is_flag(id_) and self.values[id_] is False)

    def _is_flag(self, id_: str) -> bool:
        return id_ in self.inputs and self.inputs[id_].type == "Flag"

    def own_schema(self, rules: dict[str, Value]) -> None:
        try:
            for path, message in faults(self.values, rules):
                label = ".".join(str(step) for step in path)
                at = str(path[0]) if path else ""
                self.error("invocation-schema", f"{label}: {message}" if label else message, at=at)
        except SchemaError as fault:
            self.error("bad-invocation-schema", f"the descriptor's 'invocation-schema' cannot be used: {fault}")

    def values_of_inputs(self) -> None:
        for id_ in self.values:
            if id_ not in self.inputs:
                hint = did_you_mean(id_, self.inputs) if len(self.report.errors) < 100 else ""
                self.error("unknown-input", f"the tool has no input {shown(id_)}", at=id_, hint=hint)
        for id_, input_ in self.inputs.items():
            if id_ in self.values:
                self._check_value(input_, self.values[id_])
            elif not input_.optional:
                kind = f"a list of {input_.type} values" if input_.is_list else f"a {input_.type}"
                self.error("missing-input", f"the input {id_!r} ({input_.name}, {kind}) is required and not given")

    def _check_value(self, input_: Input, value: Value) -> None:
        if not input_.is_list:
            self._check_item(input_, value)
            return
        if not isinstance(value, list):
            self.error("wrong-type", f"{input_.id}: expected a list, found {kind_of(value)}", at=input_.id)
            return
        least, most = input_.min_list_entries or 0, input_.max_list_entries or len(value)
        if not least <= len(value) <= most:
            bounds = f"at least {least}" if len(value) < least else f"at most {most}"
            self.error("list-length", f"{input_.id}: expected {bounds} entries, found {len(value)}", at=input_.id)
        for item in value:
            self._check_item(input_, item)

    def _check_item(self, input_: Input, value: Value) -> None:
        id_ = input_.id
        if input_.value_choices and not input_.integer:
            if not any(same(value, other=choice) for choice in input_.value_choices):
                listed = ", ".join(str(choice) for choice in input_.value_choices[:20])
                hint = did_you_mean(value, map(str, input_.value_choices)) if isinstance(value, str) else ""
                self.error(
                    "not-a-choice", f"{id_}: expected one of {listed}, found {kind_of(value)}", at=id_, hint=hint
                )
                return
        else:
            fits, expected = {
                "String": (isinstance(value, str), "text"),
                "File": (isinstance(value, str), "the path of a file as text"),
                "Flag": (isinstance(value, bool), "true or false"),
                "Number": (is_number(value), "a number"),
            }[input_.type]
            if input_.integer:
                fits, expected = is_integer(value), "an integer"
            if not fits:
                self.error("wrong-type", f"{id_}: expected {expected}, found {kind_of(value)}", at=id_)
                return
        if is_number(value) and isinstance(value, (int, float)):
            self._check_range(input_, value)

    def _check_range(self, input_: Input, value: float) -> None:
        least, most = input_.minimum, input_.maximum
        if least is not None and (value < least or (input_.exclusive_minimum and value == least)):
            words = "more than" if input_.exclusive_minimum else "at least"
            self.error("out-of-range", f"{input_.id}: expected {words} {least}, found {value}", at=input_.id)
        if most is not None and (value > most or (input_.exclusive_maximum and value == most)):
            words = "less than" if input_.exclusive_maximum else "at most"
            self.error("out-of-range", f"{input_.id}: expected {words} {most}, found {value}", at=input_.id)

    def dependencies(self) -> None:
        groups = {group.id: group for group in self.descriptor.groups}
        for id_, input_ in self.inputs.items():
            if not self.is_active(id_):
                continue
            for other in input_.requires_inputs or ():
                if other not in groups and not self._is_met(other):
                    self.error("requires-input", f"{id_!r} requires {other!r}, which is not given", at=id_)
            self._check_required_groups(input_, groups)
            for other in input_.disables_inputs or ():
                if self.is_active(other):
                    self.error("disables-input", f"{id_!r} excludes {other!r}, but both are given", at=other)

    def _is_met(self, id_: str) -> bool:
        return id_ in self.values and (not self._is_flag(id_) or self.values[id_] is True)

    def _check_required_groups(self, input_: Input, groups: Mapping[str, Group]) -> None:
        named = [groups[id_] for id_ in input_.requires_inputs or () if id_ in groups and id_ not in self.inputs]
        if input_.type == "Flag" and named:
            # bosh looks for an input with the name of the group, which no invocation can have
            message = f"the flag {input_.id!r} requires the group {named[0].id!r}, but a flag can require only inputs"
            self.error("requires-input", message, at=input_.id)
            return
        for group in named[-1:]:  # bosh checks only the last of several groups
            if not any(member in self.values for member in group.members):
                message = f"{input_.id!r} requires one of {', '.join(group.members)} (group {group.id!r}), found none"
                self.error("requires-input", message, at=input_.id)

    def groups(self) -> None:
        for group in self.descriptor.groups:
            active = [member for member in group.members if self.is_active(member)]
            # bosh checks whether the rule is stated, not whether it is true
            if group.mutually_exclusive is not None and len(active) > 1:
                message = f"only one of {', '.join(group.members)} may be given (group {group.id!r}), found {', '.join(active)}"
                hint = (
                    "" if group.mutually_exclusive else "bosh treats 'mutually-exclusive': false as true; leave it out"
                )
                self.error("mutually-exclusive", message, at=active[1], hint=hint)
            if group.one_is_required and not any(self._is_met(member) for member in group.members):
                message = f"one of {', '.join(group.members)} is required (group {group.id!r}), found none"
                self.error("one-is-required", message)

    def advice(self) -> None:
        """Warn about violated rules that bosh does not enforce."""
        for group in self.descriptor.groups:
            missing = [member for member in group.members if not self.is_active(member)]
            if group.all_or_none and 0 < len(missing) < len(group.members):
                message = f"{', '.join(group.members)} go together (group {group.id!r}); {', '.join(missing)} not given"
                self.report.warn("all-or-none", message)
        for id_, input_ in self.inputs.items():
            chosen = self.values.get(id_)
            if not isinstance(chosen, str):
                continue
            for other in (input_.value_requires or {}).get(chosen, ()):
                if not self._is_met(other):
                    message = f"{id_} = {shown(chosen)} requires {other!r}, which is not given"
                    self.report.warn("value-requires", message, self.places.get(id_, NOWHERE))
            for other in (input_.value_disables or {}).get(chosen, ()):
                if self.is_active(other):
                    message = f"{id_} = {shown(chosen)} excludes {other!r}, but both are given"
                    self.report.warn("value-disables", message, self.places.get(id_, NOWHERE))
