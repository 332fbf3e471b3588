"""Times of phases: exact medians of the latest packages, and how long something still takes that has taken so long."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.healing.phase_times import SAMPLES_MAX, PhaseSamples, Sample
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.states import Phase

TIMES = st.lists(st.floats(0.0, 1e5, allow_subnormal=False), max_size=SAMPLES_MAX)


def sample(*seconds: float) -> Sample:
    return Sample(seconds)


def phases(**seconds: float) -> tuple[PhaseTimes, ...]:
    names: dict[str, Phase] = {"setup": "setup", "inputs": "inputs", "application": "application", "outputs": "outputs"}
    return tuple(PhaseTimes(phase=names[name], started_at=0.0, seconds=each) for name, each in seconds.items())


@given(TIMES)
def test_the_median_and_mean_are_those_of_the_observations(times: list[float]) -> None:
    found = sample(*times)
    assert found.ordered == sorted(times)
    assert found.median == pytest.approx(statistics.median(times) if times else 0.0)
    assert found.mean == pytest.approx(statistics.fmean(times) if times else 0.0, abs=1e-5)


def test_the_latest_packages_count() -> None:
    samples = PhaseSamples()
    for number in range(3 * SAMPLES_MAX):
        samples.add(phases(application=float(number)))
    assert samples.whole.ordered == [float(each) for each in range(2 * SAMPLES_MAX, 3 * SAMPLES_MAX)]
    assert samples.count == 3 * SAMPLES_MAX


@given(TIMES, st.floats(0.0, 1e5))
def test_what_took_longer_tells_how_long_it_still_takes(times: list[float], seconds: float) -> None:
    longer = [each for each in times if each > seconds]
    expected = statistics.fmean(longer) - seconds if len(longer) > 1 else seconds if times else 0.0
    assert sample(*times).residual(seconds) == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.floats(0.1, 1e4), min_size=4, max_size=60), st.floats(0.0, 1e4))
def test_the_first_long_observation_after_which_much_follows_is_the_first(times: list[float], left: float) -> None:
    found = sample(*times)
    ordered = found.ordered
    candidates = [
        each
        for at, each in enumerate(ordered)
        if at >= len(ordered) // 2
        and len(ordered) - at - 1 >= 2
        and statistics.fmean(ordered[at + 1 :]) - each > left * (1 + 1e-9)
    ]
    beyond = max(ordered[-1], left)
    assert found.first_beyond(left) <= (candidates[0] if candidates else beyond)
    assert found.first_beyond(left) in (*ordered, beyond)


def test_a_phase_that_a_package_does_not_report_took_no_time() -> None:
    samples = PhaseSamples()
    samples.add(phases(inputs=3.0, application=10.0))
    samples.add(phases(application=20.0))
    samples.add(phases(application=30.0, outputs=9.0))
    assert samples.medians == (0.0, 0.0, 20.0, 0.0)
    assert samples.total == 20.0
    assert samples.whole.ordered == [13.0, 20.0, 39.0]


def test_recorded_medians_hold_until_half_of_the_packages_are_newer() -> None:
    samples = PhaseSamples()
    samples.restore(4, {"application": 100.0})
    assert samples.medians == (0.0, 0.0, 100.0, 0.0)
    for _ in range(3):
        samples.add(phases(application=10.0))
    assert samples.medians == (0.0, 0.0, 10.0, 0.0)
    assert samples.count == 7


def test_an_activity_without_application_time_is_wholly_inefficient_and_one_that_has_not_run_not_at_all() -> None:
    samples = PhaseSamples()
    assert samples.efficiency == 1.0
    samples.add(phases(inputs=10.0))
    assert samples.efficiency == 0.0
    samples.add(phases(application=30.0))
    assert samples.efficiency == 0.75
