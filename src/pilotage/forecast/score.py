"""How good forecasts of the ends of jobs were: errors of medians, and how often intervals held the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL = NormalDist()
_Z_BOUND = _NORMAL.inv_cdf(0.95)  # low and high are the quantiles at 5 % and 95 %
NOMINAL = tuple(each / 100.0 for each in range(5, 100, 5))
"""Coverages at which calibration is looked at."""


@dataclass(frozen=True)
class PastForecast:
    """A forecast of the end of a job, as times, and the real end."""

    made_at: float
    median_at: float
    low_at: float
    high_at: float
    ended_at: float

    @property
    def left_seconds(self) -> float:
        """How long the job really took from then on."""
        return max(self.ended_at - self.made_at, 1e-3)

    @property
    def error(self) -> float:
        """How far the median was from the end, by the time that was left; positive: the job ended sooner than forecast."""
        return (self.median_at - self.ended_at) / self.left_seconds

    @property
    def inside(self) -> bool:
        """Whether the interval held the end."""
        return self.low_at <= self.ended_at <= self.high_at

    @property
    def place(self) -> float:
        """The probability that the forecast gave to an earlier end, from 0 to 1.

        Between and beyond the recorded quantiles the logarithm of the time left counts as normal, on either side of the median.
        """
        real, median = math.log(self.left_seconds), math.log(max(self.median_at - self.made_at, 1e-3))
        bound = self.high_at if real >= median else self.low_at
        width = abs(math.log(max(bound - self.made_at, 1e-3)) - median)
        return _NORMAL.cdf(_Z_BOUND * (real - median) / max(width, 1e-9))


@dataclass(frozen=True)
class Score:
    """How good some forecasts were."""

    forecasts: int
    mean_absolute_error: float
    bias: float
    inside: float


def score_of(forecasts: Sequence[PastForecast]) -> Score | None:
    """The score of some forecasts; None of none."""
    count = len(forecasts)
    if not count:
        return None
    errors = [each.error for each in forecasts]
    return Score(
        forecasts=count,
        mean_absolute_error=math.fsum(map(abs, errors)) / count,
        bias=math.fsum(errors) / count,
        inside=sum(each.inside for each in forecasts) / count,
    )


def calibration(forecasts: Sequence[PastForecast]) -> list[tuple[float, float]]:
    """For central intervals of each nominal coverage, the share that held the end."""
    distances = [abs(2.0 * each.place - 1.0) for each in forecasts]
    count = max(len(distances), 1)
    return [(nominal, sum(distance <= nominal for distance in distances) / count) for nominal in NOMINAL]
