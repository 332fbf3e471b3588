"""What the packages of a job are estimated to take: measured runs of the same activity or software, or what the document says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.jobs.estimates import EarlierRunTime, EstimateBasis
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.model.jobs.submission import Origin
from pilotage.ports import JobTree, ResultsIndex, RunKind
from pilotage.service.works.reuse import EarlierResult
from pilotage.service.works.run_history import software_of
from pilotage.service.works.work_orders import compose

if TYPE_CHECKING:
    from pilotage.reading.run_estimates import RunEstimates

LOOKED_AT_MAX = 10_000
"""Packages of a job whose inputs are looked at; of the others, those of the same block stand for them."""

LOOKED_AT_AT_SUBMISSION_MAX = 200
"""The same for the first forecasts of a submitted job, which must not make submitting it slower."""
_ACTIVITIES_MAX = 64
_BLOCKS_MAX = 2000  # each is looked at; an imported job may have a block for each package

_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)
_SOME_SHA256 = "0" * 64  # of files that do not exist yet: only their sizes count

Floats = NDArray[np.float64]
BASES: tuple[EstimateBasis, ...] = ("", "document", "activity", "software")


class Estimates(NamedTuple):
    """Estimates of all packages of a job, by number; NaN is unknown."""

    seconds: Floats  # on the standard platform
    basis: NDArray[np.uint8]  # of the seconds: its place in `BASES`
    runs: NDArray[np.int32]  # that the seconds follow from
    input_bytes: Floats  # NaN, too, where sizes of inputs do not matter
    output_bytes: Floats  # as the document says, or else measured; likewise the next two
    scratch_bytes: Floats
    memory_bytes: Floats


class _Kind(NamedTuple):
    """What is known of a kind of packages: from runs of its document, and from runs of its software where these are more."""

    own: RunEstimates | None
    pooled: RunEstimates | None
    pooled_basis: EstimateBasis


class PackageEstimator:
    """Estimates what the packages of one job take; reads the index and the sizes of inputs, and only where these matter."""

    def __init__(
        self,
        expansion: Expansion,
        job: JobPlan,
        origin: Origin,
        *,
        tree: JobTree,
        index: ResultsIndex,
        made: Mapping[int, tuple[OutputFile, ...]],
        looked_at_max: int | None = None,
    ) -> None:
        """`made` are the manifests of packages whose results exist; the inputs of at most so many are looked at."""
        self._looked_at_max = LOOKED_AT_MAX if looked_at_max is None else looked_at_max
        self._expansion, self._job, self._origin = expansion, job, origin
        self._tree, self._index, self._made = tree, index, made
        self._kinds: dict[RunKind, _Kind] = {}

    @cached_property
    def _means(self) -> dict[str, float]:
        """Mean seconds by activity, which are known for longer than runs."""
        return self._index.mean_seconds(self._origin.folder, self._expansion.definition.job)

    def estimate(self, would_run: NDArray[np.bool_]) -> Estimates:
        """The estimates of the packages that would run."""
        count = self._expansion.count
        found = Estimates(
            *(np.full(count, np.nan), np.zeros(count, np.uint8), np.zeros(count, np.int32)),
            *(np.full(count, np.nan) for _ in range(4)),
        )
        blocks = [
            (template, block, self._kind(template, block))
            for template, block in zip(self._job.templates, self._expansion.blocks, strict=True)
            if would_run[block.package_array()].any()
        ]
        sized = sum(kind.pooled is not None and kind.pooled.by_size for _, _, kind in blocks)
        if sized:  # producers first: their outputs are inputs of others
            order = self._places_in_order()
            blocks.sort(key=lambda each: int(order[each[1].package_array()].min()))
        for template, block, kind in blocks:
            numbers = block.package_array()
            numbers = numbers[would_run[numbers]]
            if kind.pooled is not None and kind.pooled.by_size:
                looked_at = max(1, self._looked_at_max // sized)
                sizes = self._sizes(numbers, found, would_run, looked_at=looked_at, said_bytes=template.input_bytes)
                found.input_bytes[numbers] = sizes
            self._fill(numbers, found, template, kind)
        return found

    def _places_in_order(self) -> NDArray[np.int64]:
        order = self._expansion.graph.order()
        places = np.arange(self._expansion.count)
        if order is not None:
            places[order] = np.arange(self._expansion.count)
        return places

    # --- what is known of a kind ---

    def _kind(self, template: Template, block: Block) -> _Kind:
        about = RunKind(template.activity, software_of(self._expansion.definition, block.package))
        known = self._kinds.get(about)
        if known is None:
            known = self._kinds[about] = self._look_up(about)
        return known

    def _look_up(self, kind: RunKind) -> _Kind:
        """Runs of the document first; where they are few, those of the same software in any document, these included."""
        # Only a job with a history pays for this import.
        from pilotage.reading.run_estimates import RUNS_MIN, run_estimates

        own = self._index.runs(self._origin.folder, self._expansion.definition.job, kind)
        anywhere = self._index.software_runs(kind.software) if kind.software and len(own) < RUNS_MIN else []
        ours = run_estimates(own) if own else None
        if anywhere and (not own or len(anywhere) >= RUNS_MIN):
            return _Kind(ours, run_estimates(anywhere), "software")
        return _Kind(ours, ours, "activity")

    def _fill(self, numbers: NDArray[np.int32], found: Estimates, template: Template, kind: _Kind) -> None:
        """Write the estimates of packages of one kind; what the document says about memory and sizes holds."""
        sizes = found.input_bytes[numbers]
        mean = self._means.get(template.activity)
        seconds, basis = kind.pooled, kind.pooled_basis
        if template.run_seconds:  # which only runs of the same document replace
            seconds, basis = kind.own, "activity"
        if kind.own is None and mean:
            found.seconds[numbers], basis = mean, "activity"
        elif seconds is not None:
            found.seconds[numbers] = seconds.seconds.at(sizes)
            found.runs[numbers] = seconds.seconds.runs
        elif template.run_seconds:
            found.seconds[numbers], basis = template.run_seconds, "document"
        else:
            basis = ""
        found.basis[numbers] = BASES.index(basis)
        demand, measured = template.demand, kind.pooled
        for column, stated, known in (
            (found.output_bytes, template.output_bytes, measured and measured.output_bytes),
            (found.scratch_bytes, demand.scratch_bytes or template.work_bytes, measured and measured.scratch_bytes),
            (found.memory_bytes, demand.memory_bytes, measured and measured.memory_bytes),
        ):
            if stated:
                column[numbers] = stated
            elif known is not None:
                column[numbers] = known.at(sizes)

    # --- sizes of inputs ---

    def _sizes(
        self,
        numbers: NDArray[np.int32],
        found: Estimates,
        would_run: NDArray[np.bool_],
        *,
        looked_at: int,
        said_bytes: int,
    ) -> Floats:
        """The sizes of the inputs of some packages of a block; of many, some stand for all."""
        chosen = np.unique(np.linspace(0, len(numbers) - 1, min(looked_at, len(numbers))).astype(np.int64))
        sizes = np.full(len(numbers), np.nan)
        sizes[chosen] = [self._size(int(number), found, would_run) for number in numbers[chosen]]
        if len(chosen) < len(numbers) and np.isfinite(sizes).any():
            sizes[np.isnan(sizes)] = np.nanmean(sizes)
        if said_bytes:
            sizes[np.isnan(sizes)] = said_bytes
        return sizes

    def _size(self, number: int, found: Estimates, would_run: NDArray[np.bool_]) -> float:
        """The size of the inputs of a package, without its programs; NaN if that of any is unknown."""
        manifests: dict[int, tuple[OutputFile, ...]] = {}
        for producer in self._producers(number):
            if not would_run[producer]:
                manifests[producer] = self._made.get(producer, ())
                continue
            size_bytes = found.output_bytes[producer]
            if np.isnan(size_bytes):
                return float("nan")
            manifests[producer] = self._expected_files(producer, float(size_bytes))
        assignment = Assignment(ref=AttemptRef("", self._expansion.id(number).dotted, 1))
        try:
            work = compose(
                self._expansion, number, assignment, self._origin,
                staged="", granted=sorted(manifests), manifest_of=manifests.get,
            )  # fmt: skip
        except PilotageError:  # submitting the job says why
            return float("nan")
        total, unknown = 0, []
        for each in work.inputs:
            if each.sha256 and each.size_bytes is not None:
                total += 0 if each.executable else each.size_bytes
            elif not each.executable:
                unknown.append(each.name)
        there = self._tree.look_up(self._origin.folder, unknown) if unknown else {}
        if len(there) < len(set(unknown)):
            return float("nan")
        return float(total + sum(each.size_bytes for each in there.values()))

    def _producers(self, number: int) -> list[int]:
        """The packages whose files a package reads."""
        found: list[int] = []
        for segment in self._expansion.graph.segments:
            start, end = segment.predecessors.span(number)
            numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
            found += [numbers[at] for at in range(start, end) if kinds[at] & _FILES]
        return found

    def _expected_files(self, number: int, size_bytes: float) -> tuple[OutputFile, ...]:
        """The outputs of a package that has not run: equal shares of its estimate. One file stands for those of a pattern."""
        block, position = self._expansion.locate(number)
        made = block.made(position)
        return tuple(
            OutputFile(
                name=name.replace("*", "0").replace("?", "0") if is_open else name,
                size_bytes=int(size_bytes / len(made)),
                sha256=_SOME_SHA256,
            )
            for name, is_open in made
        )


def earlier_run_times(
    expansion: Expansion,
    job: JobPlan,
    origin: Origin,
    *,
    tree: JobTree,
    index: ResultsIndex,
    adopted: Collection[EarlierResult],
) -> tuple[EarlierRunTime, ...]:
    """Run times from earlier runs for the first forecasts of a job, where its document gives none."""
    kinds: dict[RunKind, None] = {}
    if len(expansion.blocks) > _BLOCKS_MAX:
        return ()
    for template, block in zip(job.templates, expansion.blocks, strict=True):
        if not template.run_seconds:
            kinds[RunKind(template.activity, software_of(expansion.definition, block.package))] = None
            if len(kinds) > _ACTIVITIES_MAX:
                return ()
    document, software = expansion.definition.job, {kind.software for kind in kinds if kind.software}
    if not index.mean_seconds(origin.folder, document) and not any(map(index.software_runs, software)):
        return ()
    would_run = np.ones(expansion.count, np.bool_)
    made = {each.number: each.manifest for each in adopted}
    would_run[[*made, *expansion.left_out]] = False
    estimator = PackageEstimator(
        expansion, job, origin, tree=tree, index=index, made=made, looked_at_max=LOOKED_AT_AT_SUBMISSION_MAX
    )  # fmt: skip
    found = _mean_run_times(job, estimator.estimate(would_run).seconds, expansion.blocks)
    wanted = {kind.activity for kind in kinds}
    return tuple(each for each in found if each.activity in wanted)


def _mean_run_times(job: JobPlan, seconds: Floats, blocks: Sequence[Block]) -> tuple[EarlierRunTime, ...]:
    """Mean and standard deviation of the estimated seconds of packages, for each activity."""
    found: dict[str, list[Floats]] = {}
    for template, block in zip(job.templates, blocks, strict=True):
        known = seconds[block.package_array()]
        found.setdefault(template.activity, []).append(known[np.isfinite(known)])
    together = {activity: np.concatenate(parts) for activity, parts in found.items()}
    return tuple(
        EarlierRunTime(
            activity=activity, mean_seconds=round(float(each.mean()), 6), sd_seconds=round(float(each.std()), 6)
        )
        for activity, each in together.items()
        if len(each) and each.mean() > 0.0
    )
