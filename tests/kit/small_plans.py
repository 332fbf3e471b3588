"""Plans in a few words: stages of equal lines, edges between places, and late stages that grow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pilotage.engine.selection import SelectionSettings
from pilotage.model.events import payloads
from pilotage.model.events.events import parse_dotted
from pilotage.model.jobs.file_plan import FilePlan, Wish
from pilotage.model.jobs.graph import EdgeKind, Graph, Rows, Segment
from pilotage.model.jobs.layout import StageLayout, TemplateLayout
from pilotage.model.jobs.plan import JobPlan, LatePlan, Template
from pilotage.model.resources import Capacity, Demand
from pilotage.model.site import Site

RUN = Template(activity="run")

Edges = Sequence[tuple[str, str]]


class Stage(msgspec.Struct, frozen=True):
    """So many equal lines, each with a package of each template."""

    lines: int = 1
    templates: tuple[Template, ...] = (RUN,)


# Sites in their order, and nothing is tried out first: what a test says of one is not a matter of chance.
IN_ORDER = SelectionSettings(policy="first", trial_room=0, job_submission_load=0.0, replication_limit=0)


def stage(lines: int = 1, *templates: Template) -> Stage:
    """A stage; without a template its lines have one package that asks for nothing but a core."""
    return Stage(lines, templates or (RUN,))


def kind(activity: str = "run", *, demand: Demand | None = None, **more: Any) -> Template:
    """A kind of package; what is said of cores, memory and the like goes into its demand."""
    asked = {name: more.pop(name) for name in list(more) if name in Demand.__struct_fields__}
    return Template(activity=activity, demand=demand or Demand(**asked), **more)


def plan(
    *stages: Stage | None,
    edges: Edges = (),
    early: Edges = (),
    late: Mapping[int, Sequence[str]] | None = None,
    after_late: Mapping[int, tuple[int, ...]] | None = None,
    waits: Mapping[int, tuple[int, ...]] | None = None,
    **more: Any,
) -> JobPlan:
    """A plan. Packages are named by their places; along `early` edges a consumer may start before its producer is done.

    A stage of None is late: `late` has its producers, `after_late` the late stages before it. `waits` tells which
    late stages the packages of a stage wait for.
    """
    layouts: dict[int, StageLayout] = {}
    templates: list[Template] = []
    numbers: list[int] = []
    late_waits: dict[int, tuple[int, ...]] = {}
    for at, each in enumerate(stages, 1):
        if each is not None:
            layouts[at] = _layout(at, each, first=len(numbers))
            block = list(range(len(templates), len(templates) + len(each.templates)))
            templates += each.templates
            numbers += block * each.lines
            if waits and at in waits:
                late_waits |= dict.fromkeys(block, waits[at])
    segment = _segment(layouts, 0, len(numbers), edges=edges, early=early)
    unknown = [
        LatePlan(
            stage=at,
            packages=tuple(number_of(layouts, each) for each in (late or {}).get(at, ())),
            stages=(after_late or {}).get(at, ()),
        )
        for at, each in enumerate(stages, 1)
        if each is None
    ]
    return JobPlan(
        graph=Graph([segment]),
        templates=tuple(templates),
        template_of=np.array(numbers, np.uint32),
        layouts=layouts,
        late=tuple(unknown),
        late_waits=late_waits,
        **more,
    )


def bag(count: int, template: Template = RUN, **more: Any) -> JobPlan:
    """Packages that do not know each other."""
    return plan(stage(count, template), **more)


def chain(*templates: Template, lines: int = 1, stages: int = 2, **more: Any) -> JobPlan:
    """Stages of lines, each line fed by the same line of the stage before."""
    made = [stage(lines, each) for each in templates or [RUN] * stages]
    pairs = [(f"{s}.{n}.1", f"{s + 1}.{n}.1") for s in range(1, len(made)) for n in range(1, lines + 1)]
    return plan(*made, edges=pairs, **more)


def grown(before: JobPlan, *, late: int, lines: int = 1, template: Template = RUN, edges: Edges = ()) -> JobPlan:
    """The plan with a late stage laid out; what waited for it in another late stage waits for its packages now."""
    count = before.count
    layouts = {**before.layouts, late: _layout(late, Stage(lines, (template,)), first=count)}
    numbers = np.full(lines, len(before.templates), np.uint32)
    new = tuple(range(count, count + lines))
    left = []
    for each in before.late:
        if late in each.stages:
            others = tuple(stage for stage in each.stages if stage != late)
            left.append(LatePlan(stage=each.stage, packages=(*each.packages, *new), stages=others))
        elif each.stage != late:
            left.append(each)
    waits = {key: tuple(stage for stage in stages if stage != late) for key, stages in before.late_waits.items()}
    return msgspec.structs.replace(
        before,
        graph=before.graph.grown(_segment(layouts, count, lines, edges=edges)),
        templates=(*before.templates, template),
        template_of=np.concatenate((before.template_of, numbers)),
        layouts=layouts,
        late=tuple(left),
        laid_out=(*before.laid_out, *(each for each in before.late if each.stage == late)),
        late_waits={key: stages for key, stages in waits.items() if stages},
    )


def with_files(
    made: JobPlan,
    needs: Mapping[str, Sequence[str]],
    *,
    sizes: Mapping[str, int] | None = None,
    wishes: Mapping[str, Wish] | None = None,
    released: Collection[str] = (),
    software: Collection[str] = (),
    checksums: Mapping[str, str] | None = None,
) -> JobPlan:
    """The plan with files that packages need at their sites; a file of unknown size has the size 0."""
    locators = list(dict.fromkeys(each for named in needs.values() for each in named))
    pairs = sorted((number_of(made.layouts, at), locators.index(each)) for at, named in needs.items() for each in named)
    packages = np.array([package for package, _ in pairs], np.int32)
    files = np.array([file for _, file in pairs], np.int32)
    order = np.argsort(files, kind="stable")
    plan_of_files = FilePlan(
        needs=Rows(packages, files),
        users=Rows(files[order], packages[order]),
        locators=locators,
        sizes_bytes=np.array([(sizes or {}).get(each, 0) for each in locators], np.int64),
        wishes=np.array([(wishes or {}).get(each, Wish.RETAIN_TEMPORARILY) for each in locators], np.uint8),
        released=np.array([each in released for each in locators], np.bool_),
        software=np.array([each in software for each in locators], np.bool_) if software else None,
        checksums=[checksums.get(each, "") for each in locators] if checksums else None,
    )
    return msgspec.structs.replace(made, files=plan_of_files)


def number_of(layouts: Mapping[int, StageLayout], dotted: str) -> int:
    """The number of a package by its place."""
    place = parse_dotted(dotted)
    assert place is not None, dotted
    number = layouts[place.stage].number(place)
    assert number is not None, dotted
    return number


def _layout(at: int, each: Stage, *, first: int) -> StageLayout:
    return StageLayout(stage=at, first=first, items=each.lines, templates=[TemplateLayout(1, len(each.templates))])


def _segment(layouts: Mapping[int, StageLayout], first: int, count: int, *, edges: Edges, early: Edges = ()) -> Segment:
    pairs = [(a, b, EdgeKind.FILE | EdgeKind.AWAITED) for a, b in edges] + [(a, b, EdgeKind.FILE) for a, b in early]
    return Segment(
        first,
        count,
        sources=np.array([number_of(layouts, a) for a, _, _ in pairs], np.int32),
        targets=np.array([number_of(layouts, b) for _, b, _ in pairs], np.int32),
        kinds=np.array([int(each) for _, _, each in pairs], np.uint8),
    )


def registered_of(made: JobPlan, *, owner: str) -> payloads.JobRegistered:
    """What the book is told of a plan."""
    last = max([*made.layouts, *(each.stage for each in made.late)])
    shapes = tuple(
        shape_of(made, at) if at in made.layouts else payloads.StageShape(late=True) for at in range(1, last + 1)
    )
    return payloads.JobRegistered(owner=owner, name="small", stages=shapes)


def shape_of(made: JobPlan, at: int) -> payloads.StageShape:
    """What the book is told of a stage."""
    layout = made.layouts[at]
    positions = range(layout.first, layout.first + layout.package_period)
    # A stage without lines has no package to tell its activity: it grew last.
    kinds = [int(made.template_of[number]) if layout.items else -1 for number in positions]
    activities = tuple(made.templates[each].activity for each in kinds)
    return payloads.StageShape(items=layout.items, templates=(payloads.TemplateShape(lines=1, activities=activities),))


def site(name: str = "a", *, cores: int = 1, pilots: int = 1, capacity: Capacity | None = None, **more: Any) -> Site:
    """A site of whole cores, unless a capacity is given."""
    return Site(name=name, capacity=capacity or Capacity(cores_hundredths=100 * cores), pilots_max=pilots, **more)
