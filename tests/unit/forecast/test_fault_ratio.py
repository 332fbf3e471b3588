from __future__ import annotations

import numpy as np
import pytest

from pilotage.forecast.fault_ratio import USUAL_HISTORY, FaultHistory, current_fault_ratio

CALM, OUTAGE, LATER = 0.05, 0.6, 0.4
PROBES = 240  # an hour
PILOTS = 50
SEEDS = 50
NOW = 3600.0
TIMES = np.arange(0.0, 1801.0, 10.0)
LATENCIES = np.sort(150.0 + np.random.default_rng(9).lognormal(5.9, 0.9, 1000))
STARTED = np.searchsorted(LATENCIES, TIMES, side="right") / len(LATENCIES)


def forecast_error(fault_ratio: float, *, truth: float, seed: int) -> float:
    """The paper's error of the forecast of available pilots under a fault ratio, over a few runs."""
    drawn = np.random.default_rng(seed)
    errors = []
    for _ in range(5):
        starts = drawn.choice(LATENCIES, PILOTS)
        starts[drawn.random(PILOTS) < truth] = np.inf
        available = np.searchsorted(np.sort(starts), TIMES, side="right")
        errors.append(np.abs(PILOTS * (1 - fault_ratio) * STARTED - available).mean() / PILOTS)
    return float(np.mean(errors))


def estimate(times: np.ndarray, faults: np.ndarray) -> float:
    return current_fault_ratio(known_at_seconds=times, faults=faults, now_seconds=NOW, history=USUAL_HISTORY)


def test_an_outage_of_ten_minutes_in_the_hour_before_is_forgotten() -> None:
    calm, struck, naive = [], [], []
    for seed in range(SEEDS):
        drawn = np.random.default_rng(seed)
        times, chance = np.sort(drawn.uniform(0.0, NOW, PROBES)), drawn.random(PROBES)
        began = drawn.uniform(0.0, NOW - 600.0)
        inside = (times >= began) & (times < began + 600.0)
        faults = chance < np.where(inside, OUTAGE, CALM)
        calm.append(forecast_error(estimate(times, chance < CALM), truth=CALM, seed=1000 + seed))
        struck.append(forecast_error(estimate(times, faults), truth=CALM, seed=1000 + seed))
        naive.append(forecast_error(float(faults.mean()), truth=CALM, seed=1000 + seed))
    assert np.mean(struck) <= 1.3 * np.mean(calm)
    assert np.mean(naive) > 1.3 * np.mean(calm)


def test_a_ratio_that_rises_and_stays_is_followed_within_half_an_hour() -> None:
    followed, oracle, naive = [], [], []
    for seed in range(SEEDS):
        drawn = np.random.default_rng(seed)
        times, chance = np.sort(drawn.uniform(0.0, NOW, PROBES)), drawn.random(PROBES)
        faults = chance < np.where(times >= NOW - 1800.0, LATER, CALM)
        followed.append(forecast_error(estimate(times, faults), truth=LATER, seed=2000 + seed))
        oracle.append(forecast_error(LATER, truth=LATER, seed=2000 + seed))
        naive.append(forecast_error(float(faults.mean()), truth=LATER, seed=2000 + seed))
    assert np.mean(followed) <= 1.3 * np.mean(oracle)
    assert np.mean(naive) > 1.3 * np.mean(oracle)


@pytest.mark.parametrize("probes", [120, 240])
def test_half_an_hour_after_a_change_hardly_more_is_to_be_known_than_the_estimate_says(probes: int) -> None:
    followed, told_when = [], []
    for seed in range(SEEDS):
        drawn = np.random.default_rng(500 + seed)
        times, chance = np.sort(drawn.uniform(0.0, NOW, probes)), drawn.random(probes)
        faults = chance < np.where(times >= NOW - 1800.0, LATER, CALM)
        followed.append(forecast_error(estimate(times, faults), truth=LATER, seed=3000 + seed))
        since = faults[times >= NOW - 1800.0]
        told_when.append(forecast_error((since.sum() + 0.5) / (len(since) + 1.0), truth=LATER, seed=3000 + seed))
    assert np.mean(followed) <= 1.3 * np.mean(told_when)


def test_an_outage_that_still_lasts_is_not_taken_for_a_change_at_once() -> None:
    times = np.arange(0.0, NOW, 15.0)
    struck = times >= NOW - 300.0
    faults = struck & (np.arange(len(times)) % 2 == 0)
    assert estimate(times, faults) < 0.15
    struck = times >= NOW - 1800.0
    assert estimate(times, struck & (np.arange(len(times)) % 2 == 0)) > 0.4


def test_a_steady_ratio_is_its_share_of_faults() -> None:
    times = np.arange(0.0, NOW, 30.0)
    faults = np.arange(len(times)) % 10 == 0
    assert estimate(times, faults) == pytest.approx(0.1, abs=0.03)


def test_only_the_window_counts() -> None:
    times = np.array([*np.full(50, 100.0), *np.linspace(4000.0, 7000.0, 50)])
    faults = np.array([*[True] * 50, *[False] * 50])
    history = FaultHistory(window_seconds=3600.0, outage_seconds=720.0, change_probability=0.03, outage_probability=0.3)
    found = current_fault_ratio(known_at_seconds=times, faults=faults, now_seconds=7000.0, history=history)
    assert found < 0.03


def test_nothing_seen_says_nothing() -> None:
    assert estimate(np.array([]), np.array([], dtype=bool)) == 0.5


def test_many_pilots_are_looked_at_in_pieces() -> None:
    drawn = np.random.default_rng(3)
    times = np.sort(drawn.uniform(0.0, NOW, 20_000))
    assert estimate(times, drawn.random(20_000) < 0.2) == pytest.approx(0.2, abs=0.02)
