"""Checks a descriptor against the Boutiques schema (0.5) field by field, and reports all faults with their places.

The rules are those of `descriptor.schema.json`; rules between the parts of a descriptor are in `lint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import msgspec

from pilotage.language.boutiques.values import Value, first_repeated, is_integer, is_number, kind_of, mark_at, shown
from pilotage.language.text.tree import Mark, Node, Report, Table
from pilotage.model.errors import did_you_mean


class DescriptorPath:
    """A path into a descriptor, with the report for faults found there."""

    def __init__(self, root: Node, report: Report, path: tuple[str | int, ...] = ()) -> None:
        self.root = root
        self.report = report
        self.path = path

    def down(self, *steps: str | int) -> DescriptorPath:
        """The path of a part below this one."""
        return DescriptorPath(self.root, self.report, self.path + steps)

    def error(self, code: str, message: str, *, hint: str = "") -> None:
        """Report a fault of the value at this path."""
        self.report.error(code, self._labelled(message), mark_at(self.root, *self.path), hint=hint)

    def key_error(self, code: str, message: str, *, key: str, hint: str = "") -> None:
        """Report a fault of a key of the object at this path."""
        self.report.error(code, self._labelled(message), self._key_mark(key), hint=hint)

    def near(self, name: str, known: Collection[str]) -> str:
        """A hint at a similar name; none once there are so many faults that the search would take long."""
        return did_you_mean(name, known) if len(known) <= 1000 and len(self.report.errors) < 100 else ""

    def _labelled(self, message: str) -> str:
        label = ""
        for step in self.path:
            label += f"[{step}]" if isinstance(step, int) else f".{step}" if label else step
        return f"{label}: {message}" if label else message

    def _key_mark(self, key: str) -> Mark:
        node: Node | None = self.root
        for step in self.path:
            if isinstance(node, Table) and isinstance(step, str):
                node = node.get(step)
            elif node is not None and not isinstance(node, Table) and isinstance(step, int):
                node = getattr(node, "items", ())[step]
        if isinstance(node, Table):
            for name, _ in node.entries:
                if name.text == key:
                    return name.mark
        return mark_at(self.root, *self.path)


class Field(msgspec.Struct, frozen=True):
    """The type and limits of one field."""

    kind: str
    length_min: int = 0
    pattern: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None


class Shape(msgspec.Struct, frozen=True):
    """The fields of one kind of object; `others` allows fields besides them."""

    fields: dict[str, Field]
    required: tuple[str, ...] = ()
    others: bool = False


_TEXT = Field("text")
_NAME = Field("text", length_min=1)
_BOOLEAN = Field("boolean")
_NUMBER = Field("number")
_TEXTS = Field("texts")
_OBJECT = Field("object")
_ID = Field("text", length_min=1, pattern=r"^[0-9,_,a-z,A-Z]*$")

DESCRIPTOR = Shape(
    {
        **dict.fromkeys(("name", "tool-version", "description", "author", "url", "descriptor-url", "doi"), _NAME),
        **dict.fromkeys(("shell", "tool-doi", "command-line"), _NAME),
        "deprecated-by-doi": Field("text or boolean", length_min=1),
        "schema-version": Field("text", choices=("0.5",)),
        **dict.fromkeys(("inputs", "output-files", "groups", "environment-variables", "error-codes"), Field("some")),
        "tests": Field("some"),
        **dict.fromkeys(("container-image", "invocation-schema", "suggested-resources", "tags", "custom"), _OBJECT),
        "online-platform-urls": Field("texts", pattern=r"^https?://"),
    },
    required=("name", "description", "command-line", "schema-version", "inputs", "tool-version"),
)
INPUT = Shape(
    {
        "id": _ID,
        "name": _NAME,
        "type": Field("text", choices=("String", "File", "Flag", "Number")),
        **dict.fromkeys(("description", "value-key", "list-separator", "command-line-flag"), _TEXT),
        "command-line-flag-separator": _TEXT,
        **dict.fromkeys(("list", "optional", "integer", "exclusive-minimum", "exclusive-maximum"), _BOOLEAN),
        "uses-absolute-path": _BOOLEAN,
        **dict.fromkeys(("minimum", "maximum", "min-list-entries", "max-list-entries"), _NUMBER),
        **dict.fromkeys(("requires-inputs", "disables-inputs"), _TEXTS),
        "value-choices": Field("choices"),
        **dict.fromkeys(("value-requires", "value-disables"), Field("lists of texts")),
        "default-value": Field("anything"),
    },
    required=("name", "id", "type"),
)
OUTPUT = Shape(
    {
        "id": _ID,
        "name": _NAME,
        **dict.fromkeys(("description", "value-key", "command-line-flag", "command-line-flag-separator"), _TEXT),
        "path-template": _NAME,
        "conditional-path-template": Field("conditions"),
        "path-template-stripped-extensions": _TEXTS,
        **dict.fromkeys(("list", "optional", "uses-absolute-path"), _BOOLEAN),
        "file-template": Field("texts", length_min=1),
    },
    required=("id", "name"),
)
GROUP = Shape(
    {
        "id": _ID,
        "name": _NAME,
        "description": _TEXT,
        "members": Field("texts", pattern=r"^[0-9,_,a-z,A-Z]+$"),
        **dict.fromkeys(("mutually-exclusive", "one-is-required", "all-or-none"), _BOOLEAN),
    },
    required=("name", "id", "members"),
)
IMAGE = Shape(
    {
        "type": _TEXT,
        **dict.fromkeys(("image", "index", "working-directory", "container-hash"), _NAME),
        "entrypoint": _BOOLEAN,
        "container-opts": _TEXTS,
    },
    required=("type", "image"),
)
ROOT_FILE_SYSTEM = Shape(
    {"type": _TEXT, **dict.fromkeys(("url", "working-directory", "container-hash"), _NAME)},
    required=("type", "url"),
)
VARIABLE = Shape(
    {
        "name": Field("text", length_min=1, pattern=r"^[a-z,A-Z][0-9,_,a-z,A-Z]*$"),
        "value": _TEXT,
        "description": _TEXT,
    },
    required=("name", "value"),
)
ERROR_CODE = Shape({"code": Field("integer"), "description": _TEXT}, required=("code", "description"))
RESOURCES = Shape(
    {
        **dict.fromkeys(("cpu-cores", "nodes"), Field("integer", minimum=1)),
        **dict.fromkeys(("ram", "disk-space", "walltime-estimate"), Field("number", minimum=0)),
    },
    others=True,
)
TEST = Shape(
    {"name": _NAME, "invocation": _OBJECT, "assertions": _OBJECT},
    required=("name", "assertions", "invocation"),
    others=True,
)
ASSERTIONS = Shape({"exit-code": Field("integer"), "output-files": Field("some")}, others=True)
ASSERTED_OUTPUT = Shape({"id": _ID, "md5-reference": _NAME}, required=("id",), others=True)


def check_object(value: Value, shape: Shape, place: DescriptorPath) -> None:
    """Report every fault of an object that differs from its shape."""
    if not isinstance(value, dict):
        place.error("wrong-type", f"expected an object, found {kind_of(value)}")
        return
    for key, item in value.items():
        field = shape.fields.get(key)
        if field is not None:
            _check_field(item, field, place.down(key))
        elif not shape.others:
            hint = place.near(key, shape.fields)
            place.key_error("unknown-field", f"{shown(key)} is not a field here", key=key, hint=hint)
    for key in shape.required:
        if key not in value:
            place.error("missing-field", f"the field {key!r} is missing")


def _check_field(value: Value, field: Field, place: DescriptorPath) -> None:
    expected = _unfit(value, field.kind)
    if expected:
        place.error("wrong-type", f"expected {expected}, found {kind_of(value)}")
    elif isinstance(value, str):
        _check_text(value, field, place)
    elif isinstance(value, list):
        _check_items(value, field, place)
    elif isinstance(value, dict) and field.kind == "lists of texts":
        for key, item in value.items():
            _check_field(item, _TEXTS, place.down(key))
    elif field.minimum is not None and isinstance(value, (int, float)) and value < field.minimum:
        place.error("out-of-range", f"expected at least {field.minimum:g}, found {shown(value)}")


def _unfit(value: Value, kind: str) -> str:
    """What was expected instead; empty if the value is of that kind."""
    fits, expected = {
        "text": (isinstance(value, str), "text"),
        "text or boolean": (isinstance(value, (str, bool)), "text, true or false"),
        "boolean": (isinstance(value, bool), "true or false"),
        "number": (is_number(value), "a number"),
        "integer": (is_integer(value), "an integer"),
        "object": (isinstance(value, dict), "an object"),
        "lists of texts": (isinstance(value, dict), "an object that gives each choice a list of ids"),
        "anything": (True, ""),
    }.get(kind, (isinstance(value, list), "a list"))
    return "" if fits else expected


def _check_text(value: str, field: Field, place: DescriptorPath) -> None:
    if len(value) < field.length_min:
        place.error("empty-value", "expected some text, found none")
    elif field.choices and value not in field.choices:
        hint = place.near(value, field.choices)
        place.error("unknown-choice", f"expected one of {', '.join(field.choices)}, found {shown(value)}", hint=hint)
    elif field.pattern and (not re.search(field.pattern, value) or (field.pattern[-1] == "$" and value[-1:] == "\n")):
        place.error("bad-pattern", f"expected text like {field.pattern}, found {shown(value)}")


def _check_items(values: list[Value], field: Field, place: DescriptorPath) -> None:
    if not values and (field.length_min or field.kind == "some"):
        place.error("empty-value", "expected at least one item, found an empty list")
    for index, value in enumerate(values):
        where = place.down(index)
        if field.kind == "texts":
            _check_field(value, Field("text", pattern=field.pattern), where)
        elif field.kind == "choices" and not isinstance(value, str) and not is_number(value):
            where.error("wrong-type", f"expected text or a number, found {kind_of(value)}")
        elif field.kind == "conditions":
            _check_condition(value, where)


def _check_condition(value: Value, place: DescriptorPath) -> None:
    if not isinstance(value, dict) or not value or not all(isinstance(path, str) for path in value.values()):
        place.error("wrong-type", 'expected an object that gives a condition a path, such as {"n > 2": "many.txt"}')


def check_unique(values: Sequence[Value], place: DescriptorPath) -> None:
    """Report the first item that a list contains twice."""
    index = first_repeated(values)
    if index >= 0:
        place.down(index).error("duplicate-item", "the list already contains this item")


# Rules of the Boutiques schema about several fields: which need and which exclude each other.

_PARTS = {
    "inputs": INPUT,
    "output-files": OUTPUT,
    "groups": GROUP,
    "environment-variables": VARIABLE,
    "error-codes": ERROR_CODE,
    "tests": TEST,
}
# Fields that only inputs of certain types may have.
_TYPES_OF = {
    "value-choices": ("String", "Number"),
    "integer": ("Number",),
    "minimum": ("Number",),
    "maximum": ("Number",),
    "uses-absolute-path": ("File",),
}
# Fields that need another field.
_NEEDS = {
    "command-line-flag-separator": "command-line-flag",
    "min-list-entries": "list",
    "max-list-entries": "list",
    "list-separator": "list",
    "exclusive-minimum": "minimum",
    "exclusive-maximum": "maximum",
    "value-disables": "value-choices",
    "value-requires": "value-choices",
}


def check_descriptor_shape(value: Value, place: DescriptorPath) -> None:
    """Report every violation of the schema in a descriptor."""
    check_object(value, DESCRIPTOR, place)
    if not isinstance(value, dict):
        return
    for name, shape in _PARTS.items():
        items = value.get(name)
        if isinstance(items, list):
            for index, item in enumerate(items):
                check_object(item, shape, place.down(name, index))
            if name != "tests":
                check_unique(items, place.down(name))
    _each(value.get("inputs"), place.down("inputs"), _check_input)
    _each(value.get("output-files"), place.down("output-files"), _check_output)
    _each(value.get("tests"), place.down("tests"), _check_test)
    if isinstance(value.get("suggested-resources"), dict):
        check_object(value["suggested-resources"], RESOURCES, place.down("suggested-resources"))
    container = value.get("container-image")
    if isinstance(container, dict):
        _check_container(container, place.down("container-image"))
    tags = value.get("tags")
    if isinstance(tags, dict):
        for key, tag in tags.items():
            _check_tag(tag, place.down("tags", key))


def _each(items: Value, place: DescriptorPath, check: Callable[[dict[str, Value], DescriptorPath], None]) -> None:
    if isinstance(items, list):
        for index, item in enumerate(items):
            if isinstance(item, dict):
                check(item, place.down(index))


def _check_needs(item: dict[str, Value], place: DescriptorPath) -> None:
    for key, needed in _NEEDS.items():
        if key in item and needed not in item:
            place.key_error("field-needs-field", f"the field {key!r} needs the field {needed!r}", key=key)


def _check_input(item: dict[str, Value], place: DescriptorPath) -> None:
    _check_needs(item, place)
    kind = item.get("type")
    for key, kinds in _TYPES_OF.items():
        if key in item and "type" in item and kind not in kinds:
            message = f"the field {key!r} is only for inputs of type {' or '.join(kinds)}, not {shown(kind)}"
            place.key_error("field-not-for-type", message, key=key)
    if "value-choices" in item and kind == "String" and "default-value" in item and item["default-value"] is None:
        place.down("default-value").error("default-not-a-choice", "the default null is not one of the choices")
    if kind == "Flag" and item.get("list", False) is not False:
        place.key_error("field-not-for-type", "an input of type Flag cannot be a list", key="list")


def _check_output(item: dict[str, Value], place: DescriptorPath) -> None:
    _check_needs(item, place)
    if "path-template" in item and "conditional-path-template" in item:
        message = "expected 'path-template' or 'conditional-path-template', found both"
        place.key_error("path-template-choice", message, key="conditional-path-template")
    elif "path-template" not in item and "conditional-path-template" not in item:
        place.error("path-template-choice", "expected 'path-template' or 'conditional-path-template', found neither")
    if "file-template" in item and item.get("list", False) is not False:
        place.key_error("file-template-list", "an output with a 'file-template' is one file, not a list", key="list")


def _check_container(item: dict[str, Value], place: DescriptorPath) -> None:
    kind = item.get("type")
    if kind in {"docker", "singularity"} or "type" not in item:
        check_object(item, IMAGE, place)
    elif kind == "rootfs":
        check_object(item, ROOT_FILE_SYSTEM, place)
    else:
        place.down("type").error("unknown-choice", f"expected docker, singularity or rootfs, found {kind_of(kind)}")


def _check_tag(tag: Value, place: DescriptorPath) -> None:
    if isinstance(tag, list) and all(isinstance(item, str) for item in tag):
        return
    if not isinstance(tag, (str, bool)):
        place.error("wrong-type", f"expected text, a list of texts, true or false, found {kind_of(tag)}")


def _check_test(test: dict[str, Value], place: DescriptorPath) -> None:
    assertions = test.get("assertions")
    if not isinstance(assertions, dict):
        return
    place = place.down("assertions")
    check_object(assertions, ASSERTIONS, place)
    if "exit-code" not in assertions and "output-files" not in assertions:
        place.error("missing-field", "expected 'exit-code' or 'output-files', found neither")
    outputs = assertions.get("output-files")
    if isinstance(outputs, list):
        for index, output in enumerate(outputs):
            check_object(output, ASSERTED_OUTPUT, place.down("output-files", index))
