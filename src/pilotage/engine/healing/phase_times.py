"""Times of the phases of finished packages, by activity: what the estimates of running ones are made from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping

from pilotage.model.events.payloads import PhaseTimes

PHASES = ("setup", "inputs", "application", "outputs")
PHASE_NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(PHASES)}

SAMPLES_MAX = 256
"""As many of the latest packages count."""
_THINNED = 4  # once there are that many, one of so many packages counts


class Sample:
    """The latest observations of a time, in order of size."""

    __slots__ = ("_latest", "ordered", "total")

    def __init__(self) -> None:
        """Start with none."""
        self.ordered: list[float] = []
        self.total = 0.0
        self._latest: deque[float] = deque()

    def __len__(self) -> int:
        return len(self.ordered)

    def add(self, seconds: float) -> None:
        """Add one; the oldest goes if there are too many."""
        insort(self.ordered, seconds)
        self._latest.append(seconds)
        self.total += seconds
        if len(self._latest) > SAMPLES_MAX:
            oldest = self._latest.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.total -= oldest

    @property
    def median(self) -> float:
        """The middle one, or the mean of both; 0 without any."""
        ordered, half = self.ordered, len(self.ordered) // 2
        if not ordered:
            return 0.0
        return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])

    @property
    def mean(self) -> float:
        """The mean; 0 without any."""
        return max(0.0, self.total) / len(self.ordered) if self.ordered else 0.0

    def residual(self, seconds: float) -> float:
        """How much longer something is expected to take that has taken so long already.

        It is the mean excess of the observations that took longer. With fewer than two of them, what is known says nothing:
        then it takes as long again as it has taken (a Pareto tail of exponent 2, as of stalled transfers).
        """
        longer = self.ordered[bisect_right(self.ordered, seconds) :]
        if len(longer) < 2:
            return seconds if self.ordered else 0.0
        return sum(longer) / len(longer) - seconds

    def first_beyond(self, left: float) -> float:
        """The first observation of the longer half after which more than `left` seconds are expected to follow.

        After the longest one it takes as long again as it has taken: then it is that, or `left`.
        """
        ordered, longer, found = self.ordered, 0.0, -1
        for count, at in enumerate(range(len(ordered) - 1, len(ordered) // 2 - 1, -1)):
            if count >= 2 and longer / count - ordered[at] > left:
                found = at
            longer += ordered[at]
        if found >= 0:
            return ordered[found]
        return max(ordered[-1], left) if ordered else 0.0


class PhaseSamples:
    """The times of each phase of the finished packages of one activity."""

    __slots__ = ("_recorded", "application", "count", "phases", "whole")

    def __init__(self) -> None:
        """Start with none."""
        self.count = 0  # packages, also those that no longer count
        self.phases = tuple(Sample() for _ in PHASES)
        self.application = self.phases[2]
        self.whole = Sample()  # of all phases together
        self._recorded: tuple[float, ...] | None = None  # medians, from an earlier engine

    def add(self, phases: Iterable[PhaseTimes]) -> None:
        """Add a finished package; a phase that it does not report took no time."""
        self.count += 1
        if self.count > SAMPLES_MAX and self.count % _THINNED:
            return
        seconds = [0.0, 0.0, 0.0, 0.0]
        for each in phases:
            number = PHASE_NUMBERS.get(each.phase)
            if number is not None:
                seconds[number] += each.seconds
        for sample, each_seconds in zip(self.phases, seconds, strict=True):
            sample.add(each_seconds)
        self.whole.add(sum(seconds))

    @property
    def medians(self) -> tuple[float, ...]:
        """The median of each phase."""
        if self._recorded is not None and len(self.whole) < self.count // 2:
            return self._recorded
        return tuple(sample.median for sample in self.phases)

    @property
    def total(self) -> float:
        """The sum of the medians: the t̃ of equation 1."""
        return sum(self.medians)

    def named_medians(self) -> list[tuple[str, float]]:
        """The median of each phase, by name."""
        return list(zip(PHASES, self.medians, strict=True))

    def restore(self, count: int, medians: Mapping[str, float]) -> None:
        """Start from the medians that an earlier engine recorded: they hold until half of the packages are newer."""
        self.count = count
        self._recorded = tuple(medians.get(phase, 0.0) for phase in PHASES)
