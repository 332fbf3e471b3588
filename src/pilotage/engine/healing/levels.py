"""Levels of incidents: the thresholds between them follow from the history of degrees, by one-dimensional clustering."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEFAULT_THRESHOLDS = (0.3, 0.6, 0.8)
"""The thresholds while fewer than `FITTED_MIN` degrees are known."""
FITTED_MIN = 50
DEGREES_MAX = 512
"""As many of the latest degrees count."""
LEVELS_MAX = 5
LOWEST_THRESHOLD = 0.1
"""A lower degree never needs a treatment, however quiet the history was."""
_EXPLAINED = 0.9  # of the variance, by the clusters: no further one is made then
_REFIT_GROWTH = 1.25  # the thresholds are fitted again once there are so many times as many degrees
_DURATIONS_MAX = 128  # the latest durations of incidents that are kept
_CLUSTERED_DECIMALS = 3  # of degrees: those that differ by less are one value for the clustering


def thresholds_of(degrees: Sequence[float]) -> tuple[float, ...]:
    """The thresholds between 2 to 5 clusters of degrees: the fewest that explain nine tenths of their variance.

    The clusters are those with the least sum of squares, found exactly: in one dimension they are neighbours in order.
    """
    ordered = np.sort(np.asarray(degrees, np.float64))
    values, counts = np.unique(np.round(ordered, _CLUSTERED_DECIMALS), return_counts=True)
    if len(values) < 2:
        return DEFAULT_THRESHOLDS
    costs = _Costs(values, counts.astype(np.float64))
    whole = costs.of(0, len(values))
    best = [costs.of(0, end) for end in range(len(values) + 1)]
    cuts: list[list[int]] = []
    found: tuple[float, ...] = ()
    for _ in range(2, min(LEVELS_MAX, len(values)) + 1):
        best, cut = _with_one_more(best, costs, len(values))
        cuts.append(cut)
        found = _thresholds(values, cuts)
        if best[-1] <= (1.0 - _EXPLAINED) * whole:
            break
    return tuple(max(each, LOWEST_THRESHOLD) for each in found)


class _Costs:
    """The sum of squares around the mean of any neighbours in order."""

    def __init__(self, values: Floats, counts: Floats) -> None:
        self._counts = np.concatenate(([0.0], np.cumsum(counts)))
        self._sums = np.concatenate(([0.0], np.cumsum(counts * values)))
        self._squares = np.concatenate(([0.0], np.cumsum(counts * values * values)))

    def of(self, start: int, end: int) -> float:
        """Of the values from `start` to before `end`."""
        return float(self.from_each(np.array([start], np.int64), end)[0])

    def from_each(self, starts: NDArray[np.int64], end: int) -> Floats:
        """The same for several starts."""
        count = self._counts[end] - self._counts[starts]
        total = self._sums[end] - self._sums[starts]
        squares = self._squares[end] - self._squares[starts]
        found: Floats = np.maximum(squares - total * total / np.maximum(count, 1.0), 0.0)
        return found


def _with_one_more(best: list[float], costs: _Costs, count: int) -> tuple[list[float], list[int]]:
    """The least cost of the first values with one more cluster, and where the last cluster begins."""
    before = np.array(best)
    found, cut = [math.inf] * (count + 1), [0] * (count + 1)
    for end in range(1, count + 1):
        starts = np.arange(end, dtype=np.int64)
        each = before[starts] + costs.from_each(starts, end)
        at = int(np.argmin(each))
        found[end], cut[end] = float(each[at]), at
    return found, cut


def _thresholds(values: Floats, cuts: list[list[int]]) -> tuple[float, ...]:
    """Halfway between neighbouring clusters."""
    end, found = len(values), []
    for cut in reversed(cuts):
        end = cut[end]
        if end <= 0:
            break
        found.append(round(0.5 * float(values[end - 1] + values[end]), 6))
    return tuple(sorted(found))


class Learned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The history of one kind of incident, as stored."""

    degrees: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()


class DegreeHistory:
    """The degrees and durations of one kind of incident, and the thresholds between its levels."""

    __slots__ = ("_fitted", "_known", "degrees", "durations", "thresholds")

    def __init__(self, degrees: Iterable[float] = (), durations: Iterable[float] = ()) -> None:
        """Start with what is known."""
        self.degrees: deque[float] = deque(degrees, maxlen=DEGREES_MAX)
        self.durations: deque[float] = deque(durations, maxlen=_DURATIONS_MAX)
        self.thresholds: tuple[float, ...] = DEFAULT_THRESHOLDS
        self._known = len(self.degrees)  # degrees ever added
        self._fitted = 0  # how many there were at the last fit
        self._fit()

    def add(self, degree: float) -> None:
        """Add a degree; the thresholds are fitted again when there are a quarter more."""
        self.degrees.append(round(degree, 4))
        self._known += 1
        self._fit()

    def ended(self, seconds: float) -> None:
        """An incident of this kind is over."""
        self.durations.append(round(seconds, 3))

    def level(self, degree: float) -> int:
        """The level of a degree: 1 needs no treatment."""
        return 1 + bisect_right(self.thresholds, degree)

    def learned(self) -> Learned:
        """What is known, for the book."""
        return Learned(degrees=tuple(self.degrees), seconds=tuple(self.durations))

    def _fit(self) -> None:
        if self._known >= FITTED_MIN and self._known >= _REFIT_GROWTH * self._fitted:
            self._fitted = self._known
            self.thresholds = thresholds_of(self.degrees)
