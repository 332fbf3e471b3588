"""Descriptions of software: which one a binary uses, how it is started, and the environment variables of all levels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pilotage.language.text.templates import Values, parse_template, render
from pilotage.model.jobs.definition import Binary, Definition, Environment, Execution, Infrastructure, Package, Software
from pilotage.model.site import ANY_INFRASTRUCTURE, Site, Start, fitting_start

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def find_software(definition: Definition, binary: Binary) -> Software | None:
    """The description that a binary names; without a version, the first one of that id."""
    for software in definition.software:
        if software.id == binary.software and binary.version in ("", software.version):
            return software
    return None


class Way(NamedTuple):
    """One way to start the software of a binary."""

    release: Software
    infrastructure: Infrastructure
    execution: Execution

    @property
    def start(self) -> Start:
        """The requirements of this way to start."""
        release = self.release
        software = f"{release.id}/{release.version}" if release.version else release.id
        return Start(software=software, infrastructure=self.infrastructure.name, platform=self.infrastructure.platform)


Choose = Callable[[Sequence[Way]], "Way | None"]
"""Chooses one of the ways to start a binary; None if none fits."""


def ways_of(definition: Definition, package: Package, binary: Binary) -> list[Way]:
    """All ways to start the software of a binary, in the order of the document; none if Boutiques describes it."""
    first = find_software(definition, binary) if binary.software else None
    if first is None or first.boutiques is not None:
        return []
    releases = [each for each in definition.software if each.id == first.id and binary.version in ("", each.version)]
    return [
        Way(release, infrastructure, execution)
        for release in releases
        for infrastructure in release.infrastructures
        for execution in infrastructure.executions
        if execution.job_type == package.job_type
        and (not package.platform or infrastructure.platform in ("", package.platform))
    ]


def way_at(site: Site, package: Package) -> Choose:
    """The choice when the site of a package is known."""

    def choose(ways: Sequence[Way]) -> Way | None:
        fitting = fitting_start([way.start for way in ways], site, platform=package.platform)
        return None if fitting is None else ways[fitting]

    return choose


def way_at_position(position: int) -> Choose:
    """The way at a position, or the last one, to go through all of them."""
    return lambda ways: ways[min(position, len(ways) - 1)] if ways else None


def way_beforehand(package: Package) -> Choose:
    """The choice before a site is known: a way for the named executor, else one for any, else the first."""

    def choose(ways: Sequence[Way]) -> Way | None:
        named = [way for way in ways if package.executor and way.infrastructure.name == package.executor]
        common = [way for way in ways if way.infrastructure.name == ANY_INFRASTRUCTURE]
        return next(iter((*named, *common, *ways)), None)

    return choose


def environment_levels(
    definition: Definition, package: Package, binary: Binary, values: Values, way: Way | None = None
) -> Environment:
    """The variables of a binary, filled in, from release, infrastructure, execution, job, package and binary; later levels win."""
    exported: dict[str, str] = {}
    for level in (
        *_described(definition, binary, way),
        definition.environment,
        package.environment,
        binary.environment,
    ):
        exported.update(level.exported)
    filled = {name: render(parse_template(text), values) for name, text in exported.items()}
    return Environment(exported=filled, setting=setting_levels(definition, package, binary))


def setting_levels(definition: Definition, package: Package, binary: Binary) -> dict[str, str]:
    """The settings of pilotage for a binary before its site is known: those that all ways to start it share."""
    setting, _ = described_settings(definition, package, binary)
    for level in (definition.environment, package.environment, binary.environment):
        setting.update(level.setting)
    return setting


def described_settings(definition: Definition, package: Package, binary: Binary) -> tuple[dict[str, str], list[str]]:
    """The settings that all ways to start a binary's software agree on, and the names of the others."""
    each: list[dict[str, str]] = []
    ways: list[Way | None] = [*ways_of(definition, package, binary)]
    for way in ways or [None]:
        found: dict[str, str] = {}
        for level in _described(definition, binary, way):
            found.update(level.setting)
        each.append(found)
    agreed = {name: text for name, text in each[0].items() if all(other.get(name) == text for other in each)}
    return agreed, sorted({name for found in each for name in found if name not in agreed})


def _described(definition: Definition, binary: Binary, way: Way | None) -> list[Environment]:
    """The levels in the description of a software, the outer ones first."""
    if way is not None:
        return [way.release.environment, way.infrastructure.environment, way.execution.environment]
    software = find_software(definition, binary) if binary.software else None
    return [software.environment] if software is not None else []


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
    """Parameters as values of placeholders in a command: a list becomes several arguments."""
    return {
        name: tuple(map(_text, value)) if isinstance(value, list) else _text(value)
        for name, value in parameters.items()
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def typed(parameters: Mapping[str, object], numbers: set[str]) -> dict[str, object]:
    """Parameters in which the named ones, filled in as text, are numbers."""
    return {name: _number(value) if name in numbers else value for name, value in parameters.items()}


def _number(value: object) -> object:
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if re.fullmatch("-?[0-9]+", value) else float(value)
    return value
