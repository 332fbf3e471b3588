"""Whether anything of a job can still move, and who is told what to do where nothing can."""

from __future__ import annotations

from pilotage.model.effects import SubmitPilot
from pilotage.model.operations import Hold, Kill
from pilotage.model.reports import SiteSeen
from pilotage.service.running.standstill import Stand, stand_of
from tests.small_engine import JOB, Small
from tests.small_plans import bag, plan, site, stage


def stand(small: Small) -> Stand:
    return stand_of(small.core.engine, JOB)


def test_a_job_that_runs_is_not_stuck_and_the_slots_are_counted() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot()
        assert (stand(small).stuck, stand(small).slots) == ("", 1)
        pilot.succeed("1.1.1")
        pilot.succeed("1.2.1")
        assert stand(small).stuck == ""


def test_a_held_job_says_how_it_goes_on() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        small.ask(Hold(job=JOB))
        assert (stand(small).stuck, stand(small).next_step) == ("the job is held", f"pilotage release {JOB}")
        small.take(SubmitPilot)


def test_a_held_package_that_everything_waits_for_is_named() -> None:
    with Small(site()) as small:
        small.submit(plan(stage(), stage(), edges=[("1.1.1", "2.1.1")]))
        small.ask(Hold(job=JOB, package="1.1.1"))
        found = stand(small)
        assert found.stuck == "1.1.1 is held, and everything else waits for that"
        assert found.next_step == f"pilotage release {JOB}/1.1.1"
        small.take(SubmitPilot)


def test_a_job_that_is_over_or_unknown_is_not_stuck() -> None:
    with Small(site()) as small:
        assert stand(small) == Stand()
        small.submit(bag(1))
        small.ask(Kill(job=JOB))
        assert stand(small).stuck == ""
        small.take(SubmitPilot)


def test_a_site_that_is_silent_is_trouble_and_no_standstill() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.step(SiteSeen(site="a", answers=False))
        found = stand(small)
        assert (found.stuck, found.trouble) == ("", "site a does not answer")
        small.take(SubmitPilot)


def test_without_a_site_nothing_can_move() -> None:
    with Small() as small:
        small.submit(bag(3))
        found = stand(small)
        assert found.stuck == "no site can run 3 packages, 1.1.1 first, (there is no site)"
        assert found.next_step


def test_what_can_only_be_tried_later_is_named_with_its_failure() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", "disk-full")
        assert stand(small).trouble == ""  # it is tried again at once
        pilot.exchange()
        pilot.fail("1.1.1", "disk-full")
        found = stand(small)
        assert "1.1.1 is tried later: attempt 2: disk-full at a" in found.trouble
        assert not found.is_of_pilots
        small.take(SubmitPilot)
