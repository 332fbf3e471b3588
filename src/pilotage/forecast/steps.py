"""Step functions of time: exact values, exact areas below them, and the time at which an area is reached."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepFunction:
    """A function of time that is 0 before its first step and never falls; each value holds from its time on.

    Times may repeat; the last value of a time counts. The function is known up to `horizon_seconds`.
    """

    times_seconds: Floats
    values: Floats
    horizon_seconds: float = np.inf
    areas_seconds: Floats = field(init=False)

    def __post_init__(self) -> None:
        areas = np.zeros(len(self.times_seconds))
        np.cumsum(self.values[:-1] * np.diff(self.times_seconds), out=areas[1:])
        object.__setattr__(self, "areas_seconds", areas)

    @property
    def last_value(self) -> float:
        """The value after the last step."""
        return float(self.values[-1])

    def at(self, times_seconds: ArrayLike) -> Floats:
        """Its values at some times."""
        times = np.asarray(times_seconds, dtype=np.float64)
        found = np.searchsorted(self.times_seconds, times, side="right") - 1
        return np.where(found < 0, 0.0, self.values[found])

    def area(self, until_seconds: ArrayLike) -> Floats:
        """The integral from 0 to some times, exactly."""
        until = np.asarray(until_seconds, dtype=np.float64)
        found = np.searchsorted(self.times_seconds, until, side="right") - 1
        inside = self.areas_seconds[found] + self.values[found] * (until - self.times_seconds[found])
        return np.where(found < 0, 0.0, inside)

    def time_of_area(self, areas_seconds: ArrayLike) -> Floats:
        """The first times at which the integral from 0 reaches some areas, exactly; infinite where it never does.

        An area of 0 is reached where the function leaves 0.
        """
        areas = np.asarray(areas_seconds, dtype=np.float64)
        # The last step whose area is not above the one asked for; where steps repeat, the one whose value holds.
        found = np.maximum(np.searchsorted(self.areas_seconds, areas, side="right") - 1, 0)
        values = self.values[found]
        with np.errstate(divide="ignore", invalid="ignore"):
            times = self.times_seconds[found] + (areas - self.areas_seconds[found]) / values
        times = np.where(values > 0.0, times, np.inf)
        return np.where(times <= self.horizon_seconds, times, np.inf)

    def scaled(self, factor: float) -> StepFunction:
        """The function times a factor."""
        return StepFunction(self.times_seconds, self.values * factor, self.horizon_seconds)


def step_sum(functions: list[StepFunction]) -> StepFunction:
    """The sum of step functions, known as far as all of them are."""
    times = np.concatenate([each.times_seconds for each in functions])
    rises = np.concatenate([np.diff(each.values, prepend=0.0) for each in functions])
    order = np.argsort(times, kind="stable")
    return StepFunction(times[order], np.cumsum(rises[order]), min(each.horizon_seconds for each in functions))
