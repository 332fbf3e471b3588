"""Clocks are set, forward and back: nobody is given up for it, and time goes on."""

from __future__ import annotations

import pytest

from pilotage.engine.state.clock import SteadyTime
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import SubmitPilot
from tests.kit.small_engine import START, Small
from tests.kit.small_plans import bag, site

YEARS = 10 * 365 * 86_400.0
LEASE = 60.0


def jumped() -> Small:
    """A service with a package under way whose clock was ten years ahead for one step."""
    small = Small(site())
    small.submit(bag(1))
    pilot = small.pilot()
    small.step(pilot.message(), after=5.0)
    small.now += YEARS
    small.step()
    small.now -= YEARS
    small.step(after=1.0)
    return small


def test_nobody_is_suspected_because_the_clock_was_set() -> None:
    small = jumped()
    assert small.told(payloads.AttemptSuspected, "1.1.1") == []
    assert small.engine.state.pilots.by_name


def test_leases_end_as_before_after_the_clock_was_set_forward_and_back() -> None:
    small = jumped()
    small.wait(4 * LEASE)
    assert small.told(payloads.AttemptSuspected, "1.1.1")
    assert small.told(payloads.AttemptLost, "1.1.1")
    small.take(SubmitPilot)


def test_events_have_the_time_that_the_clock_shows() -> None:
    small = jumped()
    small.wait(LEASE)
    [suspected] = small.told(payloads.AttemptSuspected, "1.1.1")
    assert START < suspected.time < START + 2 * LEASE
    assert small.wake_at is not None
    assert small.wake_at < START + YEARS / 2


def test_a_lease_ends_also_when_the_clock_is_set_back_for_good() -> None:
    small = Small(site())
    small.submit(bag(1))
    small.pilot()
    small.now -= 500.0
    small.step()
    small.wait(LEASE + 1.0)
    assert small.told(payloads.AttemptSuspected, "1.1.1")


@pytest.mark.parametrize("clock", [[10.0, 11.0, 11.0, 15.5], [10.0, 40.0, 70.0]])
def test_as_long_as_nobody_sets_the_clock_its_time_is_exact(clock: list[float]) -> None:
    time = SteadyTime(0.1, late_seconds=20.0)
    for each in clock:
        time.advance(each)
        assert (time.now, time.stamp) == (each, each)
        assert time.wake_at(each + 30.0) == each + 30.0


def test_a_small_correction_does_not_show_and_a_large_one_does() -> None:
    time = SteadyTime(100.0, late_seconds=20.0)
    time.advance(90.0)
    assert (time.now, time.stamp) == (100.0, 100.0)
    time.advance(95.0)
    assert (time.now, time.stamp) == (105.0, 100.0)
    time.advance(20.0)
    assert (time.now, time.stamp) == (105.0, 20.0)


def test_who_sleeps_too_long_has_not_lived_through_it() -> None:
    time = SteadyTime(100.0, late_seconds=20.0)
    time.wake_at(110.0)
    time.advance(5000.0)
    assert (time.now, time.stamp) == (130.0, 5000.0)
    assert time.wake_at(140.0) == 5010.0


def test_a_clock_that_is_set_before_the_first_step_does_not_end_the_leases_of_an_earlier_service() -> None:
    time = SteadyTime(100.0, late_seconds=20.0)
    time.advance(5000.0)
    assert (time.now, time.stamp) == (120.0, 5000.0)


@pytest.mark.parametrize("back_by", [number / 7 for number in range(1, 50)])
def test_who_is_woken_at_the_time_it_asked_for_is_not_too_early_by_what_a_sum_is_rounded_by(back_by: float) -> None:
    time = SteadyTime(START, late_seconds=20.0)
    time.advance(START - back_by)  # the clock was set back
    for wanted in (time.now + after / 3 for after in range(1, 50)):
        told = time.wake_at(wanted)
        assert told is not None
        time.advance(told)
        assert time.now >= wanted
