"""What the Boutiques schema says of several fields at once: which go together, and which exclude each other."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.language.boutiques.shape import (
    ASSERTED_OUTPUT,
    ASSERTIONS,
    DESCRIPTOR,
    ERROR_CODE,
    GROUP,
    IMAGE,
    INPUT,
    OUTPUT,
    RESOURCES,
    ROOT_FILE_SYSTEM,
    TEST,
    VARIABLE,
    Place,
    check_object,
    check_unique,
)
from pilotage.language.boutiques.values import Value, kind_of, shown

_PARTS = {
    "inputs": INPUT,
    "output-files": OUTPUT,
    "groups": GROUP,
    "environment-variables": VARIABLE,
    "error-codes": ERROR_CODE,
    "tests": TEST,
}
# A field on the left is only for inputs of the types on the right.
_TYPES_OF = {
    "value-choices": ("String", "Number"),
    "integer": ("Number",),
    "minimum": ("Number",),
    "maximum": ("Number",),
    "uses-absolute-path": ("File",),
}
# A field on the left needs the one on the right.
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


def check_descriptor_shape(value: Value, place: Place) -> None:
    """Note every fault that the schema finds in a descriptor."""
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


def _each(items: Value, place: Place, check: Callable[[dict[str, Value], Place], None]) -> None:
    if isinstance(items, list):
        for index, item in enumerate(items):
            if isinstance(item, dict):
                check(item, place.down(index))


def _check_needs(item: dict[str, Value], place: Place) -> None:
    for key, needed in _NEEDS.items():
        if key in item and needed not in item:
            place.key_error("field-needs-field", f"the field {key!r} needs the field {needed!r} beside it", key=key)


def _check_input(item: dict[str, Value], place: Place) -> None:
    _check_needs(item, place)
    kind = item.get("type")
    for key, kinds in _TYPES_OF.items():
        if key in item and "type" in item and kind not in kinds:
            message = f"the field {key!r} is only for inputs of type {' or '.join(kinds)}, and this is {shown(kind)}"
            place.key_error("field-not-for-type", message, key=key)
    if "value-choices" in item and kind == "String" and "default-value" in item and item["default-value"] is None:
        place.down("default-value").error("default-not-a-choice", "the default null is not one of the choices")
    if kind == "Flag" and item.get("list", False) is not False:
        place.key_error("field-not-for-type", "an input of type Flag cannot be a list", key="list")


def _check_output(item: dict[str, Value], place: Place) -> None:
    _check_needs(item, place)
    if "path-template" in item and "conditional-path-template" in item:
        message = "expected 'path-template' or 'conditional-path-template', found both"
        place.key_error("path-template-choice", message, key="conditional-path-template")
    elif "path-template" not in item and "conditional-path-template" not in item:
        place.error("path-template-choice", "expected 'path-template' or 'conditional-path-template', found neither")
    if "file-template" in item and item.get("list", False) is not False:
        place.key_error("file-template-list", "an output with a 'file-template' is one file, not a list", key="list")


def _check_container(item: dict[str, Value], place: Place) -> None:
    kind = item.get("type")
    if kind in {"docker", "singularity"} or "type" not in item:
        check_object(item, IMAGE, place)
    elif kind == "rootfs":
        check_object(item, ROOT_FILE_SYSTEM, place)
    else:
        place.down("type").error("unknown-choice", f"expected docker, singularity or rootfs, found {kind_of(kind)}")


def _check_tag(tag: Value, place: Place) -> None:
    if isinstance(tag, list) and all(isinstance(item, str) for item in tag):
        return
    if not isinstance(tag, (str, bool)):
        place.error("wrong-type", f"expected text, a list of texts, true or false, found {kind_of(tag)}")


def _check_test(test: dict[str, Value], place: Place) -> None:
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
