"""What a package takes: by the size of its inputs, from measured runs; and its run time, when some packages still run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pilotage.forecast.steps import Floats

LIMIT = 4
"""Standard deviations that no package is expected to be off by."""
OVERDUE_SHARE = 0.3
"""Of the time that a package runs beyond that limit: so long it is expected to run yet, since something holds it up."""
_ROUNDS_MAX = 8
_PRECISION = 0.01  # of the mean
_RUNNING_MAX = 6  # that are looked at one by one
_PART_MIN = 2  # of the longest, where there are more
_SPREAD_MIN, _SIGMA_MAX = 0.01, 1.5
_FAR = 3.5  # standard deviations beyond which a tail is approximated
_PER_SIGMA = math.sqrt(0.5)
_DENSITY = math.sqrt(2.0 / math.pi)  # of a normal variable at 0, for two tails

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
    *, observed: float, mean_seconds: float, sd_seconds: float, elapsed_seconds: Sequence[float], each: float = 1.0
) -> tuple[float, float]:
    """Mean and standard deviation of log-normal run times, of finished packages and of some that run for so long already.

    Each time stands for `each` running packages. Those that run are known to be longer than they have been so far (censored): the likeliest distribution is found by Newton's steps
    in 1 / sigma and mu / sigma, in which the logarithm of the likelihood is concave (Olsen 1978).
    """
    known = math.log1p(max(sd_seconds / mean_seconds, _SPREAD_MIN) ** 2)
    middle = math.log(mean_seconds) - 0.5 * known  # of finished packages; all logarithms are from here
    running = [(math.log(max(time, 1e-9)) - middle, each * weight) for time, weight in _parts(elapsed_seconds)]
    place, scale = 0.0, 1.0 / math.sqrt(known)  # mu / sigma and 1 / sigma
    least = (observed * mean_seconds + each * math.fsum(elapsed_seconds)) / (observed + each * len(elapsed_seconds))
    mean = mean_seconds
    for _ in range(_ROUNDS_MAX):
        by_place, by_scale = -observed * place, observed / scale - observed * scale * known
        twice_place, both, twice_scale = -observed, 0.0, -observed / (scale * scale) - observed * known
        for log, weight in running:
            at = scale * log - place
            rate = _hazard(at)
            change = weight * rate * (rate - at)
            rate *= weight
            by_place += rate
            by_scale -= rate * log
            twice_place -= change
            both += change * log
            twice_scale -= change * log * log
        area = twice_place * twice_scale - both * both
        place -= (by_place * twice_scale - by_scale * both) / area
        scale = max(scale - (by_scale * twice_place - by_place * both) / area, 0.3 * scale, 1.0 / _SIGMA_MAX)
        before, mean = mean, math.exp(middle + place / scale + 0.5 / (scale * scale))
        if abs(mean - before) < _PRECISION * mean:
            break
    return max(mean, least), mean * math.sqrt(math.expm1(1.0 / (scale * scale)))


def _hazard(at: float) -> float:
    """Density of a normal variable by the probability of a larger value."""
    if at > _FAR:
        return at + 1.0 / (at + 2.0 / at)
    return _DENSITY * math.exp(-0.5 * at * at) / math.erfc(at * _PER_SIGMA)


def expected_rest(*, mean_seconds: float, spread: float, elapsed_seconds: float) -> float:
    """How long a package takes yet that runs for so long already; run times are log-normal, `spread` is their deviation by the mean."""
    variance = math.log1p(max(spread, _SPREAD_MIN) ** 2)
    sigma = math.sqrt(variance)
    begun = math.log(max(elapsed_seconds, 1e-9) / mean_seconds) / sigma + 0.5 * sigma
    if begun > _FAR:  # the tail falls about so fast there
        overdue = elapsed_seconds - mean_seconds * math.exp(LIMIT * sigma)
        return max(sigma * elapsed_seconds / begun, OVERDUE_SHARE * overdue)
    left = math.erfc(begun * _PER_SIGMA)
    return max(mean_seconds * math.erfc((begun - sigma) * _PER_SIGMA) / left - elapsed_seconds, 0.0)


def _parts(elapsed_seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Some times that stand for all, and for how many: the longest say most, so the parts grow from the longest on."""
    ordered = sorted(elapsed_seconds, reverse=True)
    if len(ordered) <= _RUNNING_MAX:
        return [(each, 1.0) for each in ordered]
    found = []
    first, last = 0, _PART_MIN
    while first < len(ordered):
        part = ordered[first:last]
        found.append((sum(part) / len(part), float(len(part))))
        first, last = last, 2 * last
    return found


# The normal distribution of whole arrays, from tables: good to some thousandths, and quick.

_PER_UNIT = 128
_GRID = np.arange(-LIMIT * _PER_UNIT, LIMIT * _PER_UNIT + 1) / _PER_UNIT
_CHANCES = np.array([NormalDist().cdf(float(each)) for each in _GRID])
_PARTS = 1 << 14
_VALUES = np.interp((np.arange(_PARTS) + 0.5) / _PARTS, _CHANCES, _GRID)


def cdf(at: Floats) -> Floats:
    """The probability of a smaller value."""
    found: Floats = _CHANCES.take((at * _PER_UNIT + (LIMIT * _PER_UNIT + 0.5)).astype(np.intp), mode="clip")
    return found


def inverse_cdf(chances: Floats) -> Floats:
    """The value that is not exceeded with a probability between 0 and 1, both excluded; at most 4."""
    found: Floats = _VALUES.take((chances * _PARTS).astype(np.intp), mode="clip")
    return found
