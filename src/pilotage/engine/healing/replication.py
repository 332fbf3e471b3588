"""Which packages get another attempt beside a running one, and which attempts are aborted for a better one.

`PaperReplication` is figure 7 of vip-execution-service. `PredictiveReplication` compares when a new copy would end with when the
running one will, given how long it runs already, and asks whether the end of the activity depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pilotage.engine.healing.degrees import blocked_degree, estimated_seconds, performance, seconds_until
from pilotage.engine.healing.phase_times import PhaseSamples

LATE_RATIO = 2 / 3
"""τ: an attempt is late if its coefficient beside the median is above this, at twice the median."""


class Copy(NamedTuple):
    """A live attempt of a package: which phase it told of, since when, and how long it runs."""

    attempt: int
    site: str
    started: bool  # it has a lease; otherwise it is queued
    phase: int | None = None  # the one it told of: only a long phase is told
    before: float = 0.0  # seconds until that phase
    elapsed: float = 0.0  # seconds in that phase; without one, since it began

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self.before + self.elapsed if self.phase is not None else self.elapsed

    @property
    def step(self) -> int:
        """How far it is: its phase; -1 while it is queued."""
        return -1 if not self.started else self.phase or 0

    def estimate(self, medians: Sequence[float]) -> float:
        """Its expected duration (figure 6)."""
        return estimated_seconds(medians, phase=self.phase, before=self.before, elapsed=self.elapsed)


class LatePackage(NamedTuple):
    """A package to look at: its live attempts, and whether one more is queued or wanted already."""

    number: int
    copies: tuple[Copy, ...]
    replica_queued: bool = False


class Surroundings(NamedTuple):
    """What a copy of a package of an activity would meet."""

    latency_seconds: float  # until a copy starts
    rest_seconds: float  # until the other packages of the activity are over


class Treatment(NamedTuple):
    """What is to be done for a package: attempts to abort, and whether to add one; `gain_seconds` orders the packages."""

    number: int
    abort: tuple[int, ...] = ()
    replicate: bool = False
    gain_seconds: float = 0.0
    why: str = ""


class ReplicationPolicy(Protocol):
    """Decides which packages get a copy."""

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """After how many seconds in its phase (without one: since it began) an attempt is to be looked at; infinite: never."""
        ...

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """How much a package is blocked, from 0 to 1."""
        ...

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """What to do for packages whose attempts were to be looked at, the most urgent first."""
        ...


def degree_of(times: PhaseSamples, package: LatePackage) -> float:
    """η_b of one package: its largest coefficient counts (vip-execution-service, eq. 1)."""
    medians, total = times.medians, times.total
    return blocked_degree(performance(copy.estimate(medians), total) for copy in package.copies if copy.started)


class NoReplication:
    """Never replicates."""

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """Never."""
        return math.inf

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """As in the paper, so that it is shown."""
        return degree_of(times, package)

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """Nothing."""
        return []


class PaperReplication:
    """The replication process of figure 7."""

    def __init__(self, threshold: float = LATE_RATIO) -> None:
        """`threshold` is τ."""
        self._threshold = threshold

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """When its coefficient reaches the threshold."""
        return seconds_until(self._threshold, times.medians, phase=phase, before=before)

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """η_b of equation 1."""
        return degree_of(times, package)

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """Figure 7 for each package of which an attempt is late, the latest first."""
        medians, total = times.medians, times.total
        found = []
        for package in packages:
            longest = max((copy.estimate(medians) for copy in package.copies if copy.started), default=0.0)
            if performance(longest, total) > self._threshold:
                found.append(replication_process(package, medians, threshold=self._threshold))
        return sorted((each for each in found if each.abort or each.replicate), key=lambda each: -each.gain_seconds)


def replication_process(package: LatePackage, medians: Sequence[float], *, threshold: float) -> Treatment:
    """The replication process for one package (vip-execution-service, figure 7)."""
    total, replicate = sum(medians), not package.replica_queued
    abort: list[int] = []
    estimates = {copy.attempt: copy.estimate(medians) for copy in package.copies}
    for copy in package.copies:
        mine = estimates[copy.attempt]
        for other in package.copies:
            ahead = other.started and other.step > copy.step
            if ahead and performance(mine, estimates[other.attempt]) > threshold:
                abort.append(copy.attempt)
                break
        if not copy.started or performance(mine, total) <= threshold:
            replicate = False
    longest = max(estimates.values(), default=0.0)
    why = f"expected to take {longest:,.0f} s; the median is {total:,.0f} s"
    return Treatment(package.number, tuple(abort), replicate, longest - total, why)


class PredictiveReplication:
    """Replicates where a copy is expected to end sooner than what runs, and the end of the activity depends on it."""

    margin = 0.2
    """A copy must save this share of its own time: half of all copies take longer than expected."""

    def look_after(self, times: PhaseSamples, *, phase: int | None, before: float) -> float:
        """When the mean time left exceeds that of a copy that starts at once: found by the observations themselves."""
        sample = times.whole if phase is None else times.phases[phase]
        new = (1.0 + self.margin) * self._new(times)
        rest = 0.0 if phase is None else sum(each.mean for each in times.phases[phase + 1 :])
        return sample.first_beyond(max(0.0, new - rest)) if len(sample) and new > 0.0 else math.inf

    def degree(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """η_b of equation 1, or the share of the time left that a copy would save, if that is more."""
        left = self._left(times, package)
        saved = self._gain(times, package, surroundings) / left if left > 0.0 else 0.0
        return max(degree_of(times, package), saved)

    def treatments(
        self, times: PhaseSamples, packages: Sequence[LatePackage], surroundings: Surroundings
    ) -> list[Treatment]:
        """What saves time at the end of the activity, the most first; and attempts that another one has left behind."""
        new = self._new(times)
        found = []
        for package in packages:
            process = replication_process(package, times.medians, threshold=LATE_RATIO)
            gain = self._gain(times, package, surroundings)
            replicate = gain > self.margin * new and not package.replica_queued
            if replicate or process.abort:
                left = self._left(times, package)
                why = f"{left:,.0f} s left, a copy takes {new + surroundings.latency_seconds:,.0f} s"
                found.append(Treatment(package.number, process.abort, replicate, gain, why))
        return sorted(found, key=lambda each: -each.gain_seconds)

    def _gain(self, times: PhaseSamples, package: LatePackage, surroundings: Surroundings) -> float:
        """By how much sooner the activity is over with one more copy."""
        if any(not copy.started for copy in package.copies):
            return 0.0
        copy_seconds = surroundings.latency_seconds + self._new(times)
        return self._left(times, package) - max(copy_seconds, surroundings.rest_seconds)

    def _left(self, times: PhaseSamples, package: LatePackage) -> float:
        """How long the package will take with the attempts that it has."""
        return min((self._left_of(times, copy) for copy in package.copies if copy.started), default=0.0)

    def _left_of(self, times: PhaseSamples, copy: Copy) -> float:
        if copy.phase is None:
            return times.whole.residual(copy.elapsed)
        return times.phases[copy.phase].residual(copy.elapsed) + sum(
            each.mean for each in times.phases[copy.phase + 1 :]
        )

    def _new(self, times: PhaseSamples) -> float:
        """How long a copy takes once it has started: as a usual one, since what delays one attempt is not expected of the next."""
        return times.whole.median
