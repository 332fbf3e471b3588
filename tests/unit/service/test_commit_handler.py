"""What follows from durable events: files get their names, work is remembered, and what is over is let go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.model.events.payloads import PhaseTimes, PilotEnded
from pilotage.model.exchange.operations import Hold, Kill, Release, Reschedule
from pilotage.ports import MeasuredRun, RunKind
from tests.kit.earlier_work import Place, place
from tests.kit.small_service import SmallService, finished

TWO = """
pilotage: 1
job: two
stages:
  - each: {n: 1..2}
    run: make {n}
    outputs: ["out-{n}"]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture
def service(here: Place) -> Iterator[SmallService]:
    made = SmallService(here)
    yield made
    made.aftermath.stop()


def text(here: Place, name: str) -> str:
    file = here.folder / name
    return file.read_text() if file.exists() else ""


def test_what_is_granted_gets_its_name_and_need_not_be_made_again(here: Place, service: SmallService) -> None:
    job = service.submit(TWO).job
    service.succeed("1.1.1", {"out-1": "one"})
    assert (text(here, "out-1"), service.staged(job)) == ("one", [])
    assert service.aftermath.unpublished(job) == 0
    assert [each.package for each in here.prepare(TWO).adopted] == ["1.1.1"]


def test_what_cannot_be_published_holds_the_job_and_gets_its_name_when_that_is_released(
    here: Place, service: SmallService
) -> None:
    job = service.submit(TWO).job
    here.write(**{"out-1": "somebody else's"})
    ref = service.succeed("1.1.1", {"out-1": "one"})
    assert [held[0] for held in service.held] == [job]
    fault = service.aftermath.fault(job)
    assert fault is not None
    assert (fault.package, "out-1" in fault.what, service.aftermath.unpublished(job)) == ("1.1.1", True, 1)
    assert service.staged(job) == [(ref.package, ref.attempt)]
    (here.folder / "out-1").unlink()
    service.ask(Release(job=job))  # refused where it is not held: nothing follows from that
    assert text(here, "out-1") == ""
    service.ask(Hold(job=job))
    service.ask(Release(job=job))
    assert (text(here, "out-1"), service.aftermath.unpublished(job)) == ("one", 0)
    assert service.aftermath.fault(job) is None


def test_what_comes_too_late_is_thrown_away(here: Place, service: SmallService) -> None:
    job = service.submit(TWO).job
    ref = service.work("1.1.1")
    manifest = service.stage(ref, {"out-1": "late"})
    service.ask(Kill(job=job))
    service.exchange((ref, finished(manifest)))
    assert (text(here, "out-1"), service.staged(job)) == ("", [])


def test_what_an_attempt_was_asked_for_is_forgotten_when_another_has_won_or_the_package_is_given_up(
    service: SmallService,
) -> None:
    job = service.submit(TWO).job
    lost = []
    for package in ("1.1.1", "1.1.1", "1.2.1", "1.2.1"):
        lost.append(service.work(package))
        service.ask(Reschedule(job=job, package=package))
        service.exchange()
    at_work = service.jobs.get(job)
    assert at_work is not None
    assert len({*lost}) == 4
    assert all(at_work.knows(ref) for ref in lost)  # any of them may still win
    service.succeed("1.1.1", {"out-1": "one"})
    assert [ref for ref in lost if at_work.knows(ref)] == lost[2:]
    service.ask(Kill(job=job, package="1.2.1"))
    assert not any(at_work.knows(ref) for ref in lost)


def test_a_service_that_starts_finishes_what_one_that_died_had_granted(here: Place, service: SmallService) -> None:
    job = service.submit(TWO).job
    granted = service.succeed("1.1.1", {"out-1": "one"}, follow=False)
    running = service.work("1.2.1")
    service.stage(running, {"out-2": "half"})
    assert (text(here, "out-1"), service.staged(job)) == ("", [(granted.package, 1), (running.package, 1)])

    again = SmallService(here, now=2_000.0)
    again.aftermath.recover(again.engine, job)
    assert (text(here, "out-1"), text(here, "out-2")) == ("one", "")
    assert again.staged(job) == [(running.package, 1)]  # its attempt may still be granted
    assert [each.package for each in here.prepare(TWO).adopted] == ["1.1.1"]
    again.aftermath.stop()


def test_a_job_that_is_over_leaves_nothing_beside_its_results(here: Place, service: SmallService) -> None:
    job = service.submit(TWO).job
    staged = Path(here.tree.staged_folder(str(here.folder), job))
    service.succeed("1.1.1", {"out-1": "one"})
    assert staged.is_dir()
    service.succeed("1.2.1", {"out-2": "two"})
    assert not staged.exists()


def test_how_long_things_took_is_known_from_the_first_on_and_complete_in_the_end(
    here: Place, service: SmallService
) -> None:
    folder = str(here.folder)
    service.submit(TWO.replace("1..2", "1..4"))
    service.succeed("1.1.1", {"out-1": "one"}, seconds=4.0)
    assert here.index.mean_seconds(folder, "two") == {"make": 4.0}
    service.succeed("1.2.1", {"out-2": "two"}, seconds=8.0)
    service.succeed("1.3.1", {"out-3": "three"}, seconds=6.0)
    service.aftermath.stop()  # in the middle
    assert here.index.mean_seconds(folder, "two") == {"make": 6.0}
    service.succeed("1.4.1", {"out-4": "four"}, seconds=2.0)
    assert here.index.mean_seconds(folder, "two") == {"make": 5.0}


SOFTWARE = """
pilotage: 1
job: align
software:
  - {id: align, version: "2.1", infrastructures: [{name: any, run: align}]}
stages:
  - each: {n: 1..2}
    software: align
    outputs: ["out-{n}"]
"""


def test_times_are_those_of_the_standard_platform_and_software_is_known_in_any_document(here: Place) -> None:
    service = SmallService(here, speed=2.0)
    service.submit(SOFTWARE)
    service.succeed("1.1.1", {"out-1": "one"}, seconds=4.0)
    service.succeed("1.2.1", {"out-2": "two"}, seconds=6.0)
    service.aftermath.stop()
    assert list(here.index.mean_seconds(str(here.folder), "align").values()) == [10.0]
    assert [each.seconds for each in here.index.software_runs("align/2.1")] == [8.0, 12.0]
    assert here.index.software_runs("align/2.0") == []


def test_the_speed_of_a_site_is_known_of_a_pilot_that_ends_with_its_package_too(here: Place) -> None:
    service = SmallService(here, speed=2.0)
    service.submit(SOFTWARE)
    ref = service.work("1.1.1")
    end = finished(service.stage(ref, {"out-1": "one"}), seconds=4.0)
    service.exchange((ref, end), (None, PilotEnded(reason="ended")))
    service.aftermath.stop()
    assert [each.seconds for each in here.index.software_runs("align/2.1")] == [8.0]


SIZED = """
pilotage: 1
job: sized
stages:
  - each: {raw: "*.raw"}
    run: reco {raw}
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
  - run: merge {inputs}
    inputs: ["*.dat"]
    outputs: [all]
"""
PHASES = (
    PhaseTimes(phase="setup", started_at=1.0, seconds=100.0),
    PhaseTimes(phase="inputs", started_at=1.0, seconds=1.0),
    PhaseTimes(phase="application", started_at=1.0, seconds=5.0),
    PhaseTimes(phase="outputs", started_at=1.0, seconds=2.0),
)


def test_what_packages_took_is_recorded_with_the_size_of_their_inputs(here: Place) -> None:
    here.write(a_raw="A" * 100)
    service = SmallService(here)
    service.submit(SIZED)
    service.succeed("1.1.1", {"a.dat": "a" * 10}, phases=PHASES, written_bytes=4096, peak_memory_bytes=2**20)
    service.succeed("2.1.1", {"all": "all"}, phases=PHASES, peak_memory_below_bytes=2**19)
    service.aftermath.stop()
    assert here.index.runs(str(here.folder), "sized", RunKind("reco", "")) == [
        MeasuredRun(seconds=8.0, input_bytes=100, output_bytes=10, scratch_bytes=4196, memory_bytes=2**20)
    ]
    assert here.index.runs(str(here.folder), "sized", RunKind("merge", "")) == [
        MeasuredRun(seconds=8.0, input_bytes=10, output_bytes=3, scratch_bytes=13, memory_bytes=2**19)
    ]


def test_a_job_without_run_times_is_forecast_from_earlier_runs_also_after_a_restart(here: Place) -> None:
    here.write(a_raw="A" * 100)
    service = SmallService(here)
    service.submit(SIZED)
    service.succeed("1.1.1", {"a.dat": "a" * 10}, phases=PHASES)
    service.succeed("2.1.1", {"all": "all"}, phases=PHASES)
    service.aftermath.stop()
    here.write(a_raw="B" * 100)
    known = SmallService(here)
    again = known.submit(SIZED).job
    for running in (known, SmallService(here)):
        job = running.engine.state.jobs.by_id[again]
        assert [(each.known, each.mean_seconds) for each in job.run_times.expected(job.plan)] == [("observed", 8.0)] * 2
