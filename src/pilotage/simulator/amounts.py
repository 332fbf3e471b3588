"""The distributions that a world for users may name, each drawn by one number, so that a seed gives the same to everybody."""

from __future__ import annotations

import math
from typing import Literal, overload

from pilotage.model.site_world import Factors, Times
from pilotage.simulator.randomness import Distribution, Exponential, Fixed, LogNormal, OfOneNumber, Uniform

_MEAN_OVER = 200  # quantiles, where a mean is needed and no formula is at hand


class Weibull(OfOneNumber, frozen=True, kw_only=True, tag="weibull"):
    """How long things last that wear out, or that settle: lives of nodes."""

    scale: float
    shape: float

    def at(self, number: float) -> float:
        """The amount that a number stands for."""
        return float(self.scale * (-math.log(1.0 - number)) ** (1.0 / self.shape))


class Empirical(OfOneNumber, frozen=True, tag="empirical"):
    """What was seen, in order of size, each as likely as the others."""

    values: tuple[float, ...]

    def at(self, number: float) -> float:
        """The amount that a number stands for."""
        return self.values[int(number * len(self.values))]


class _Even:
    """The numbers (k + ½) / n in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def random(self) -> float:
        number = (self._next + 0.5) / self._count
        self._next += 1
        return number


def mean_of(distribution: Distribution) -> float:
    """About the mean: over evenly spaced quantiles, without the farthest tails."""
    numbers = _Even(_MEAN_OVER)
    return math.fsum(distribution.draw(numbers) for _ in range(_MEAN_OVER)) / _MEAN_OVER


@overload
def distribution_of(spread: Times | Factors) -> Distribution: ...
@overload
def distribution_of(spread: None) -> None: ...
def distribution_of(spread: Times | Factors | None) -> Distribution | None:
    """What a distribution in a file draws."""
    if spread is None:
        return None

    def given(name: Literal["value", "low", "high", "mean", "median", "scale"]) -> float:
        return float(getattr(spread, f"{name}_seconds" if isinstance(spread, Times) else name) or 0.0)

    match spread.distribution:
        case "fixed":
            return Fixed(given("value"))
        case "uniform":
            return Uniform(low=given("low"), high=given("high"))
        case "exponential":
            return Exponential(given("mean"))
        case "log-normal":
            return LogNormal(median=given("median"), sigma=spread.sigma or 0.0)
        case "weibull":
            return Weibull(scale=given("scale"), shape=spread.shape or 1.0)
        case "empirical":
            return Empirical(tuple(sorted(spread.values)))
