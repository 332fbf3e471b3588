"""Makes the plan for the engine from an expansion: one template per block, and the shapes of the stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import takewhile

import numpy as np

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.software import find_software, setting_levels, ways_of
from pilotage.language.file_plan import file_plan_of
from pilotage.language.released_inputs import releases_of
from pilotage.language.stored_outputs import disposes_outputs, retains_outputs
from pilotage.language.text.quantities import parse_bytes, parse_seconds
from pilotage.model.events.payloads import StageShape, TemplateShape
from pilotage.model.jobs.definition import Definition, Package, Retry
from pilotage.model.jobs.plan import JobPlan, LatePlan, Template
from pilotage.model.resources import BESIDES_CORES, Demand
from pilotage.model.site import Start


def plan_of(expansion: Expansion) -> JobPlan:
    """The plan of an expanded job, without the packages of late stages that are not known yet."""
    definition = expansion.definition
    template_of = np.zeros(expansion.count, np.uint32)
    for position, block in enumerate(expansion.blocks):
        template_of[block.package_array()] = position
    return JobPlan(
        graph=expansion.graph,
        templates=tuple(_template(expansion, block) for block in expansion.blocks),
        template_of=template_of,
        layouts={stage + 1: layout for stage, layout in expansion.layouts.items()},
        late=_late(expansion.late),
        laid_out=_late(expansion.laid_out),
        late_waits=expansion.late_waits,
        limits=definition.limits,
        priority=definition.priority,
        hold=definition.hold,
        files=file_plan_of(expansion),
        releases=releases_of(expansion),
    )


def _late(stages: Iterable[LateStage]) -> tuple[LatePlan, ...]:
    return tuple(LatePlan(stage=each.stage, packages=each.packages, stages=each.stages) for each in stages)


def shapes_of(expansion: Expansion) -> tuple[StageShape, ...]:
    """The number of packages and the activities of each stage, for the registration of the job."""
    activities: dict[tuple[int, int], dict[int, str]] = {}
    for block in expansion.blocks:
        activities.setdefault((block.stage, block.template), {})[block.number] = block.activity
    return tuple(_shape(expansion, stage, activities) for stage in range(len(expansion.definition.stages)))


def _shape(expansion: Expansion, stage: int, activities: Mapping[tuple[int, int], Mapping[int, str]]) -> StageShape:
    layout = expansion.layouts.get(stage)
    if layout is None:
        return StageShape(items=0, late=any(late.stage == stage + 1 for late in expansion.late))
    templates = [
        TemplateShape(lines=each.lines, activities=_in_order(activities.get((stage, position), {})))
        for position, each in enumerate(layout.templates)
    ]
    return StageShape(items=layout.items, templates=tuple(templates))


def _in_order(names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[number] for number in sorted(names))


def _template(expansion: Expansion, block: Block) -> Template:
    definition, package = expansion.definition, block.package
    settings = _settings(definition, package)
    estimates = [each.run_time_seconds for each in package.binaries if each.run_time_seconds is not None]
    attempts_max = settings.get("attempts_max")
    retry = package.retry
    if attempts_max is not None and retry.attempts_max is None:
        retry = Retry(attempts_max=int(attempts_max), rules=retry.rules)
    return Template(
        activity=block.activity,
        demand=_demand(package, settings),
        priority=package.priority or 0,
        run_seconds=sum(estimates),
        executor=package.executor,
        category=package.category,
        side_effects=package.side_effects,
        retry=retry,
        replicas_max=int(settings["replicas_max"]) if "replicas_max" in settings else None,
        final=package.role == "final",
        abort_on=package.abort_on,
        platform=package.platform,
        job_type=package.job_type,
        data_handling=any(each.data_handling for each in package.binaries),
        software=_software(definition, package),
        starts=_starts(definition, package),
        work_bytes=sum(each.work_bytes or 0 for each in package.binaries),
        input_bytes=sum(_needed(package).values()),
        output_bytes=sum(_made(package).values()),
        locators=_locators(block),
        stores_outputs=any(output.stored for _, output in block.outputs()),
        disposes_outputs=disposes_outputs(expansion, block),
        retains_outputs=retains_outputs(expansion, block),
    )


def _needed(package: Package) -> dict[str, int]:
    """The declared sizes of inputs, without files that an earlier binary of the package makes."""
    made = _made(package)
    files = (each for binary in package.binaries for each in binary.inputs)
    return {each.name: each.size_bytes or 0 for each in files if each.name not in made}


def _made(package: Package) -> dict[str, int]:
    files = (each for binary in package.binaries for each in binary.outputs)
    return {each.name or each.expression: each.size_bytes or 0 for each in files}


def _locators(block: Block) -> tuple[str, ...]:
    """The locators of files that it fetches itself, up to the first part that differs: a URL prefix identifies a store."""
    found: dict[str, None] = {}
    for binary in block.package.binaries:
        for locator in (each.locator for each in binary.inputs if each.acquisition == "self"):
            parts = block.bound(locator).parts
            text = "".join(
                part for part in takewhile(lambda part: isinstance(part, str), parts) if isinstance(part, str)
            )
            if text:
                found[text if all(isinstance(part, str) for part in parts) else f"{text}*"] = None
    return tuple(found)


def _software(definition: Definition, package: Package) -> tuple[str, ...]:
    """The software that a site must have if it lists its software; archives are brought there."""
    named = [each for each in package.binaries if each.software]
    installed = [each for each in named if not ((found := find_software(definition, each)) and found.archives)]
    return tuple(dict.fromkeys("/".join(filter(None, (each.software, each.version))) for each in installed))


def _starts(definition: Definition, package: Package) -> tuple[tuple[Start, ...], ...]:
    """The ways to start each binary whose software has several: a site must support one of them."""
    ways = (tuple(way.start for way in ways_of(definition, package, each)) for each in package.binaries)
    return tuple(dict.fromkeys(each for each in ways if each and each != (Start(software=each[0].software),)))


def _settings(definition: Definition, package: Package) -> dict[str, str]:
    """The settings of pilotage for a package: inner levels win, and of its binaries the last."""
    found = {**definition.environment.setting, **package.environment.setting}
    for binary in package.binaries:
        found.update(setting_levels(definition, package, binary))
    return found


def _demand(package: Package, settings: Mapping[str, str]) -> Demand:
    asked = package.resources
    cores = int(settings["cores"]) if "cores" in settings else asked.cores
    memory = parse_bytes(settings["memory_bytes"]) if "memory_bytes" in settings else asked.memory_bytes
    wall = parse_seconds(settings["wall_time_seconds"]) if "wall_time_seconds" in settings else asked.wall_time_seconds
    amounts = {kind.name: getattr(asked, kind.name) or 0 for kind in BESIDES_CORES}
    amounts["cores_hundredths"] = max(1, math.ceil(cores * _cpu_percent(package) - 1e-6))
    amounts["memory_bytes"] = memory or 0
    if asked.scratch_bytes is None:
        amounts["scratch_bytes"] = _sum(binary.work_bytes for binary in package.binaries)
    return Demand(
        **amounts,
        wall_seconds=wall or 0.0,
        nodes=asked.nodes,
        node_restriction=package.node_restriction,
    )


def _cpu_percent(package: Package) -> float:
    """The share of its cores that a package uses: the maximum over its binaries, which run one after the other."""
    shares = [100.0 if each.cpu_percent is None else each.cpu_percent for each in package.binaries]
    return max(shares, default=100.0)


def _sum(sizes: Iterable[int | None]) -> int:
    return sum(size for size in sizes if size is not None)
