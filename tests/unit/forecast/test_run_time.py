"""What a package takes by the size of its inputs; and run times where the longest packages still run."""

from __future__ import annotations

import math
from random import Random
from statistics import pstdev

import numpy as np
import pytest

from pilotage.forecast.run_time import RUNS_MAX, RUNS_MIN, expected_rest, size_estimate, with_running


def estimated(totals: list[float], *, now: float) -> tuple[float, float, float]:
    """The mean of the finished ones alone, and mean and standard deviation with the running ones."""
    done = [each for each in totals if each <= now]
    mean = sum(done) / len(done)
    sd = pstdev(done)
    found = with_running(
        observed=float(len(done)),
        mean_seconds=mean,
        sd_seconds=sd,
        elapsed_seconds=[now] * (len(totals) - len(done)),
    )
    return mean, *found


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.0])
def test_the_running_packages_correct_the_mean_of_the_shortest(sigma: float) -> None:
    random = Random(1)
    totals = [100.0 * random.lognormvariate(0.0, sigma) for _ in range(2000)]
    real = sum(totals) / len(totals)
    naive, mean, _ = estimated(totals, now=100.0)  # half of them are done
    assert abs(mean - real) < 0.5 * abs(naive - real)


def test_packages_that_have_just_begun_say_little() -> None:
    mean, sd = with_running(observed=50.0, mean_seconds=100.0, sd_seconds=20.0, elapsed_seconds=[1.0] * 10)
    assert mean == pytest.approx(100.0, rel=0.01)
    assert sd == pytest.approx(20.0, rel=0.05)


def test_equal_packages_that_are_nearly_over_are_not_taken_for_longer() -> None:
    mean, _ = with_running(observed=5.0, mean_seconds=100.0, sd_seconds=0.0, elapsed_seconds=[90.0] * 5)
    assert mean == pytest.approx(100.0, rel=0.02)


def test_a_package_far_beyond_all_others_counts_with_what_it_has_run() -> None:
    mean, sd = with_running(observed=9.0, mean_seconds=10.0, sd_seconds=1.0, elapsed_seconds=[1e6])
    assert mean >= 1e5
    assert math.isfinite(sd)


@pytest.mark.parametrize("now", [40.0, 60.0])
def test_where_most_packages_still_run_the_mean_is_not_far_from_what_all_will_show(now: float) -> None:
    random = Random(2)
    totals = [100.0 * random.lognormvariate(0.0, 0.6) for _ in range(2000)]
    assert sum(each <= now for each in totals) < 0.25 * len(totals)
    _, mean, _ = estimated(totals, now=now)
    assert mean == pytest.approx(sum(totals) / len(totals), rel=0.1)


@pytest.mark.parametrize("elapsed", [0.0, 50.0, 120.0, 300.0])
def test_the_rest_of_a_running_package_is_that_of_longer_ones(elapsed: float) -> None:
    random = Random(3)
    sigma = math.sqrt(math.log1p(0.5**2))
    totals = [100.0 * random.lognormvariate(-0.5 * sigma**2, sigma) for _ in range(200_000)]
    longer = [each - elapsed for each in totals if each > elapsed]
    found = expected_rest(mean_seconds=100.0, spread=0.5, elapsed_seconds=elapsed)
    assert found == pytest.approx(sum(longer) / len(longer), rel=0.05)


def test_a_package_far_beyond_all_others_has_a_rest_of_its_own() -> None:
    near, far = (expected_rest(mean_seconds=100.0, spread=0.1, elapsed_seconds=elapsed) for elapsed in (140.0, 145.0))
    assert 0.5 * near < far < 2.0 * near


MIB = 1024.0**2


def test_larger_inputs_take_longer_where_measured_runs_say_so() -> None:
    sizes = np.arange(1.0, RUNS_MIN + 1.0) * MIB
    found = size_estimate(sizes, 5.0 + 2.0 * sizes / MIB)
    assert found.by_size
    assert found.at(np.array([100.0 * MIB])) == pytest.approx(205.0)
    assert found.at(np.array([np.nan])) == pytest.approx(14.0), "of an unknown size, the mean"


def test_a_run_on_a_broken_disk_hardly_moves_the_line() -> None:
    sizes = np.arange(1.0, 13.0) * MIB
    values = 5.0 + 2.0 * sizes / MIB
    values[3] = 10_000.0
    assert size_estimate(sizes, values).at(np.array([12.0 * MIB])) == pytest.approx(29.0, rel=0.1)


def test_few_runs_and_runs_that_do_not_grow_with_their_inputs_have_a_mean() -> None:
    sizes = np.arange(1.0, RUNS_MIN) * MIB
    few = size_estimate(sizes, sizes / MIB)
    assert (few.by_size, few.usual, few.runs) == (False, 4.0, RUNS_MIN - 1)
    alike = size_estimate(np.full(20, MIB), np.arange(20.0))
    assert (alike.by_size, alike.usual) == (False, 9.5)
    shrinking = size_estimate(np.arange(20.0), np.arange(20.0)[::-1])
    assert not shrinking.by_size


def test_equal_sizes_say_nothing_whatever_values_are_equal_too() -> None:
    for count in range(RUNS_MIN, 40):
        for different in range(1, 8):
            found = size_estimate(np.full(count, MIB), (np.arange(count) % different).astype(np.float64))
            assert not found.by_size


def test_chance_is_seldom_taken_for_an_influence_of_sizes() -> None:
    random = np.random.default_rng(1)
    found = [size_estimate(random.random(RUNS_MIN), random.random(RUNS_MIN)).by_size for _ in range(1000)]
    assert sum(found) < 35


def test_an_estimate_below_everything_measured_is_not_believed() -> None:
    sizes = np.arange(10.0, 30.0) * MIB
    found = size_estimate(sizes, sizes / MIB - 9.0)
    assert found.at(np.array([0.0])) == pytest.approx(1.0)


def test_memory_covers_a_share_of_the_runs() -> None:
    sizes = np.tile(np.arange(1.0, 11.0), 10)
    values = 100.0 + 10.0 * sizes + np.repeat(np.arange(10.0), 10)
    found = size_estimate(sizes, values, covered=0.95)
    assert (values <= found.at(sizes) + 1e-9).mean() >= 0.95
    assert size_estimate(np.full(100, np.nan), np.arange(100.0), covered=0.95).usual == 95.0


def test_the_latest_runs_count() -> None:
    values = np.concatenate([np.full(RUNS_MAX, 1.0), np.full(RUNS_MAX, 3.0)])
    assert size_estimate(np.full(2 * RUNS_MAX, np.nan), values).usual == 3.0
