"""The outcome of an attempt: its duration, memory and end, determined by the seed and its name alone.

A package has the same work and memory at every site, so that a retry makes sense; the attempt and the site add a random part.
When it runs, and beside what, changes nothing.
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
"""The reason of an attempt that kills its agent, so that its end is not reported."""


class AttemptOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an undisturbed attempt."""

    inputs_seconds: float
    application_seconds: float  # on a host of speed 1
    outputs_seconds: float
    memory_bytes: int
    reason: str = ""  # why it fails, if it does
    fails_after: float = 1.0  # the share of the application's time after which it fails
    exit_status: int = 1
    setup_seconds: float = 0.0


class Behaviour(Protocol):
    """Knows the outcome of every attempt and the speed of every node."""

    def outcome(self, ref: AttemptRef, site: str) -> AttemptOutcome:
        """The outcome of an attempt at a site."""
        ...

    def speed(self, node: str, site: str) -> float:
        """The speed of a node of a site; run times are for speed 1."""
        ...


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """The distributions of the packages of a world."""

    application_seconds: AnyDistribution = LogNormal(median=60.0, sigma=0.5)
    memory_bytes: AnyDistribution = Fixed(0.0)
    inputs_seconds: AnyDistribution = Fixed(0.0)
    outputs_seconds: AnyDistribution = Fixed(0.0)
    doomed: float = 0.0  # the share of packages that fail at every site, always in the same way
    broken: dict[str, int] = {}  # stages (job/stage) whose packages all fail alike, at most so many attempts of each


class SiteHabits(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a site on attempts."""

    speed: AnyDistribution = Fixed(1.0)
    failures: dict[str, float] = {}  # reason → probability that an attempt fails for it
    straggler: float = 0.0  # the probability that an attempt takes far longer
    straggler_factor: AnyDistribution = Uniform(low=3.0, high=20.0)


_USUAL = SiteHabits()
_SHARE = 0.7  # the share of attempts of such a package that loop, or kill their agent


class RandomBehaviour:
    """Outcomes drawn from distributions."""

    def __init__(
        self, seed: int, habits: Habits, sites: Mapping[str, SiteHabits], *, loops: float = 0.0, kills: float = 0.0
    ) -> None:
        """Take the seed, the behaviour of packages and of each site; other sites have no effect.

        `loops` and `kills` are the shares of packages that make no progress, and that kill their agent.
        """
        self._seed = str(seed)
        self._habits = habits
        self._sites = dict(sites)
        self._loops = loops
        self._kills = kills
        # If nothing but the work varies, nothing else is drawn.
        inputs, outputs, memory = habits.inputs_seconds, habits.outputs_seconds, habits.memory_bytes
        self._steady: tuple[OfOneNumber, float, float, int] | None = None
        work = None if habits.doomed or habits.broken or loops or kills else habits.application_seconds
        if (
            isinstance(work, OfOneNumber)
            and isinstance(inputs, Fixed)
            and isinstance(outputs, Fixed)
            and isinstance(memory, Fixed)
        ):
            self._steady = work, inputs.value, outputs.value, int(memory.value)

    def outcome(self, ref: AttemptRef, site: str) -> AttemptOutcome:
        """The outcome of an attempt at a site."""
        package = f"{self._seed}/{ref.job}/{ref.package}"
        if self._steady is not None and site not in self._sites:
            work, inputs_seconds, outputs_seconds, memory_bytes = self._steady
            return AttemptOutcome(inputs_seconds, work.at(number_of(package)), outputs_seconds, memory_bytes)
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
        if habits.broken and ref.attempt <= habits.broken.get(f"{ref.job}/{ref.package.partition('.')[0]}", 0):
            return AttemptOutcome(
                inputs_seconds, work_seconds, outputs_seconds, memory_bytes, "application-error", 0.5, 9
            )
        if doomed:
            return AttemptOutcome(
                inputs_seconds, work_seconds, outputs_seconds, memory_bytes, "application-error", 0.5, doom
            )
        if (self._loops or self._kills) and (bad := self._bad_habit(package, ref.attempt)):
            return AttemptOutcome(inputs_seconds, work_seconds, outputs_seconds, memory_bytes, bad)
        if known.failures:
            left = numbers.random()
            for reason, probability in known.failures.items():
                left -= probability
                if left < 0.0:
                    share, status = numbers.random(), 1 + int(numbers.random() * 3)
                    return AttemptOutcome(
                        inputs_seconds, work_seconds, outputs_seconds, memory_bytes, reason, share, status
                    )
        return AttemptOutcome(inputs_seconds, work_seconds, outputs_seconds, memory_bytes)

    def _bad_habit(self, package: str, attempt: int) -> str:
        """Why an attempt of a package fails that fails most of the time; empty for other packages."""
        drawn = Keyed(f"{package}/habit").random()
        if drawn >= self._loops + self._kills or Keyed(f"{package}/{attempt}/habit").random() >= _SHARE:
            return ""
        return "looping" if drawn < self._loops else DEADLY

    def speed(self, node: str, site: str) -> float:
        """The speed of a node of a site."""
        return self._sites.get(site, _USUAL).speed.draw(Keyed(f"{self._seed}/node/{node}"))
