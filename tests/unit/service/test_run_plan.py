"""What a run would do, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.cli.jobs.run import plan_lines
from pilotage.model.errors import DocumentError
from pilotage.model.exchange.operations import Refused
from pilotage.model.jobs.estimates import PackageEstimate
from pilotage.model.jobs.submission import PLANNED_MAX, PlannedPackage, RunPlan, StagePlan
from pilotage.ports import MeasuredRun, NotOurs, RunKind
from pilotage.service.errors import OperationRefused
from pilotage.service.jobs.preview import Admission, plan
from pilotage.service.works import estimates
from tests.kit.earlier_work import Place, place

NOW = 1_800_000_000.0

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
        now=NOW,
        executors=executors,
        slots=slots,
    )


def test_packages_that_do_not_fit_beside_each_other_start_one_after_the_other(here: Place) -> None:
    found = planned(here, CHAIN, slots=2)
    assert [each.start_seconds for each in found.listed] == [0.0, 3600.0, 7200.0]
    unknown = planned(here, CHAIN.replace("    run_time: 30 min\n", ""), slots=2)
    assert [each.start_seconds for each in unknown.listed] == [None, None, None]


def hour(package: str, name: str) -> PlannedPackage:
    """A package that starts at once and takes an hour, as the document says."""
    return PlannedPackage(
        package=package,
        name=name,
        changed="never made",
        start_seconds=0.0,
        end_seconds=3600.0,
        expected_start_at=NOW,
        expected_end_at=NOW + 3600.0,
        estimate=PackageEstimate(run_seconds=3600.0, basis="document"),
    )


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
            hour("1.1.1", "reconstruct-0"),
            hour("1.2.1", "reconstruct-1"),
            PlannedPackage(
                package="2.1.1",
                name="merge",
                changed="never made",
                start_seconds=3600.0,
                end_seconds=5400.0,
                expected_start_at=NOW + 3600.0,
                expected_end_at=NOW + 5400.0,
                estimate=PackageEstimate(run_seconds=1800.0, basis="document"),
            ),
        ),
        changed={"never made": 3},
        slots=4,
        core_hours=4.5,
        seconds=5400.0,
        planned_at=NOW,
        expected_end_at=NOW + 5400.0,
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
    with pytest.raises(DocumentError, match="role: service"):
        planned(here, CHAIN.replace("cores: 2", "role: service"))
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


def timed(package: str, *, changed: str, start_seconds: float, end_seconds: float) -> PlannedPackage:
    return PlannedPackage(
        package=package,
        name="p",
        changed=changed,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        expected_start_at=NOW + start_seconds,
        expected_end_at=NOW + end_seconds,
    )


def test_expected_times_are_shown_in_utc_beside_the_reason() -> None:
    listed = (
        timed("1.2.1", changed="argv", start_seconds=0.0, end_seconds=3600.0),
        timed("2.1.1", changed="waits for 1.2.1", start_seconds=3600.0, end_seconds=5400.0),
    )
    counts = {"argv": 1, "waits for": 1}
    found = RunPlan(
        job="j", packages=2, would_run=2, there=0, listed=listed, changed=counts, core_hours=1.5, seconds=5400.0,
        planned_at=NOW, expected_end_at=NOW + 5400.0,
    )  # fmt: skip
    told = "".join(plan_lines(found, shown_max=20))
    assert "1.5 core-hours, 1 h 30 min with 1 slot: until 2027-01-15 09:30:00Z, if it were submitted now\n" in told
    assert "1.2.1  p  argv             2027-01-15 08:00:00Z to 2027-01-15 09:00:00Z\n" in told
    assert "2.1.1  p  waits for 1.2.1  2027-01-15 09:00:00Z to 2027-01-15 09:30:00Z\n" in told
    alike = msgspec.structs.replace(found, listed=listed[:1], changed={"argv": 1}, would_run=1)
    told = "".join(plan_lines(alike, shown_max=20))
    assert "why: argv\n  when, if it were submitted now\n    1.2.1  p  2027-01-15 08:00:00Z to" in told


def test_of_a_plan_that_is_over_within_a_minute_times_are_shown_only_with_all_packages() -> None:
    listed = (timed("1.1.1", changed="argv", start_seconds=0.0, end_seconds=50.0),)
    found = RunPlan(
        job="j", packages=1, would_run=1, there=0, listed=listed, changed={"argv": 1}, core_hours=0.1, seconds=50.0,
        planned_at=NOW, expected_end_at=NOW + 50.0,
    )  # fmt: skip
    assert "2027" not in "".join(plan_lines(found, shown_max=20))
    assert "2027-01-15 08:00:00Z to 2027-01-15 08:00:50Z" in "".join(plan_lines(found, shown_max=None))


def test_memory_and_sizes_of_a_stage_are_shown_where_they_are_known() -> None:
    stage = StagePlan(stage=1, name="reco", packages=1, would_run=1, core_hours=1.0, memory_bytes=3 * MIB)
    found = RunPlan(job="j", packages=1, would_run=1, there=0, stages=(stage,), changed={"argv": 1, "input": 1})
    told = "".join(plan_lines(found, shown_max=20))
    assert "core-hours  memory\n" in told
    assert "1           3 MiB\n" in told


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


ALIGN = RunKind("align", "align/2.1")


def ran(seconds: float, *, size_bytes: int = 1, memory_bytes: int | None = None) -> MeasuredRun:
    """A run that wrote half of what it read."""
    written = size_bytes // 2
    return MeasuredRun(
        seconds=seconds,
        input_bytes=size_bytes,
        output_bytes=written,
        scratch_bytes=size_bytes + written,
        memory_bytes=memory_bytes,
    )


def test_software_that_ran_elsewhere_says_how_long_it_takes(here: Place) -> None:
    here.write(align="#!/bin/sh\n")
    unknown = planned(here, SOFTWARE)
    assert (unknown.unknown, unknown.core_hours) == (2, None)
    here.index.note_runs(
        "/other", "old", {RunKind("align", "align/2.0"): [ran(5.0)], ALIGN: [ran(1000.0), ran(2600.0)]}
    )
    found = planned(here, SOFTWARE)
    assert found.unknown == 0
    assert found.core_hours == pytest.approx(1.0)
    assert found.listed[0].estimate is not None
    assert (found.listed[0].estimate.basis, found.listed[0].estimate.runs) == ("software", 2)
    named = planned(here, SOFTWARE.replace("    software: align\n", "    software: align\n    run_time: 2h\n"))
    assert named.core_hours == pytest.approx(4.0), "the document itself comes first"
    here.index.note_runs(str(here.folder), "other", {ALIGN: [ran(7200.0)]})
    assert planned(here, SOFTWARE).core_hours == pytest.approx(4.0), "runs of the same document are nearer"


STEPS = """
pilotage: 1
job: steps
stages:
  - each: {raw: "*.raw"}
    run: filter {raw}
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
  - run: merge {inputs}
    inputs: ["*.dat"]
    outputs: [all.root]
"""
MIB = 2**20


def learn_steps(here: Place) -> None:
    """Packages of both steps took a minute for a MiB, and ten MiB of memory for it, in earlier runs."""
    runs = [ran(60.0 * mib, size_bytes=mib * MIB, memory_bytes=10 * mib * MIB) for mib in range(1, 11)]
    here.index.note_runs(str(here.folder), "steps", {RunKind("filter", ""): runs, RunKind("merge", ""): runs})


def test_run_times_and_memory_follow_the_sizes_of_inputs(here: Place) -> None:
    learn_steps(here)
    here.write(a_raw="a" * (2 * MIB), b_raw="b" * (20 * MIB))
    found = planned(here, STEPS, slots=4)
    first, second, merge = [each.estimate for each in found.listed]
    assert first is not None
    assert second is not None
    assert merge is not None
    assert [first.run_seconds, second.run_seconds] == pytest.approx([120.0, 1200.0])
    assert (first.input_bytes, first.basis, first.runs) == (2 * MIB, "activity", 10)
    assert second.memory_bytes == pytest.approx(200 * MIB)
    # What is not made yet has the size that its maker is estimated to write.
    assert merge.input_bytes == 11 * MIB
    assert merge.run_seconds == pytest.approx(660.0)
    assert [each.end_seconds for each in found.listed] == pytest.approx([120.0, 1200.0, 1860.0])
    assert [stage.memory_bytes for stage in found.stages] == pytest.approx([200 * MIB, 110 * MIB])
    assert [stage.scratch_bytes for stage in found.stages] == pytest.approx([30 * MIB, 16.5 * MIB])
    assert [stage.output_bytes for stage in found.stages] == pytest.approx([11 * MIB, 5.5 * MIB])


def test_a_submitted_job_starts_from_run_times_by_the_sizes_of_its_inputs(here: Place) -> None:
    assert here.prepare(STEPS).plan.earlier_run_times == ()
    here.run(STEPS)
    learn_steps(here)
    here.index.note_times(str(here.folder), "steps", {"filter": (1, 1.0)})
    here.write(a_raw="a" * (2 * MIB), b_raw="b" * (4 * MIB))
    prepared = here.prepare(STEPS)
    found = {each.activity: (each.mean_seconds, each.sd_seconds) for each in prepared.plan.earlier_run_times}
    assert found == {"filter": (180.0, 60.0), "merge": (180.0, 0.0)}
    assert prepared.origin.earlier_run_times == prepared.plan.earlier_run_times
    stated = STEPS.replace("    run: filter {raw}\n", "    run: filter {raw}\n    run_time: 1h\n")
    assert [each.activity for each in here.prepare(stated).plan.earlier_run_times] == ["merge"]


def test_files_that_exist_have_their_own_size(here: Place) -> None:
    here.write(a_raw="a", b_raw="b")
    here.run(STEPS)
    learn_steps(here)
    here.write(b_raw="b" * (2 * MIB))
    found = planned(here, STEPS)
    assert [each.package for each in found.listed] == ["1.2.1", "2.1.1"]
    merge = found.listed[1].estimate
    assert merge is not None
    assert merge.input_bytes == pytest.approx(MIB + (here.folder / "a.dat").stat().st_size, abs=1)


def test_what_the_document_says_of_memory_and_sizes_holds(here: Place) -> None:
    learn_steps(here)
    stated = STEPS.replace("    run: filter {raw}\n", "    run: reco {raw}\n    memory: 3GiB\n    scratch: 5GiB\n")
    found = planned(here, stated)
    assert (found.stages[0].memory_bytes, found.stages[0].scratch_bytes) == (3 * 2**30, 5 * 2**30)


def test_of_very_many_packages_some_stand_for_all(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "LOOKED_AT_MAX", 4)  # two of each of the two steps
    learn_steps(here)
    here.write(a_raw="a" * (2 * MIB), aa_raw="a" * (100 * MIB), b_raw="b" * (4 * MIB))
    found = [each.estimate and each.estimate.input_bytes for each in planned(here, STEPS).listed[:3]]
    assert found == [2 * MIB, 3 * MIB, 4 * MIB]


def test_packages_that_may_start_early_are_named(here: Place) -> None:
    text = """
pilotage: 1
job: growing
stages:
  - {name: write, run: ./reco, outputs: [lines.txt]}
  - name: read
    lines: [{early_start: true, packages: [{run: ./reco, inputs: [lines.txt], outputs: [count.txt]}]}]
"""
    (note,) = [each for each in planned(here, text).notes if "may start" in each]
    assert note == "1 package may start while what makes the inputs still runs: 2.1.1"
    waiting = planned(here, text.replace("early_start: true", "early_start: false"))
    assert not [each for each in waiting.notes if "may start" in each]
