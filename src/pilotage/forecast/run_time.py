"""What a package takes: by the size of its inputs, from measured runs; and its run time, when some packages still run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pilotage.forecast.steps import Floats

_ROUNDS = 5
_RUNNING_MAX = 12  # packages that stand for all that run
_SPREAD_MIN = 0.01

RUNS_MIN = 8
"""Fewer measured runs than this say nothing about the influence of sizes."""
RUNS_MAX = 256
"""The latest runs; every pair of them is compared."""
_DEVIATIONS = 2.0  # by which the order of values agrees with that of sizes, or it may be chance


@dataclass(frozen=True)
class SizeEstimate:
    """What a package takes: a line in the size of its inputs, but never less than was measured; or the same for any size."""

    usual: float  # seconds, or bytes, where the size does not matter, or is not known
    runs: int  # that it follows from
    base: float = 0.0
    per_byte: float = 0.0
    least: float = 0.0

    @property
    def by_size(self) -> bool:
        """Whether sizes matter."""
        return self.per_byte > 0.0

    def at(self, sizes_bytes: Floats) -> Floats:
        """The estimates for packages with inputs of these sizes; NaN is a size that is not known."""
        if not self.by_size:
            return np.full(len(sizes_bytes), self.usual)
        line = np.maximum(self.base + self.per_byte * sizes_bytes, self.least)
        return np.where(np.isnan(sizes_bytes), self.usual, line)


def size_estimate(sizes_bytes: Floats, values: Floats, *, covered: float | None = None) -> SizeEstimate:
    """The estimate from measured runs, the latest last; some sizes may be NaN, which means that they are not known.

    With `RUNS_MIN` known sizes, and if larger inputs take more by more than chance (Kendall's rank correlation, with its variance
    for ties), it is the line of Theil and Sen: the median of the slopes of all pairs of runs, which runs that are far off hardly
    move. Otherwise it is the mean. If a share is to be `covered`, the line, or the value, is raised until that share of the runs is below.
    """
    sizes_bytes, values = sizes_bytes[-RUNS_MAX:], values[-RUNS_MAX:]
    known = np.isfinite(sizes_bytes)
    per_byte = _slope(sizes_bytes[known], values[known]) if int(known.sum()) >= RUNS_MIN else 0.0
    usual = float(values.mean()) if covered is None else _quantile(values, covered)
    if not per_byte:
        return SizeEstimate(usual, len(values))
    rest = values[known] - per_byte * sizes_bytes[known]
    base = float(np.median(rest)) if covered is None else _quantile(rest, covered)
    return SizeEstimate(usual, int(known.sum()), base, per_byte, float(values.min()))


def _slope(sizes: Floats, values: Floats) -> float:
    """The median slope of all pairs, in the unit of values for each byte; 0 where values do not grow with sizes, or it may be chance."""
    first, second = np.triu_indices(len(sizes), 1)
    wider, more = sizes[second] - sizes[first], values[second] - values[first]
    agreeing = float((np.sign(wider) * np.sign(more)).sum())
    # One pair is taken off, since the number of agreeing pairs is whole and the normal distribution is not.
    if agreeing - 1.0 <= _DEVIATIONS * math.sqrt(_agreement_variance(sizes, values)):
        return 0.0
    apart = wider != 0.0
    return max(float(np.median(more[apart] / wider[apart])), 0.0)


def _agreement_variance(sizes: Floats, values: Floats) -> float:
    """The variance of Kendall's S for independent values, some of them equal (Kendall, Rank correlation methods, ch. 4)."""
    n = float(len(sizes))
    ties = [np.unique(each, return_counts=True)[1].astype(np.float64) for each in (sizes, values)]
    pairs = [float((t * (t - 1.0)).sum()) for t in ties]
    triples = [float((t * (t - 1.0) * (t - 2.0)).sum()) for t in ties]
    whole = n * (n - 1.0) * (2.0 * n + 5.0) - sum(float((t * (t - 1.0) * (2.0 * t + 5.0)).sum()) for t in ties)
    found = (
        whole / 18.0
        + pairs[0] * pairs[1] / (2.0 * n * (n - 1.0))
        + triples[0] * triples[1] / (9.0 * n * (n - 1.0) * (n - 2.0))
    )
    return max(found, 0.0)  # of equal sizes it is 0, but for rounding


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share, method="higher"))


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
