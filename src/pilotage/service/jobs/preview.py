"""Plans a run before anything is spent: what exists already, what would run and why, and what that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.language import Expansion, Report, plan_of
from pilotage.language import grow as grow_expansion
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.software import find_software
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.operations import Refused
from pilotage.model.jobs.definition import Definition, Parameter
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.jobs.submission import (
    PLANNED_MAX,
    Origin,
    PlannedPackage,
    PlannedParameter,
    RunPlan,
    StagePlan,
    Submission,
)
from pilotage.ports import JobTree, ResultsIndex
from pilotage.reading.package_times import ExpectedTimes, planned_times
from pilotage.service.errors import OperationRefused
from pilotage.service.jobs.submission import check_submission
from pilotage.service.works.reuse import NEVER, ReuseSearch, final_packages
from pilotage.service.works.software_times import software_of, software_seconds

FRESH = "everything runs again"
LAST = "runs last, after what runs again"


Admission = Callable[[JobPlan], "Refused | tuple[str, ...]"]
"""Why a job would be refused; or else what is worth knowing about where it would run."""


def plan(
    submission: Submission,
    *,
    tree: JobTree,
    index: ResultsIndex,
    admission: Admission,
    executors: Collection[str] = (),
    slots: int = 1,
) -> RunPlan:
    """The plan of a submission; stores and changes nothing. Raises as submitting it would.

    `executors` are the names and kinds of the existing sites. If nothing would run, there is no job to refuse.
    """
    checked = check_submission(submission, tree=tree, executors=executors)
    expansion, job = checked.expansion, checked.plan
    while True:
        found = _examine(expansion, checked.origin, tree=tree, index=index, fresh=submission.fresh)
        grown = _grown(expansion, found)
        if grown is None:
            break
        expansion, job = grown, plan_of(grown)
    would_run, listed, reasons = found.would_run, found.listed, found.reasons
    notes = [
        f"no site and no kind of site is named {each!r}: packages that ask for it may run anywhere"
        for each in checked.origin.unknown_executors
    ]
    if would_run.any() or expansion.late:
        notes += _admitted(admission(job))
    means = index.mean_seconds(submission.folder, expansion.definition.job)
    seconds, unknown = _seconds(expansion, job, means, index)
    seconds = np.where(would_run, seconds, 0.0)
    unknown &= would_run
    cores = _cores(expansion, job)
    known = bool((would_run & ~unknown).any())
    core_hours = seconds * cores / 3600
    path = expansion.graph.critical_path_seconds(seconds) if known else 0.0
    if known and not unknown.any():  # else what is ahead of a package may take any time
        at_once = int(slots * float(seconds.sum()) / float((seconds * cores).sum()))
        listed = _timed(expansion, listed, planned_times(expansion.graph, seconds, slots=at_once))
    count, running = expansion.wanted, int(would_run.sum())
    return RunPlan(
        job=expansion.definition.job,
        description=expansion.definition.description,
        created=expansion.definition.created,
        software=_described(expansion.definition),
        parameters=_parameters(expansion.definition.parameters),
        packages=count,
        would_run=running,
        there=count - running,
        left_out=len(expansion.left_out),
        stages=_stages(expansion, would_run, core_hours, unknown),
        listed=tuple(listed),
        changed=dict(reasons.most_common()),
        slots=slots,
        core_hours=float(core_hours.sum()) if known or not running else None,
        seconds=max(path, float(core_hours.sum()) * 3600 / max(slots, 1)) if known or not running else None,
        unknown=int(unknown.sum()),
        notes=tuple(notes),
    )


def _described(definition: Definition) -> dict[str, str]:
    """The descriptions of the software that the packages of a job use, if they have one."""
    packages = (package for stage in definition.stages for line in stage.lines for package in line.packages)
    used = [find_software(definition, binary) for package in packages for binary in package.binaries if binary.software]
    return {each.id: each.description for each in used if each is not None and each.description}


def _parameters(parameters: Mapping[str, Parameter]) -> tuple[PlannedParameter, ...]:
    return tuple(
        PlannedParameter(
            name=name,
            value=each.chosen or "",
            chosen=each.value is not None,
            type=each.type,
            default=each.default,
            description=each.description,
        )
        for name, each in parameters.items()
    )


def _admitted(verdict: Refused | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(verdict, Refused):
        raise OperationRefused(verdict)
    return verdict


class _Examined(NamedTuple):
    """The packages that would run, the first of them with their change, counts by kind of change, existing results."""

    would_run: NDArray[np.bool_]
    listed: list[PlannedPackage]
    reasons: Counter[str]
    made: dict[int, list[str]]  # by package, the names of its files


def _grown(expansion: Expansion, found: _Examined) -> Expansion | None:
    """The expansion with the first late stage whose producers are all done; None if there is none."""
    for late in expansion.late:
        if late.stages or any(package not in found.made for package in late.packages):
            continue
        produced = {package: found.made[package] for package in late.packages}
        return grow_expansion(expansion, late.stage, produced, Report(expansion.definition.job))
    return None


def _examine(expansion: Expansion, origin: Origin, *, tree: JobTree, index: ResultsIndex, fresh: bool) -> _Examined:
    would_run = np.ones(expansion.count, np.bool_)
    would_run[sorted(expansion.left_out)] = False
    made: dict[int, list[str]] = {}
    found: dict[int, str] = {}
    reasons: Counter[str] = Counter()
    if fresh or not index.knows(origin.folder):
        for block in expansion.blocks:
            if block.package.done:
                would_run[block.package_array()] = False
        why = FRESH if fresh else NEVER
        reasons[why] = int(would_run.sum())
        numbers = np.flatnonzero(would_run)[:PLANNED_MAX].tolist()
        return _Examined(would_run, [_planned(expansion, number, why) for number in numbers], +reasons, made)
    earlier = ReuseSearch(expansion, origin, tree=tree, index=index, explain=True)
    for verdict in earlier.verdicts():
        if verdict.adopted is not None:
            would_run[verdict.number] = False
            if expansion.late:
                made[verdict.number] = [file.name for file in verdict.adopted.manifest]
            continue
        reasons[_kind(verdict.changed)] += 1
        if len(found) < PLANNED_MAX:
            found[verdict.number] = verdict.changed
    there = set(np.flatnonzero(~would_run).tolist()) - expansion.left_out
    for number in sorted(final_packages(expansion, there)):
        if not would_run[number]:
            would_run[number] = True
            made.pop(number, None)
            reasons[LAST] += 1
            found[number] = LAST
    listed = [_planned(expansion, number, why) for number, why in sorted(found.items())]
    return _Examined(would_run, listed, reasons, made)


def _timed(expansion: Expansion, listed: Sequence[PlannedPackage], times: ExpectedTimes) -> list[PlannedPackage]:
    """The listed packages with their expected times."""
    found = []
    for each in listed:
        place = parse_dotted(each.package)
        assert place is not None
        number = expansion.layouts[place.stage - 1].number(place)
        start, end = float(times.starts_seconds[number]), float(times.ends_seconds[number])
        found.append(msgspec.structs.replace(each, start_seconds=start, end_seconds=end))
    return found


def _planned(expansion: Expansion, number: int, why: str) -> PlannedPackage:
    return PlannedPackage(package=expansion.id(number).dotted, name=expansion.name(number), changed=why)


def _kind(why: str) -> str:
    """The kind of a change, without file names: `input`, `missing output`, `software`."""
    for kind in ("missing output", "changed output", "missing input", "waits for", "input", "software", "environment"):
        if why.startswith(f"{kind} "):
            return kind
    return why


def _seconds(
    expansion: Expansion, job: JobPlan, means: dict[str, float], index: ResultsIndex
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The seconds of each package, and for which nothing is known.

    From earlier runs of the document, its own estimate, or packages anywhere that ran the same software.
    """
    seconds = np.zeros(expansion.count)
    unknown = np.ones(expansion.count, np.bool_)
    for template, block in zip(job.templates, expansion.blocks, strict=True):
        estimate: float | None = means.get(template.activity) or template.run_seconds
        estimate = estimate or software_seconds(index, software_of(expansion.definition, block.package))
        if estimate:
            seconds[block.package_array()] = estimate
            unknown[block.package_array()] = False
    return seconds, unknown


def _cores(expansion: Expansion, job: JobPlan) -> NDArray[np.float64]:
    cores = np.ones(expansion.count)
    for template, block in zip(job.templates, expansion.blocks, strict=True):
        cores[block.package_array()] = template.demand.cores_hundredths / 100
    return cores


def _stages(
    expansion: Expansion,
    would_run: NDArray[np.bool_],
    core_hours: NDArray[np.float64],
    unknown: NDArray[np.bool_],
) -> tuple[StagePlan, ...]:
    blocks: dict[int, list[Block]] = {}
    for block in expansion.blocks:
        blocks.setdefault(block.stage, []).append(block)
    late = {each.stage for each in expansion.late}
    left_out = np.zeros(expansion.count, np.bool_)
    left_out[sorted(expansion.left_out)] = True
    found = []
    for position, name in enumerate(expansion.stage_names):
        count = running = 0
        hours, is_known = 0.0, False
        for block in blocks.get(position, ()):
            numbers = block.package_array()
            count += block.count - int(left_out[numbers].sum())
            running += int(would_run[numbers].sum())
            hours += float(core_hours[numbers].sum())
            is_known = is_known or not bool(unknown[numbers].all())
        found.append(
            StagePlan(
                stage=position + 1,
                name=name,
                late=position + 1 in late,
                packages=count,
                would_run=running,
                there=count - running,
                core_hours=hours if is_known else None,
            )
        )
    return tuple(found)
