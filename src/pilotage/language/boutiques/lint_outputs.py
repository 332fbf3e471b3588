"""What relates the outputs, tests and container of a descriptor to the rest of it."""

from __future__ import annotations

import re

from pilotage.language.boutiques import conditions
from pilotage.language.boutiques.descriptor import Descriptor, Output
from pilotage.language.boutiques.shape import Place
from pilotage.language.boutiques.values import shown

_INDEX = re.compile(r"^[a-zA-Z0-9]+://")


def check_outputs(descriptor: Descriptor, place: Place) -> None:
    """Note path templates that two outputs share, and conditions that cannot be decided."""
    makers: dict[str, str] = {}
    for index, output in enumerate(descriptor.outputs):
        where = place.down("output-files", index)
        template = output.path_template
        if template is not None:
            if template in makers and makers[template] != output.id:
                message = f"the outputs {makers[template]!r} and {output.id!r} have the same path {shown(template)}"
                where.down("path-template").error("duplicate-path-template", message)
            makers.setdefault(template, output.id)
        _check_conditions(output, where.down("conditional-path-template"), descriptor=descriptor)


def _check_conditions(output: Output, place: Place, *, descriptor: Descriptor) -> None:
    texts = [next(iter(entry)) for entry in output.conditional_path_template]
    if output.path_template is None and not output.optional:
        if texts.count(conditions.DEFAULT) > 1:
            place.error("condition-default", f"expected one 'default', found {texts.count(conditions.DEFAULT)}")
        elif conditions.DEFAULT not in texts:
            place.error("condition-default", "an output that is not optional needs a 'default' path")
    types = {input_.id: input_.type for input_ in descriptor.inputs}
    ids = {*types, *(other.id for other in descriptor.outputs)}
    for index, text in enumerate(texts):
        if text.split() != [conditions.DEFAULT]:
            _check_condition(text, place.down(index), output=output, types=dict(types), ids=ids)


def _check_condition(text: str, place: Place, *, output: Output, types: dict[str, str], ids: set[str]) -> None:
    strange = conditions.unknown_names(text, ids)
    if strange:
        for name in strange:
            message = f"{shown(name)} in the condition {shown(text)} is not the id of an input or an output"
            place.error("condition-unknown-name", message, hint=place.near(name, ids))
        return
    try:
        conditions.parsed(text, ids)
    except conditions.ConditionError as fault:
        place.error("bad-condition", f"the condition {shown(text)} is at fault: {fault}")
        return
    # bosh looks at the types only where the output must exist
    if not output.optional and not conditions.types_agree(text, types):
        message = f"the condition {shown(text)} compares different types, or joins what is neither true nor false"
        place.error("bad-condition", message, hint="write (A == B) and (C > D), each side of one type")


def check_tests(descriptor: Descriptor, place: Place) -> None:
    """Note tests of one name, and assertions about outputs that do not exist or are named twice."""
    known = {output.id for output in descriptor.outputs}
    names: set[str] = set()
    for index, test in enumerate(descriptor.tests):
        where = place.down("tests", index)
        if test["name"] in names:
            where.down("name").error("duplicate-test", f"the test name {shown(test['name'])} is given twice")
        names.add(test["name"])
        seen: set[str] = set()
        for number, output in enumerate(test["assertions"].get("output-files", ())):
            at = where.down("assertions", "output-files", number, "id")
            id_ = output["id"]
            if id_ not in known:
                at.error("unknown-output", f"{shown(id_)} is not the id of an output", hint=at.near(id_, known))
            if id_ in seen:
                at.error("duplicate-test-output", f"the output {shown(id_)} is asserted twice in one test")
            seen.add(id_)


def check_container(descriptor: Descriptor, place: Place) -> None:
    """Note an image whose own index is not the one given beside it."""
    container = descriptor.container_image
    if container is None or container.index is None:
        return
    found = _INDEX.match(container.image)
    if found and found.group() != container.index:
        message = f"the image {shown(container.image)} names another index than {shown(container.index)}"
        place.down("container-image", "index").error("container-index-mismatch", message)
