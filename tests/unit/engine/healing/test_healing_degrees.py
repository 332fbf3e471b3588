"""Degrees of incidents: equation 1 and figure 6 of the paper, and the limits of the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.healing.degrees import (
    blocked_degree,
    estimated_seconds,
    failing,
    performance,
    seconds_until,
    unavailable,
    unfairness,
)

SECONDS = st.floats(0.0, 1e6)


def test_the_estimate_of_figure_6() -> None:
    # Setup took 42 s and inputs 300 s; the application runs for 20 s of a median of 400 s; outputs usually take 15 s.
    assert (
        estimated_seconds((1.0, 2.0, 400.0, 15.0), phase=2, before=342.0, elapsed=20.0) == 42 + 300 + max(20, 400) + 15
    )


def test_an_attempt_that_told_of_no_phase_takes_the_median_or_as_long_as_it_has_taken() -> None:
    medians = (5.0, 10.0, 80.0, 5.0)
    assert estimated_seconds(medians, phase=None, before=0.0, elapsed=30.0) == 100.0
    assert estimated_seconds(medians, phase=None, before=0.0, elapsed=130.0) == 130.0


@pytest.mark.parametrize(
    "seconds, other, coefficient",
    [(0.0, 0.0, 0.5), (10.0, 10.0, 0.5), (20.0, 10.0, 2 / 3), (0.0, 10.0, 0.0), (10.0, 0.0, 1.0)],
)
def test_the_coefficient_compares_a_time_with_another(seconds: float, other: float, coefficient: float) -> None:
    assert performance(seconds, other) == pytest.approx(coefficient)


@given(st.lists(st.floats(0.0, 1.0), max_size=20))
def test_the_degree_of_a_blocked_activity_is_that_of_its_slowest_package(coefficients: list[float]) -> None:
    found = blocked_degree(coefficients)
    assert 0.0 <= found <= 1.0
    assert found == max(0.0, 2.0 * max(coefficients, default=0.5) - 1.0)


@given(
    st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), st.sampled_from([None, 0, 1, 2, 3]), SECONDS, st.floats(0.5, 0.95)
)
def test_an_attempt_reaches_a_coefficient_after_the_time_that_is_foretold(
    medians: tuple[float, float, float, float], phase: int | None, before: float, coefficient: float
) -> None:
    total = sum(medians)
    if total < 1e-3:
        return
    before = before if phase is not None else 0.0
    after = seconds_until(coefficient, medians, phase=phase, before=before)
    later = estimated_seconds(medians, phase=phase, before=before, elapsed=after * (1 + 1e-6) + 1e-6)
    assert performance(later, total) >= coefficient - 1e-6
    if phase is None or after > medians[phase]:
        sooner = estimated_seconds(medians, phase=phase, before=before, elapsed=after * (1 - 1e-6) - 1e-6)
        assert performance(sooner, total) <= coefficient + 1e-6


def test_failures_count_that_no_retry_has_cured() -> None:
    assert failing(uncured=0, ends=0) == 0.0
    assert failing(uncured=5, ends=20) == 0.25


def test_one_failed_transfer_is_no_incident_and_many_are_a_certain_one() -> None:
    assert [unavailable(each) for each in (0, 1, 2, 3)] == [0.0, 0.0, 0.5, 0.75]
    assert unavailable(60) == pytest.approx(1.0)


def test_sharing_is_fair_if_all_are_slowed_down_alike() -> None:
    assert unfairness([]) == unfairness([7.0]) == unfairness([3.0, 3.0]) == 0.0
    assert unfairness([1.0, 4.0]) == 0.75
    assert math.isclose(unfairness([0.0, 4.0]), 1.0)
