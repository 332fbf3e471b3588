"""Run times where the longest packages still run: no shorter than all of them together will show."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from pilotage.forecast.run_time import with_running


def estimated(totals: list[float], *, now: float) -> tuple[float, float, float]:
    """The mean of the finished ones alone, and mean and standard deviation with the running ones."""
    done = [each for each in totals if each <= now]
    mean = sum(done) / len(done)
    sd = float(np.std(done))
    found = with_running(
        observed=float(len(done)),
        mean_seconds=mean,
        sd_seconds=sd,
        elapsed_seconds=np.full(len(totals) - len(done), now),
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
    mean, sd = with_running(observed=50.0, mean_seconds=100.0, sd_seconds=20.0, elapsed_seconds=np.full(10, 1.0))
    assert mean == pytest.approx(100.0, rel=0.01)
    assert sd == pytest.approx(20.0, rel=0.05)


def test_equal_packages_that_are_nearly_over_are_not_taken_for_longer() -> None:
    mean, _ = with_running(observed=5.0, mean_seconds=100.0, sd_seconds=0.0, elapsed_seconds=np.full(5, 90.0))
    assert mean == pytest.approx(100.0, rel=0.02)


def test_a_package_far_beyond_all_others_counts_with_what_it_has_run() -> None:
    mean, sd = with_running(observed=9.0, mean_seconds=10.0, sd_seconds=1.0, elapsed_seconds=np.array([1e6]))
    assert mean >= 1e5
    assert math.isfinite(sd)
