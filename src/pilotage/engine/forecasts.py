"""Forecasts of the ends of jobs: what the engine knows of work, slots and queues, as the forecast room wants it.

A forecast costs half a millisecond. What changes slowly is computed once and kept for a while: the order between kinds of packages
for each plan, the slots that other jobs hold, the work of other jobs, and the possible days of each queue.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.placement import Placement, is_bound
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.job_queries import KindWork, RunningPackages, running_packages, work_left
from pilotage.engine.state.jobs import JobState, QueueClass
from pilotage.engine.state.latencies import PilotLatencies
from pilotage.engine.state.sites import SiteState
from pilotage.engine.state.tables import JobTable, PilotTable
from pilotage.model.events.payloads import ForecastBasis
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import Demand, slots_for

if TYPE_CHECKING:
    from pilotage.forecast.conditioning import Today
    from pilotage.forecast.time_left import BoundSlots, FreeSlots, QueuedSlots, RunsAt, TimeLeft, WorkGroup

KEPT_SECONDS = 10.0
"""How long the slots and the work of other jobs are taken for unchanged."""
GROUPS_MAX = 12
"""Groups of packages that are followed apart; further ones are joined level by level."""
QUEUED_MAX = 5
"""Groups of queued pilots of a site that are followed; pilots that have waited for about as long are taken together."""
_EDGES_MAX = 1_000_000  # of a plan that are looked at
_LEVELS_MAX = 64
_ALL_SHARE = 0.5  # a consumer that needs at least this share of all producers waits for all
_OBSERVED_SD_MIN = 0.02  # of the logarithm of a mean run time
_DOCUMENT_SD, _ASSUMED_SD = 0.4, 0.7
_FIRST_WAIT_SECONDS = 60.0  # in a queue of which nothing is known
_WAITS_MIN = 3
_ROUNDS_MAX = 12  # in which the room of a bound site is followed
_FRESH_PARTS = 3  # of the room of a bound site, each of which waits as by chance
_UNSEEN = 1.5
_TOO_SHORT = 1.1  # an estimate is doubted where running packages are beyond so many times of it
_FEW = 2.5  # running packages count for the run time where fewer than so many times of them have finished


class Expectation(NamedTuple):
    """When a job will be over, in seconds from now, and from what that is known."""

    left: TimeLeft
    packages: int
    basis: ForecastBasis


class PlanOrder:
    """How the kinds of packages of a plan depend on each other."""

    __slots__ = ("_arranged", "feeds", "levels", "plan")

    def __init__(self, plan: JobPlan) -> None:
        """Look at the edges of a plan once."""
        self.plan = plan
        kinds = plan.template_of.astype(np.int64)
        count = len(plan.templates)
        counts = np.bincount(kinds, minlength=count)
        found: NDArray[np.int64] = np.zeros(0, np.int64)
        for segment in plan.graph.segments:
            rows = segment.predecessors
            step = max(1, len(rows.others) // _EDGES_MAX)
            consumers = rows.first + np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
            pairs = kinds[rows.others[::step]] * count + kinds[consumers[::step]]
            found = np.concatenate([found, np.repeat(pairs, 1) if step == 1 else np.repeat(pairs, step)])
        numbers = np.flatnonzero(np.bincount(found)) if len(found) else found
        edges = np.bincount(found)[numbers] if len(found) else found
        # By producer and consumer: whether a consumer waits for all producers of the kind.
        self.feeds: dict[tuple[int, int], bool] = {}
        for number, edge_count in zip(numbers.tolist(), edges.tolist(), strict=True):
            before, after = divmod(number, count)
            if before != after:
                whole = counts[before] == 1 or edge_count / counts[after] >= _ALL_SHARE * counts[before]
                self.feeds[before, after] = bool(whole)
        self.levels = _levels(self.feeds, count)
        self._arranged: tuple[tuple[int, ...], Arrangement] | None = None

    def arranged(self, kinds: tuple[int, ...]) -> Arrangement:
        """The groups of kinds that are left, given in the order of their levels: kept until another kind is over."""
        if self._arranged is None or self._arranged[0] != kinds:
            self._arranged = kinds, self._arrange(kinds)
        return self._arranged[1]

    def _arrange(self, kinds: Sequence[int]) -> Arrangement:
        apart = len(kinds) <= GROUPS_MAX
        if apart:
            group_of = {kind: at for at, kind in enumerate(kinds)}
        else:
            levels = sorted({self.levels[kind] for kind in kinds})
            chunk = {level: at * min(GROUPS_MAX, len(levels)) // len(levels) for at, level in enumerate(levels)}
            group_of = {kind: chunk[self.levels[kind]] for kind in kinds}
        after: dict[int, set[int]] = {}
        follows: dict[int, set[int]] = {}
        for (before, consumer), whole in self.feeds.items():
            one, other = group_of.get(before), group_of.get(consumer)
            if one is not None and other is not None and one < other:
                (after if whole and apart else follows).setdefault(other, set()).add(one)
        if apart:
            for number, kind in enumerate(kinds):
                if self.plan.templates[kind].final:  # it waits until all others are over
                    after[number] = set(range(number))
        return Arrangement(
            group_of,
            {number: tuple(sorted(before)) for number, before in after.items()},
            {number: tuple(sorted(before - after.get(number, set()))) for number, before in follows.items()},
        )


class Arrangement(NamedTuple):
    """Which group each kind of packages is in; by group, those that must be over before it, and those that feed it one by one."""

    group_of: dict[int, int]
    after: dict[int, tuple[int, ...]]
    follows: dict[int, tuple[int, ...]]


def _levels(feeds: Iterable[tuple[int, int]], count: int) -> list[int]:
    """How many kinds come before each kind, at most; kinds that feed each other in a circle stop at a limit."""
    levels = [0] * count
    for _ in range(_LEVELS_MAX):
        changed = False
        for before, after in feeds:
            if levels[after] <= levels[before] < _LEVELS_MAX:
                levels[after], changed = levels[before] + 1, True
        if not changed:
            break
    return levels


class Forecasts:
    """Forecasts the ends of jobs."""

    def __init__(
        self,
        *,
        clock: EngineClock,
        jobs: JobTable,
        pilots: PilotTable,
        placement: Placement,
        latencies: PilotLatencies,
    ) -> None:
        """Forecast for the jobs of an engine."""
        self._clock, self._jobs, self._pilots, self._placement = clock, jobs, pilots, placement
        self._latencies = latencies
        self._orders: dict[JobState, PlanOrder] = {}
        self._work_seconds: dict[JobState, float] = {}  # of each job, at its last forecast
        self._rivals_at = -math.inf
        self._rivals: dict[int, tuple[list[float], list[float]]] = {}  # by priority: work of jobs, in order; sums of it
        self._busy_at = -math.inf
        self._busy: dict[SiteState, dict[str, int]] = {}  # by site and job: running attempts
        self._queued: dict[tuple[SiteState, int], tuple[tuple[int, int], QueuedSlots | None]] = {}  # by site and shape
        self._days: dict[SiteState, tuple[object, Today]] = {}

    def forget(self, job: JobState) -> None:
        """Forget a job that leaves the engine, or that is over."""
        self._orders.pop(job, None)
        self._work_seconds.pop(job, None)

    def expectation(self, job: JobState) -> Expectation | None:
        """When a job will be over; None if nothing is known of its run times, its late stages or its slots."""
        # Most jobs are over before their first forecast: only a longer one pays for this import.
        from pilotage.forecast.time_left import NOT_BOUND, RunsAt, some_running, time_left

        if job.late and not job.ended_by:
            return None
        now = self._clock.wall_time
        active = running_packages(job, now)
        work = _with_running(work_left(job, now, active), active)
        known = [each for each in work if each.expected.known != "unknown"]
        packages = sum(each.packages for each in work)
        if not known or not packages:
            return None
        usual = math.fsum(each.packages * each.expected.mean_seconds for each in known)
        usual /= sum(each.packages for each in known)
        queue = self._typical_queue(job, work)
        if queue is None:
            return None
        groups, group_of = self._groups(job, work, usual)
        sites = [site for site in self._placement.possible_sites(queue) if site.known and not site.removed]
        total = math.fsum(each.packages * (each.expected.mean_seconds or usual) for each in work)
        self._work_seconds[job] = total
        waiting = self._with_rivals(job, groups, total)
        own: dict[SiteState, int] = {}
        for (_, site), spent in active.spent_seconds.items():
            own[site] = own.get(site, 0) + round(active.each * len(spent))
        slots = self._slots(job, queue, {site: own.get(site, 0) for site in sites}, packages=packages, usual=usual)
        elapsed: dict[RunsAt, list[float]] = {}
        for (kind, site), spent in active.spent_seconds.items():
            if kind in group_of:  # else its last package is over, and an attempt is not over yet
                speed = site.site.speed
                place = RunsAt(group_of[kind], speed, slots.bound_sites.get(site, NOT_BOUND))
                elapsed.setdefault(place, []).extend([each / speed for each in spent])
        left = time_left(
            waiting,
            running=some_running(elapsed, each=active.each),
            free=slots.free,
            queued=slots.queued,
            bound=slots.bound,
        )
        return Expectation(left, packages, _basis(work)) if left is not None else None

    # --- work ---------------------------------------------------------------------------------------------------------

    def _order(self, job: JobState) -> PlanOrder:
        order = self._orders.get(job)
        if order is None or order.plan is not job.plan:
            order = self._orders[job] = PlanOrder(job.plan)
        return order

    def _typical_queue(self, job: JobState, work: Sequence[KindWork]) -> QueueClass | None:
        """The class of the kind with the most packages left; while none of it was ready, any class."""
        for each in sorted(work, key=lambda each: -each.packages):
            for classes in job.template_classes:
                if (queue := classes[each.kind]) is not None:
                    return queue
        return next(iter(job.classes.values()), None)

    def _groups(self, job: JobState, work: Sequence[KindWork], usual: float) -> tuple[list[WorkGroup], dict[int, int]]:
        """The groups of packages in the order of their levels, without those that run, and the group of each kind."""
        order = self._order(job)
        templates = job.plan.templates
        ordered = sorted(
            work,  # in the order of the engine: by priority, then the longest
            key=lambda each: (
                order.levels[each.kind], -templates[each.kind].priority, -each.expected.mean_seconds, each.kind,
            ),
        )  # fmt: skip
        group_of, after, follows = order.arranged(tuple(each.kind for each in ordered))
        members: dict[int, list[KindWork]] = {}
        for each in ordered:
            members.setdefault(group_of[each.kind], []).append(each)
        groups = [
            _group(kinds, order.levels, usual, after=after.get(number, ()), follows=follows.get(number, ()))
            for number, kinds in members.items()
        ]
        return groups, group_of

    def _with_rivals(self, job: JobState, groups: list[WorkGroup], total: float) -> list[WorkGroup]:
        """Add the work of other jobs that goes before or beside that of this one, as packages of its first group.

        Jobs of one priority share the slots: until this job is over, each of the others has got as much, or all that it needs.
        """
        self._look_at_rivals()
        others = 0.0
        for priority, (sizes, sums) in self._rivals.items():
            if priority > job.plan.priority:
                others += sums[-1]
            elif priority == job.plan.priority:
                smaller = bisect_left(sizes, total)
                others += (sums[smaller - 1] if smaller else 0.0) + (len(sizes) - smaller) * total
                others -= min(total, self._work_seconds.get(job, total)) if job.open else 0.0
        if others <= 0.0:
            return groups
        first = next((at for at, each in enumerate(groups) if each.packages), None)
        if first is None:
            return groups
        more = groups[first].packages + others / groups[first].seconds
        return [each._replace(packages=more) if at == first else each for at, each in enumerate(groups)]

    def _look_at_rivals(self) -> None:
        if self._clock.now < self._rivals_at + KEPT_SECONDS:
            return
        self._rivals_at = self._clock.now
        found: dict[int, list[float]] = {}
        for job in self._jobs.by_id.values():
            if job.open and (unfinished := job.unfinished):
                known = self._work_seconds.get(job)
                if known is None:
                    learned = job.run_times.typical_seconds
                    known = unfinished * learned if learned else 0.0
                found.setdefault(job.plan.priority, []).append(known)
        self._rivals = {
            priority: (ordered := sorted(sizes), list(accumulate(ordered))) for priority, sizes in found.items()
        }

    # --- slots --------------------------------------------------------------------------------------------------------

    def _slots(
        self, job: JobState, queue: QueueClass, sites: Mapping[SiteState, int], *, packages: int, usual: float
    ) -> _OtherSlots:
        """Slots beside those in which packages of the job run: free ones, those of other jobs, queued pilots and bound sites.

        Of each site it is given how many packages of the job run there.
        """
        from pilotage.forecast.time_left import BoundSlots, FreeSlots

        after: list[float] = []
        sizes: list[float] = []
        speeds: list[float] = []
        queued: list[QueuedSlots] = []
        bound: list[BoundSlots] = []
        bound_sites: dict[SiteState, int] = {}
        self._look_at_slots()
        for site, running in sites.items():
            speed = site.site.speed
            if is_bound(site, queue):
                waits, each = self._bound_room(job, queue, site, packages=packages)
                bound_sites[site] = len(bound)
                bound.append(BoundSlots(self._possible_days(site, waits), np.array(waits), np.array(each), speed))
                continue
            own, others = running, 0
            if (busy := self._busy.get(site)) is not None:
                own = max(running, busy.get(job.id, 0))  # some are assigned and do not run yet
                others = sum(busy.values()) - busy.get(job.id, 0)
            live = site.slots[queue.shape]
            # What runs beside it ends at any time within a usual run.
            for count, seconds in (
                (max(0, live - own - others), 0.0),
                (min(others, max(0, live - own)), 0.5 * usual),
            ):
                if count:
                    after.append(seconds)
                    sizes.append(float(count))
                    speeds.append(speed)
            if site.expected and (pilots := self._queued_pilots(site, queue)) is not None:
                queued.append(pilots)
        free = FreeSlots(np.array(after), np.array(sizes), np.array(speeds))
        return _OtherSlots(free, queued, bound, bound_sites)

    def _queued_pilots(self, site: SiteState, queue: QueueClass) -> QueuedSlots | None:
        """The slots of pilots in the queue of a site; the same for some seconds, unless pilots come or go."""
        from pilotage.forecast.time_left import QueuedSlots

        known = self._queued.get((site, queue.shape))
        if known is not None and known[0] == (site.expected, len(site.requests)):
            return known[1]
        waits, each = _grouped(
            [
                max(0.0, self._clock.wall_time - request.requested_at)
                for request in site.requests.values()
                if not request.contacted
            ],
            float(self._slots_each(site, queue.demand)),
            most=QUEUED_MAX,
        )
        found = None
        if waits and each[0]:
            cost, speed = site.start_costs.seconds() or 0.0, site.site.speed
            found = QueuedSlots(self._possible_days(site, waits), np.array(waits), np.array(each), speed, cost)
        self._queued[site, queue.shape] = (site.expected, len(site.requests)), found
        return found

    def _bound_room(
        self, job: JobState, queue: QueueClass, site: SiteState, *, packages: int
    ) -> tuple[list[float], list[float]]:
        """How long packages in the queue of a bound site have waited, and further room there; and for how many each stands."""
        own = [each for each in site.bound.values() if each.ref.job == job.id and each.counted]
        waits, each = _grouped(
            [max(0.0, self._clock.wall_time - attempt.created_at) for attempt in own if not attempt.leased],
            1.0,
            most=QUEUED_MAX,
        )
        room = 0.0 if site.asleep else usual_room(site, queue.shape, packages=packages) - len(own)
        parts = min(max(0, math.ceil(room)), _FRESH_PARTS)
        return [*waits, *[0.0] * parts], [*each, *[room / max(parts, 1)] * parts]

    def _slots_each(self, site: SiteState, demand: Demand) -> int:
        """Slots of a pilot that has not started: as many as those that have, or as the site describes it."""
        for pilot in site.pilots.values():
            if not pilot.draining:
                return slots_for(demand, pilot.capacity)
        return slots_for(demand, site.site.capacity)

    def _look_at_slots(self) -> None:
        if self._clock.now < self._busy_at + KEPT_SECONDS and self._clock.now >= self._busy_at:
            return
        self._busy_at = self._clock.now
        self._busy = {}
        self._queued.clear()
        if sum(len(sizes) for sizes, _ in self._rivals.values()) <= 1:
            return  # no other job has slots
        for pilot in self._pilots.by_name.values():
            if pilot.assigned:
                here = self._busy.setdefault(pilot.site, {})
                for ref in pilot.assigned:
                    here[ref.job] = here.get(ref.job, 0) + 1

    def _possible_days(self, site: SiteState, waits: Sequence[float]) -> Today:
        """The possible days of a queue: by its history, or its latest waits, or twice what was waited so far."""
        from pilotage.forecast.conditioning import USUAL_DRIFT, Drift, possible_days
        from pilotage.forecast.latency import empirical_latency

        history = self._latencies.known(site, now=self._clock.wall_time)
        latest = site.profile.waits.numbers()
        if history is not None or len(latest) >= _WAITS_MIN:
            source: object = history.latency if history is not None else latest
            known = self._days.get(site)
            if known is None or known[0] != source:
                latency = history.latency if history is not None else empirical_latency([each / 1e6 for each in latest])
                known = self._days[site] = (source, possible_days(latency, drift=USUAL_DRIFT))
            return known[1]
        first = 1.0 if site.site.kind == "local" else _FIRST_WAIT_SECONDS
        usual = max(2.0 * max(waits, default=0.0), *(each / 1e6 for each in latest), first)
        return possible_days(empirical_latency([usual]), drift=Drift(factor_sd=0.8, fault_ratio_pilots=math.inf))


def usual_room(site: SiteState, shape: int, *, packages: int) -> float:
    """The room of a bound site, as the mean over some packages: it grows as they succeed, round by round."""
    left, rounds, succeeded, room = packages, 0.0, 0, 1
    for _ in range(_ROUNDS_MAX):
        if left <= 0:
            break
        room = max(1, site.profile.room_after(shape, successes=succeeded).limit)
        rounds += min(1.0, left / room)
        left -= room
        succeeded += room
    rounds += max(0, left) / room  # from then on, it hardly grows
    return packages / rounds


class _OtherSlots(NamedTuple):
    """Slots in which no package of a job runs: free ones, queued pilots, and bound sites with the place of each."""

    free: FreeSlots
    queued: list[QueuedSlots]
    bound: list[BoundSlots]
    bound_sites: dict[SiteState, int]


def _grouped(waits: list[float], size: float, *, most: int) -> tuple[list[float], list[float]]:
    """Few waits that stand for many, and the slots of each."""
    if len(waits) <= most:
        return waits, [size] * len(waits)
    waits.sort()
    cuts = [at * len(waits) // most for at in range(most + 1)]
    parts = [waits[first:last] for first, last in pairwise(cuts)]
    return [sum(part) / len(part) for part in parts], [size * len(part) for part in parts]


class NoForecasts(Forecasts):
    """Expects nothing of any job: for an engine whose forecasts nobody reads."""

    def __init__(self) -> None:
        """Look at nothing."""

    def forget(self, job: JobState) -> None:
        """Nothing is known."""

    def expectation(self, job: JobState) -> Expectation | None:
        """None for every job."""
        return None


def _group(
    kinds: Sequence[KindWork], levels: Sequence[int], usual: float, *, after: tuple[int, ...], follows: tuple[int, ...]
) -> WorkGroup:
    """Kinds of packages taken together: their mean run time, and how much packages differ from it."""
    from pilotage.forecast.time_left import WorkGroup

    packages = sum(each.packages for each in kinds)
    mean = squares = uncertain = 0.0
    paths: dict[int, float] = {}
    for each in kinds:
        expected = each.expected
        seconds = expected.mean_seconds if expected.known != "unknown" else usual
        spread = expected.sd_seconds if expected.known != "unknown" else 0.5 * usual
        if expected.known == "observed":
            # The longest packages are rarely among the first: few observations show too little of the spread.
            spread *= 1.0 + _UNSEEN / math.sqrt(max(expected.observed, 1.0))
        mean_sd = _mean_sd(each) * seconds
        if expected.repeats:
            # Each failure is repeated until one succeeds: a geometric number of failed attempts comes before that one.
            variance = expected.repeats * (1.0 + expected.repeats) * expected.failed_seconds**2
            seconds += expected.repeats * expected.failed_seconds
            spread = math.sqrt(spread**2 + variance)
            mean_sd = math.sqrt(mean_sd**2 + variance / max(expected.observed, 1.0))
        share = each.packages / packages
        mean += share * seconds
        squares += share * (seconds**2 + spread**2)
        uncertain += share * mean_sd
        level = levels[each.kind]
        paths[level] = max(paths.get(level, 0.0), seconds)
    spread = math.sqrt(max(squares - mean**2, 0.0)) / mean
    return WorkGroup(
        packages=float(max(0, packages - sum(each.running for each in kinds))),  # a package may run twice
        seconds=mean,
        spread=round(spread, 2),
        mean_sd=uncertain / mean,
        path_seconds=sum(paths.values()),
        after=after,
        follows=follows,
    )


def _with_running(work: list[KindWork], running: RunningPackages) -> list[KindWork]:
    """Take running packages into account: where few have finished, or where an estimate proves too short."""
    few = {
        each.kind
        for each in work
        if each.running
        and (
            each.running * _FEW > each.expected.observed
            if each.expected.known == "observed"
            else each.spent_seconds > _TOO_SHORT * each.running * each.expected.mean_seconds > 0.0
        )
    }
    if not few:
        return work
    spent: dict[int, list[float]] = {kind: [] for kind in few}
    for (kind, _), seconds in running.spent_seconds.items():
        if kind in few:
            spent[kind] += seconds
    return [_lengthened(known, spent[known.kind], each=running.each) if known.kind in few else known for known in work]


def _lengthened(work: KindWork, elapsed_seconds: Sequence[float], *, each: float) -> KindWork:
    """The work of a kind with a run time that takes running packages into account."""
    from pilotage.forecast.run_time import with_running

    known = work.expected
    mean, sd = with_running(
        observed=known.observed,
        mean_seconds=known.mean_seconds,
        sd_seconds=known.sd_seconds if known.known == "observed" else _DOCUMENT_SD * known.mean_seconds,
        elapsed_seconds=elapsed_seconds,
        each=each,
    )
    return work._replace(expected=known._replace(mean_seconds=mean, sd_seconds=sd))


def _mean_sd(work: KindWork) -> float:
    """How uncertain the mean run time is, as the standard deviation of its logarithm."""
    expected = work.expected
    if expected.known == "document":
        return _DOCUMENT_SD
    if expected.known == "unknown":
        return _ASSUMED_SD
    return max(_OBSERVED_SD_MIN, expected.sd_seconds / expected.mean_seconds / math.sqrt(expected.observed))


def _basis(work: Iterable[KindWork]) -> ForecastBasis:
    known = {each.expected.known for each in work}
    if "unknown" in known:
        return "assumed"
    if len(known) > 1:
        return "mixed"
    return "document" if "document" in known else "observed"
