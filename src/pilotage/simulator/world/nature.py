"""What running an attempt does: how long it takes, what it needs and how it ends, fixed by the seed and its name alone.

A package has the same work and the same need of memory wherever it runs, so that trying it again means something; what
chance adds comes from the attempt and the site. When it runs, and beside what, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.simulator.world.randomness import (
    AnyDistribution,
    Fixed,
    Keyed,
    LogNormal,
    OfOneNumber,
    Uniform,
    number_of,
)

DEADLY = "pilot-killed"
"""The reason of an attempt that takes its agent along, so that nobody is left to tell of it."""


class Fate(msgspec.Struct, frozen=True, gc=False):
    """What comes of an attempt that nobody disturbs."""

    inputs_seconds: float
    application_seconds: float  # on a host of speed 1
    outputs_seconds: float
    memory_bytes: int
    reason: str = ""  # why it fails, if it does
    fails_after: float = 1.0  # the share of the application's time after which it fails
    exit_status: int = 1


class Nature(Protocol):
    """Knows the fate of every attempt and the speed of every node."""

    def fate(self, ref: AttemptRef, site: str) -> Fate:
        """What comes of an attempt at a site."""
        ...

    def speed(self, node: str, site: str) -> float:
        """How fast a node of a site is; 1 is what work is measured by."""
        ...


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """What the packages of a world are like."""

    application_seconds: AnyDistribution = LogNormal(median=60.0, sigma=0.5)
    memory_bytes: AnyDistribution = Fixed(0.0)
    inputs_seconds: AnyDistribution = Fixed(0.0)
    outputs_seconds: AnyDistribution = Fixed(0.0)
    doomed: float = 0.0  # the share of packages that fail wherever they run, always in the same way


class SiteHabits(msgspec.Struct, frozen=True, kw_only=True):
    """What a site does to attempts."""

    speed: AnyDistribution = Fixed(1.0)
    failures: dict[str, float] = {}  # reason → probability that an attempt fails for it
    straggler: float = 0.0  # the probability that an attempt takes far longer
    straggler_factor: AnyDistribution = Uniform(low=3.0, high=20.0)


_USUAL = SiteHabits()
_SHARE = 0.7  # of the attempts of a package that loops, or kills, do


class SeededNature:
    """A nature made of distributions."""

    def __init__(
        self, seed: int, habits: Habits, sites: Mapping[str, SiteHabits], *, loops: float = 0.0, kills: float = 0.0
    ) -> None:
        """Take the seed, what packages are like, and what each site does; an unnamed site does no harm.

        `loops` and `kills` are the shares of packages that make no progress, and that take their agent along.
        """
        self._seed = str(seed)
        self._habits = habits
        self._sites = dict(sites)
        self._loops = loops
        self._kills = kills
        # Where nothing but the work varies, nothing else is drawn.
        inputs, outputs, memory = habits.inputs_seconds, habits.outputs_seconds, habits.memory_bytes
        self._steady: tuple[OfOneNumber, float, float, int] | None = None
        work = None if habits.doomed or loops or kills else habits.application_seconds
        if (
            isinstance(work, OfOneNumber)
            and isinstance(inputs, Fixed)
            and isinstance(outputs, Fixed)
            and isinstance(memory, Fixed)
        ):
            self._steady = work, inputs.value, outputs.value, int(memory.value)

    def fate(self, ref: AttemptRef, site: str) -> Fate:
        """What comes of an attempt at a site."""
        package = f"{self._seed}/{ref.job}/{ref.package}"
        if self._steady is not None and site not in self._sites:
            work, inputs_seconds, outputs_seconds, memory_bytes = self._steady
            return Fate(inputs_seconds, work.at(number_of(package)), outputs_seconds, memory_bytes)
        habits = self._habits
        numbers = Keyed(package)
        work_seconds = habits.application_seconds.draw(numbers)
        memory_bytes = int(habits.memory_bytes.draw(numbers))
        doomed = habits.doomed > 0.0 and numbers.random() < habits.doomed
        doom = 2 + int(numbers.random() * 5) if doomed else 0
        known = self._sites.get(site, _USUAL)
        numbers = Keyed(f"{package}/{ref.attempt}/{site}")
        if known.straggler > 0.0 and numbers.random() < known.straggler:
            work_seconds *= known.straggler_factor.draw(numbers)
        inputs_seconds = habits.inputs_seconds.draw(numbers)
        outputs_seconds = habits.outputs_seconds.draw(numbers)
        if doomed:
            return Fate(inputs_seconds, work_seconds, outputs_seconds, memory_bytes, "application-error", 0.5, doom)
        if (self._loops or self._kills) and (bad := self._bad_habit(package, ref.attempt)):
            return Fate(inputs_seconds, work_seconds, outputs_seconds, memory_bytes, bad)
        if known.failures:
            left = numbers.random()
            for reason, probability in known.failures.items():
                left -= probability
                if left < 0.0:
                    share, status = numbers.random(), 1 + int(numbers.random() * 3)
                    return Fate(inputs_seconds, work_seconds, outputs_seconds, memory_bytes, reason, share, status)
        return Fate(inputs_seconds, work_seconds, outputs_seconds, memory_bytes)

    def _bad_habit(self, package: str, attempt: int) -> str:
        """Why an attempt of a package fails that would fail most of the time; empty where there is nothing to it."""
        drawn = Keyed(f"{package}/habit").random()
        if drawn >= self._loops + self._kills or Keyed(f"{package}/{attempt}/habit").random() >= _SHARE:
            return ""
        return "looping" if drawn < self._loops else DEADLY

    def speed(self, node: str, site: str) -> float:
        """How fast a node of a site is."""
        return self._sites.get(site, _USUAL).speed.draw(Keyed(f"{self._seed}/node/{node}"))
