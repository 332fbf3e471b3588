from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from pilotage.forecast.censoring import kaplan_meier
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.sequential import sequential_submission
from pilotage.model.errors import PilotageError

FAULT, QUEUED = np.inf, np.nan


def test_without_censoring_it_is_the_empirical_distribution() -> None:
    latencies = np.array([300.0, 100.0, FAULT, 100.0, 250.0])
    found = kaplan_meier(latencies_seconds=latencies, censored_at_seconds=np.full(5, np.nan))
    times = [0.0, 100.0, 260.0, 1e9]
    assert found.latency.at(times) == pytest.approx(empirical_latency(latencies).at(times))
    assert found.latency.fault_ratio == pytest.approx(0.2)
    assert found.censored == 0


def test_it_is_the_estimate_of_an_independent_implementation() -> None:
    drawn = np.random.default_rng(6)
    latencies = np.round(drawn.exponential(300.0, 200))
    censored = np.round(drawn.exponential(400.0, 200))
    queued = latencies > censored
    found = kaplan_meier(
        latencies_seconds=np.where(queued, QUEUED, latencies), censored_at_seconds=np.where(queued, censored, np.nan)
    )
    oracle = stats.ecdf(stats.CensoredData.right_censored(np.minimum(latencies, censored), queued))
    times = np.sort(latencies[~queued])
    assert found.latency.at(times) == pytest.approx(oracle.cdf.evaluate(times))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # beyond the last start there is no interval
        interval = oracle.sf.confidence_interval(0.95, method="linear")
    at = float(np.median(times))
    width = float(interval.high.evaluate(at) - interval.low.evaluate(at))
    assert 2 * 1.959964 * found.sd_at(at) == pytest.approx(width, rel=1e-5)
    assert found.sd_at(-1.0) == 0.0


def test_pilots_that_are_still_queued_correct_the_bias_towards_quick_ones() -> None:
    drawn = np.random.default_rng(7)
    latencies = drawn.exponential(600.0, 2000)
    queued = latencies > 900.0
    seen = np.where(queued, QUEUED, latencies)
    found = kaplan_meier(latencies_seconds=seen, censored_at_seconds=np.where(queued, 900.0, np.nan))
    assert found.latency.at(600.0) == pytest.approx(1 - np.exp(-1), abs=0.03)
    assert empirical_latency(latencies[~queued]).at(600.0) > 0.8
    assert found.censored == int(queued.sum())


def test_a_fault_stays_at_risk_to_the_end() -> None:
    found = kaplan_meier(
        latencies_seconds=[100.0, FAULT, QUEUED, 300.0], censored_at_seconds=[np.nan, np.nan, 200.0, np.nan]
    )
    assert found.latency.at([100.0, 300.0]) == pytest.approx([0.25, 0.625])
    assert found.latency.fault_ratio == pytest.approx(0.375)


def test_nothing_but_queued_pilots_is_refused() -> None:
    with pytest.raises(PilotageError, match="none of 2 pilots started"):
        kaplan_meier(latencies_seconds=[QUEUED, FAULT], censored_at_seconds=[50.0, np.nan])


def test_the_rest_after_the_submission_is_censored_too() -> None:
    found = sequential_submission(
        latencies_seconds=[110.0, QUEUED, 310.0],
        submissions_seconds=[10.0, 10.0, 10.0],
        censored_at_seconds=[np.nan, 210.0, np.nan],
    )
    assert found.rest.started.times_seconds.tolist() == [100.0, 300.0]
    assert found.rest.at([100.0, 300.0]) == pytest.approx([1 / 3, 1.0])
