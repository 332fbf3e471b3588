"""Outcomes of the attempts of a real job in a world that was written by hand or fitted.

Everything follows from the seed and the names of the package, the attempt, the site and the host, and for a drifting site
from the time: never from the order of the queries. So two policies with one seed get the same packages and, for the same
attempt at the same site, the same outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.sites.world import Change, PackagesWorld, SiteWorld
from pilotage.simulator.world.behaviour import AttemptOutcome
from pilotage.simulator.world.randomness import Distribution, Fixed, Keyed, Numbers, distribution_of, mean_of

_HOUR = 3600.0
_DOOM_STATUS = 3


class _Middle:
    """Numbers with which a distribution of one number draws its median."""

    def random(self) -> float:
        return 0.5


_MIDDLE = _Middle()


class _Kind:
    """The distributions of the packages of one template."""

    __slots__ = ("doomed", "factor", "run_seconds")

    def __init__(self, run_seconds: Distribution, factor: Distribution, doomed: float) -> None:
        self.run_seconds = run_seconds
        self.factor = factor
        self.doomed = doomed


class SiteBehaviour:
    """The behaviour of a site towards attempts and pilots, with its drift."""

    def __init__(self, world: SiteWorld, *, speed: float) -> None:
        """Take the world's entry of the site, and the speed of its hosts if the world does not set it."""
        self.world = world
        self.queue = distribution_of(world.queue)
        self.host_speed = Fixed(speed) if world.speed is None else distribution_of(world.speed)
        self.typical_speed = max(1e-9, mean_of(self.host_speed))
        self.straggler_factor = distribution_of(world.straggler_factor)
        self.stall_factor = distribution_of(world.stall_factor)
        self._drift: Sequence[Change] = world.drift

    def change_at(self, elapsed_seconds: float) -> Change | None:
        """The latest change by a time."""
        found = None
        for each in self._drift:
            if each.after_seconds > elapsed_seconds:
                break
            found = each
        return found


class JobBehaviour:
    """The outcome of every attempt of one job."""

    def __init__(
        self,
        seed: int,
        plan: JobPlan,
        *,
        packages: PackagesWorld,
        sites: Mapping[str, SiteBehaviour],
        elapsed_seconds: Callable[[], float],
    ) -> None:
        """Take the seed, the job and the world; `elapsed_seconds` returns how long it has run."""
        self._seed = seed
        self._plan = plan
        self._sites = sites
        self._elapsed_seconds = elapsed_seconds
        self._setup = distribution_of(packages.setup)
        self._inputs = distribution_of(packages.inputs)
        self._outputs = distribution_of(packages.outputs)
        self._kinds = _kinds(plan, packages)

    def outcome(self, ref: AttemptRef, site: str) -> AttemptOutcome:
        """The outcome of an attempt that starts now at a site."""
        kind = self._kinds[self._template(ref.package)]
        numbers = Keyed(f"{self._seed}/{ref.package}")
        work_seconds = kind.run_seconds.draw(numbers) * kind.factor.draw(numbers)
        doomed = kind.doomed > 0.0 and numbers.random() < kind.doomed
        numbers = Keyed(f"{self._seed}/{ref.package}/{ref.attempt}/{site}")
        here = self._sites[site]
        world, change = here.world, here.change_at(self._elapsed_seconds())
        failure_probability = world.failure_probability
        if change is not None:
            work_seconds /= change.speed
            if change.failure_probability is not None:
                failure_probability = change.failure_probability
        # Each draw has its number, used or not, so that a change of one leaves the others as they are.
        late, fails, at, hazard = numbers.random(), numbers.random(), numbers.random(), numbers.random()
        inputs_seconds, outputs_seconds = self._inputs.draw(numbers), self._outputs.draw(numbers)
        if late < world.straggler_probability:
            work_seconds *= max(1.0, here.straggler_factor.draw(numbers))
        numbers = Keyed(f"{self._seed}/{ref.package}/{ref.attempt}/{site}/before")
        setup_seconds = self._setup.draw(numbers)
        if world.stall_probability > 0.0 and numbers.random() < world.stall_probability:
            inputs_seconds += here.stall_factor.draw(numbers) * self._usual_seconds(kind, here)
        if doomed:
            return AttemptOutcome(
                inputs_seconds,
                work_seconds,
                outputs_seconds,
                0,
                "application-error",
                0.5,
                _DOOM_STATUS,
                setup_seconds=setup_seconds,
            )
        share = at if fails < failure_probability else 1.0
        if world.failures_per_hour > 0.0 and work_seconds > 0.0:
            lasts_seconds = -math.log(1.0 - hazard) * _HOUR / world.failures_per_hour
            share = min(share, lasts_seconds * here.typical_speed / work_seconds)
        if share < 1.0:
            return AttemptOutcome(
                inputs_seconds,
                work_seconds,
                outputs_seconds,
                0,
                world.failure_reason,
                share,
                setup_seconds=setup_seconds,
            )
        return AttemptOutcome(inputs_seconds, work_seconds, outputs_seconds, 0, setup_seconds=setup_seconds)

    def _usual_seconds(self, kind: _Kind, here: SiteBehaviour) -> float:
        """What an attempt takes if each of its phases takes its median time, on a typical host of the site."""
        work_seconds = kind.run_seconds.draw(_MIDDLE) * kind.factor.draw(_MIDDLE) / here.typical_speed
        return work_seconds + sum(each.draw(_MIDDLE) for each in (self._setup, self._inputs, self._outputs))

    def _template(self, package: str) -> int:
        stage, line, number = map(int, package.split("."))
        found = self._plan.number(stage, line, number)
        if found is None:
            raise ValueError(f"the job has no package {package}")
        return int(self._plan.template_of[found])

    def speed(self, node: str, site: str) -> float:
        """The speed of a host of a site."""
        return max(1e-6, self._sites[site].host_speed.draw(Keyed(f"{self._seed}/node/{node}")))


class DriftingQueue(Distribution, frozen=True, tag="drifting"):
    """The current queue time of a drifting site."""

    site: SiteBehaviour
    elapsed_seconds: Callable[[], float]

    def draw(self, numbers: Numbers) -> float:
        """One wait."""
        change = self.site.change_at(self.elapsed_seconds())
        seconds = self.site.queue.draw(numbers)
        return seconds if change is None else seconds * change.queue


def _kinds(plan: JobPlan, packages: PackagesWorld) -> list[_Kind]:
    """For each template: the world's entry of its activity comes first, then the document, then the world in general."""
    named = {each.name: each for each in packages.activities}
    factor, usual = distribution_of(packages.run_time_factor), distribution_of(packages.run_time)
    found = []
    for template in plan.templates:
        activity = named.get(template.activity)
        doomed = packages.doomed_probability if activity is None else activity.doomed_probability
        if activity is not None and activity.run_time is not None:
            found.append(_Kind(distribution_of(activity.run_time), Fixed(1.0), doomed))
        elif template.run_seconds > 0.0:
            found.append(_Kind(Fixed(template.run_seconds), factor, doomed))
        else:
            found.append(_Kind(usual, Fixed(1.0), doomed))
    return found


def unestimated(plan: JobPlan, packages: PackagesWorld) -> tuple[str, ...]:
    """The activities without a run time in the document and in the world."""
    named = {each.name for each in packages.activities if each.run_time is not None}
    return tuple(
        dict.fromkeys(
            each.activity for each in plan.templates if each.run_seconds <= 0.0 and each.activity not in named
        )
    )


def typical_seconds(plan: JobPlan, packages: PackagesWorld) -> list[float]:
    """Approximate run time of a package of each template on the standard platform."""
    return [mean_of(each.run_seconds) * mean_of(each.factor) for each in _kinds(plan, packages)]
