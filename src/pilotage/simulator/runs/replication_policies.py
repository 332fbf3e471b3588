"""Ways to choose packages for a copy that others use, to compare healing with: they are no part of the engine.

Both know only what an agent reports here: finished packages, and when a running attempt entered its phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pilotage.engine.healing.degrees import blocked_degree, performance
from pilotage.engine.healing.phase_times import PhaseSamples
from pilotage.engine.healing.replication import Copy, LatePackage, Surroundings, Treatment


class SlowerThanMean:
    """A copy of each package that runs longer than the mean by a factor, once: Hadoop's speculative execution, in terms of time."""

    def __init__(self, factor: float = 1.5) -> None:
        """Take the factor."""
        self._factor = factor

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """When it has run so much longer than the mean."""
        return max(0.0, self._factor * times.whole.mean - before)

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """How much longer than the mean it runs, as the coefficient of equation 1."""
        return _degree(package, times.whole.mean)

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """A copy of each that has none, the longest first."""
        found = []
        for package in packages:
            spent = _spent(package)
            if _is_alone(package) and spent > self._factor * times.whole.mean:
                why = f"runs for {spent:,.0f} s; the mean is {times.whole.mean:,.0f} s"
                found.append(Treatment(package.number, replicate=True, gain_seconds=spent, why=why))
        return sorted(found, key=lambda each: -each.gain_seconds)


class LongestTimeToEnd:
    """LATE (Zaharia et al., OSDI 2008): of the slowest quarter, copies of those with the longest time left, a few at once.

    Hadoop's tasks report their progress. Here it is the share of the median times of the phases that an attempt has behind it.
    """

    slow_share = 0.25
    """An attempt is slow if its rate of progress is below this quantile of the rates."""
    copies_share = 0.1
    """At most so many copies run at once, as a share of all slots."""

    def __init__(self, *, slots: int) -> None:
        """Take the number of slots at all sites."""
        self._copies_max = max(1, round(self.copies_share * slots))

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """When its rate of progress is low, should it stay in its phase."""
        slow = self._slow_seconds(times)
        if phase is None:
            return slow
        behind = sum(times.medians[: phase + 1])
        return max(0.0, slow * behind / times.total - before) if times.total > 0.0 else math.inf

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """How much longer than the mean it runs, as the coefficient of equation 1."""
        return _degree(package, times.whole.mean)

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """Copies of those with the longest time left, as long as few copies run."""
        slow, left_over = self._slow_seconds(times), self._copies_max
        found = []
        for package in packages:
            if not _is_alone(package):
                left_over -= max(1, len(package.copies) - 1)
                continue
            [copy] = package.copies
            progress = self._progress(times, copy)
            if copy.started and 0.0 < progress < 1.0 and copy.spent > slow * progress:
                left = (1.0 - progress) * copy.spent / progress
                why = f"{left:,.0f} s left at its rate of progress"
                found.append(Treatment(package.number, replicate=True, gain_seconds=left, why=why))
        found.sort(key=lambda each: -each.gain_seconds)
        return found[: max(0, left_over)]

    def _slow_seconds(self, times: PhaseSamples) -> float:
        """Whoever needs more than this at its rate is slow: the quantile of rates is one of times."""
        ordered = times.whole.ordered
        at = math.ceil((1.0 - self.slow_share) * len(ordered)) - 1
        return ordered[max(0, at)] if ordered else math.inf

    def _progress(self, times: PhaseSamples, copy: Copy) -> float:
        medians, total = times.medians, times.total
        if total <= 0.0:
            return 0.0
        if copy.phase is None:
            return min(copy.elapsed, total) / total
        return (sum(medians[: copy.phase]) + min(copy.elapsed, medians[copy.phase])) / total


def _is_alone(package: LatePackage) -> bool:
    return len(package.copies) == 1 and not package.replica_queued


def _spent(package: LatePackage) -> float:
    return max((copy.spent for copy in package.copies if copy.started), default=0.0)


def _degree(package: LatePackage, mean_seconds: float) -> float:
    return blocked_degree([performance(_spent(package), mean_seconds)])
