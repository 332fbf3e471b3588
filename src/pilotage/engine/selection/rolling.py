"""Rolling windows over the latest numbers and their sum, in whole numbers so that an old value leaves no rounding error."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from pilotage.model.settings.engine import SelectionSettings

WINDOW = 32
"""Size of a window: enough for a rate, small enough to be recorded with a site."""


def microseconds(seconds: float) -> int:
    """A time as a whole number of microseconds; sums of these are exact."""
    return round(seconds * 1e6)


class Window:
    """The latest numbers, oldest first."""

    __slots__ = ("_numbers", "total")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """Start with these numbers."""
        self._numbers: deque[int] = deque(numbers, maxlen=WINDOW)
        self.total = sum(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def push(self, number: int) -> int | None:
        """Add a number; returns the one it displaced."""
        gone = self._numbers[0] if len(self._numbers) == WINDOW else None
        self._numbers.append(number)
        self.total += number - (gone or 0)
        return gone

    def numbers(self) -> tuple[int, ...]:
        """All of them, oldest first."""
        return tuple(self._numbers)


# Queue times of attempts and pilots, and the limit above which they are too long.
#
# queueTimeThrottle = average queue time + c (swift-site-selection, "Some Controlling and Tuning Parameters", 5).
# The average is over the latest waits of every site, so it follows the sites; before there are enough of them it is a
# quantile of the waits observed earlier.


def quantile(observed: Sequence[float], share: float) -> float:
    """The smallest observed value that at least this share of them does not exceed."""
    ordered = sorted(observed)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class QueueTimes:
    """The latest waits of all sites together."""

    __slots__ = ("_count", "_first", "_settings", "_total")

    def __init__(self, settings: SelectionSettings, observed: Sequence[float] = ()) -> None:
        """`observed` are queue times of earlier runs, in seconds."""
        self._settings = settings
        self._first = settings.queue_time_first_seconds
        if observed:
            self._first = quantile(observed, settings.queue_time_quantile)
        self._total = 0
        self._count = 0

    def observe(self, window: Window, seconds: float) -> None:
        """Add a wait to the window of its site."""
        before = window.total, len(window)
        window.push(microseconds(max(0.0, seconds)))
        self._total += window.total - before[0]
        self._count += len(window) - before[1]

    def add(self, window: Window) -> None:
        """Add a site with its known waits."""
        self._total += window.total
        self._count += len(window)

    def remove(self, window: Window) -> None:
        """Remove a site."""
        self._total -= window.total
        self._count -= len(window)

    @property
    def average_seconds(self) -> float | None:
        """Average of the latest waits; None without any."""
        return self._total / self._count / 1e6 if self._count else None

    @property
    def throttle_seconds(self) -> float:
        """The queueTimeThrottle: a longer wait counts against a site."""
        average = self.average_seconds
        if average is None or self._count < self._settings.queue_time_samples_min:
            return self._first
        return average + self._settings.queue_time_margin_seconds


def median_seconds(window: Window) -> float | None:
    """The median wait at a site; None without any."""
    return median(each / 1e6 for each in window.numbers()) if len(window) else None


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
