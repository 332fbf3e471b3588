"""A failing world made smaller, as long as the same checker still fails: what is left is what the failure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import asdict, replace

from pilotage.simulator.faults import Faults
from pilotage.simulator.jobs import JobSketch, LineSketch, StageSketch
from pilotage.simulator.world import World

Fails = Callable[[World], bool]


def shrink(world: World, fails: Fails, *, runs_max: int = 200) -> World:
    """The smallest world found in so many runs; `fails` says whether one fails in the same way."""
    runs = 0
    improved = True
    while improved:
        improved = False
        for candidate in smaller_worlds(world):
            if runs >= runs_max:
                return world
            runs += 1
            if fails(candidate):
                world, improved = candidate, True
                break
    return world


def smaller_worlds(world: World) -> Iterator[World]:
    """Worlds that are smaller by one step each, the largest steps first."""
    for number in range(len(world.jobs)):
        if len(world.jobs) > 1:
            yield replace(world, jobs=_without(world.jobs, number))
    for kind in _kinds(world.faults):
        yield replace(world, faults=_without_kind(world.faults, kind))
    for number in range(len(world.sites)):
        if len(world.sites) > 1:
            yield replace(world, sites=_without(world.sites, number))
    if world.faults_seconds > 60.0:
        yield replace(world, faults_seconds=round(world.faults_seconds / 2, 3))
    for number, job in enumerate(world.jobs):
        for smaller in _smaller_jobs(job):
            yield replace(world, jobs=(*world.jobs[:number], smaller, *world.jobs[number + 1 :]))
    yield from _calmer(world)


def _calmer(world: World) -> Iterator[World]:
    """The same without what is peculiar to its sites and jobs."""
    for number, site in enumerate(world.sites):
        if site.outages:
            calm = replace(site, outages=())
            yield replace(world, sites=(*world.sites[:number], calm, *world.sites[number + 1 :]))
    for number, job in enumerate(world.jobs):
        if job.limits or job.hold or job.submit_seconds:
            plain = replace(job, limits={}, hold=False, submit_seconds=0.0)
            yield replace(world, jobs=(*world.jobs[:number], plain, *world.jobs[number + 1 :]))


def _kinds(faults: Faults) -> list[str]:
    return [kind for kind, probability in asdict(faults).items() if probability]


def _without_kind(faults: Faults, left_out: str) -> Faults:
    """The faults without one kind; what never strikes is not written down."""
    return Faults(**{kind: getattr(faults, kind) for kind in _kinds(faults) if kind != left_out})


def _smaller_jobs(job: JobSketch) -> Iterator[JobSketch]:
    last = len(job.stages)
    if last > 1:
        yield replace(job, stages=job.stages[:-1])
    for number, stage in enumerate(job.stages):
        for smaller in _smaller_stages(stage):
            yield replace(job, stages=(*job.stages[:number], smaller, *job.stages[number + 1 :]))


def _smaller_stages(stage: StageSketch) -> Iterator[StageSketch]:
    if stage.items > 1:
        yield replace(stage, items=stage.items // 2)
    if len(stage.lines) > 1:
        yield replace(stage, lines=stage.lines[:1])
    if stage.names_max > 1:
        yield replace(stage, names_max=stage.names_max - 1)
    if len(stage.joins) > 1:
        yield replace(stage, joins=stage.joins[:1])
    for number, line in enumerate(stage.lines):
        for smaller in _smaller_lines(line):
            yield replace(stage, lines=(*stage.lines[:number], smaller, *stage.lines[number + 1 :]))


def _smaller_lines(line: LineSketch) -> Iterator[LineSketch]:
    if line.count > 1:
        yield replace(line, count=line.count // 2)
        if line.count > 2:
            yield replace(line, count=line.count - 1)
    if len(line.templates) > 1:
        yield replace(line, templates=line.templates[:-1])


def _without(parts: tuple, number: int) -> tuple:  # type: ignore[type-arg] # whatever they are
    return (*parts[:number], *parts[number + 1 :])
