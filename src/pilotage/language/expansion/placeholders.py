"""Checks that every placeholder is known and allowed at its position, and that every variable is used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.lists import Groups
from pilotage.language.expansion.software import filled_parameters, find_software, parameter_texts, ways_of
from pilotage.language.parsing.iterations import sources
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.parsing.rules import templates_in, values_in
from pilotage.language.text.locators import is_cached_value
from pilotage.language.text.templates import (
    ATTRIBUTES,
    Placeholder,
    Template,
    Values,
    parse_template,
    shell_script,
    unfit_value,
)
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import Binary, Definition, InputFile, Package, Script, Stage, Value


class NoteFault(Protocol):
    """Reports a fault: its code, message, path and hint, and the faulty text."""

    def __call__(self, code: str, message: str, place: FieldPath, hint: str = "", *, at: str = "") -> None:
        """Report a fault."""
        ...


_COMMAND_FIELDS = frozenset({"run", "shell", "arguments", "startup_parameters"})
_FILE_LISTS = frozenset({"inputs", "outputs", "arguments"})


def check_placeholders(block: Block, definition: Definition, error: NoteFault) -> bool:
    """Report unknown and misplaced placeholders in the texts of a block; return whether there are none."""
    fine = True
    known = block.variables()
    for place, value, inner, template in _templates(block.package, block.place):
        in_command = inner[0] in _COMMAND_FIELDS
        allowed = known | (_FILE_LISTS if in_command and not isinstance(value, Script) else frozenset())
        if inner[0] == "arguments":
            allowed = allowed - {"arguments"}
        # Beside a list of names, a locator or a checksum is written for each of them.
        for_each = isinstance(value, InputFile) and inner[0] in ("locator", "sha256")
        for placeholder in template.placeholders:
            fault = _fault(
                placeholder,
                Template((placeholder,)) if for_each else template,
                block,
                allowed,
                lists_allowed=in_command or isinstance(value, InputFile),
            )
            if (
                not fault
                and isinstance(value, InputFile)
                and not for_each
                and block.is_list(placeholder.name)
                and len(template.parts) > 1
            ):
                fault = "list-in-text", f"{placeholder} is a list: it must be a whole input", ""
            if fault:
                fine = False
                error(fault[0], fault[1], (*place, *inner), fault[2], at=str(placeholder))
    for place, binary in block.binaries():
        for code, message, field in _list_faults(binary, block):
            fine = False
            error(code, message, (*place, *field))
        for code, message, hint, field in _software_faults(binary, block, definition):
            fine = False
            error(code, message, (*place, *field), hint)
    return fine


def _list_faults(binary: Binary, block: Block) -> Iterator[tuple[str, str, FieldPath]]:
    """Lists of locators that do not fit their names: each file has one name and one locator."""
    for position, given in enumerate(binary.inputs):
        lists = {
            field: {gap.name for gap in parse_template(text).placeholders if block.is_list(gap.name)}
            for field, text in (("name", given.name), ("locator", given.locator), ("sha256", given.sha256))
        }
        for field in ("locator", "sha256"):
            if not lists[field] <= lists["name"]:
                message = f"the {field} of {given.name!r} is a list, and its name is not one of the same variable"
                yield "list-in-text", message, ("inputs", position, field)
        one = given.locator and given.brought and not lists["locator"] and not given.locator.endswith("/")
        if lists["name"] and one:
            message = f"{given.name!r} is a list of files, and the locator names one: end it with / to name a folder"
            yield "list-in-text", message, ("inputs", position, "locator")


def _software_faults(binary: Binary, block: Block, definition: Definition) -> Iterator[tuple[str, str, str, FieldPath]]:
    """Parameters that a software needs and a binary does not set, and those that it sets and the software does not have."""
    software = find_software(definition, binary) if binary.software else None
    if software is None or software.boutiques is not None:
        return
    package = block.package
    ways = ways_of(definition, package, binary)
    if not ways:
        on = f" on the platform {package.platform!r}" if package.platform else ""
        message = f"the software {software.id!r} has no execution for the job type {package.job_type!r}{on}"
        types = {e.job_type for i in software.infrastructures for e in i.executions}
        yield "no-execution", message, did_you_mean(package.job_type, types), ("software",)
        return
    # The site decides which of these is used, so all must be valid.
    lists = {name for name, value in binary.parameters.items() if isinstance(value, list)}
    faults: dict[tuple[str, str, str], None] = {}
    asked: set[str] = set()
    for execution in (way.execution for way in ways):
        for _, text, style in templates_in(execution):
            template = parse_template(text, style)
            for placeholder in template.placeholders:
                # Missing parameters are checked below.
                allowed = block.variables() | _FILE_LISTS | {placeholder.name}
                fault = _fault(placeholder, template, block, allowed, lists_allowed=True, more_lists=lists)
                if fault:
                    faults[fault] = None
        asked |= {p.name for p in _own(execution)}
    for code, message, hint in faults:
        yield code, f"in the command of {software.id!r}: {message}", hint, ("software",)
    known = block.variables() | _FILE_LISTS | set(binary.parameters)
    for name in sorted(asked - known):
        message = f"the software {software.id!r} needs the parameter {name!r}"
        several = len({way.release.version for way in ways}) > 1
        hint = "set it, or name the version: a site may have any of them" if several else ""
        yield "missing-parameter", message, hint, ("parameters",)
    for name in binary.parameters:
        releases = [each for each in definition.software if each.id == software.id and each.boutiques is None]
        executions = [e for each in releases for i in each.infrastructures for e in i.executions]
        if not any(name in {p.name for p in _own(execution)} for execution in executions):
            message = f"the software {software.id!r} has no parameter {name!r}"
            yield (
                "unknown-parameter",
                message,
                did_you_mean(name, asked - block.variables() - _FILE_LISTS),
                ("parameters", name),
            )


def _fault(
    placeholder: Placeholder,
    template: Template,
    block: Block,
    allowed: set[str],
    *,
    lists_allowed: bool,
    more_lists: Collection[str] = (),
) -> tuple[str, str, str] | None:
    """The fault of one placeholder: code, message and hint; None if it is valid."""
    name = placeholder.name
    if name not in allowed:
        if name in _FILE_LISTS:
            return "misplaced-placeholder", f"{placeholder} is only allowed in commands", ""
        return "unknown-placeholder", f"{placeholder} is not known here", did_you_mean(name, allowed)
    if placeholder.attribute and placeholder.attribute not in ATTRIBUTES:
        message = f"a value has no part {placeholder.attribute!r}, which {placeholder} names"
        return "unknown-placeholder", message, did_you_mean(placeholder.attribute, ATTRIBUTES)
    if placeholder.attribute == "size" and not _has_sizes(block, name):
        message = f"{placeholder} is not known: only files in the cache of a site have a size"
        return "unknown-placeholder", message, "iterate over {files: PATTERN, site: NAME}"
    is_list = block.is_list(name) or name in _FILE_LISTS or name in more_lists
    if is_list and not lists_allowed:
        return "list-in-text", f"{placeholder} is a list and cannot be part of a name", ""
    if (
        is_list
        and len(template.parts) > 1
        and not any("\n" in p or " " in p for p in template.parts if isinstance(p, str))
    ):
        return "list-in-text", f"{placeholder} is a list: it must be a whole argument", "use shell: to join it"
    return None


def _has_sizes(block: Block, name: str) -> bool:
    column = block.line_items.columns.get(name) or block.items.columns.get(name)
    if column is None:
        return False
    values = column.values.values if isinstance(column.values, Groups) else column.values
    return not len(values) or is_cached_value(values[0])


def _templates(package: Package, place: FieldPath) -> Iterator[tuple[FieldPath, Value, FieldPath, Template]]:
    """Every text with placeholders in a package and its parts."""
    for where, value in values_in(package, place):
        for inner, text, style in templates_in(value):
            yield where, value, inner, parse_template(text, style)
        if isinstance(value, Binary):
            for name, parameter in value.parameters.items():
                for text in _texts(parameter):
                    yield where, value, ("parameters", name), parse_template(text)


def _texts(value: object) -> Iterator[str]:
    """The texts inside a parameter's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


def unused_variables(definition: Definition) -> Iterator[tuple[FieldPath, str]]:
    """The variables that no text uses, with their paths."""
    everywhere = {p.name for s in definition.stages for p in _used(s)}
    in_sources = {
        p.name
        for s in definition.stages
        for each in (s.each, *(line.each for line in s.lines))
        for source in sources(each)
        for text in (source.files, source.csv, source.lines)
        for p in parse_template(text).placeholders
    }
    in_software = {p.name for sw in definition.software for _, v in values_in(sw) for p in _own(v)}
    for field, names in (("variables", definition.variables), ("parameters", definition.parameters)):
        for name in names:
            if name not in everywhere | in_sources | in_software:
                yield (field, name), name
    for number, stage in enumerate(definition.stages):
        used = {p.name for p in _used(stage)} | in_software
        if "tag" in used or "package" in used:
            continue
        for source in sources(stage.each):
            if source.variable and source.variable not in used:
                yield ("stages", number, "each"), source.variable
        for position, line in enumerate(stage.lines):
            for source in sources(line.each):
                if source.variable and source.variable not in used:
                    yield ("stages", number, "lines", position, "each"), source.variable


def _used(stage: Stage) -> Iterator[Placeholder]:
    for line in stage.lines:
        for package in line.packages:
            for _, _, _, template in _templates(package, ()):
                yield from template.placeholders


def _own(value: Value) -> Iterator[Placeholder]:
    for _, text, style in templates_in(value):
        yield from parse_template(text, style).placeholders


# Checks that the values of a block fit the positions of their placeholders in `shell:` scripts.
_SMALL_NUMBER = re.compile(r"[0-9]{1,18}")


def check_script_values(
    block: Block, definition: Definition, columns: Mapping[str, Sequence[str]], error: NoteFault
) -> None:
    """Report the first value of each script that cannot be filled in; most scripts accept any value.

    The file names of `{inputs}` and `{outputs}` are not known here: a script that cannot use one fails when it runs.
    """
    for place, binary in block.binaries():
        for text, inner, parameters in _scripts(binary, block, definition):
            script = shell_script(text)
            if script.fault or script.takes_any_value:
                continue
            lists = [
                gap
                for gap, slot in zip(parse_template(text, "shell").placeholders, script.slots, strict=True)
                if slot.context == "arithmetic" and gap.name in _FILE_LISTS
            ]
            if lists:
                error("list-in-text", f"{lists[0]} is a list, but $(( )) allows only a number", (*place, *inner))
                continue
            unfit = list(_unfit(text, block, columns, parameters, numbers_fit=not script.documents))
            if unfit:
                position, reason = unfit[0]
                more = f" (and {len(unfit) - 1:,} more)" if len(unfit) > 1 else ""
                error("unfit-value", f"{block.package_name(position)}{more}: {reason}", (*place, *inner))


def _scripts(
    binary: Binary, block: Block, definition: Definition
) -> Iterator[tuple[str, FieldPath, Mapping[str, object] | None]]:
    """The scripts of a binary, or of its software with its parameters."""
    if binary.shell:
        yield binary.shell, ("shell",), None
    for way in ways_of(definition, block.package, binary):
        if way.execution.shell:
            yield way.execution.shell, ("software",), binary.parameters


def _unfit(
    text: str,
    block: Block,
    columns: Mapping[str, Sequence[str]],
    parameters: Mapping[str, object] | None,
    *,
    numbers_fit: bool,
) -> Iterator[tuple[int, str]]:
    """The packages with values that do not fit, and the reasons."""
    names = {gap.name for gap in parse_template(text, "shell").placeholders}
    if names & _FILE_LISTS:
        return
    if parameters is not None or any(block.is_list(name) for name in names):
        for position in range(block.count):
            values: Values = block.values(position)
            if parameters is not None:
                values = {**values, **parameter_texts(filled_parameters(parameters, values))}
            reason = unfit_value(text, values)
            if reason:
                yield position, reason
        return
    varying = [name for name in sorted(names) if name not in block.constants]
    rows = zip(*(columns[name] for name in varying), strict=True) if varying else [()] * min(block.count, 1)
    constants_fit = numbers_fit and all(_SMALL_NUMBER.fullmatch(block.constants[name]) for name in names - {*varying})
    for position, row in enumerate(rows):
        if constants_fit and all(map(_SMALL_NUMBER.fullmatch, row)):
            continue
        reason = unfit_value(text, {**block.constants, **dict(zip(varying, row, strict=True))})
        if reason:
            yield position, reason
