"""When the engine forecasts the end of a job, what it says, what becomes of it, and what survives a restart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pilotage.engine.state.clock import Due
from pilotage.engine.transitions.forecast_timers import EVERY_SECONDS, FIRST_SECONDS
from pilotage.model.events.payloads import ForecastMade, ForecastScored
from pilotage.model.exchange.operations import ExpandStage, Hold, Kill, Release, Restart
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import Capacity
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

TWO = site("a", capacity=Capacity(cores_hundredths=200))
ESTIMATED = kind("run", run_seconds=600.0)


def forecasts(small: Small, *, job: str = JOB) -> list[ForecastMade]:
    return [one.data for one in small.book if isinstance(one.data, ForecastMade) and one.event.job == job]


def outcomes(small: Small) -> list[ForecastScored]:
    return [one.data for one in small.book if isinstance(one.data, ForecastScored)]


def started(small: Small, made: JobPlan) -> Agent:
    """A job with a pilot for it."""
    small.submit(made)
    return small.pilot()


def test_the_first_forecast_comes_when_a_job_is_no_longer_short() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(4, ESTIMATED))
        small.wait(FIRST_SECONDS - 1.0, pilot)
        assert forecasts(small) == []
        small.wait(1.0, pilot)
        [made] = forecasts(small)
        # Two waves of ten minutes, of which half a minute is over.
        assert made.median_at - small.now == pytest.approx(1200.0 - FIRST_SECONDS, rel=0.1)
        assert made.low_at < made.median_at < made.high_at
        assert (made.packages, made.basis, made.number) == (4, "document", 1)
        small.finish()


def test_a_short_job_has_neither_forecast_nor_outcome() -> None:
    with Small(TWO) as small:
        started(small, bag(4, ESTIMATED))
        small.finish()
        small.wait(100.0)
    assert forecasts(small) == []
    assert outcomes(small) == []


def test_a_job_of_unknown_run_time_is_forecast_when_a_package_has_finished() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(4))
        small.wait(100.0, pilot)
        assert forecasts(small) == []
        pilot.succeed("1.1.1", after=20.0)
        small.wait(60.0, pilot)
        [made] = forecasts(small)
        assert (made.basis, made.packages) == ("observed", 3)
        assert [(each.activity, each.count) for each in made.run_times] == [("run", 1.0)]
        pilot.heard()
        small.finish()


def test_a_forecast_that_holds_is_not_repeated_and_a_new_one_comes_a_minute_later_at_the_earliest() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(8, ESTIMATED))
        small.wait(400.0, pilot)
        assert len(forecasts(small)) == 1
        pilot.succeed("1.1.1", "1.2.1")
        pilot.heard()
        for package in ("1.3.1", "1.4.1", "1.5.1", "1.6.1"):
            pilot.succeed(package, after=40.0)
            pilot.heard()
        small.wait(60.0, pilot)
        at = [one.event.time for one in small.book if isinstance(one.data, ForecastMade)]
        assert len(at) > 1
        assert all(later - earlier >= EVERY_SECONDS for earlier, later in pairwise(at))
        assert [made.number for made in forecasts(small)] == list(range(1, len(at) + 1))
        small.finish()


def test_the_outcome_is_written_once_when_the_job_is_over() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(2, ESTIMATED))
        small.wait(FIRST_SECONDS, pilot)
        pilot.succeed("1.1.1", after=5.0)
        assert outcomes(small) == []
        pilot.succeed("1.2.1", after=5.0)
        [scored] = outcomes(small)
        assert (scored.outcome, scored.forecasts, scored.ended_at) == ("done", 1, small.now)
        small.wait(200.0, pilot)
        assert len(outcomes(small)) == len(forecasts(small)) == 1


def test_a_job_with_a_failed_package_has_failed() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(1, ESTIMATED))
        small.wait(FIRST_SECONDS, pilot)
        pilot.fail("1.1.1", "application-error")
        while not outcomes(small):
            small.wait(10.0, pilot)
            for package in pilot.packages:
                pilot.fail(package, "application-error")
        pilot.heard()
        assert outcomes(small)[0].outcome == "failed"


def test_a_killed_job_says_nothing_of_its_forecasts() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(4, ESTIMATED))
        small.wait(FIRST_SECONDS, pilot)
        small.ask(Kill(job=JOB))
        assert [scored.outcome for scored in outcomes(small)] == ["cancelled"]
        pilot.unread.clear()
        small.finish()
        assert len(outcomes(small)) == 1


def test_nothing_is_forecast_while_a_job_is_held() -> None:
    with Small(TWO) as small:
        small.submit(bag(4, ESTIMATED))
        small.ask(Hold(job=JOB))
        small.wait(300.0)
        assert forecasts(small) == []
        small.ask(Release(job=JOB))
        small.wait(60.0)
        assert len(forecasts(small)) == 1
        small.finish()


def test_nothing_is_forecast_while_the_packages_of_a_late_stage_are_unknown() -> None:
    late = plan(stage(1, ESTIMATED), None, late={2: ["1.1.1"]})
    with Small(TWO) as small:
        pilot = started(small, late)
        small.wait(90.0, pilot)
        assert forecasts(small) == []
        pilot.succeed("1.1.1")
        small.take(ExpandStage)
        small.grow(grown(late, late=2, lines=2, template=ESTIMATED), late=2)
        small.wait(60.0, pilot)
        assert forecasts(small)[0].packages == 2
        pilot.heard()
        small.finish()


def test_a_package_that_starts_again_after_the_end_has_forecasts_of_its_own() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(1, ESTIMATED))
        small.wait(FIRST_SECONDS, pilot)
        pilot.succeed("1.1.1")
        small.ask(Restart(job=JOB, package="1.1.1"))
        small.wait(EVERY_SECONDS, pilot)
        assert [made.number for made in forecasts(small)] == [1, 1]
        pilot.heard()
        small.finish()
        assert [scored.forecasts for scored in outcomes(small)] == [1, 1]


def test_an_engine_that_starts_again_knows_the_last_forecast_and_the_run_times_behind_it() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(40, kind("run")))
        for _ in range(6):
            pilot.succeed(*pilot.packages, after=7.0)
            pilot.heard()
        small.wait(FIRST_SECONDS, pilot)
        [made] = forecasts(small)
        again = small.restarted().engine
        assert differences(again.durable_state(), small.engine.durable_state()) == []
        known = again.state.jobs.by_id[JOB]
        assert known.forecast == small.engine.state.jobs.by_id[JOB].forecast
        [expected] = known.run_times.expected(known.plan)
        assert expected.known == "observed"
        assert expected.mean_seconds == pytest.approx(7.0)
        small.restart()
        small.wait(EVERY_SECONDS, pilot)
        first, second = (one.event.time for one in small.book if isinstance(one.data, ForecastMade))
        assert second >= first + EVERY_SECONDS
        pilot.unread.clear()
        small.finish()
        assert outcomes(small)[0].forecasts >= made.number


def test_a_stage_that_waits_for_another_is_added_to_it() -> None:
    merged = plan(
        stage(2, ESTIMATED), stage(1, kind("merge", run_seconds=300.0)), edges=[("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]
    )
    with Small(TWO) as small:
        pilot = started(small, merged)
        small.wait(FIRST_SECONDS, pilot)
        [made] = forecasts(small)
        assert made.median_at - small.now == pytest.approx(900.0 - FIRST_SECONDS, rel=0.1)
        small.finish()


def test_attempts_that_fail_are_expected_to_be_repeated() -> None:
    lefts = []
    for failures in (0, 3):
        with Small(TWO) as small:
            pilot = started(small, bag(40, kind("run")))
            for _ in range(6):
                [first, *others] = pilot.packages
                if failures:
                    pilot.fail(first, "preempted", after=10.0)
                    pilot.heard()
                pilot.succeed(*(others if failures else (first, *others)), after=0.0 if failures else 10.0)
                pilot.heard()
            small.wait(FIRST_SECONDS, pilot)
            lefts.append((forecasts(small)[-1].median_at - small.now) / forecasts(small)[-1].packages)
            pilot.unread.clear()
            small.finish()
    # One of two attempts fails, so each package takes two of them.
    assert lefts[1] == pytest.approx(2.0 * lefts[0], rel=0.25)


def test_lines_are_worked_on_together() -> None:
    with Small(TWO) as small:
        pilot = started(small, chain(ESTIMATED, ESTIMATED, lines=4))
        small.wait(FIRST_SECONDS, pilot)
        [made] = forecasts(small)
        assert made.median_at - small.now == pytest.approx(2400.0 - FIRST_SECONDS, rel=0.06)
        small.finish()


def test_another_job_of_the_same_priority_takes_half_of_the_slots() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(8, ESTIMATED))
        small.submit(bag(8, ESTIMATED), job="k", owner="bob")
        small.wait(FIRST_SECONDS, pilot)
        small.wait(EVERY_SECONDS, pilot)
        alone, both = 2400.0, 4800.0
        for job in (JOB, "k"):
            assert alone * 1.2 < forecasts(small, job=job)[-1].median_at - small.now < both * 1.15
        small.finish()


def test_a_timer_of_a_job_that_was_retired_and_came_back_brings_no_forecast_early() -> None:
    with Small(TWO) as small:
        pilot = started(small, bag(8, ESTIMATED))
        small.wait(FIRST_SECONDS, pilot)
        pilot.succeed("1.1.1", "1.2.1")  # news: they were expected to take ten minutes
        pilot.heard()
        small.engine.state.clock.timers.at(small.now + 20.0, Due.FORECAST, JOB)
        small.wait(EVERY_SECONDS - 5.0, pilot)
        assert len(forecasts(small)) == 1
        small.finish()
