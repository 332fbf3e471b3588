"""Synthetic jobs: a sketch small enough to print, and the plan and registration that follow from it.

A sketch defines the number of lines of a stage, the templates of their packages, and how stages feed each other. Plans are
computed with arrays, so a sketch of a million packages is as fast as one of fifty. A late stage lists the outputs of its
producers: the seed decides how many names each of them makes, and the list suffices to expand it again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.model.events import payloads
from pilotage.model.events.events import parse_dotted
from pilotage.model.jobs.file_plan import FilePlan, Wish
from pilotage.model.jobs.graph import EdgeKind, Graph, Rows, Segment
from pilotage.model.jobs.layout import StageLayout, TemplateLayout
from pilotage.model.jobs.plan import JobPlan, LatePlan, Template

JoinKind = Literal["one-to-one", "merge", "random"]
Numbers = NDArray[np.int64]
Growth = tuple[tuple[int, str], ...]
"""Late stages in order of expansion, each with the digest of its list."""

_AWAITED_FILE = int(EdgeKind.FILE | EdgeKind.AWAITED)
_EARLY_FILE = int(EdgeKind.FILE)
_SEQUENCE = int(EdgeKind.SEQUENCE | EdgeKind.AWAITED)


class Sketch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The base of the values that define a world."""


class LineSketch(Sketch, frozen=True, kw_only=True):
    """One line template: lines per item, and the template of each package of such a line."""

    count: int = 1
    templates: tuple[int, ...]


class Join(Sketch, frozen=True, kw_only=True):
    """Which earlier stage feeds the first packages of each line, and how."""

    stage: int
    kind: JoinKind = "one-to-one"
    fan: int = 2  # of a random join: how many lines each line reads from
    early: bool = False  # it may start before its producers are done


class StageSketch(Sketch, frozen=True, kw_only=True):
    """A stage. A late one lists the outputs of the first stage that it joins, at most `names_max` of each line."""

    items: int = 1
    lines: tuple[LineSketch, ...]
    joins: tuple[Join, ...] = ()
    late: bool = False
    names_max: int = 0


class FileSketch(Sketch, frozen=True, kw_only=True):
    """Files that packages of one template need at their site: each of them one of the variants, in turn."""

    locator: str  # of the first; the others have a number behind it
    template: int
    variants: int = 1  # 1: all of them share one file
    size_bytes: int = 0  # of each, really
    size_known: bool = True  # before a fetch
    wish: Wish = Wish.RETAIN_TEMPORARILY
    released: bool = False

    def name(self, variant: int) -> str:
        """The locator of a variant."""
        return f"{self.locator}-{variant}" if variant else self.locator


class JobSketch(Sketch, frozen=True, kw_only=True):
    """A job: its stages and the kinds of packages they are made of."""

    job: str
    owner: str = "somebody"
    templates: tuple[Template, ...]
    stages: tuple[StageSketch, ...]
    limits: dict[str, int] = {}
    priority: int = 0
    hold: bool = False
    submit_seconds: float = 0.0  # when its user submits it
    files: tuple[FileSketch, ...] = ()  # that are brought to sites
    copies: int = 0  # of each output of a template that stores them, on as many stores


def registration(sketch: JobSketch) -> payloads.JobRegistered:
    """The registration of a job in the book."""
    return payloads.JobRegistered(
        owner=sketch.owner,
        name=sketch.job,
        stages=tuple(payloads.StageShape(late=True) if s.late else _shape(sketch, s, s.items) for s in sketch.stages),
    )


def plan_of(sketch: JobSketch, *, seed: int) -> JobPlan:
    """The plan of a job at submission: every stage but the late ones and those that wait for them."""
    layouts: dict[int, StageLayout] = {}
    first = 0
    for stage, each in enumerate(sketch.stages, 1):
        if not each.late:
            layouts[stage] = _layout(each, stage=stage, first=first, items=each.items)
            first += layouts[stage].count
    edges = _Edges()
    kinds = []
    for stage, layout in layouts.items():
        edges.add_sequences(layout)
        kinds.append(_template_numbers(sketch, stage, layout))
        for join in sketch.stages[stage - 1].joins:
            if join.stage in layouts:
                edges.add_join(join, layouts[join.stage], layout, _text(seed, sketch.job, stage, join.stage))
    late = tuple(_late_plan(sketch, stage, layouts) for stage, each in enumerate(sketch.stages, 1) if each.late)
    template_of = np.concatenate(kinds).astype(np.uint32) if kinds else np.zeros(0, np.uint32)
    return JobPlan(
        graph=Graph([edges.segment(0, first)]),
        templates=_block_templates(sketch),
        template_of=template_of,
        layouts=layouts,
        late=late,
        late_waits=_late_waits(sketch, layouts),
        limits=sketch.limits,
        priority=sketch.priority,
        hold=sketch.hold,
        files=_file_plan(sketch, template_of),
    )


def names_made(sketch: JobSketch, *, stage: int, seed: int, producers: Iterable[str]) -> tuple[str, ...]:
    """The sorted names that a late stage lists: each granted producer made some, by the seed."""
    most = sketch.stages[stage - 1].names_max
    return tuple(
        sorted(
            f"{producer}/{number}"
            for producer in producers
            for number in range(random.Random(f"{seed}/{sketch.job}/{stage}/{producer}").randint(0, most))
        )
    )


def list_digest(names: Sequence[str]) -> str:
    """The digest of a list in the book."""
    return hashlib.sha256(msgspec.json.encode(names)).hexdigest()


def grown(
    sketch: JobSketch, plan: JobPlan, *, stage: int, names: Sequence[str], seed: int
) -> tuple[JobPlan, payloads.StageExpanded]:
    """The plan with a late stage expanded from a list of names, and the event for the book."""
    each = sketch.stages[stage - 1]
    layout = _layout(each, stage=stage, first=plan.count, items=len(names))
    layouts = {**plan.layouts, stage: layout}
    edges = _Edges()
    edges.add_sequences(layout)
    makers = [plan.number(*_parts(name.partition("/")[0])) for name in names]
    heads, _ = _ends(layout)
    lines_each = layout.line_period
    edges.add(np.repeat(np.array(makers, np.int64), lines_each), heads, kind=_AWAITED_FILE)
    for join in each.joins[1:]:
        if join.stage in layouts:
            edges.add_join(join, layouts[join.stage], layout, _text(seed, sketch.job, stage, join.stage))
    for consumer, other in enumerate(sketch.stages, 1):
        for join in other.joins:
            if join.stage == stage and consumer in plan.layouts:
                text = _text(seed, sketch.job, consumer, stage)
                edges.add_join(join, layout, plan.layouts[consumer], text)
    kinds = _template_numbers(sketch, stage, layout).astype(np.uint32)
    template_of = np.concatenate((plan.template_of, kinds))
    after = msgspec.structs.replace(
        plan,
        graph=plan.graph.grown(edges.segment(plan.count, layout.count)),
        template_of=template_of,
        files=_file_plan(sketch, template_of),
        layouts=layouts,
        late=tuple(_late_plan(sketch, late.stage, layouts) for late in plan.late if late.stage != stage),
        laid_out=(*plan.laid_out, *(late for late in plan.late if late.stage == stage)),
        late_waits=_late_waits(sketch, layouts),
    )
    shape = _shape(sketch, each, len(names))
    return after, payloads.StageExpanded(stage=stage, shape=shape, lists={f"stage-{stage}": list_digest(names)})


def packages_of(sketch: JobSketch) -> int:
    """How many packages a job has before late stages are expanded."""
    return sum(each.items * _lines_packages(each) for each in sketch.stages if not each.late)


def big_job(job: str, *, packages: int, stages: int, template: Template) -> JobSketch:
    """A large job: stages of one-package lines, each fed by the stage before, line by line."""
    lines = packages // stages
    counts = [lines] * (stages - 1) + [packages - lines * (stages - 1)]
    return JobSketch(
        job=job,
        templates=(template,),
        stages=tuple(
            StageSketch(
                lines=(LineSketch(count=count, templates=(0,)),),
                joins=(Join(stage=number),) if number else (),
            )
            for number, count in enumerate(counts)
        ),
    )


class Definitions:
    """The definitions and lists of all jobs: makes a plan again from what the book has of a job."""

    def __init__(self, sketches: Iterable[JobSketch], *, seed: int) -> None:
        """Take all jobs of the world."""
        self.sketches = {sketch.job: sketch for sketch in sketches}
        self._seed = seed
        self._lists: dict[str, tuple[str, ...]] = {}
        self._plans: dict[tuple[str, Growth], JobPlan] = {}

    def plan(self, job: str, growth: Growth) -> JobPlan:
        """The plan of a job after some late stages were expanded, in that order, each with the digest of its list."""
        known = self._plans.get((job, growth))
        if known is None:
            sketch = self.sketches[job]
            if growth:
                stage, digest = growth[-1]
                names = self._lists[digest]
                known, _ = grown(sketch, self.plan(job, growth[:-1]), stage=stage, names=names, seed=self._seed)
            else:
                known = plan_of(sketch, seed=self._seed)
            self._plans[job, growth] = known
        return known

    def grow(
        self, job: str, growth: Growth, *, stage: int, producers: Iterable[str]
    ) -> tuple[JobPlan, payloads.StageExpanded]:
        """Expand a late stage from the outputs of its granted producers; the list is stored."""
        sketch = self.sketches[job]
        names = names_made(sketch, stage=stage, seed=self._seed, producers=producers)
        self._lists[list_digest(names)] = names
        return grown(sketch, self.plan(job, growth), stage=stage, names=names, seed=self._seed)


class _Edges:
    """Edges for a segment, as arrays."""

    def __init__(self) -> None:
        self._sources: list[Numbers] = []
        self._targets: list[Numbers] = []
        self._kinds: list[NDArray[np.uint8]] = []

    def add(self, sources: Numbers, targets: Numbers, *, kind: int) -> None:
        self._sources.append(sources)
        self._targets.append(targets)
        self._kinds.append(np.full(len(sources), kind, np.uint8))

    def add_sequences(self, layout: StageLayout) -> None:
        """Each package of a line waits for the one before it."""
        heads, tails = _ends(layout)
        lengths = tails - heads
        if not lengths.any():
            return
        starts = np.repeat(heads, lengths)
        firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        sources = starts + np.arange(len(starts)) - firsts
        self.add(sources, sources + 1, kind=_SEQUENCE)

    def add_join(self, join: Join, source: StageLayout, target: StageLayout, text: str) -> None:
        """The first package of each line of a stage reads the outputs of the last ones of lines of another."""
        _, tails = _ends(source)
        heads, _ = _ends(target)
        if not len(tails) or not len(heads):
            return
        kind = _EARLY_FILE if join.early else _AWAITED_FILE
        if join.kind == "one-to-one":
            self.add(tails[np.arange(len(heads)) % len(tails)], heads, kind=kind)
        elif join.kind == "merge":
            self.add(tails, heads[np.arange(len(tails)) * len(heads) // len(tails)], kind=kind)
        else:
            fan = min(join.fan, len(tails))
            generator = np.random.Generator(np.random.PCG64(_number(text)))
            chosen = generator.integers(0, len(tails), len(heads) * fan)
            self.add(tails[chosen], np.repeat(heads, fan), kind=kind)

    def segment(self, first: int, count: int) -> Segment:
        if not self._sources:
            nothing = np.zeros(0, np.int32)
            return Segment(first, count, sources=nothing, targets=nothing, kinds=np.zeros(0, np.uint8))
        sources = np.concatenate(self._sources).astype(np.int32)
        targets = np.concatenate(self._targets).astype(np.int32)
        return Segment(first, count, sources=sources, targets=targets, kinds=np.concatenate(self._kinds))


def _lines_packages(stage: StageSketch) -> int:
    return sum(line.count * len(line.templates) for line in stage.lines)


def _layout(each: StageSketch, *, stage: int, first: int, items: int) -> StageLayout:
    templates = [TemplateLayout(lines=line.count, packages=len(line.templates)) for line in each.lines]
    return StageLayout(stage=stage, first=first, items=items, templates=templates)


def _shape(sketch: JobSketch, each: StageSketch, items: int) -> payloads.StageShape:
    templates = tuple(
        payloads.TemplateShape(
            lines=line.count, activities=tuple(sketch.templates[number].activity for number in line.templates)
        )
        for line in each.lines
    )
    return payloads.StageShape(items=items, templates=templates)


def _ends(layout: StageLayout) -> tuple[Numbers, Numbers]:
    """The first and the last package of each line of a stage, in the order of lines."""
    heads, tails = [], []
    start = 0
    for template in layout.templates:
        begin = start + np.arange(template.lines, dtype=np.int64) * template.packages
        heads.append(begin)
        tails.append(begin + template.packages - 1)
        start += template.lines * template.packages
    items = layout.first + np.arange(layout.items, dtype=np.int64)[:, None] * layout.package_period
    return (items + np.concatenate(heads)).ravel(), (items + np.concatenate(tails)).ravel()


def _block_templates(sketch: JobSketch) -> tuple[Template, ...]:
    """One template for each position of each line template of each stage: those that wait for a late stage are separate."""
    return tuple(
        sketch.templates[number] for stage in sketch.stages for line in stage.lines for number in line.templates
    )


def _file_plan(sketch: JobSketch, template_of: NDArray[np.uint32]) -> FilePlan | None:
    """The files of all packages; their numbers stay the same when the plan grows."""
    if not sketch.files:
        return None
    blocks = [number for stage in sketch.stages for line in stage.lines for number in line.templates]
    kinds = np.array(blocks, np.int64)[template_of]
    known: dict[str, FileSketch] = {}
    packages, numbers = [], []
    for file in sketch.files:
        own = []
        for variant in range(file.variants):
            known.setdefault(file.name(variant), file)
            own.append(list(known).index(file.name(variant)))
        users = np.flatnonzero(kinds == file.template)
        packages.append(users)
        numbers.append(np.array(own, np.int64)[users % file.variants])
    pairs = np.unique(np.stack((np.concatenate(packages), np.concatenate(numbers)), axis=1), axis=0).astype(np.int32)
    by_file = pairs[np.argsort(pairs[:, 1], kind="stable")]
    sketches = list(known.values())
    return FilePlan(
        needs=Rows(pairs[:, 0], np.ascontiguousarray(pairs[:, 1])),
        users=Rows(by_file[:, 1], np.ascontiguousarray(by_file[:, 0])),
        locators=list(known),
        sizes_bytes=np.array([each.size_bytes if each.size_known else 0 for each in sketches], np.int64),
        wishes=np.array([each.wish for each in sketches], np.uint8),
        released=np.array([each.released for each in sketches], np.bool_),
    )


def _first_block(sketch: JobSketch, stage: int) -> int:
    return sum(len(line.templates) for each in sketch.stages[: stage - 1] for line in each.lines)


def _template_numbers(sketch: JobSketch, stage: int, layout: StageLayout) -> Numbers:
    """The number of the template of each package of a stage."""
    block = _first_block(sketch, stage)
    parts = []
    for line in sketch.stages[stage - 1].lines:
        parts.append(np.tile(np.arange(block, block + len(line.templates)), line.count))
        block += len(line.templates)
    return np.tile(np.concatenate(parts), layout.items)


def _late_plan(sketch: JobSketch, stage: int, layouts: Mapping[int, StageLayout]) -> LatePlan:
    source = sketch.stages[stage - 1].joins[0].stage
    if source not in layouts:
        return LatePlan(stage=stage, stages=(source,))
    return LatePlan(stage=stage, packages=tuple(_ends(layouts[source])[1].tolist()))


def _late_waits(sketch: JobSketch, layouts: Mapping[int, StageLayout]) -> dict[int, tuple[int, ...]]:
    """For the first template of each line, the stages it reads from that are not expanded yet."""
    waits: dict[int, tuple[int, ...]] = {}
    for stage in sorted(layouts):
        missing = tuple(sorted({join.stage for join in sketch.stages[stage - 1].joins if join.stage not in layouts}))
        block = _first_block(sketch, stage)
        for line in sketch.stages[stage - 1].lines:
            if missing:
                waits[block] = missing
            block += len(line.templates)
    return waits


def _parts(dotted: str) -> tuple[int, int, int]:
    place = parse_dotted(dotted)
    if place is None:
        raise ValueError(f"{dotted!r} is not the address of a package")
    return place.stage, place.line, place.number


def _text(seed: int, job: str, stage: int, source: int) -> str:
    return f"{seed}/{job}/{stage}/{source}"


def _number(text: str) -> int:
    """A number for a generator that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
