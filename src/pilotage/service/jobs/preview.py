"""Plans a run before anything is spent: what exists already, what would run and why, and what that takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.language import Expansion, Report, plan_of
from pilotage.language import grow as grow_expansion
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.software import find_software
from pilotage.language.file_checks import files_summary
from pilotage.language.text.names import plural
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.operations import Refused
from pilotage.model.jobs.definition import Definition, Parameter
from pilotage.model.jobs.estimates import PackageEstimate
from pilotage.model.jobs.graph import EdgeKind
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
from pilotage.service.jobs.refusals import KnownStores
from pilotage.service.jobs.submission import check_submission
from pilotage.service.works.estimates import BASES, Estimates, PackageEstimator
from pilotage.service.works.reuse import NEVER, EarlierResult, ReuseSearch, final_packages, needed_again
from pilotage.service.works.site_files import Contents, SiteFiles, contents_of

FRESH = "everything runs again"
LAST = "runs last, after what runs again"
_EARLY_SHOWN_MAX = 5
REMADE = "deleted on purpose, and needed again"


Admission = Callable[[JobPlan], "Refused | tuple[str, ...]"]
"""Why a job would be refused; or else what is worth knowing about where it would run."""


def plan(
    submission: Submission,
    *,
    tree: JobTree,
    index: ResultsIndex,
    admission: Admission,
    now: float,
    executors: Collection[str] = (),
    stores: KnownStores | None = None,
    slots: int = 1,
    contents: Contents | None = None,
) -> RunPlan:
    """The plan of a submission; stores and changes nothing. Raises as submitting it would.

    `contents` knows what files are that packages bring to sites. `executors` are the names and kinds of the existing sites. If nothing would run, there is no job to refuse. Expected times
    are those of a submission `now`.
    """
    checked = check_submission(submission, tree=tree, executors=executors, stores=stores)
    expansion, job = checked.expansion, checked.plan
    while True:
        files = contents_of(job, contents)
        found = _examine(expansion, checked.origin, tree=tree, index=index, fresh=submission.fresh, files=files)
        grown = _grown(expansion, found)
        if grown is None:
            break
        expansion, job = grown, plan_of(grown)
    would_run, listed, reasons = found.would_run, found.listed, found.reasons
    notes = [
        f"no site and no kind of site is named {each!r}: packages that ask for it may run anywhere"
        for each in checked.origin.unknown_executors
    ]
    if found.disposed:
        which = "1 package is" if found.disposed == 1 else f"{found.disposed:,} packages are"
        notes.append(f"{which} not run again: outputs that are missing were deleted on purpose")
    if would_run.any() or expansion.late:
        notes += _admitted(admission(job))
        notes += _early_starts(job, would_run)
        notes += filter(None, [files_summary(expansion, job.files, running=would_run)])
    estimator = PackageEstimator(expansion, job, checked.origin, tree=tree, index=index, made=found.manifests)
    estimates = estimator.estimate(would_run)
    unknown = would_run & np.isnan(estimates.seconds)
    seconds = np.nan_to_num(estimates.seconds)
    cores = _cores(expansion, job)
    known = bool((would_run & ~unknown).any())
    count, running = expansion.wanted, int(would_run.sum())
    core_hours = seconds * cores / 3600
    path = expansion.graph.critical_path_seconds(seconds) if known else 0.0
    if not unknown.any() and float(seconds.sum()) > 0.0:  # else what is ahead of a package may take any time
        at_once = int(slots * float(seconds.sum()) / float((seconds * cores).sum()))
        listed = _timed(expansion, listed, planned_times(expansion.graph, seconds, slots=at_once), now=now)
    total = max(path, float(core_hours.sum()) * 3600 / max(slots, 1)) if known or not running else None
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
        stages=_stages(expansion, would_run, core_hours, unknown, estimates),
        listed=tuple(_estimated(expansion, listed, estimates)),
        changed=dict(reasons.most_common()),
        slots=slots,
        core_hours=float(core_hours.sum()) if known or not running else None,
        seconds=total,
        planned_at=now,
        expected_end_at=now + total if total and not unknown.any() else None,
        unknown=int(unknown.sum()),
        notes=tuple(notes),
    )


def _early_starts(job: JobPlan, would_run: NDArray[np.bool_]) -> Iterator[str]:
    """Which packages may start while those that make their inputs still run, in a sentence."""
    early: set[int] = set()
    for segment in job.graph.segments:
        if segment.common & EdgeKind.AWAITED:
            continue
        rows = segment.predecessors
        consumers = np.repeat(np.arange(len(rows.indptr) - 1) + rows.first, np.diff(rows.indptr))
        beside = (segment.kinds & EdgeKind.AWAITED == 0) & would_run[consumers] & would_run[rows.others]
        early.update(consumers[beside].tolist())
    if early:
        shown = ", ".join(job.place(each).dotted for each in sorted(early)[:_EARLY_SHOWN_MAX])
        more = ", …" if len(early) > _EARLY_SHOWN_MAX else ""
        yield f"{plural(len(early), 'package')} may start while what makes the inputs still runs: {shown}{more}"


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
    manifests: Mapping[int, tuple[OutputFile, ...]]  # of existing results
    disposed: int = 0  # how many of them count as made though files of theirs were removed on purpose


def _grown(expansion: Expansion, found: _Examined) -> Expansion | None:
    """The expansion with the first late stage whose producers are all done; None if there is none."""
    for late in expansion.late:
        if late.stages or any(package not in found.made for package in late.packages):
            continue
        produced = {package: found.made[package] for package in late.packages}
        return grow_expansion(expansion, late.stage, produced, Report(expansion.definition.job))
    return None


def _examine(
    expansion: Expansion, origin: Origin, *, tree: JobTree, index: ResultsIndex, fresh: bool, files: SiteFiles
) -> _Examined:
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
        return _Examined(would_run, [_planned(expansion, number, why) for number in numbers], +reasons, made, {})
    earlier = ReuseSearch(expansion, origin, tree=tree, index=index, files=files, explain=True)
    disposed: list[EarlierResult] = []
    for verdict in earlier.verdicts():
        if verdict.adopted is not None:
            would_run[verdict.number] = False
            if verdict.adopted.disposed:
                disposed.append(verdict.adopted)
            if expansion.late:
                made[verdict.number] = [file.name for file in verdict.adopted.manifest]
            continue
        reasons[_kind(verdict.changed)] += 1
        if len(found) < PLANNED_MAX:
            found[verdict.number] = verdict.changed
    there = set(np.flatnonzero(~would_run).tolist()) - expansion.left_out
    remade = needed_again(expansion, disposed, there) if disposed else set[int]()
    again = {**dict.fromkeys(sorted(remade), REMADE), **dict.fromkeys(sorted(final_packages(expansion, there)), LAST)}
    for number, why in again.items():
        if not would_run[number]:
            would_run[number] = True
            made.pop(number, None)
            reasons[why] += 1
            found[number] = why
    listed = [_planned(expansion, number, why) for number, why in sorted(found.items())]
    return _Examined(would_run, listed, reasons, made, earlier.manifests, len(disposed) - len(remade))


def _timed(
    expansion: Expansion, listed: Sequence[PlannedPackage], times: ExpectedTimes, *, now: float
) -> list[PlannedPackage]:
    """The listed packages with their expected times."""
    found = []
    for each in listed:
        number = _number(expansion, each)
        start, end = float(times.starts_seconds[number]), float(times.ends_seconds[number])
        found.append(
            msgspec.structs.replace(
                each, start_seconds=start, end_seconds=end, expected_start_at=now + start, expected_end_at=now + end
            )
        )
    return found


def _estimated(
    expansion: Expansion, listed: Sequence[PlannedPackage], estimates: Estimates
) -> Iterator[PlannedPackage]:
    """The listed packages with what they are expected to take."""
    for each in listed:
        number = _number(expansion, each)
        seconds = float(estimates.seconds[number])
        estimate = PackageEstimate(
            run_seconds=None if math.isnan(seconds) else seconds,
            basis=BASES[estimates.basis[number]],
            runs=int(estimates.runs[number]),
            input_bytes=_whole(estimates.input_bytes[number]),
            output_bytes=_whole(estimates.output_bytes[number]),
            scratch_bytes=_whole(estimates.scratch_bytes[number]),
            memory_bytes=_whole(estimates.memory_bytes[number]),
        )
        yield msgspec.structs.replace(each, estimate=estimate) if estimate != _NOTHING else each


_NOTHING = PackageEstimate()


def _whole(size_bytes: float) -> int | None:
    return None if math.isnan(size_bytes) else round(size_bytes)


def _number(expansion: Expansion, package: PlannedPackage) -> int:
    place = parse_dotted(package.package)
    assert place is not None
    number = expansion.layouts[place.stage - 1].number(place)
    assert number is not None
    return number


def _planned(expansion: Expansion, number: int, why: str) -> PlannedPackage:
    return PlannedPackage(package=expansion.id(number).dotted, name=expansion.name(number), changed=why)


def _kind(why: str) -> str:
    """The kind of a change, without file names: `input`, `missing output`, `software`."""
    for kind in (
        "input to bring",
        "missing output",
        "changed output",
        "missing input",
        "waits for",
        "input",
        "software",
        "environment",
    ):
        if why.startswith(f"{kind} "):
            return kind
    return why


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
    estimates: Estimates,
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
        own = [block.package_array() for block in blocks.get(position, ())]
        to_run = [numbers[would_run[numbers]] for numbers in own]
        for block, numbers in zip(blocks.get(position, ()), own, strict=True):
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
                memory_bytes=_over(estimates.memory_bytes, to_run, np.nanmax),
                scratch_bytes=_over(estimates.scratch_bytes, to_run, np.nanmax),
                output_bytes=_over(estimates.output_bytes, to_run, np.nansum),
            )
        )
    return tuple(found)


def _over(
    column: NDArray[np.float64], parts: Sequence[NDArray[np.int32]], reduce: Callable[[NDArray[np.float64]], float]
) -> int | None:
    """The most, or the sum, of some packages, as far as known."""
    values = column[np.concatenate(parts)] if parts else np.zeros(0)
    values = values[np.isfinite(values)]
    return round(float(reduce(values))) if len(values) else None
