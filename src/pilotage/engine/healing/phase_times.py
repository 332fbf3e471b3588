"""Times of the phases of finished packages, by activity: what the estimates of running ones are made from."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from pilotage.model.events.payloads import PhaseTimes

PHASES = ("setup", "inputs", "application", "outputs")
PHASE_NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(PHASES)}
_APPLICATION = PHASE_NUMBERS["application"]

SAMPLES_MAX = 256
"""As many of the latest packages count."""


class Sample:
    """Observations of a time, in order of size."""

    __slots__ = ("mean", "ordered")

    def __init__(self, seconds: Iterable[float] = ()) -> None:
        """Take the observations, in any order."""
        self.ordered = sorted(seconds)
        self.mean = sum(self.ordered) / len(self.ordered) if self.ordered else 0.0

    def __len__(self) -> int:
        return len(self.ordered)

    @property
    def median(self) -> float:
        """The middle one, or the mean of both; 0 without any."""
        ordered, half = self.ordered, len(self.ordered) // 2
        if not ordered:
            return 0.0
        return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])

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
    """The times of each phase of the latest finished packages of one activity.

    Packages are noted as they are: most finish between two looks at their times.
    """

    __slots__ = ("_latest", "_medians", "_phases", "_recorded", "_seen", "_whole", "count")

    def __init__(self) -> None:
        """Start with none."""
        self.count = 0  # packages, also those that no longer count
        self._latest: deque[Sequence[PhaseTimes]] = deque(maxlen=SAMPLES_MAX)
        self._seen = 0  # the count at the last look
        self._phases = tuple(Sample() for _ in PHASES)
        self._whole = Sample()
        self._medians = (0.0,) * len(PHASES)
        self._recorded: tuple[float, ...] | None = None  # medians, from an earlier engine

    def add(self, phases: Sequence[PhaseTimes]) -> None:
        """Add a finished package; a phase that it does not report took no time."""
        self.count += 1
        self._latest.append(phases)

    def add_all(self, packages: Sequence[Sequence[PhaseTimes]]) -> None:
        """Add finished packages."""
        self.count += len(packages)
        self._latest.extend(packages)

    @property
    def phases(self) -> tuple[Sample, ...]:
        """The times of each phase."""
        self._look()
        return self._phases

    @property
    def whole(self) -> Sample:
        """The times of all phases together."""
        self._look()
        return self._whole

    @property
    def medians(self) -> tuple[float, ...]:
        """The median of each phase."""
        if self._recorded is not None and len(self._latest) < self.count // 2:
            return self._recorded
        self._look()
        return self._medians

    @property
    def total(self) -> float:
        """The sum of the medians: the t̃ of equation 1."""
        return sum(self.medians)

    @property
    def efficiency(self) -> float:
        """The share of the time in which applications ran; 1 while nothing is known."""
        whole = sum(self.whole.ordered)
        return sum(self.phases[_APPLICATION].ordered) / whole if whole > 0.0 else 1.0

    def named_medians(self) -> list[tuple[str, float]]:
        """The median of each phase, by name."""
        return list(zip(PHASES, self.medians, strict=True))

    def restore(self, count: int, medians: Mapping[str, float]) -> None:
        """Start from the medians that an earlier engine recorded: they hold until half of the packages are newer."""
        self.count = count
        self._recorded = tuple(medians.get(phase, 0.0) for phase in PHASES)

    def _look(self) -> None:
        if self._seen == self.count:
            return
        self._seen = self.count
        columns: list[list[float]] = [[] for _ in PHASES]
        whole = []
        for phases in self._latest:
            seconds = [0.0] * len(PHASES)
            for each in phases:
                if (number := PHASE_NUMBERS.get(each.phase)) is not None:
                    seconds[number] += each.seconds
            for column, each_seconds in zip(columns, seconds, strict=True):
                column.append(each_seconds)
            whole.append(sum(seconds))
        self._phases, self._whole = tuple(map(Sample, columns)), Sample(whole)
        self._medians = tuple(sample.median for sample in self._phases)
