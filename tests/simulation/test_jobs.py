"""Made-up jobs: the plan, the registration and the growth of one sketch agree with each other."""

from __future__ import annotations

import msgspec
import numpy as np

from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.simulator.trials.definition import make_world
from pilotage.simulator.world.jobs import (
    Definitions,
    JobSketch,
    Join,
    LineSketch,
    StageSketch,
    big_job,
    grown,
    names_made,
    packages_of,
    plan_of,
    registration,
)

FILE, SEQUENCE = EdgeKind.FILE | EdgeKind.AWAITED, EdgeKind.SEQUENCE | EdgeKind.AWAITED
TEMPLATES = (Template(activity="simulate"), Template(activity="digitise"))
WORK = StageSketch(items=2, lines=(LineSketch(count=2, templates=(0, 1)),))
LATE = StageSketch(lines=(LineSketch(templates=(0,)),), joins=(Join(stage=1),), late=True, names_max=3)
MERGE = StageSketch(lines=(LineSketch(templates=(1,)),), joins=(Join(stage=2, kind="merge"),))


def job(*stages: StageSketch) -> JobSketch:
    return JobSketch(job="j", templates=TEMPLATES, stages=stages)


def edges(plan: JobPlan) -> set[tuple[str, str, EdgeKind]]:
    return {(plan.place(a).dotted, plan.place(b).dotted, kind) for a, b, kind in plan.graph.edges()}


def test_packages_of_a_line_come_one_after_the_other() -> None:
    assert edges(plan_of(job(WORK), seed=1)) == {
        (f"1.{line}.1", f"1.{line}.2", SEQUENCE) for line in range(1, 5)
    }  # fmt: skip


def test_lines_take_from_the_ends_of_other_lines() -> None:
    one = plan_of(job(WORK, StageSketch(lines=(LineSketch(count=5, templates=(0,)),), joins=(Join(stage=1),))), seed=1)
    feeding = {(a, b) for a, b, kind in edges(one) if kind == FILE}
    assert feeding == {(f"1.{(line - 1) % 4 + 1}.2", f"2.{line}.1") for line in range(1, 6)}
    merged = plan_of(job(WORK, StageSketch(lines=MERGE.lines, joins=(Join(stage=1, kind="merge"),))), seed=1)
    assert {(a, b) for a, b, kind in edges(merged) if kind == FILE} == {
        (f"1.{line}.2", "2.1.1") for line in range(1, 5)
    }


def test_the_registration_has_the_packages_of_the_plan() -> None:
    for seed in range(30):
        for sketch in make_world(seed).jobs:
            plan, registered = plan_of(sketch, seed=seed), registration(sketch)
            assert plan.count == packages_of(sketch) == sum(s.packages for s in registered.stages if not s.late)
            assert len(plan.template_of) == plan.count
            assert plan.graph.order() is not None
            activities = [
                name
                for stage in registered.stages
                if not stage.late
                for _ in range(stage.items)
                for line in stage.templates
                for _ in range(line.lines)
                for name in line.activities
            ]
            assert [plan.templates[int(kind)].activity for kind in plan.template_of] == activities


def test_a_late_stage_grows_over_what_its_granted_producers_made() -> None:
    sketch = job(WORK, LATE, MERGE)
    before = plan_of(sketch, seed=5)
    (late,) = before.late
    ends = [before.place(number).dotted for number in late.packages]
    assert ends == ["1.1.2", "1.2.2", "1.3.2", "1.4.2"]
    assert before.late_waits == {3: (2,)}
    names = names_made(sketch, stage=2, seed=5, producers=ends[:2])
    after, expanded = grown(sketch, before, stage=2, names=names, seed=5)
    assert (after.late, after.late_waits) == ((), {})
    assert after.count == before.count + len(names) == before.count + expanded.shape.packages
    assert [after.place(number) for number in range(before.count)] == [before.place(n) for n in range(before.count)]
    new = edges(after) - edges(before)
    made = [(name.partition("/")[0], f"2.{line}.1") for line, name in enumerate(names, 1)]
    assert new == {(*each, FILE) for each in made} | {(line, "3.1.1", FILE) for _, line in made}


def test_a_late_stage_of_a_late_stage_waits_for_it_and_then_for_its_packages() -> None:
    second = msgspec.structs.replace(LATE, joins=(Join(stage=2),))
    before = plan_of(job(WORK, LATE, second), seed=1)
    assert [(late.stage, late.stages) for late in before.late] == [(2, ()), (3, (2,))]
    after, _ = grown(job(WORK, LATE, second), before, stage=2, names=("1.1.2/0", "1.2.2/0"), seed=1)
    (late,) = after.late
    assert [after.place(number).dotted for number in late.packages] == ["2.1.1", "2.2.1"]


def test_a_late_stage_may_come_to_nothing() -> None:
    after, expanded = grown(job(WORK, LATE, MERGE), plan_of(job(WORK, LATE, MERGE), seed=1), stage=2, names=(), seed=1)
    assert after.count == 9
    assert expanded.shape.packages == 0
    assert after.late_waits == {}


def test_what_grew_once_is_laid_out_the_same_way_from_its_list() -> None:
    first, second = (Definitions([job(WORK, LATE, MERGE)], seed=3) for _ in range(2))
    plan, expanded = first.grow("j", (), stage=2, producers=["1.1.2", "1.4.2"])
    second.grow("j", (), stage=2, producers=["1.1.2", "1.4.2"])
    again = second.plan("j", ((2, expanded.lists["stage-2"]),))
    assert edges(again) == edges(plan)
    assert np.array_equal(again.template_of, plan.template_of)


def test_a_million_packages_are_laid_out_without_a_loop_over_them() -> None:
    plan = plan_of(big_job("big", packages=1_000_000, stages=4, template=TEMPLATES[0]), seed=1)
    assert (plan.count, plan.graph.edge_count) == (1_000_000, 750_000)
    assert plan.place(999_999).dotted == "4.250000.1"
