from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pilotage.forecast.available import (
    binomial,
    expected_available,
    poisson_binomial,
    probability_at_least,
    probability_available,
    sd_available,
    tail,
)
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.steps import StepFunction, step_sum
from pilotage.model.errors import PilotageError

FAULT = np.inf


def test_the_distribution_is_the_step_function_of_the_latencies_and_ends_below_1_by_the_faults() -> None:
    latency = empirical_latency([300.0, 100.0, FAULT, 100.0])
    assert latency.at([0.0, 99.9, 100.0, 299.9, 300.0, 1e9]).tolist() == [0.0, 0.0, 0.5, 0.5, 0.75, 0.75]
    assert latency.fault_ratio == pytest.approx(0.25)
    assert latency.lower_bound_seconds == 100.0
    assert latency.observations == 4


def test_latencies_that_are_all_faults_are_refused() -> None:
    with pytest.raises(PilotageError, match="none of 2 pilots started"):
        empirical_latency([FAULT, FAULT])


def test_the_area_below_steps_is_exact_and_found_again() -> None:
    steps = StepFunction(np.array([10.0, 10.0, 30.0]), np.array([0.25, 0.5, 1.0]))
    assert steps.area([0.0, 10.0, 20.0, 30.0, 40.0]).tolist() == [0.0, 0.0, 5.0, 10.0, 20.0]
    assert steps.time_of_area([0.0, 5.0, 10.0, 20.0]).tolist() == [10.0, 20.0, 30.0, 40.0]


def test_an_area_beyond_the_horizon_is_never_reached() -> None:
    steps = StepFunction(np.array([0.0]), np.array([1.0]), horizon_seconds=10.0)
    assert steps.time_of_area([10.0, 10.1]).tolist() == [10.0, np.inf]


def test_steps_add_up() -> None:
    one = StepFunction(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    other = StepFunction(np.array([2.0]), np.array([0.5]), horizon_seconds=9.0)
    both = step_sum([one, other])
    assert both.at([0.0, 1.0, 2.0, 3.0]).tolist() == [0.0, 1.0, 1.5, 2.5]
    assert both.horizon_seconds == 9.0


def test_available_pilots_are_binomial() -> None:
    latency = empirical_latency([*np.arange(100.0, 400.0), *[FAULT] * 20])
    for at in (50.0, 100.0, 250.0, 1000.0):
        ratio = float(latency.at(at))
        oracle = stats.binom(150, ratio)
        assert expected_available(latency, pilots=150, at_seconds=at) == pytest.approx(oracle.mean())
        assert sd_available(latency, pilots=150, at_seconds=at) == pytest.approx(oracle.std(), abs=1e-12)
        found = probability_available(latency, pilots=150, at_seconds=at)
        assert np.allclose(found, oracle.pmf(np.arange(151)), atol=1e-12)
        for count in (0, 1, 75, 140, 150, 151):
            at_least = probability_at_least(latency, pilots=150, at_least=count, at_seconds=[at])[0]
            assert at_least == pytest.approx(oracle.sf(count - 1), abs=1e-12)


def test_a_binomial_of_many_pilots_keeps_its_tails() -> None:
    found = binomial(100_000, 0.3)
    oracle = stats.binom(100_000, 0.3)
    assert tail(found, at_least=30_500) == pytest.approx(oracle.sf(30_499), rel=1e-8)
    assert tail(found, at_least=29_500) == pytest.approx(oracle.sf(29_499), rel=1e-8)


def test_pilots_that_differ_give_a_poisson_binomial() -> None:
    chances = np.random.default_rng(1).random(700)
    oracle = stats.poisson_binom(chances)
    assert np.allclose(poisson_binomial(chances), oracle.pmf(np.arange(701)), atol=1e-12)
    assert poisson_binomial([]).tolist() == [1.0]
