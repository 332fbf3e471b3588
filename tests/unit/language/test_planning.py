"""A plan that is made again from what was kept is the plan that was: an engine that starts from it knows the same."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pilotage.language import Expansion, MemoryFolder, RecordedLists, Report, expand, grow, load, plan_of
from pilotage.model.exchange.operations import Accepted, Drop, ExpandStage, Refused, Restore
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import BESIDES_CORES, Demand
from tests.kit.jobs import expanded
from tests.kit.small_engine import JOB, Small, differences
from tests.kit.small_plans import site

TWICE = """\
stages:
  - name: split
    each: {n: 1..2}
    run: split {n}
    outputs: ['part-{n}-*']
  - name: work
    each: {f: 'part-*'}
    run: work {f}
    inputs: ['{f}']
    outputs: ['sub-{f.name}-*']
  - name: more
    each: {f: 'sub-*'}
    run: more {f}
    inputs: ['{f}']
    outputs: ['done-{f.name}']
  - name: merge
    run: merge {inputs}
    inputs: ['done-*']
    outputs: [all]
"""


def grow_over(expansion: Expansion, stage: int, produced: dict[int, list[str]]) -> Expansion:
    found = grow(expansion, stage, produced, Report("pilotage.yaml"))
    assert found is not None
    return found


def walked() -> list[Expansion]:
    """A job before, between and after its two growths; the line 1.2 makes nothing for the first of them."""
    first = expanded(TWICE)
    second = grow_over(first, 2, {0: ["part-1-a", "part-1-b"]})
    makers = [number for number in range(second.count) if second.name(number).startswith("work")]
    third = grow_over(second, 3, {number: [f"sub-part-1-{'ab'[at]}-x"] for at, number in enumerate(makers)})
    return [first, second, third]


def kept(expansion: Expansion) -> JobPlan:
    """The plan from what is kept of a job, which is text."""
    resolved = msgspec.json.decode(msgspec.json.encode(expansion.resolved), type=type(expansion.resolved))
    found = expand(expansion.definition, RecordedLists(resolved), Report("pilotage.yaml"))
    assert found is not None
    return plan_of(found)


def told(plan: JobPlan) -> list[object]:
    """Everything of a plan that can be compared."""
    return [
        list(plan.graph.edges()),
        plan.templates,
        plan.template_of.tolist(),
        {stage: (each.first, each.count) for stage, each in plan.layouts.items()},
        plan.late,
        plan.laid_out,
        dict(plan.late_waits),
    ]


def test_the_plan_from_what_was_kept_is_the_plan_that_has_grown() -> None:
    for expansion in walked():
        assert told(kept(expansion)) == told(plan_of(expansion))
        assert np.array_equal(kept(expansion).template_of, plan_of(expansion).template_of)


def test_stages_that_were_laid_out_are_remembered_with_what_they_were_made_of() -> None:
    first, second, third = (plan_of(each) for each in walked())
    assert (first.laid_out, [each.stage for each in first.late]) == ((), [2, 3])
    assert second.laid_out == (first.late[0],)
    assert third.laid_out == (first.late[0], second.late[0])
    assert third.late == ()


def test_an_engine_that_starts_after_two_growths_is_the_one_that_lived_through_them() -> None:
    expansions = walked()
    small = Small(site(cores=4))
    assert isinstance(small.submit(plan_of(expansions[0])), Accepted)
    pilot = small.pilot()
    small.ask(Drop(job=JOB, stage=1, line=2))
    pilot.exchange()
    pilot.succeed("1.1.1")
    for stage, expansion in ((2, expansions[1]), (3, expansions[2])):
        assert [each.stage for each in small.take(ExpandStage)] == [stage]
        small.grow(plan_of(expansion), late=stage)
        small.plans[JOB] = [*small.plans[JOB][:-1], kept(expansion)]
        assert differences(small.restarted().engine.durable_state(), small.engine.durable_state()) == []
        pilot.exchange()
        if stage == 2:
            pilot.succeed(*pilot.packages)
    answer = small.ask(Restore(job=JOB, stage=1, line=2))
    small.restart()
    assert small.ask(Restore(job=JOB, stage=1, line=2)) == answer
    assert isinstance(answer, Refused)
    assert answer.code == "stage-laid-out"


@pytest.mark.parametrize(
    "package, hundredths",
    [
        ("run: go", 100),
        ("run: go, cpu_percent: 10", 10),
        ("run: go, cpu_percent: 99", 99),
        ("run: go, cpu_percent: 0", 1),
        ("run: go, cpu_percent: 12.5", 13),
        ("run: go, cores: 4, cpu_percent: 50", 200),
        ("binaries: [{run: a, cpu_percent: 10}, {run: b, cpu_percent: 30}]", 30),
        ("binaries: [{run: a, cpu_percent: 10}, {run: b}]", 100),
    ],
)
def test_a_package_takes_as_much_of_its_cores_as_the_busiest_of_its_binaries_uses(
    package: str, hundredths: int
) -> None:
    text = f"pilotage: 1\njob: j\nstages: [{{{package}}}]\n"
    (template,) = plan_of(load(text.encode(), file="j.yaml", folder=MemoryFolder(())).job().expansion).templates
    assert template.demand.cores_hundredths == hundredths


@pytest.mark.parametrize("kind", [kind.name for kind in BESIDES_CORES])
def test_a_package_takes_of_every_resource_what_its_document_says(kind: str) -> None:
    text = f"pilotage: 1\njob: j\nstages: [{{run: go, work: 3 B, resources: {{{kind}: 7}}}}]\n"
    (template,) = plan_of(load(text.encode(), file="j.yaml", folder=MemoryFolder(())).job().expansion).templates
    assert template.demand == msgspec.structs.replace(Demand(scratch_bytes=3), **{kind: 7})


def test_how_many_live_attempts_a_package_may_have_is_its_own_setting() -> None:
    text = "pilotage: 1\njob: j\nstages: [{run: go, environment: {setting: {replicas_max: 2}}}, {run: other}]\n"
    templates = plan_of(load(text.encode(), file="j.yaml", folder=MemoryFolder(())).job().expansion).templates
    assert [each.replicas_max for each in templates] == [2, None]
