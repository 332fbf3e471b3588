"""The kinds of values of a field: each reads a node, and returns the JSON Schema of what it accepts.

A kind never raises: it reports the fault with its position and returns `MISSING`, so that one pass over a document finds
all faults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from pilotage.agent.expressions import UnboundedExpression, compile_expression
from pilotage.language.folder import Folder
from pilotage.language.text.quantities import BYTES_FORM, SECONDS_FORM, parse_bytes, parse_seconds
from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.language.text.yaml import ambiguity, read_tree
from pilotage.model.errors import Problem, near_name

FieldPath = tuple[str | int, ...]
Schema = dict[str, Any]

# YAML 1.1 lists these as truth values, but no common reader treats them so, and people write `[x, y]`.
_LETTERS = frozenset("yYnN")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_LONG_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,999})")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?")


class _Missing:
    """The result of a kind that could not read its node."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class DocumentParse:
    """The state of reading one document: its report, its folder, and the position of every value."""

    def __init__(self, report: Report, folder: Folder) -> None:
        """`folder` contains the files that the document names."""
        self.report = report
        self.folder = folder
        self.marks: dict[FieldPath, Mark] = {}
        self.faulty: set[FieldPath] = set()  # records that were not read completely, and those around them
        self.lost: set[FieldPath] = set()  # fields that were not read, or not completely
        self.unknown: set[FieldPath] = set()  # unknown fields
        self.with_unknown_fields: set[FieldPath] = set()
        self.moved: set[FieldPath] = set()  # list elements whose index changed, since one before them was not read

    def spoil(self, place: FieldPath) -> None:
        """Mark a record as incomplete, so that missing fields are not reported as a second fault."""
        self.faulty.update(place[:end] for end in range(len(place) + 1))

    def is_faulty(self, place: FieldPath) -> bool:
        """Whether a record was not read completely, or its index changed."""
        return place in self.faulty or any(place[:end] in self.moved for end in range(1, len(place) + 1))

    def fault(self, code: str, node: Node, message: str, *, hint: str = "") -> _Missing:
        """Report a fault and return `MISSING`."""
        self.report.error(code, message, node.mark, hint=hint)
        return MISSING


class Kind(Protocol):
    """The kind of a field's value."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The value of a node, or `MISSING` after reporting why not."""
        ...

    def schema(self) -> Schema:
        """The JSON Schema of accepted values."""
        ...


def describe(node: Node) -> str:
    """A description of a node for a message."""
    if isinstance(node, Scalar):
        return repr(node.text if len(node.text) <= 60 else node.text[:57] + "…")
    return "a list" if isinstance(node, Listing) else "a mapping"


class Text(msgspec.Struct, frozen=True):
    """A text, kept as written: `1.10` stays `1.10`; texts that YAML tools read differently must be quoted."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The text of a scalar."""
        if not isinstance(node, Scalar):
            return reading.fault("wrong-type", node, f"expected text, got {describe(node)}")
        unclear = ambiguity(node) if node.plain and node.text not in _LETTERS else ""
        if unclear:
            return reading.fault("ambiguous-scalar", node, unclear, hint=f'write "{node.text}" for the text')
        if "\0" in node.text:
            return reading.fault("nul-character", node, "a NUL character in a text")
        return node.text

    def schema(self) -> Schema:
        """A text, or a number, which is read as text."""
        return {"type": ["string", "number"]}


class Expression(msgspec.Struct, frozen=True):
    """A regular expression of Python's `re`."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The text, if it compiles."""
        text = Text().read(node, place, reading)
        if isinstance(text, str):
            try:
                compile_expression(text)
            except UnboundedExpression as error:
                return reading.fault("bad-expression", node, f"{text!r} could take forever: {error}")
            except (re.error, RecursionError, OverflowError) as error:
                return reading.fault("bad-expression", node, f"{text!r} is not a regular expression: {error}")
        return text

    def schema(self) -> Schema:
        """A text that is a regular expression."""
        return {"type": "string", "format": "regex"}


class Number(msgspec.Struct, frozen=True):
    """An integer or a decimal number within bounds."""

    integer: bool
    least: float | None = None
    above: float | None = None
    most: float | None = None

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The number."""
        noun = "an integer" if self.integer else "a number"
        text = node.text if isinstance(node, Scalar) else ""
        if not (_INTEGER if self.integer else _DECIMAL).fullmatch(text):
            hint = (
                "a leading zero is octal to some YAML tools and decimal to others" if re.match("-?0[0-9]", text) else ""
            )
            return reading.fault("wrong-type", node, f"expected {noun}, got {describe(node)}", hint=hint)
        value = int(text) if self.integer or _INTEGER.fullmatch(text) else float(text)
        bounds = self._broken(value)
        if bounds:
            return reading.fault("out-of-range", node, f"expected {noun} {bounds}, got {text}")
        return value

    def _broken(self, value: float) -> str:
        if self.least is not None and value < self.least:
            return f"of at least {self.least:g}"
        if self.above is not None and value <= self.above:
            return f"above {self.above:g}"
        if self.most is not None and value > self.most:
            return f"of at most {self.most:g}"
        return "that is finite" if value in (float("inf"), float("-inf")) else ""

    def schema(self) -> Schema:
        """A number with its bounds."""
        bounds = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        kind = {"type": "integer" if self.integer else "number"}
        return kind | {name: bound for name, bound in bounds.items() if bound is not None}


class Quantity(msgspec.Struct, frozen=True):
    """A size or a duration, with or without a unit."""

    unit: str  # "bytes" or "seconds"

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The quantity in its unit."""
        form = BYTES_FORM if self.unit == "bytes" else SECONDS_FORM
        text = node.text if isinstance(node, Scalar) else ""
        value = parse_bytes(text) if self.unit == "bytes" else parse_seconds(text)
        if value is None:
            return reading.fault("wrong-type", node, f"expected {form}, got {describe(node)}")
        return int(value) if value == int(value) else value

    def schema(self) -> Schema:
        """A number, or a text with a unit."""
        return {"type": ["number", "string"], "minimum": 0}


class YesNo(msgspec.Struct, frozen=True):
    """True or false, and nothing else."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The truth value."""
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        return reading.fault("wrong-type", node, f"expected true or false, got {describe(node)}")

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}


class Choice(msgspec.Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The word."""
        if isinstance(node, Scalar) and node.text in self.words:
            return node.text
        known = [word for word in self.words if word]
        near = near_name(node.text, known) if isinstance(node, Scalar) else ""
        hint = f"did you mean {near!r}?" if near else ""
        return reading.fault(
            "unknown-choice", node, f"expected one of {', '.join(known)}; got {describe(node)}", hint=hint
        )

    def schema(self) -> Schema:
        """The words."""
        return {"enum": list(self.words)}


class ListOf(msgspec.Struct, frozen=True):
    """A list; a single element needs no brackets."""

    item: Kind

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The elements that could be read, as a tuple."""
        nodes: Sequence[Node] = node.items if isinstance(node, Listing) else (node,)
        values = []
        for position, element in enumerate(nodes):
            reading.marks[(*place, position)] = element.mark
            values.append(self.item.read(element, (*place, position), reading))
        if MISSING in values:
            # Elements after one that was not read move up and lose their position: no faults of them are reported.
            reading.spoil(place)
            reading.moved.update((*place, position) for position in range(values.index(MISSING), len(values)))
        return tuple(value for value in values if value is not MISSING)

    def schema(self) -> Schema:
        """A list of the element's kind, or one element."""
        item = self.item.schema()
        return {"anyOf": [item, {"type": "array", "items": item}]}


class MapOf(msgspec.Struct, frozen=True):
    """Names to values of one kind."""

    value: Kind

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The values that could be read, by name."""
        if not isinstance(node, Table):
            return reading.fault("wrong-type", node, f"expected a mapping, got {describe(node)}")
        values = {}
        for key, item in node.entries:
            reading.marks[(*place, key.text)] = item.mark
            name = Text().read(key, place, reading)
            value = self.value.read(item, (*place, key.text), reading)
            if isinstance(name, str) and value is not MISSING:
                values[name] = value
            else:
                reading.spoil(place)
        return values

    def schema(self) -> Schema:
        """An object."""
        return {"type": "object", "additionalProperties": self.value.schema()}


class Anything(msgspec.Struct, frozen=True):
    """Any value, with numbers and truth values read as JSON reads them."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """Plain data."""
        if isinstance(node, Listing):
            return [self.read(item, place, reading) for item in node.items]
        if isinstance(node, Table):
            return {key.text: self.read(item, place, reading) for key, item in node.entries}
        if not node.plain:
            return Text().read(node, place, reading)
        if node.text in ("true", "false"):
            return node.text == "true"
        if node.text == "null":
            return None
        if _LONG_INTEGER.fullmatch(node.text):
            return int(node.text)  # of any length: a float would lose digits
        if _DECIMAL.fullmatch(node.text):
            return Number(False).read(node, place, reading)
        return Text().read(node, place, reading)

    def schema(self) -> Schema:
        """Anything."""
        return {}


# Other files with descriptions of software: catalogues and Boutiques descriptors.
#
# They are read with the document and become part of the definition, so that a later change does not affect the job.


def read_file(node: Scalar, reading: DocumentParse, *, noun: str) -> tuple[Node, DocumentParse] | None:
    """The tree of a file that a document names; its faults join the document's report."""
    data = reading.folder.read(node.text)
    if data is None:
        reading.fault("missing-file", node, f"the {noun} {node.text!r} cannot be read")
        return None
    tree, report = read_tree(data, file=node.text)
    inner = DocumentParse(report, reading.folder)
    inner.report.errors, inner.report.warnings = (
        _joined(reading.report.errors, report.errors),
        _joined(reading.report.warnings, report.warnings),
    )
    return None if tree is None else (tree, inner)


def _joined(outer: list[Problem], inner: list[Problem]) -> list[Problem]:
    """Let the inner report append to the list of the outer one."""
    outer.extend(inner)
    return outer


class Descriptor(msgspec.Struct, frozen=True):
    """A Boutiques descriptor: the descriptor itself, or the name of its file."""

    def read(self, node: Node, place: FieldPath, reading: DocumentParse) -> object:
        """The descriptor as plain data, after all checks that bosh makes."""
        if isinstance(node, Scalar):
            name = Text().read(node, place, reading)
            if name is MISSING:
                return MISSING
            found = read_file(node, reading, noun="Boutiques descriptor")
            if found is None:
                return MISSING
            node, reading = found
        if not isinstance(node, Table):
            return reading.fault("wrong-type", node, f"expected a Boutiques descriptor, got {describe(node)}")
        # Few documents use descriptors, and importing their reader takes time.
        from pilotage.language.boutiques import read_descriptor

        if read_descriptor(node, reading.report) is None:
            return MISSING
        return Anything().read(node, place, reading)

    def schema(self) -> Schema:
        """A file name, or an object."""
        return {"type": ["string", "object"]}
