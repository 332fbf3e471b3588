"""The rules between the parts of a descriptor: everything that bosh's validator checks beyond the schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pilotage.language.boutiques import command
from pilotage.language.boutiques.checks import DescriptorPath, check_unique
from pilotage.language.boutiques.descriptor import Descriptor, Group, Input, Output
from pilotage.language.boutiques.values import first_repeated, is_integer, shown


def check_descriptor(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report every contradiction between the parts of a descriptor that conforms to the schema."""
    _check_ids(descriptor, place)
    check_value_keys(descriptor, place)
    inputs = {input_.id: input_ for input_ in descriptor.inputs}
    groups = {group.id: group for group in descriptor.groups}
    for index, input_ in enumerate(descriptor.inputs):
        where = place.down("inputs", index)
        _check_input(input_, where)
        _check_list_bounds(input_, where)
        _check_references(input_, where, inputs=inputs, groups=groups)
        _check_choice_rules(input_, where, inputs=inputs)
    together = [(group, frozenset(group.members)) for group in descriptor.groups if group.all_or_none]
    for index, group in enumerate(descriptor.groups):
        _check_group(group, place.down("groups", index), inputs=inputs)
        _check_group_pairs(group, place.down("groups", index), together=together)


def _check_ids(descriptor: Descriptor, place: DescriptorPath) -> None:
    ids: set[str] = set()
    parts: tuple[tuple[str, Sequence[Input | Output | Group]], ...] = (
        ("inputs", descriptor.inputs),
        ("output-files", descriptor.outputs),
        ("groups", descriptor.groups),
    )
    for name, items in parts:
        for index, item in enumerate(items):
            if item.id in ids:
                place.down(name, index, "id").error("duplicate-id", f"the id {item.id!r} is given twice")
            ids.add(item.id)


def value_keys(descriptor: Descriptor) -> Iterator[tuple[str, tuple[str, int]]]:
    """Every value key, inputs first, with its section and index in the descriptor."""
    parts: tuple[tuple[str, Sequence[Input | Output]], ...] = (
        ("inputs", descriptor.inputs),
        ("output-files", descriptor.outputs),
    )
    for name, items in parts:
        for index, item in enumerate(items):
            if item.value_key is not None:
                yield item.value_key, (name, index)


def check_value_keys(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report value keys that are unused, that contain one another, or that several inputs share."""
    templates = [line for output in descriptor.outputs for line in output.file_template or ()]
    templates += [output.path_template for output in descriptor.outputs if output.path_template is not None]
    variables = "".join(f"||{variable.value}" for variable in descriptor.environment_variables)
    text = descriptor.command_line + ".".join(templates) + variables
    users = Counter(key for key, _ in value_keys(descriptor))
    lengths = sorted({len(key) for key in users if key})
    for key, at in value_keys(descriptor):
        where = place.down(*at, "value-key")
        if not key:
            where.error("empty-value", "expected a value key such as '[NAME]', found none")
            continue
        if key not in text:
            message = f"the value key {shown(key)} is in no command line, file template or environment variable"
            where.error("value-key-unused", message, hint="put it into 'command-line'")
        for inner in _keys_inside(key, keys=users, lengths=lengths):
            message = f"the value key {shown(key)} contains the value key {shown(inner)}"
            where.error("value-key-overlap", message, hint="enclose each key in brackets, such as '[NAME]'")
        if users[key] > 1:
            _check_shared_key(key, descriptor, where)
            users[key] = 1  # report it once


def _keys_inside(key: str, *, keys: Mapping[str, int], lengths: list[int]) -> list[str]:
    return [
        key[start : start + length]
        for length in lengths
        if length < len(key)
        for start in range(len(key) - length + 1)
        if key[start : start + length] in keys
    ]


def _check_shared_key(key: str, descriptor: Descriptor, where: DescriptorPath) -> None:
    # bosh looks for groups of exactly these inputs, rejects one that is not exclusive, and fails if there is none.
    sharing = {input_.id for input_ in descriptor.inputs if input_.value_key == key}
    groups = [group for group in descriptor.groups if set(group.members) == sharing]
    if not descriptor.groups or any(not group.mutually_exclusive for group in groups):
        message = f"the value key {shown(key)} belongs to several inputs or outputs that do not exclude each other"
        where.error("value-key-shared", message, hint="put them into a group that is 'mutually-exclusive'")


def _check_input(input_: Input, place: DescriptorPath) -> None:
    if input_.type == "Flag":
        if input_.command_line_flag is None:
            place.error("flag-without-flag", f"the input {input_.id!r} is a Flag and has no 'command-line-flag'")
        if not input_.optional:
            place.error("flag-not-optional", f"the input {input_.id!r} is a Flag and must be 'optional'")
    elif input_.type == "Number":
        if input_.minimum is not None and input_.maximum is not None and input_.minimum > input_.maximum:
            message = f"the minimum {input_.minimum} is greater than the maximum {input_.maximum}"
            place.down("minimum").error("empty-range", message)
    elif input_.value_choices is not None:
        if not input_.value_choices:
            place.down("value-choices").error("no-choices", "expected at least one choice, found none")
        default = input_.default_value
        wanted = default if isinstance(default, list) else [] if default is None else [default]
        for value in wanted:
            if value not in input_.value_choices:
                message = f"the default {shown(value)} is not one of the choices"
                place.down("default-value").error("default-not-a-choice", message)


def _check_list_bounds(input_: Input, place: DescriptorPath) -> None:
    least, most = input_.min_list_entries or 0, input_.max_list_entries
    for name, bound in (("min-list-entries", least), ("max-list-entries", most or 0)):
        if bound < 0:
            place.down(name).error("list-bounds", f"expected a number of entries, found {bound}")
    if most and least > most:
        place.down("min-list-entries").error("list-bounds", f"at least {least} entries are more than at most {most}")


def _check_references(
    input_: Input, place: DescriptorPath, *, inputs: Mapping[str, Input], groups: Mapping[str, Group]
) -> None:
    requires, disables = input_.requires_inputs or (), input_.disables_inputs or ()
    disabled = set(disables)
    for index, id_ in enumerate(requires):
        if id_ not in inputs and id_ not in groups:
            hint = place.near(id_, [*inputs, *groups])
            message = f"{shown(id_)} is not the id of an input or a group"
            place.down("requires-inputs", index).error("unknown-input", message, hint=hint)
        if id_ in disabled:
            message = f"{input_.id!r} both requires and disables {id_!r}"
            place.down("requires-inputs", index).error("requires-and-disables", message)
    for index, id_ in enumerate(disables):
        if id_ not in inputs:
            hint = place.near(id_, inputs)
            message = f"{shown(id_)} is not the id of an input"
            place.down("disables-inputs", index).error("unknown-input", message, hint=hint)
        elif not inputs[id_].optional:
            message = f"{input_.id!r} disables {id_!r}, which is not optional"
            place.down("disables-inputs", index).error("disables-required", message)
    if not input_.optional and (input_.requires_inputs is not None or input_.disables_inputs is not None):
        message = f"{input_.id!r} is not optional, so it cannot require or disable others"
        place.error("required-input-depends", message, hint="make it 'optional', or drop the rule")


def _check_choice_rules(input_: Input, place: DescriptorPath, *, inputs: Mapping[str, Input]) -> None:
    choices = input_.value_choices
    if choices is None:
        return
    for name, rules in (("value-requires", input_.value_requires), ("value-disables", input_.value_disables)):
        if rules is None:
            continue
        where = place.down(name)
        if set(rules) != set(choices):
            message = "expected exactly the choices of 'value-choices' as keys"
            where.error("choice-rules-mismatch", message, hint=f"the choices are {shown(list(choices))}")
        for choice, ids in rules.items():
            for index, id_ in enumerate(ids):
                at = where.down(choice, index)
                if id_ not in inputs:
                    at.error("unknown-input", f"{shown(id_)} is not the id of an input", hint=at.near(id_, inputs))
                elif not inputs[id_].optional:
                    at.error("choice-rule-on-required", f"{id_!r} is not optional, so no choice can decide about it")
    for choice, ids in (input_.value_disables or {}).items():
        for id_ in ids:
            if id_ in (input_.value_requires or {}).get(choice, ()):
                message = f"the choice {shown(choice)} both requires and disables {id_!r}"
                place.down("value-disables", choice).error("requires-and-disables", message)


def check_schema_limits(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report what bosh cannot express as the JSON schema with which it checks invocations."""
    for index, input_ in enumerate(descriptor.inputs):
        where = place.down("inputs", index)
        if not input_.integer:  # bosh does not check the choices of an integer
            check_unique(input_.value_choices or (), where.down("value-choices"))
        check_unique(input_.requires_inputs or (), where.down("requires-inputs"))
        bounds = (("min-list-entries", input_.min_list_entries), ("max-list-entries", input_.max_list_entries))
        for name, bound in bounds:
            if bound and input_.is_list and not is_integer(bound):
                where.down(name).error("list-bounds", f"expected a whole number of entries, found {bound}")
    for index, group in enumerate(descriptor.groups):
        if group.one_is_required and not group.members:
            where = place.down("groups", index, "members")
            where.error("empty-value", "one of the members is required, but the group is empty")


def _check_group(group: Group, place: DescriptorPath, *, inputs: Mapping[str, Input]) -> None:
    members = set(group.members)
    for index, member in enumerate(group.members):
        where = place.down("members", index)
        if member not in inputs:
            message = f"{shown(member)} is not the id of an input"
            where.error("unknown-input", message, hint=where.near(member, inputs))
        elif not inputs[member].optional and (group.mutually_exclusive or group.one_is_required or group.all_or_none):
            where.error("group-required-member", f"{member!r} is not optional, so no group can decide about it")
        elif group.mutually_exclusive:
            for other in inputs[member].requires_inputs or ():
                if other in members:
                    message = f"{member!r} requires {other!r}, but this group excludes one of them"
                    where.error("group-requires-each-other", message)
    repeated = first_repeated(group.members)
    if repeated >= 0:
        place.down("members", repeated).error("duplicate-member", f"{group.members[repeated]!r} is a member twice")


def _check_group_pairs(
    group: Group, place: DescriptorPath, *, together: Sequence[tuple[Group, frozenset[str]]]
) -> None:
    if group.all_or_none and (group.one_is_required or group.mutually_exclusive):
        message = "'all-or-none' cannot be combined with 'one-is-required' or 'mutually-exclusive'"
        place.down("all-or-none").error("group-conflict", message)
    members = set(group.members)
    for other, joined in together:
        if other is group:
            continue
        if group.mutually_exclusive and len(members & joined) > 1:
            both = ", ".join(sorted(members & joined))
            message = f"{both} exclude each other here and go together in the group {other.id!r}"
            place.down("members").error("group-conflict", message)
        if group.one_is_required and members <= joined:
            message = f"one of these is required, but all are in the all-or-none group {other.id!r}"
            place.down("members").error("group-conflict", message)


# Rules about outputs, tests and the container.

_INDEX = re.compile(r"^[a-zA-Z0-9]+://")


def check_outputs(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report path templates that two outputs share, and invalid conditions."""
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


def _check_conditions(output: Output, place: DescriptorPath, *, descriptor: Descriptor) -> None:
    texts = [next(iter(entry)) for entry in output.conditional_path_template]
    if output.path_template is None and not output.optional:
        if texts.count(command.DEFAULT) > 1:
            place.error("condition-default", f"expected one 'default', found {texts.count(command.DEFAULT)}")
        elif command.DEFAULT not in texts:
            place.error("condition-default", "an output that is not optional needs a 'default' path")
    types = {input_.id: input_.type for input_ in descriptor.inputs}
    ids = {*types, *(other.id for other in descriptor.outputs)}
    for index, text in enumerate(texts):
        if text.split() != [command.DEFAULT]:
            _check_condition(text, place.down(index), output=output, types=dict(types), ids=ids)


def _check_condition(text: str, place: DescriptorPath, *, output: Output, types: dict[str, str], ids: set[str]) -> None:
    strange = command.unknown_names(text, ids)
    if strange:
        for name in strange:
            message = f"{shown(name)} in the condition {shown(text)} is not the id of an input or an output"
            place.error("condition-unknown-name", message, hint=place.near(name, ids))
        return
    try:
        command.parsed(text, ids)
    except command.ConditionError as fault:
        place.error("bad-condition", f"the condition {shown(text)} is invalid: {fault}")
        return
    # bosh checks the types only if the output is required
    if not output.optional and not command.types_agree(text, types):
        message = f"the condition {shown(text)} compares different types, or joins values that are not truth values"
        place.error("bad-condition", message, hint="write (A == B) and (C > D), each side of one type")


def check_tests(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report tests of the same name, and assertions about outputs that do not exist or are repeated."""
    known = {output.id for output in descriptor.outputs}
    names: set[str] = set()
    for index, test in enumerate(descriptor.tests):
        where = place.down("tests", index)
        if test["name"] in names:
            where.down("name").error("duplicate-test", f"the test name {shown(test['name'])} is given twice")
        names.add(test["name"])
        asserted: set[str] = set()
        for number, output in enumerate(test["assertions"].get("output-files", ())):
            at = where.down("assertions", "output-files", number, "id")
            id_ = output["id"]
            if id_ not in known:
                at.error("unknown-output", f"{shown(id_)} is not the id of an output", hint=at.near(id_, known))
            if id_ in asserted:
                at.error("duplicate-test-output", f"the output {shown(id_)} is asserted twice in one test")
            asserted.add(id_)


def check_container(descriptor: Descriptor, place: DescriptorPath) -> None:
    """Report an image whose index differs from the given one."""
    container = descriptor.container_image
    if container is None or container.index is None:
        return
    found = _INDEX.match(container.image)
    if found and found.group() != container.index:
        message = f"the image {shown(container.image)} names another index than {shown(container.index)}"
        place.down("container-image", "index").error("container-index-mismatch", message)
