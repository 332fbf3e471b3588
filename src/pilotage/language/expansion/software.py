"""Software described once: which description a binary means, how it is started, and the variables of every level."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pilotage.language.text.templates import Values, parse_template, render
from pilotage.model.definition import Binary, Definition, Environment, Execution, Infrastructure, Package, Software

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def find_software(definition: Definition, binary: Binary) -> Software | None:
    """The description a binary names; without a version, the first one of that id."""
    for software in definition.software:
        if software.id == binary.software and binary.version in ("", software.version):
            return software
    return None


def find_execution(
    software: Software, *, platform: str, job_type: str, infrastructure: str = ""
) -> tuple[Infrastructure, Execution] | None:
    """How a software is started: the first infrastructure that fits, and its execution for the type of job.

    Before a site is chosen no infrastructure is named; one called `any` then goes before the others.
    """
    fitting = [i for i in software.infrastructures if i.platform in ("", platform) or not platform]
    named = [i for i in fitting if infrastructure and i.name == infrastructure]
    common = [i for i in fitting if i.name == "any"]
    for candidate in (*named, *common, *(fitting if not infrastructure else ())):
        for execution in candidate.executions:
            if execution.job_type == job_type:
                return candidate, execution
    return None


def execution_for(software: Software, package: Package) -> tuple[Infrastructure, Execution] | None:
    """How a software is started for a package: on the infrastructure that its executor names, where there is one."""
    named = package.executor if any(i.name == package.executor for i in software.infrastructures) else ""
    return find_execution(software, platform=package.platform, job_type=package.job_type, infrastructure=named)


def environment_levels(definition: Definition, package: Package, binary: Binary, values: Values) -> Environment:
    """The variables of a binary, filled in: release, infrastructure, execution, job, package, binary; the inner wins."""
    exported: dict[str, str] = {}
    for level in _levels(definition, package, binary):
        exported.update(level.exported)
    filled = {name: render(parse_template(text), values) for name, text in exported.items()}
    return Environment(exported=filled, setting=setting_levels(definition, package, binary))


def setting_levels(definition: Definition, package: Package, binary: Binary) -> dict[str, str]:
    """What is set of pilotage itself for a binary, by the same levels."""
    setting: dict[str, str] = {}
    for level in _levels(definition, package, binary):
        setting.update(level.setting)
    return setting


def _levels(definition: Definition, package: Package, binary: Binary) -> list[Environment]:
    levels: list[Environment] = []
    software = find_software(definition, binary) if binary.software else None
    if software is not None:
        levels.append(software.environment)
        found = execution_for(software, package)
        if found is not None:
            levels += [found[0].environment, found[1].environment]
    return [*levels, definition.environment, package.environment, binary.environment]


def filled_parameters(parameters: Mapping[str, object], values: Values) -> dict[str, object]:
    """Parameters with their placeholders filled in."""
    return {name: _filled(value, values) for name, value in parameters.items()}


def _filled(value: object, values: Values) -> object:
    if isinstance(value, str):
        return render(parse_template(value), values)
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, values) for name, item in value.items()}
    return value


def parameter_texts(parameters: Mapping[str, object]) -> dict[str, str | tuple[str, ...]]:
    """Parameters as placeholders of a command: a list becomes several arguments."""
    return {
        name: tuple(map(_text, value)) if isinstance(value, list) else _text(value)
        for name, value in parameters.items()
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def typed(parameters: Mapping[str, object], numbers: set[str]) -> dict[str, object]:
    """Parameters in which a text that stands for a number, by a placeholder, is that number."""
    return {name: _number(value) if name in numbers else value for name, value in parameters.items()}


def _number(value: object) -> object:
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if re.fullmatch("-?[0-9]+", value) else float(value)
    return value
