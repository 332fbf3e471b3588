"""How long work takes on pilots that start one after the other, and how many pilots it takes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.steps import Floats


def expected_work_left(
    latency: LatencyDistribution, *, work_seconds: float, pilots: int, at_seconds: ArrayLike
) -> Floats:
    """E_W(t) = max(w_0 - n * integral of F_L from 0 to t, 0) (pilot-job-model, section 2.4)."""
    return np.maximum(work_seconds - pilots * latency.started.area(at_seconds), 0.0)


def expected_makespan(latency: LatencyDistribution, *, work_seconds: ArrayLike, pilots: ArrayLike) -> Floats:
    """E_M(n): the time until which the integral of F_L from a on is w_0 / n, exactly (pilot-job-model, eq. 3)."""
    work = np.asarray(work_seconds, dtype=np.float64)
    return latency.started.time_of_area(work / np.asarray(pilots, dtype=np.float64))


def makespan_limit_seconds(latency: LatencyDistribution) -> float:
    """The makespan as the number of simultaneously submitted pilots grows without limit: a (pilot-job-model, eq. 4)."""
    return latency.lower_bound_seconds


def pilots_within(
    latency: LatencyDistribution, *, work_seconds: float, makespan_seconds: float, pilots_max: int
) -> int | None:
    """The smallest n with E_M(n) at most a given makespan (pilot-job-model, eq. 3); None where `pilots_max` are too few."""
    per_pilot = float(latency.started.area(makespan_seconds))
    if per_pilot <= 0.0:
        return None
    found = max(1, int(np.ceil(work_seconds / per_pilot * (1.0 - 1e-12))))
    return found if found <= pilots_max else None


# How many pilots a site should have in its queue: the fewest that finish the work nearly as early as all allowed ones would.
#
# The model is eq. 3 with whole packages, pilots that run already, and queued ones that have waited for some time. Work is in
# seconds of a whole pilot, and only work that has not begun counts. The last package is taken when the expected number of packages
# taken by then is all of them; the work is done one package later. A pilot that starts after the last package is taken has
# nothing to do.

_ROUNDS_EXACT = 6  # packages of a pilot that are taken one by one; further ones count as work that can be split
_GROUPS_MAX = 8  # of queued pilots that have waited for nearly the same time
_ALIKE_SECONDS = 1.0
_AROUND_GUESS: Floats = np.geomspace(1.0 / 8.0, 1.5, 13)
_ALL_TIMES: Floats = np.geomspace(1e-3, 1e8, 89)  # where the guess is too short
# Of the interval between two of these times: the answer is exact to a part in a hundred, mostly to much less.
_PARTS: Floats = np.arange(1, 25) / 24.0
_INEXACT = 0.005
_SPARE = 0.25  # of the tolerance: for cancelling queued pilots
_MISSED = 0.02  # of the time: with pilots in the queue, more are wanted only if the promise is missed by so much
_ROUNDING = 1e-9
_NEVER = 1e-6


@dataclass(frozen=True)
class Need:
    """The work of a site, its pilots, and its limits.

    `running` are pairs: so many pilots (or parts of one, as slots of other sites count) run for so many seconds more. A pilot
    takes no package that it could not finish, and spends `start_cost_seconds` before its first one. `queued_seconds` is how long each
    queued pilot has waited, and `queued_max` how many may be queued in all. This work is done since `since_seconds`,
    its first plan promised its end in `promised_seconds`, and cancelled pilots have made it `spent_seconds` longer so far:
    tolerances do not add up from plan to plan.
    """

    work_seconds: float
    package_seconds: float
    running: tuple[tuple[float, float], ...]
    queued_seconds: tuple[float, ...]
    queued_max: int
    lifetime_seconds: float
    start_cost_seconds: float
    since_seconds: float = 0.0
    promised_seconds: float = math.inf
    spent_seconds: float = 0.0


@dataclass(frozen=True)
class Provision:
    """How many pilots should be queued.

    `queued` is the fewest that finish within the tolerance, `kept` the fewest within what is left of a quarter of it and of
    what was promised: of those already queued, no more than these are needed, and a pilot just requested is always among them. `best_queued` finish in `best_seconds`; more would start
    after the last package is taken, or are not allowed.
    """

    queued: int
    kept: int
    best_queued: int
    best_seconds: float


def provision(latency: LatencyDistribution, need: Need, *, within: float) -> Provision | None:
    """The fewest queued pilots that finish within a share of the best reachable time; None where no number finishes."""
    pilots = _Pilots(latency, need)
    best_queued = len(need.queued_seconds) + pilots.new_max
    best = pilots.last_taken_seconds(best_queued)
    if math.isinf(best):
        return None
    finish = best + need.package_seconds
    # Tolerances are of the whole time until the work is done, one package after the last is taken.
    spare = _SPARE * within * (need.since_seconds + finish) - need.spent_seconds
    promise = best + within * finish
    # Pilots that the first plan needed are not cancelled, though without them the time that is still left hardly changes.
    latest = min(best + spare, need.promised_seconds - need.package_seconds)
    kept, wanted, missed = pilots.fewest((max(best, latest) - _INEXACT * finish, promise, promise + _MISSED * finish))
    if missed <= len(need.queued_seconds) < wanted:
        wanted = len(need.queued_seconds)
    return Provision(queued=wanted, kept=max(wanted, kept), best_queued=best_queued, best_seconds=finish)


def finish_seconds(latency: LatencyDistribution, need: Need, *, queued: int) -> float:
    """When the work is done with so many queued pilots, the longest waiting ones first; infinite if it never is."""
    return _Pilots(latency, need).last_taken_seconds(queued) + need.package_seconds


def expected_start_seconds(latency: LatencyDistribution) -> float:
    """The mean latency of the pilots that start."""
    # The area above a step function, up to its last step, is the sum of its rises times their times.
    started = latency.started
    return float(started.times_seconds[-1] - started.areas_seconds[-1] / started.values[-1])


class _Pilots:
    """Running, queued and new pilots, and the work that they have taken by some time."""

    def __init__(self, latency: LatencyDistribution, need: Need) -> None:
        self._need = need
        self._start_seconds = expected_start_seconds(latency) + need.start_cost_seconds
        working = max(0.0, need.lifetime_seconds - need.start_cost_seconds)
        self._rounds = math.floor(min(working / need.package_seconds, 1e12) + _ROUNDING)
        # Each step with what holds before it: a search finds the place to the right of the last step that is not later.
        started = latency.started
        self._edges = started.times_seconds
        self._times, self._values, self._areas = (
            np.concatenate([[0.0], each]) for each in (started.times_seconds, started.values, started.areas_seconds)
        )
        self._oldest_first = sorted(need.queued_seconds, reverse=True)
        # A pilot ends in the middle of a package, on average, unless it takes none.
        running = [each for each in need.running if each[1] >= need.package_seconds]
        self._counts: Floats = np.array([count for count, _ in running])
        self._usable: Floats = np.array([left - need.package_seconds / 2.0 for _, left in running])
        self.new_max = self._new_pilots_max()

    def _new_pilots_max(self) -> int:
        """How many further pilots are allowed and expected to start before the last package is taken."""
        allowed = self._need.queued_max - len(self._oldest_first)
        if allowed <= 0:
            return 0
        start = np.array([self._start_seconds * (1.0 + _ROUNDING)])
        waits, counts = _grouped(self._oldest_first, self._edges)
        taken = self._taken(start, np.array([*waits, 0.0]))[0]
        left = self._need.work_seconds - float(self._by_running(start)[0] + taken @ [*counts, 0.0])
        if left <= 0.0 or taken[-1] <= 0.0:
            return 0
        return min(allowed, math.ceil(left / float(taken[-1]) * (1.0 - _ROUNDING)))

    def last_taken_seconds(self, queued: int) -> float:
        """When the last package is taken with so many queued pilots; infinite if it never is (pilot-job-model, eq. 3)."""
        groups = _grouped(self._oldest_first[:queued], self._edges)
        new = max(0.0, queued - len(self._oldest_first))
        waits, counts = np.array([*groups[0], 0.0]), np.array([*groups[1], new])

        def total(times: Floats) -> Floats:
            found: Floats = self._by_running(times) + self._taken(times, waits) @ counts
            return found

        # A pilot has worked for t less the mean latency by t, or longer: some start after t.
        work = self._need.work_seconds
        guess = self._start_seconds + work / max(float(counts.sum() + self._counts.sum()) * self._values[-1], _ROUNDING)
        return _first_time(total, work, guess_seconds=guess)

    def fewest(self, by_seconds: tuple[float, ...]) -> list[int]:
        """The smallest numbers of queued pilots with which the last package is taken by some times, of at most the best number."""
        times = np.array(by_seconds)
        left = (self._need.work_seconds - self._by_running(times)) * (1.0 - _ROUNDING)
        taken = self._taken(times, np.array([*self._oldest_first, 0.0]))
        return [self._enough(float(left[place]), taken[place]) for place in range(len(times))]

    def _enough(self, left_seconds: float, taken: Floats) -> int:
        if left_seconds <= 0.0:
            return 0
        together, new = np.cumsum(taken[:-1]), float(taken[-1])
        enough = int(np.searchsorted(together, left_seconds))
        if enough < len(together):
            return enough + 1
        left_seconds -= float(together[-1]) if len(together) else 0.0
        return len(together) + (self.new_max if new <= 0.0 else min(self.new_max, math.ceil(left_seconds / new)))

    def _by_running(self, times: Floats) -> Floats:
        """The work that running pilots have taken by some times: they are in the middle of their packages."""
        found: Floats = np.minimum(times[:, None], self._usable) @ self._counts
        return found

    def _taken(self, times: Floats, waited: Floats) -> Floats:
        """The work that a pilot has taken by some times (rows) if it has waited for some time before now (columns).

        A pilot that starts at s takes packages at s, s + p, s + 2p, ...: the expected number by t is F(t) + F(t - p) + ...
        After the first terms, the rest of the sum is the area below F.
        """
        package, values = self._need.package_seconds, self._values
        times = np.maximum(times - self._need.start_cost_seconds, 0.0)
        # A pilot that was requested just now may also start at once.
        place = np.where(waited > 0.0, self._edges.searchsorted(waited, side="right"), 0)
        before = values[place]
        exact = min(self._rounds, _ROUNDS_EXACT, int(times[-1] / package) + 1)
        since = np.add.outer(np.subtract.outer(times, package * np.arange(exact)), waited)
        started = values[self._edges.searchsorted(since, side="right")]
        found: Floats = np.maximum(started - before, 0.0).sum(axis=1)

        def further(rounds: int) -> Floats:
            later = np.add.outer(np.maximum(times - package * (rounds - 0.5), 0.0), waited)
            return self._area(later, self._edges.searchsorted(later, side="right")) - before * (later - waited)

        if self._rounds > exact and times[-1] > package * exact:
            area = further(exact) - self._area(waited, place)
            if times[-1] > package * self._rounds:
                area -= further(self._rounds) - self._area(waited, place)
            found += area / package
        # Where all that ever start have started by now, what is left of a difference is rounding.
        left = 1.0 - before
        return found * np.where(left > _NEVER, package / np.maximum(left, _NEVER), 0.0)

    def _area(self, until: Floats, place: NDArray[np.int64]) -> Floats:
        found: Floats = self._areas[place] + self._values[place] * (until - self._times[place])
        return found


def _grouped(waits: Sequence[float], edges: Floats) -> tuple[list[float], list[float]]:
    """Few waits that stand for many, in order, and how many each stands for: pilots are often requested together.

    Waits are alike if a latency between them is none that was seen: a pilot may start at once that has waited for less.
    """
    found: list[float] = []
    counts: list[float] = []
    last = -1
    for wait, place in zip(waits, edges.searchsorted(waits, side="right").tolist(), strict=True):
        if place == last and found[-1] - wait < _ALIKE_SECONDS:
            counts[-1] += 1.0
        else:
            found.append(wait)
            counts.append(1.0)
        last = place
    while len(found) > _GROUPS_MAX:
        pairs = range(0, len(found), 2)
        totals = [sum(counts[at : at + 2]) for at in pairs]
        means = (sum(map(operator.mul, found[at : at + 2], counts[at : at + 2])) for at in pairs)
        found, counts = [mean / total for mean, total in zip(means, totals, strict=True)], totals
    return found, counts


def _first_time(total: Callable[[Floats], Floats], work_seconds: float, *, guess_seconds: float) -> float:
    """The first time at which as much work is taken as there is; infinite if there never is."""
    enough = work_seconds * (1.0 - _ROUNDING)
    for times in (guess_seconds * _AROUND_GUESS, _ALL_TIMES):
        taken = total(times)
        if taken[-1] >= enough:
            place = int(taken.searchsorted(enough))
            low = float(times[place - 1]) if place else 0.0
            between = low + (float(times[place]) - low) * _PARTS
            return float(np.interp(enough, total(between), between))
    return math.inf


def describe_seconds(seconds: float) -> str:
    """A time in words, to about one part in a hundred."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
