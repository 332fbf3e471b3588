"""Run times when some packages still run: the first to finish are the shortest, so those alone would promise too much."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from pilotage.forecast.steps import Floats

_ROUNDS = 5
_RUNNING_MAX = 12  # packages that stand for all that run
_SPREAD_MIN = 0.01


def with_running(
    *, observed: float, mean_seconds: float, sd_seconds: float, elapsed_seconds: Floats
) -> tuple[float, float]:
    """Mean and standard deviation of log-normal run times, of finished packages and of some that run for so long already.

    Each running package counts with its expected run time, given that it is longer than it has been so far; that depends on the
    result, and is repeated until it hardly changes (expectation maximisation).
    """
    weight = 1.0
    if len(elapsed_seconds) > _RUNNING_MAX:
        parts = np.linspace(0, len(elapsed_seconds) - 1, _RUNNING_MAX).astype(np.int64)
        weight = len(elapsed_seconds) / _RUNNING_MAX
        elapsed_seconds = np.sort(elapsed_seconds)[parts]
    squares = observed * (mean_seconds**2 + sd_seconds**2)
    seconds, count = observed * mean_seconds, observed + weight * len(elapsed_seconds)
    mean, sd = mean_seconds, sd_seconds
    elapsed = np.log(np.maximum(elapsed_seconds, 1e-9))
    for _ in range(_ROUNDS):
        sigma = math.sqrt(math.log1p(max(sd / mean, _SPREAD_MIN) ** 2))
        begun = (elapsed - math.log(mean) + 0.5 * sigma**2) / sigma
        left = np.maximum(cdf(-begun), 1e-12)
        # Moments of a log-normal variable above a bound; far beyond the distribution it is the bound itself.
        first = np.maximum(mean * np.minimum(cdf(sigma - begun) / left, 1e6), elapsed_seconds)
        second = np.maximum(mean**2 * math.exp(sigma**2) * cdf(2.0 * sigma - begun) / left, first**2)
        far = begun > 3.5
        first = np.where(far, elapsed_seconds, first)
        second = np.where(far, elapsed_seconds**2, second)
        mean = (seconds + weight * float(first.sum())) / count
        sd = math.sqrt(max((squares + weight * float(second.sum())) / count - mean**2, 0.0))
    return mean, sd


# The normal distribution of whole arrays, from a table: good to a thousandth, and quick.

_GRID = np.linspace(-4.0, 4.0, 801)
_CHANCES = np.array([NormalDist().cdf(float(each)) for each in _GRID])


def cdf(at: Floats) -> Floats:
    """The probability of a smaller value."""
    found: Floats = np.interp(at, _GRID, _CHANCES)
    return found


def inverse_cdf(chances: Floats) -> Floats:
    """The value that is not exceeded with a probability; at most 4."""
    found: Floats = np.interp(chances, _CHANCES, _GRID)
    return found
