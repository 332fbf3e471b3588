"""Converts document nodes to JSON values, and compares and describes them as JSON Schema does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from pilotage.language.text import yaml
from pilotage.language.text.tree import NOWHERE, Listing, Mark, Node, Report, Scalar, Table

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

DEPTH_MAX = 100
DIGITS_MAX = 4000  # Python's int() rejects texts of more than 4300 digits

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")


def value_of(node: Node, report: Report, *, depth: int = 0) -> Value:
    """The JSON value of a node; anything else is reported and becomes null."""
    if isinstance(node, Scalar):
        return _scalar_value(node, report)
    if depth >= DEPTH_MAX:
        report.error("too-deep", f"nested more than {DEPTH_MAX} levels deep", node.mark)
        return None
    if isinstance(node, Listing):
        return [value_of(item, report, depth=depth + 1) for item in node.items]
    values: dict[str, Value] = {}
    for key, item in node.entries:
        _check_text(key, report)
        values[key.text] = value_of(item, report, depth=depth + 1)
    return values


def _scalar_value(scalar: Scalar, report: Report) -> Value:
    text = scalar.text
    if not scalar.plain:
        _check_text(scalar, report)
        return text
    if text in {"", "null", "~"}:
        return None
    if text in {"true", "false"}:
        return text == "true"
    if len(text) > DIGITS_MAX and text.lstrip("-")[:1].isdigit():
        report.error("number-too-large", f"a number of {len(text)} digits; at most {DIGITS_MAX} are read", scalar.mark)
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            report.error("number-too-large", f"{text} is beyond the range of a number", scalar.mark)
            return None
        return number
    _check_text(scalar, report)
    return text


def _check_text(scalar: Scalar, report: Report) -> None:
    if "\0" in scalar.text:
        report.error(
            "nul-character", "the text contains a NUL character, which no command line can contain", scalar.mark
        )
    if _SURROGATE.search(scalar.text):
        report.error("bad-character", "the text contains half of a surrogate pair (\\ud800 to \\udfff)", scalar.mark)


def is_number(value: object) -> bool:
    """Whether a value is a JSON number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Whether a value was written as an integer; in draft 4 of JSON Schema, 1.0 is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


def same(one: Value, *, other: Value) -> bool:
    """Equality as in JSON Schema: 1 equals 1.0, but true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, other=b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(item, other=other[key]) for key, item in one.items())
    return one == other


def fingerprint(value: Value) -> object:
    """A hashable object that is equal for two values if and only if they are the `same`."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("list", tuple(fingerprint(item) for item in value))
    if isinstance(value, dict):
        return ("object", frozenset((key, fingerprint(item)) for key, item in value.items()))
    return value


def first_repeated(values: Sequence[Value]) -> int:
    """The index of the first value that equals an earlier one, or -1."""
    fingerprints: set[object] = set()
    for index, value in enumerate(values):
        mark = fingerprint(value)
        if mark in fingerprints:
            return index
        fingerprints.add(mark)
    return -1


def kind_of(value: object) -> str:
    """A description of a value for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {shown(value)}"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    return "a list" if isinstance(value, list) else "an object"


def shown(value: object) -> str:
    """A value for a message: short, on one line, in printable characters."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def mark_at(node: Node, *path: str | int) -> Mark:
    """The position of the value at a path of keys and indexes, or of its nearest existing parent."""
    mark = node.mark
    for step in path:
        found: Node | None = None
        if isinstance(node, Table) and isinstance(step, str):
            found = node.get(step)
        elif isinstance(node, Listing) and isinstance(step, int) and step < len(node.items):
            found = node.items[step]
        if found is None:
            return mark
        node = found
        mark = node.mark if node.mark != NOWHERE else mark
    return mark


# Strict JSON, as bosh reads it. Our own documents may be YAML; a descriptor may not.

# Strings are skipped, so that constants are found only outside of them; half a surrogate pair is found inside its string.
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_STRANGE = re.compile(
    rf"""(?P<half>"(?:{_PAIR}|\\(?!u[dD][89a-fA-F])[^\n]|[^"\\\n])*\\u[dD][89a-fA-F][0-9a-fA-F]{{2}})
    |"(?:\\.|[^"\\])*"|(?P<constant>-?Infinity|NaN)""",
    re.VERBOSE,
)
_WORDS = {"half": "a text holds half of a surrogate pair", "constant": "{} is no number of it"}


def read_json(text: str, report: Report) -> Node | None:
    """The nodes of a JSON text; the first syntax error and every duplicate key are reported."""
    is_json, node = yaml.read_json(text, report)
    if not is_json:
        message, mark = _explain(text)
        report.error("not-json", f"this is not JSON: {message}", mark)
    return node


def _explain(text: str) -> tuple[str, Mark]:
    """The syntax error that the standard library finds in a text, and its position."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as fault:
        return fault.msg.lower(), Mark(fault.lineno, fault.colno)
    except RecursionError:
        return "it is nested too deeply and not closed", Mark()
    for found in _STRANGE.finditer(text):
        if found.lastgroup:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - (text.rfind("\n", 0, found.start()) + 1) + 1
            return _WORDS[found.lastgroup].format(found[0]), Mark(line, column)
    return "it is not what JSON allows", Mark()
