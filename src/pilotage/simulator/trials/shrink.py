"""Shrinks a failing world while the same checker still fails: what is left is needed for the failure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from pilotage.model.errors import PilotageError
from pilotage.model.jobs.plan import Template
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.simulator.trials.definition import SiteSketch, World
from pilotage.simulator.world.faults import KINDS, Faults
from pilotage.simulator.world.jobs import JobSketch, LineSketch, StageSketch, packages_of
from pilotage.simulator.world.randomness import Fixed

Fails = Callable[[World], bool]


def shrink(world: World, fails: Fails, *, runs_max: int = 200) -> World:
    """The smallest world found in at most `runs_max` runs; `fails` tells whether a world fails in the same way."""
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
    """The world without special properties of its sites and jobs."""
    for number, site in enumerate(world.sites):
        if site.outages or site.fault_bursts or site.submission != Fixed(0.0):
            calm = replace(site, outages=(), fault_bursts=(), submission=Fixed(0.0))
            yield replace(world, sites=(*world.sites[:number], calm, *world.sites[number + 1 :]))
    for number, store in enumerate(world.stores):
        if store.outages or store.failure_probability:
            calm_store = replace(store, outages=(), failure_probability=0.0)
            yield replace(world, stores=(*world.stores[:number], calm_store, *world.stores[number + 1 :]))
    for number, job in enumerate(world.jobs):
        if job.files:
            for left_out in range(len(job.files)):
                fewer = replace(job, files=_without(job.files, left_out))
                yield replace(world, jobs=(*world.jobs[:number], fewer, *world.jobs[number + 1 :]))
        if job.limits or job.hold or job.submit_seconds:
            plain = replace(job, limits={}, hold=False, submit_seconds=0.0)
            yield replace(world, jobs=(*world.jobs[:number], plain, *world.jobs[number + 1 :]))


def _kinds(faults: Faults) -> list[str]:
    return [kind for kind, probability in asdict(faults).items() if probability]


def _without_kind(faults: Faults, left_out: str) -> Faults:
    """The faults without one kind; a probability of 0 is not stored."""
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


# A world as a file: a stored world runs the same later, or is refused.
#
# A hand-written file may leave out default values. A stored file is complete and states so (`"complete": true`): if a field
# was added, removed or changed its type since, the file no longer fits, and is refused rather than run as another world.

PACKAGES_MAX = 1_000_000
_COMPLETE = "complete"
_ADDED: dict[type[msgspec.Struct], tuple[str, ...]] = {
    EngineSettings: ("fetch_attempts_max", "fetch_delay_seconds", "fetch_delay_seconds_max"),
    Faults: (
        "user_pins",
        "user_purges",
        "transfer_fails",
        "transfer_hangs",
        "transfer_late",
        "transfer_repeated",
        "cache_loses",
        "store_changes",
    ),
    JobSketch: ("files", "copies"),
    Site: ("cache_bytes",),
    SiteSketch: ("submission", "fault_bursts", "bytes_per_second"),
    Template: ("stores_outputs", "disposes_outputs"),
    World: ("stores",),
}
"""Fields of later versions: they are stored only where they change something, so files of before are complete, too."""
ADDED_NAMES = frozenset(name for names in _ADDED.values() for name in names)


def stored(world: World) -> bytes:
    """A world as the text of a file, with everything that it depends on."""
    fields = {_COMPLETE: True} | _plain(world, leaves_out=_ADDED)
    parts = [f'"{key}":{_text(part)}' for key, part in fields.items()]
    return "{{\n{}\n}}\n".format(",\n".join(parts)).encode()


def read_world(text: bytes, *, name: str) -> World:
    """The world in a file; `name` is the file's name for error messages."""
    try:
        msgspec.json.decode(text)  # stricter than the next step: no NaN, no number too large, no half of a character
        fields = json.loads(text, object_pairs_hook=_each_once)
        is_complete = isinstance(fields, dict) and fields.pop(_COMPLETE, False)
        if is_complete not in (True, False):
            raise _Unfit("Expected `bool`", at=f"$.{_COMPLETE}")
        world = msgspec.convert(fields, World)
        _compare(fields, _plain(world), at="$", is_complete=is_complete)
        for place, what in _faults(world):
            raise _Unfit(what, at=place)
    except (ValueError, RecursionError) as fault:
        raise PilotageError(f"is not a world: {fault}", subject=name) from None
    return world


class _Unfit(ValueError):
    """What is wrong with a world, and where."""

    def __init__(self, what: str, *, at: str) -> None:
        super().__init__(f"{what} - at `{at}`")


def _text(part: Any) -> str:
    """A part of a world, with a line for each site and each job, so that a diff shows where it changed."""
    if isinstance(part, list):
        return "[\n{}\n]".format(",\n".join(map(_text, part)))
    return msgspec.json.encode(part).decode()


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"`{key}` appears twice in one object")
        found[key] = value
    return found


_NOTHING: Mapping[type[msgspec.Struct], tuple[str, ...]] = {}


def _plain(value: Any, *, leaves_out: Mapping[type[msgspec.Struct], tuple[str, ...]] = _NOTHING) -> Any:
    """A value with all of its fields, including default values except those of some fields."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field is not None else {}
        usual = {
            each.name: each.default
            for each in msgspec.structs.fields(value)
            if each.name in leaves_out.get(type(value), ())
        }
        fields = {each: getattr(value, each) for each in value.__struct_fields__}
        return tag | {
            name: _plain(each, leaves_out=leaves_out)
            for name, each in fields.items()
            if name not in usual or each != usual[name]
        }
    if isinstance(value, Mapping):
        return {key: _plain(each, leaves_out=leaves_out) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, leaves_out=leaves_out) for each in value]
    return msgspec.to_builtins(value)


def _compare(given: Any, known: Any, *, at: str, is_complete: bool) -> None:
    """Every field of a file must be known; a complete file must have every known field."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key in given:
            if key not in known:
                raise _Unfit(f"Object contains unknown field `{key}`", at=at)
        for key in known:
            if key in given:
                _compare(given[key], known[key], at=f"{at}.{key}", is_complete=is_complete)
            elif is_complete and key not in ADDED_NAMES:
                raise _Unfit(f"Object missing field `{key}`, and the file states that it is complete", at=at)
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for number, (one, other) in enumerate(zip(given, known, strict=True)):
            _compare(one, other, at=f"{at}[{number}]", is_complete=is_complete)
    elif given != known:
        raise _Unfit(f"{given!r} is read as {known!r}", at=at)


def _faults(world: World) -> Iterator[tuple[str, str]]:
    """The faults that prevent the assembly of a world, with their positions."""
    for kind in KINDS:
        if not 0.0 <= getattr(world.faults, kind) <= 1.0:
            yield f"$.faults.{kind}", "Expected a probability, from 0 to 1"
    yield from _impossible(_plain(world), at="$")
    for number, site in enumerate(world.sites):
        if any(min(outage) < 0.0 for outage in site.outages):
            yield f"$.sites[{number}].outages", "Expected nothing below 0"
        if any(min(burst) < 0.0 or burst[2] > 1.0 for burst in site.fault_bursts):
            yield f"$.sites[{number}].fault_bursts", "Expected nothing below 0, and a probability from 0 to 1"
    yield from _alike([each.site.name for each in world.sites], at="sites", named="site.name")
    yield from _alike([each.job for each in world.jobs], at="jobs", named="job")
    for number, store in enumerate(world.stores):
        if (
            not store.url
            or not 0.0 <= store.failure_probability <= 1.0
            or any(min(each) < 0.0 for each in store.outages)
        ):
            yield f"$.stores[{number}]", "Expected a URL, a probability from 0 to 1, and nothing below 0"
    for number, job in enumerate(world.jobs):
        yield from _faults_of_job(job, at=f"$.jobs[{number}]")
        if job.copies > len(world.stores):
            yield f"$.jobs[{number}].copies", f"Expected at most one for each of {len(world.stores)} stores"
    if sum(map(packages_of, world.jobs)) > PACKAGES_MAX:
        yield "$.jobs", f"Expected at most {PACKAGES_MAX} packages"


def _impossible(value: Any, *, at: str) -> Iterator[tuple[str, str]]:
    """Negative times and sizes, and distributions that cannot be drawn from."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _impossible(each, at=f"{at}[{number}]")
    if not isinstance(value, dict):
        return
    if "distribution" in value:
        yield from _undrawable(value, at=at)
    for key, each in value.items():
        if isinstance(each, int | float) and each < 0 and key.endswith(("_seconds", "_bytes", "_hundredths", "_max")):
            yield f"{at}.{key}", "Expected nothing below 0"
        yield from _impossible(each, at=f"{at}.{key}")


def _undrawable(value: dict[str, Any], *, at: str) -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        if isinstance(each, float) and each < 0.0:
            yield f"{at}.{key}", "Expected nothing below 0"
    if value["distribution"] == "mixture":
        weights = value["weights"]
        if len(weights) != len(value["parts"]) or not math.fsum(weights) > 0.0 or min(weights) < 0.0:
            yield f"{at}.weights", "Expected one weight for each part, and some above 0"


def _alike(names: Sequence[str], *, at: str, named: str) -> Iterator[tuple[str, str]]:
    if not names:
        yield f"$.{at}", "Expected at least one"
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            yield f"$.{at}[{number}].{named}", "Expected a name that no other has"


def _faults_of_job(job: JobSketch, *, at: str) -> Iterator[tuple[str, str]]:
    for number, file in enumerate(job.files):
        if not 0 <= file.template < len(job.templates) or file.variants < 1:
            yield f"{at}.files[{number}]", "Expected a template of the job, and at least 1 variant"
    if not job.stages:
        yield f"{at}.stages", "Expected at least one"
    for number, stage in enumerate(job.stages):
        yield from _faults_of_stage(stage, earlier=number, templates=len(job.templates), at=f"{at}.stages[{number}]")


def _faults_of_stage(stage: StageSketch, *, earlier: int, templates: int, at: str) -> Iterator[tuple[str, str]]:
    if stage.items < 1:
        yield f"{at}.items", "Expected at least 1"
    if not stage.lines:
        yield f"{at}.lines", "Expected at least one"
    for number, line in enumerate(stage.lines):
        if line.count < 1:
            yield f"{at}.lines[{number}].count", "Expected at least 1"
        if not line.templates or not all(0 <= each < templates for each in line.templates):
            yield (
                f"{at}.lines[{number}].templates",
                f"Expected numbers of the job's templates, from 0 to {templates - 1}",
            )
    for number, join in enumerate(stage.joins):
        if not 1 <= join.stage <= earlier:
            yield f"{at}.joins[{number}].stage", f"Expected an earlier stage, from 1 to {earlier}"
        if join.fan < 1:
            yield f"{at}.joins[{number}].fan", "Expected at least 1"
    if stage.late and not stage.joins:
        yield f"{at}.joins", "Expected a stage whose outputs a late one lists"
