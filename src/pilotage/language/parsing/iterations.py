"""Reads `each`, what a stage or a line iterates over, in its short and canonical forms.

`{seed: 1..1000}` is one variable; several variables in one mapping are crossed; `dot`, `cross`, `flat-cross` and
`match` combine iterations, nested freely; `{csv: runs.csv}` gives every column of a table.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec

from pilotage.language.parsing.kinds import MISSING, DocumentParse, FieldPath, ListOf, Number, Schema, Text, describe
from pilotage.language.text.ambiguity import ambiguity
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.tree import Listing, Node, Scalar, Table
from pilotage.model.errors import did_you_mean, near_name
from pilotage.model.jobs.definition import Combination, Iteration, Operator, Source

OPERATORS: tuple[Operator, ...] = get_args(Operator)
RANGE = re.compile(r"(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?")
ITEMS_MAX = 20_000_000  # ten times a big job; more would not fit into memory
_LIKE_RANGE = re.compile(r"-?[0-9]+\.\.")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
RESERVED = frozenset({"inputs", "outputs", "arguments", "job", "tag", "package"})
_KEYS = ("variable", "values", "range", "files", "csv", "column", "lines", "stage", "job", "site", "group")
_ORIGINS = ("values", "range", "files", "csv", "lines")


class Values(msgspec.Struct, frozen=True):
    """A literal list of texts and numbers."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The values as texts."""
        return ListOf(Text()).read(node, place, reading)

    def schema(self) -> Schema:
        """A list of scalars."""
        return {"type": "array", "items": {"type": ["string", "number"]}}


class Each(msgspec.Struct, frozen=True):
    """The iteration of a stage or a line."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The iteration, or `MISSING`."""
        if not isinstance(node, Table):
            hint = "write for example  each: {seed: 1..100}"
            return reading.fault("wrong-type", node, f"expected what to iterate over, got {describe(node)}", hint=hint)
        if not node.entries:
            return reading.fault("empty-iteration", node, "expected at least one variable to iterate over")
        keys = list(node.keys())
        if "variable" in keys or "csv" in keys:
            return _read_source(node, place, reading)
        operators = [key for key in keys if key in OPERATORS]
        if operators and len(keys) > 1:
            message = f"{operators[0]!r} must be the only key: its operands go inside it"
            return reading.fault("mixed-iteration", node, message)
        if operators:
            return self._combine(node, operators[0], place, reading)
        if len(keys) == 1:
            return _read_variable(*node.entries[0], place, reading)
        found = [_read_variable(key, item, (*place, i), reading) for i, (key, item) in enumerate(node.entries)]
        return found[0] if len(found) == 1 else _combination("cross", found)

    def _combine(self, node: Table, operator: str, place: FieldPath, reading: DocumentParse) -> object:
        operand = node.entries[0][1]
        found: list[object]
        if isinstance(operand, Listing):
            found = [self.read(item, (*place, i), reading) for i, item in enumerate(operand.items)]
        elif isinstance(operand, Table):
            found = [_read_variable(key, item, (*place, i), reading) for i, (key, item) in enumerate(operand.entries)]
        else:
            return reading.fault(
                "wrong-type", operand, f"expected the operands of {operator!r}, got {describe(operand)}"
            )
        if not found:
            return reading.fault("empty-iteration", operand, f"{operator!r} needs operands")
        return _combination(operator, found)

    def schema(self) -> Schema:
        """A source, a combination, or variables with their sources."""
        source: Schema = {
            "type": "object",
            "properties": {
                "variable": {"type": "string"},
                "values": Values().schema(),
                "range": {"type": "string", "pattern": RANGE.pattern},
                "files": {"type": "string"},
                "csv": {"type": "string"},
                "column": {"type": "string"},
                "lines": {"type": "string"},
                "stage": {"type": "string"},
                "job": {"type": "string"},
                "site": {"type": "string"},
                "group": {"type": "integer", "minimum": 1},
            },
            "additionalProperties": False,
        }
        nested: Schema = {"$ref": "#/$defs/Each"}
        shorthand: Schema = {"anyOf": [{"type": ["string", "number"]}, Values().schema(), source]}
        operand = {"anyOf": [{"type": "array", "items": nested}, {"type": "object"}]}
        combined = [
            {"type": "object", "required": [op], "properties": {op: operand}, "additionalProperties": False}
            for op in OPERATORS
        ]
        return {"anyOf": [source, *combined, {"type": "object", "additionalProperties": shorthand}]}


def _combination(operator: str, found: list[object]) -> object:
    if any(item is MISSING for item in found):
        return MISSING
    items = tuple(item for item in found if isinstance(item, (Source, Combination)))
    return Combination(operator=_operator(operator), of=items)


def _operator(word: str) -> Operator:
    return next(op for op in OPERATORS if op == word)


def _read_variable(key: Scalar, item: Node, place: FieldPath, reading: DocumentParse) -> object:
    """`seed: 1..1000`, `raw: raw/*.dat`, `x: [1, 2]`, `x: {lines: names.txt}`."""
    entries: list[tuple[Scalar, Node]]
    if isinstance(item, Table):
        if item.get("variable") is not None:
            return reading.fault("duplicate-key", item, f"the variable is named {key.text!r} already")
        if item.entries and not any(k.text in _KEYS or near_name(k.text, _KEYS) for k, _ in item.entries):
            message = f"{key.text!r} is not a way to combine lists; these are {', '.join(OPERATORS)}"
            hint = (
                did_you_mean(key.text, OPERATORS)
                or f"or, for a variable {key.text!r}, give one of {', '.join(_ORIGINS)}"
            )
            return reading.fault("unknown-operator", key, message, hint=hint)
        entries = list(item.entries)
    else:
        origin = "values"
        if isinstance(item, Scalar) and _LIKE_RANGE.match(item.text):
            origin = "range"
        elif isinstance(item, Scalar) and is_pattern(item.text):
            origin = "files"
        elif isinstance(item, Scalar) and not (item.plain and ambiguity(item)):
            message = f"{key.text!r} has one value, {item.text!r}: expected a list, a range such as 1..10, or a pattern"
            hint = f"write [{item.text}] for a list of one, {{lines: FILE}} for the lines of a file, {{csv: FILE, column: NAME}}"
            return reading.fault("one-value", item, message, hint=hint)
        entries = [(Scalar(origin, plain=False, mark=item.mark), item)]
    named = (Scalar("variable", plain=False, mark=key.mark), Scalar(key.text, plain=False, mark=key.mark))
    return _read_source(Table((named, *entries), item.mark), place, reading)


def _read_source(table: Table, place: FieldPath, reading: DocumentParse) -> object:
    values: dict[str, Any] = {}
    faulty = False
    for key, item in table.entries:
        if key.text not in _KEYS:
            faulty = True
            hint = did_you_mean(key.text, _KEYS)
            reading.fault("unknown-field", key, f"a list to iterate over has no field {key.text!r}", hint=hint)
            continue
        reading.marks[(*place, key.text)] = item.mark
        kind = Values() if key.text == "values" else Number(True, least=1) if key.text == "group" else Text()
        values[key.text] = kind.read(item, (*place, key.text), reading)
        faulty = faulty or values[key.text] is MISSING
    if faulty:
        return MISSING
    for value in values.get("values") or ():
        if is_pattern(value) and "{" not in value:
            message = f"{value!r} in a list is a plain text, not a pattern of files"
            hint = f"write {values.get('variable', 'x')}: {value!r} to iterate over matching files"
            reading.report.warn("pattern-in-list", message, table.mark, hint=hint)
            break
    reading.marks[place] = table.mark
    fault = _source_fault(values)
    if fault:
        return reading.fault("bad-iteration", table, fault)
    return Source(**values)


def _source_fault(values: dict[str, Any]) -> str:
    """What is wrong with the combination of a source's fields, or an empty text."""
    origins = [name for name in _ORIGINS if name in values]
    variable = values.get("variable", "")
    empty = [name for name, value in values.items() if value == ""]
    if empty:
        return f"{empty[0]!r} is empty"
    if len(origins) != 1:
        return f"expected exactly one of {', '.join(_ORIGINS)}; got {', '.join(origins) or 'none'}"
    if variable and (fault := variable_fault(variable)):
        return fault
    if not variable and (origins != ["csv"] or "column" in values or "group" in values):
        return "a name for the variable is missing"
    if variable and origins == ["csv"] and "column" not in values:
        return f"which column of {values['csv']!r} is {variable!r}? Add column:, or leave out the variable to use all"
    for name, partner in (("column", "csv"), ("stage", "files"), ("job", "files"), ("site", "files")):
        if name in values and partner not in values:
            return f"{name!r} requires {partner!r}"
    origins = [name for name in ("stage", "job", "site") if name in values]
    if len(origins) > 1:
        return (
            f"files come from a stage of this job, an earlier job, or the cache of a site; got {' and '.join(origins)}"
        )
    return range_fault(values["range"]) if "range" in values else ""


def variable_fault(name: str) -> str:
    """Why a name cannot be that of a variable, or an empty text."""
    if not _VARIABLE.fullmatch(name):
        return f"{name!r} cannot name a variable: letters, digits, '_' and '-', not starting with a digit"
    return f"{name!r} is reserved and cannot name a variable" if name in RESERVED else ""


def range_fault(text: str) -> str:
    """What is wrong with a range, or an empty text."""
    found = RANGE.fullmatch(text)
    if found is None:
        return f"expected a range such as 1..1000 or 1..1000..10, got {text!r}"
    if int(found[3] or 1) == 0:
        return "a range cannot have step 0"
    count = len(range_of(text))
    if count > ITEMS_MAX:
        return f"the range {text} has {count:,} values; at most {ITEMS_MAX:,} are possible"
    return "" if count else f"the range {text} is empty; counting down needs a step: 10..1..-1"


def range_of(text: str) -> range:
    """The integers of a range, including its last value; counting down needs a negative step."""
    found = RANGE.fullmatch(text)
    if found is None:
        return range(0)
    first, last = int(found[1]), int(found[2])
    step = int(found[3] or 1)
    return range(first, last + (1 if step > 0 else -1), step)


def range_width(text: str) -> int:
    """The number of digits to which the values of `001..100` are padded; 0 without padding."""
    ends = text.split("..")[:2]
    digits = [end.lstrip("-") for end in ends]
    return max(map(len, digits)) if any(len(end) > 1 and end[0] == "0" for end in digits) else 0


def sources(iteration: Iteration | None) -> list[Source]:
    """All sources of an iteration, from left to right."""
    if iteration is None:
        return []
    if isinstance(iteration, Source):
        return [iteration]
    return [source for item in iteration.of for source in sources(item)]
