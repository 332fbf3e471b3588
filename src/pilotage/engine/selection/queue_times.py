"""How long attempts and pilots wait in the queues of sites, and from when on that is too long.

queueTimeThrottle = average queue time + c (swift-site-selection, "Some Controlling and Tuning Parameters", 5). The average is
over the latest waits of every site, so it follows what sites do; before there are enough of them it is a quantile of
the waits that were observed earlier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pilotage.engine.selection.settings import SelectionSettings
from pilotage.engine.selection.windows import Window, microseconds


def quantile(observed: Sequence[float], share: float) -> float:
    """The smallest of the observed values that at least this share of them do not exceed."""
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
        """One more wait, into the window of its site."""
        before = window.total, len(window)
        window.push(microseconds(max(0.0, seconds)))
        self._total += window.total - before[0]
        self._count += len(window) - before[1]

    def add(self, window: Window) -> None:
        """A site comes with what is known of it."""
        self._total += window.total
        self._count += len(window)

    def remove(self, window: Window) -> None:
        """A site goes."""
        self._total -= window.total
        self._count -= len(window)

    @property
    def average_seconds(self) -> float | None:
        """Of the latest waits; None where there are none."""
        return self._total / self._count / 1e6 if self._count else None

    @property
    def throttle_seconds(self) -> float:
        """The queueTimeThrottle: who waits longer had better be elsewhere."""
        average = self.average_seconds
        if average is None or self._count < self._settings.queue_time_samples_min:
            return self._first
        return average + self._settings.queue_time_margin_seconds


def median_seconds(window: Window) -> float | None:
    """The median wait at a site; None where nothing is known."""
    return median(each / 1e6 for each in window.numbers()) if len(window) else None


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
