"""What a run would do, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.cli.jobs.run import plan_lines
from pilotage.model.errors import DocumentError
from pilotage.model.exchange.operations import Refused
from pilotage.model.jobs.submission import PLANNED_MAX, PlannedPackage, RunPlan, StagePlan
from pilotage.ports import NotOurs
from pilotage.service.errors import OperationRefused
from pilotage.service.jobs.preview import Admission, plan
from pilotage.service.works.software_times import note_software_times
from tests.kit.earlier_work import Place, place

CHAIN = """
pilotage: 1
job: chain
stages:
  - name: reconstruct
    each: {raw: "*.raw"}
    run: ./reco {raw}
    run_time: 1h
    cores: 2
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
  - name: merge
    run: merge {inputs}
    run_time: 30 min
    inputs: ["*.dat"]
    outputs: [all.root]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A folder with a program and two raw files."""
    with place(tmp_path) as made:
        made.write(reco="#!/bin/sh\n", a_raw="A", b_raw="B")
        yield made


def planned(
    here: Place,
    text: str,
    *,
    slots: int = 1,
    admission: Admission = lambda _: (),
    executors: tuple[str, ...] = (),
    **more: object,
) -> RunPlan:
    return plan(
        here.submission(text, **more),
        tree=here.tree,
        index=here.index,
        admission=admission,
        executors=executors,
        slots=slots,
    )


def test_packages_that_do_not_fit_beside_each_other_start_one_after_the_other(here: Place) -> None:
    found = planned(here, CHAIN, slots=2)
    assert [each.start_seconds for each in found.listed] == [0.0, 3600.0, 7200.0]
    unknown = planned(here, CHAIN.replace("    run_time: 30 min\n", ""), slots=2)
    assert [each.start_seconds for each in unknown.listed] == [None, None, None]


def test_before_the_first_run_everything_would_run(here: Place) -> None:
    found = planned(here, CHAIN, slots=4)
    assert found == RunPlan(
        job="chain",
        packages=3,
        would_run=3,
        there=0,
        stages=(
            StagePlan(stage=1, name="reconstruct", packages=2, would_run=2, core_hours=4.0),
            StagePlan(stage=2, name="merge", packages=1, would_run=1, core_hours=0.5),
        ),
        listed=(
            PlannedPackage(
                package="1.1.1", name="reconstruct-0", changed="never made", start_seconds=0.0, end_seconds=3600.0
            ),
            PlannedPackage(
                package="1.2.1", name="reconstruct-1", changed="never made", start_seconds=0.0, end_seconds=3600.0
            ),
            PlannedPackage(
                package="2.1.1", name="merge", changed="never made", start_seconds=3600.0, end_seconds=5400.0
            ),
        ),
        changed={"never made": 3},
        slots=4,
        core_hours=4.5,
        seconds=5400.0,
    )


def test_with_few_slots_the_work_decides_and_with_many_the_longest_way(here: Place) -> None:
    assert planned(here, CHAIN, slots=1).seconds == pytest.approx(4.5 * 3600)
    assert planned(here, CHAIN, slots=100).seconds == pytest.approx(1.5 * 3600)


def test_after_a_run_nothing_would_run_and_a_changed_field_is_named(here: Place) -> None:
    here.run(CHAIN)
    done = planned(here, CHAIN)
    assert (done.would_run, done.there, done.core_hours, done.seconds) == (0, 3, 0.0, 0.0)
    here.write(b_raw="other")
    found = planned(here, CHAIN)
    assert [(each.package, each.changed) for each in found.listed] == [
        ("1.2.1", "input b.raw"),
        ("2.1.1", "waits for 1.2.1"),
    ]
    assert found.changed == {"input": 1, "waits for": 1}
    assert [stage.there for stage in found.stages] == [1, 0]
    assert found.core_hours == pytest.approx(2.5)


def test_what_would_be_refused_is_refused_here_unless_nothing_would_run(here: Place) -> None:
    told = Refused(code="unsatisfiable", message="no site can run reco", subject="reco")
    with pytest.raises(OperationRefused, match="no site can run reco") as raised:
        planned(here, CHAIN, admission=lambda _: told)
    assert raised.value.code == "unsatisfiable"
    here.run(CHAIN)
    assert planned(here, CHAIN, admission=lambda _: told).would_run == 0


@pytest.mark.parametrize(
    "before, after, field",
    [
        ("./reco {raw}", "./reco -v {raw}", "argv"),
        ("    run: ./reco", "    container: busybox\n    run: ./reco", "software"),
        ("    run: ./reco", "    environment: {exported: {A: b}}\n    run: ./reco", "environment"),
        ('outputs: ["{raw.stem}.dat"]', 'outputs: ["{raw.stem}.dat", "{raw.stem}.txt"]', "outputs"),
    ],
)
def test_the_field_that_changed_is_named(here: Place, before: str, after: str, field: str) -> None:
    here.run(CHAIN)
    assert planned(here, CHAIN.replace(before, after)).changed == {field: 2, "waits for": 1}


def test_the_variables_that_changed_are_named_and_counted_together(here: Place) -> None:
    def text(values: str) -> str:
        return CHAIN.replace("    run: ./reco", f"    environment: {{exported: {{{values}}}}}\n    run: ./reco")

    here.run(text("A: a, B: b, C: c"))
    for values, names in (("A: a, B: other, D: d", "B, C, D"), ("A: a", "B, C")):
        found = planned(here, text(values))
        assert (found.listed[0].changed, found.changed) == (f"environment {names}", {"environment": 2, "waits for": 1})
    assert planned(here, CHAIN).listed[0].changed == "environment A, B, C"


def test_a_changed_script_is_named_among_the_programs_of_its_package(here: Place) -> None:
    text = CHAIN.replace("    run_time: 1h\n", "    run_time: 1h\n    scripts: {pre: {run: ./check}}\n")
    here.write(check="#!/bin/sh\n")
    for program in ("reco", "check"):
        (here.folder / program).chmod(0o755)
    here.run(text)
    here.write(check="#!/bin/sh\nexit 0\n")
    found = planned(here, text)
    assert {each.changed for each in found.listed} == {"software check", "waits for 1.1.1"}
    assert found.changed == {"software": 2, "waits for": 1}


def test_a_file_that_is_gone_is_named(here: Place) -> None:
    here.run(CHAIN)
    (here.folder / "a.dat").unlink()
    assert {each.changed for each in planned(here, CHAIN).listed} == {"missing output a.dat", "waits for 1.1.1"}


def test_a_fresh_run_says_so(here: Place) -> None:
    here.run(CHAIN)
    assert planned(here, CHAIN, fresh=True).changed == {"everything runs again": 3}


def test_how_long_it_took_goes_before_what_was_estimated(here: Place) -> None:
    here.index.note_times(str(here.folder), "chain", {"reco": (2, 20.0)})
    found = planned(here, CHAIN, slots=100)
    assert found.core_hours == pytest.approx((2 * 2 * 10 + 1800) / 3600)
    assert found.seconds == pytest.approx(1810)


def test_without_any_time_known_none_is_told(here: Place) -> None:
    found = planned(here, CHAIN.replace("    run_time: 1h\n", "").replace("    run_time: 30 min\n", ""))
    assert (found.core_hours, found.seconds, found.unknown) == (None, None, 3)


def test_all_are_counted_and_the_first_are_listed(here: Place) -> None:
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..5000}, run: 'work {n}', outputs: ['{n}.out']}]\n"
    found = planned(here, text)
    assert (found.would_run, len(found.listed)) == (5000, PLANNED_MAX)
    here.run(CHAIN)
    found = planned(here, text)
    assert (found.would_run, len(found.listed), found.changed) == (5000, PLANNED_MAX, {"never made": 5000})


def test_a_late_stage_is_told_as_one(here: Place) -> None:
    text = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["done-{part}"]}
"""
    assert [(stage.packages, stage.late) for stage in planned(here, text).stages] == [(1, False), (0, True)]


def test_the_size_of_a_late_stage_is_known_when_its_makers_are_done(here: Place) -> None:
    text = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["done-{part}", "more-{part}-*"]}
  - {each: {more: "more-*"}, run: "end {more}", inputs: ["{more}"], outputs: ["end-{more}"]}
"""
    here.run(text)
    found = planned(here, text)
    told = [(stage.packages, stage.there, stage.would_run, stage.late) for stage in found.stages]
    assert told == [(1, 1, 0, False), (2, 0, 2, False), (0, 0, 0, True)]
    assert (found.packages, found.would_run) == (3, 2)
    assert [each.package for each in found.listed] == ["2.1.1", "2.2.1"]


def test_nothing_is_kept_and_faults_are_told_as_at_submission(here: Place) -> None:
    position = here.journal.position()
    planned(here, CHAIN)
    assert here.journal.position() == position
    with pytest.raises(DocumentError, match="prefetch"):
        planned(here, CHAIN.replace('inputs: ["{raw}"]', 'inputs: [{name: "{raw}", acquisition: prefetch}]'))
    here.write(all_root="mine")
    with pytest.raises(NotOurs, match=r"all\.root"):
        planned(here, CHAIN)


def test_what_the_document_says_of_itself_and_of_its_software_is_told(here: Place) -> None:
    text = """
pilotage: 1
job: told
description: A first look.
created: 2026-01-02T03:04:05Z
software: [{id: reco, description: Reconstructs tracks., run: ./reco}, {id: other, description: Not used., run: x}]
stages: [{software: reco}]
"""
    found = planned(here, text)
    assert (found.description, found.created) == ("A first look.", "2026-01-02T03:04:05Z")
    assert found.software == {"reco": "Reconstructs tracks."}
    shown = "".join(plan_lines(found, shown_max=None))
    assert "  A first look.; made 2026-01-02T03:04:05Z\n  reco: Reconstructs tracks.\n" in shown


def test_what_is_said_of_sites_is_told_and_so_is_an_executor_that_nobody_knows(here: Place) -> None:
    text = CHAIN.replace("run: ./reco {raw}", "run: ./reco {raw}\n    executor: grid")
    found = planned(here, text, executors=("local",), admission=lambda _: ("annex is passed over",))
    assert found.notes == (
        "no site and no kind of site is named 'grid': packages that ask for it may run anywhere",
        "annex is passed over",
    )
    assert planned(here, text, executors=("local", "grid")).notes == ()


def test_expected_times_of_more_than_a_minute_are_shown_beside_the_reason() -> None:
    listed = [
        PlannedPackage(package="1.1.1", name="a", changed="argv", start_seconds=0.0, end_seconds=50.0),
        PlannedPackage(package="1.2.1", name="b", changed="argv", start_seconds=0.0, end_seconds=3600.0),
        PlannedPackage(package="2.1.1", name="c", changed="waits for 1.2.1", start_seconds=3600.0, end_seconds=5400.0),
    ]
    found = RunPlan(
        job="j", packages=3, would_run=3, there=0, listed=tuple(listed), changed={"argv": 2, "waits for": 1}
    )
    told = "".join(plan_lines(found, shown_max=None))
    assert "1.1.1  a  argv\n" in told
    assert "1.2.1  b  argv             until 1 h\n" in told
    assert "2.1.1  c  waits for 1.2.1  after 1 h until 1 h 30 min\n" in told


SOFTWARE = """
pilotage: 1
job: other
software:
  - {id: align, version: "2.1", infrastructures: [{name: any, run: ./align}]}
stages:
  - each: {raw: "*.raw"}
    software: align
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
"""


def test_software_that_ran_elsewhere_says_how_long_it_takes(here: Place) -> None:
    here.write(align="#!/bin/sh\n")
    unknown = planned(here, SOFTWARE)
    assert (unknown.unknown, unknown.core_hours) == (2, None)
    note_software_times(here.index, {"align/2.0": (5, 5.0), "align/2.1": (4, 4 * 1800.0)})
    found = planned(here, SOFTWARE)
    assert found.unknown == 0
    assert found.core_hours == pytest.approx(1.0)
    named = planned(here, SOFTWARE.replace("    software: align\n", "    software: align\n    run_time: 2h\n"))
    assert named.core_hours == pytest.approx(4.0), "the document itself comes first"
