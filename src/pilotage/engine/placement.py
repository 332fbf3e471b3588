"""Finds a site for a queue class. A class without one waits until a possible site has room.

`engine.selection` decides by the behaviour of sites. This module adds the engine's part: which classes wait for room
where, where a reservation failed, and when to try again.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from pilotage.engine.decision_log import DecisionLog
from pilotage.engine.selection import Change, Selection
from pilotage.engine.selection.candidates import CANDIDATE, CandidateSet
from pilotage.engine.selection.filters import Requirements, allows, estimated_seconds
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.state.clock import Due, EngineClock
from pilotage.engine.state.job_queries import learned_seconds, usual_seconds
from pilotage.engine.state.jobs import QueueClass
from pilotage.engine.state.queues import ReadyQueues, ShapeTable
from pilotage.engine.state.sites import PilotState, SiteState
from pilotage.engine.state.tables import SiteTable
from pilotage.model.resources import Demand, lacking, shortage, slots_for
from pilotage.model.site import can_mean, is_named

_AGAIN_SECONDS = 0.05  # shortest wait before the next try: a rounded time must not fire again and again


class Placement:
    """Connects the engine with the site selection."""

    def __init__(
        self,
        selection: Selection,
        *,
        sites: SiteTable,
        queues: ReadyQueues,
        shapes: ShapeTable,
        clock: EngineClock,
        log: DecisionLog,
        seed: int,
    ) -> None:
        """Manage sites and shapes; the seed and the number of the next decision determine every draw."""
        self.retry_at = math.inf  # when a timer retries the classes without a site
        self.woken: list[Change] = []  # sites that a choice woke; the caller records them
        self._selection = selection
        self._candidates = selection.sites
        self._candidates.listener = self._note_change
        self._changes = selection.sites.changes
        self._sites, self._queues, self._shapes, self._clock, self._log = sites, queues, shapes, clock, log
        shapes.on_new = self._add_shape
        self._by_index: dict[int, SiteState] = {}
        self._seed = seed
        self._draws = Draws(seed)
        self._draws_n = 0  # number of the decision that these draws belong to

    def add_site(self, site: SiteState) -> None:
        """Start using a site."""
        self._by_index[site.index] = site
        for shape, demand in self._shapes.by_number.items():
            self._count(site, shape, demand)
        self.site_changed(site)

    def remove_site(self, site: SiteState) -> None:
        """Stop using a site."""
        self._by_index.pop(site.index, None)

    def _add_shape(self, shape: int, demand: Demand) -> None:
        """Start counting a new shape at every site."""
        for site in self._by_index.values():
            self._count(site, shape, demand)
        self._queues.may_bind = True

    def _count(self, site: SiteState, shape: int, demand: Demand) -> None:
        site.slots[shape] = sum(_slots(pilot, shape, demand) for pilot in site.pilots.values())
        site.used.setdefault(shape, 0)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _note_change(self, profile: SiteProfile) -> None:
        """A site changed, perhaps for the better."""
        self._queues.may_bind = True
        site = self._by_index.get(profile.index)
        if site is not None and self._queues.at[site].waiting:
            self.retry_waiting(site, None)

    def retry_waiting(self, site: SiteState, shape: int | None) -> None:
        """A site has room for a shape, or perhaps for any: retry the classes that wait for it."""
        for queue in [
            each
            for each in self._queues.at[site].waiting
            if shape in (None, each.shape) or each not in self._queues.waiting
        ]:
            del self._queues.at[site].waiting[queue]
            if self._queues.waiting.pop(queue, queue) is None and queue.job.open:
                self._queues.ready[queue] = None

    def wait_for_room(self, queue: QueueClass) -> None:
        """Let a class wait until one of its sites has room; none has now, and the class cannot use every site."""
        self._queues.ready.pop(queue, None)
        self._queues.waiting[queue] = None
        for site in self.possible_sites(queue):
            self._queues.at[site].waiting[queue] = None

    def offer(self, site: SiteState) -> None:
        """A site was added or changed: retry the classes without a site that could run there."""
        for queue in [each for each in self._queues.waiting if self.able(site, each)]:
            del self._queues.waiting[queue]
            if queue.job.open:
                self._queues.ready[queue] = None
        self._queues.may_bind = True

    def retry_due(self) -> None:
        """Retry the classes without a site whose time has come."""
        if self._clock.now < self.retry_at:
            return
        self.retry_at = math.inf
        for queue in list(self._queues.waiting):
            del self._queues.waiting[queue]
            if queue.job.open:
                self._queues.ready[queue] = None
        self._queues.may_bind = True

    def site_changed(self, site: SiteState) -> None:
        """Update the selection after a change at a site: whether it is reachable, what its pilots can run."""
        site.profile.answers = site.known
        self._candidates.touch(site.profile)

    def slots_changed(self, site: SiteState, pilot: PilotState, sign: int) -> None:
        """Count a pilot that came (1) or went (-1)."""
        for shape, demand in self._shapes.by_number.items():
            slots = _slots(pilot, shape, demand)
            if slots:
                site.slots[shape] += sign * slots
        if sign > 0:
            self.reopen(site, barred=pilot.barred)
        self.site_changed(site)

    def backlog_changed(self, site: SiteState, by: int) -> None:
        """Change the backlog of the pilots of a site."""
        if by:
            site.profile.backlog += by
            self.site_changed(site)

    def close(self, site: SiteState, queue: QueueClass) -> None:
        """Reserve no more of a class at a site until another pilot starts there, or the site is hibernated."""
        self._queues.at[site].unfit[queue] = None
        queue.unfit.add(site.index)

    def reopen(self, site: SiteState, *, barred: Collection[int] = ()) -> None:
        """Allow classes again whose reservations failed at a site, except the barred shapes."""
        for queue in [each for each in self._queues.at[site].unfit if each.shape not in barred]:
            queue.unfit.discard(site.index)
            del self._queues.at[site].unfit[queue]

    def reopen_for(self, site: SiteState, queue: QueueClass) -> None:
        """Allow one class again at a site where its reservations failed."""
        self._queues.at[site].unfit.pop(queue, None)
        queue.unfit.discard(site.index)

    def free(self, site: SiteState, shape: int) -> None:
        """One less."""
        self._queues.may_bind = True
        if self._candidates.free(site.profile, shape) and self._queues.at[site].waiting:
            self.retry_waiting(site, shape)

    # --- queries ------------------------------------------------------------------------------------------------------

    def pool(self, queue: QueueClass) -> CandidateSet:
        """The current candidate sites for a class."""
        pool = queue.pool
        if pool is None:
            pool = queue.pool = self._selection.pool(queue.requirements, queue.shape)
            pool.users += 1
        elif pool.position != self._changes.end:
            self._candidates.refresh(pool)
        return pool

    def release_pool(self, queue: QueueClass) -> None:
        """Release the candidate set of a class, unless another class shares it."""
        pool, queue.pool = queue.pool, None
        if pool is not None:
            pool.users -= 1
            if not pool.users:
                self._selection.forget(pool.requirements, pool.shape)

    def first(self, queue: QueueClass) -> SiteState | None:
        """Choose the site for one more package of a class."""
        sites = self._candidates
        pool = queue.pool
        if pool is None or pool.position != self._changes.end:
            pool = self.pool(queue)
        if not (sites.trials or queue.unfit or queue.avoid or queue.prefer):
            # The usual case, in short: at most one site has room, and nothing is drawn.
            _, candidates, hibernated, _ = pool.counts
            if candidates == 1:
                return self._by_index[pool.status.index(CANDIDATE)]
            if not candidates and not hibernated:
                return None
        return self._chosen(queue, pool)

    def all_of(self, queue: QueueClass, count: int) -> list[tuple[SiteState, int]]:
        """The sites with room for a class and how much each has, if `count` packages fill them all; otherwise none.

        None, too, if something other than room decides where the class goes.
        """
        if self._candidates.trials or queue.unfit or queue.avoid or queue.prefer:
            return []
        pool = self.pool(queue)
        candidates = pool.counts[CANDIDATE]
        if not 1 < candidates <= count:
            return []
        found, shape, left = [], queue.shape, count
        for index in pool.candidates():
            site = self._by_index[index]
            free = site.profile.left(shape)
            left -= free
            if left < 0:
                return []
            found.append((site, free))
        return found

    def _chosen(self, queue: QueueClass, pool: CandidateSet) -> SiteState | None:
        avoid, prefer = self._indices(queue) if queue.avoid else (), -1
        if queue.prefer and (wished := self._sites.by_name.get(queue.prefer)) is not None and not wished.removed:
            prefer = wished.index
        if self._log.next_number != self._draws_n:
            # Each draw follows from the seed, the number of the next decision, and the draws before it.
            self._draws_n = self._log.next_number
            self._draws = Draws(self._seed, self._draws_n)
        found = self._selection.choose(
            self._draws, pool, self._clock.wall_time, avoid, queue.unfit, prefer, queue.activity
        )
        if found is None:
            if self._candidates.trials or self._candidates.asleep.queue:
                self._retry_later(queue, pool, avoid)
            return None
        profile, woken, _ = found
        if woken is not None:
            self.woken.append(woken)
        return self._by_index[profile.index]

    def _indices(self, queue: QueueClass) -> tuple[int, ...]:
        sites = self._sites.by_name
        return tuple(site.index for name in queue.avoid if (site := sites.get(name)) is not None and not site.removed)

    def _retry_later(self, queue: QueueClass, pool: CandidateSet, avoid: tuple[int, ...]) -> None:
        at = self._selection.choose_again_at(pool, self._clock.wall_time, avoid, queue.unfit)
        if at is None:
            return
        at = self._clock.now + max(_AGAIN_SECONDS, at - self._clock.wall_time)
        if at < self.retry_at:
            self.retry_at = at
            self._clock.timers.at(at, Due.CHOICE, "")

    def rounded_wall(self, seconds: float, requirements: Requirements) -> float:
        """Round a wall time up a little, so that packages with about the same run time share a class.

        Exact if no suitable site offers more.
        """
        if not seconds:
            return 0.0
        step = 60.0 if seconds < 3600.0 else 600.0
        rounded = math.ceil(seconds / step) * step
        fit = (site.site for site in self._by_index.values() if allows(site.profile.description, requirements))
        given = (site.package_seconds_max for site in fit)
        return rounded if any(not wall or wall > rounded for wall in given) else seconds

    def able(self, site: SiteState, queue: QueueClass) -> bool:
        """Whether a site could ever run a class."""
        pool = self.pool(queue)
        return site.index in self._by_index and pool.allowed(site.index)

    def possible_sites(self, queue: QueueClass) -> list[SiteState]:
        """The sites that could ever run a class."""
        by_index = self._by_index
        return [site for index in self.pool(queue).able() if (site := by_index.get(index)) is not None]

    def is_full(self, queue: QueueClass) -> bool:
        """Whether every possible site of a class is full, and nothing else keeps the class waiting."""
        _, candidates, hibernated, overloaded = self.pool(queue).counts
        return bool(overloaded) and not (candidates or hibernated or self._candidates.trials)

    def is_impossible(self, queue: QueueClass) -> bool:
        """Whether no current site could ever run a class."""
        _, candidates, hibernated, overloaded = self.pool(queue).counts
        return not (candidates or hibernated or overloaded) and bool(self._by_index)

    def forget_estimate(self, queue: QueueClass) -> bool:
        """Stop requiring that a site lasts as long as the estimate of a class; returns whether it was required.

        An estimate chooses among sites. If none lasts that long, the estimate may be wrong, and the class is tried anyway.
        """
        if not queue.requirements.run_seconds:
            return False
        self.release_pool(queue)
        queue.requirements = msgspec.structs.replace(queue.requirements, run_seconds=0.0)
        return True

    def recall_estimate(self, queue: QueueClass, site: SiteState) -> bool:
        """Require the estimated time of a class again if a site offers it now; returns whether one does."""
        if queue.requirements.run_seconds == queue.run_seconds:
            return False
        requirements = msgspec.structs.replace(queue.requirements, run_seconds=queue.run_seconds)
        if not allows(site.profile.description, requirements):
            return False
        self.release_pool(queue)
        queue.requirements = requirements
        return True

    def open_sites(self, queue: QueueClass) -> list[SiteState]:
        """The sites where a class may be reserved now; sites it avoids only if there are no others."""
        fit = [site for site in self.possible_sites(queue) if site.index not in queue.unfit]
        return [site for site in fit if site.name not in queue.avoid] or fit

    def takes_one_more(self, site: SiteState, queue: QueueClass) -> bool:
        """Whether a package of a class may be reserved at a site now: it is awake, allows the class, and has room."""
        return site.index in self._by_index and self.pool(queue).status[site.index] == CANDIDATE

    def has_room(self, site: SiteState, shape: int) -> bool:
        """Whether one more package may be reserved there."""
        return site.profile.has_room(shape)


def _slots(pilot: PilotState, shape: int, demand: Demand) -> int:
    """How many of a shape a pilot holds at once; none if the shape names other nodes, which is noted in the pilot."""
    if demand.node_restriction and not _is_on(pilot, demand.node_restriction):
        pilot.barred |= {shape}
        return 0
    return slots_for(demand, pilot.capacity)


def _is_on(pilot: PilotState, names: tuple[str, ...]) -> bool:
    """Whether a pilot is on one of these nodes. A site that is one computer is that node, whatever its name."""
    if is_named(pilot.node, names):
        return True
    about = pilot.site.site
    return about.kind == "local" and any(can_mean(each, other) for each in names for other in about.node_names)


# What fits into a pilot: its free slots, its backlog, and its remaining time.

AHEAD_SECONDS = 0.5
"""Longest time that a package waits in the backlog of a pilot.

So a package of unknown run time never waits there: it might be hours, while other pilots are idle.
"""


def takes(pilot: PilotState, queue: QueueClass, now: float) -> bool:
    """Whether a pilot can take one more package of a class, in a free slot or its backlog, and lasts long enough."""
    if pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred:
        return False
    demand, ends_at = queue.demand, pilot.ends_at
    if pilot.free.fits(demand):
        return ends_at is None or suffices(ends_at - now, pilot, queue)
    if not pilot.backlog or not (slots := slots_for(demand, pilot.capacity)):
        return False
    most, usual = pilot.backlog, usual_seconds(queue)
    # Its backlog is based on its latest packages, which may have been shorter.
    if usual > AHEAD_SECONDS:
        most = min(most, int(slots * AHEAD_SECONDS / usual))
    elif not usual and queue.kind not in queue.job.run_times.by_kind:
        return False
    if pilot.in_backlog() >= most:
        return False
    return ends_at is None or suffices(_left(pilot, demand, ends_at - now), pilot, queue)


def emptiest(site: SiteState, queue: QueueClass, now: float) -> PilotState | None:
    """The emptiest pilot among those that could run a class if idle; the choice is stable."""
    able = (
        pilot
        for pilot in site.pilots.values()
        if not (pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred)
        and slots_for(queue.demand, pilot.capacity)
        and lasts(pilot, queue, now)
    )
    return max(able, key=lambda pilot: pilot.free.cores_hundredths, default=None)


def remaining(site: SiteState, pilot: PilotState | None, demand: Demand, now: float) -> float | None:
    """How long an attempt can last: until the end of its pilot, or as long as a batch job of its site."""
    if pilot is None:
        return site.site.wall_seconds or None
    return None if pilot.ends_at is None else _left(pilot, demand, max(0.0, pilot.ends_at - now))


def _left(pilot: PilotState, demand: Demand, seconds: float) -> float:
    """The part of a pilot's remaining seconds for one more attempt, if those ahead of it take as long as this one may."""
    if pilot.free.fits(demand):
        return seconds
    return seconds / (1.0 + (pilot.in_backlog() + 1) / max(1, slots_for(demand, pilot.capacity)))


def lasts(pilot: PilotState, queue: QueueClass, now: float) -> bool:
    """Whether an idle pilot lasts long enough for a class."""
    return pilot.ends_at is None or suffices(pilot.ends_at - now, pilot, queue)


def suffices(seconds: float, pilot: PilotState, queue: QueueClass) -> bool:
    """Whether this much time of a pilot is enough for a package of a class."""
    if seconds < queue.demand.wall_seconds or seconds <= queue.more_wall_than:
        return False
    if queue.run_seconds:
        return seconds >= expected_seconds(pilot.site, queue)
    learned = learned_seconds(queue)
    # Half of a pilot's initial time is always enough: a package that rarely takes so long must start somewhere.
    return seconds >= learned or seconds >= 0.5 * (pilot.site.site.package_seconds_max or math.inf)


def expected_seconds(site: SiteState, queue: QueueClass) -> float:
    """Expected run time of a class at a site; 0 if unknown, or if no pilot there lasts that long."""
    if not queue.run_seconds:
        return 0.0
    wall_seconds = queue.demand.wall_seconds
    seconds = estimated_seconds(site.site, run_seconds=queue.run_seconds, wall_seconds=wall_seconds)
    longest = site.site.package_seconds_max
    return seconds if not longest or seconds <= longest else 0.0


def could_take(site: SiteState, queue: QueueClass, now: float) -> bool:
    """Whether any live pilot of a site, when free, is large enough for a class and lasts long enough."""
    if not site.slots[queue.shape]:
        return False
    if not queue.more_wall_than and not queue.demand.wall_seconds and not queue.run_seconds:
        return True
    return any(
        lasts(pilot, queue, now) and slots_for(queue.demand, pilot.capacity)
        for pilot in site.pilots.values()
        if queue.shape not in pilot.barred
    )


def is_bound(site: SiteState, queue: QueueClass) -> bool:
    """Whether a class gets batch jobs of its own at a site.

    So does a class that names nodes, if pilots started on other nodes or not at all: the node of the next pilot is unknown,
    but the batch system can be told the nodes of a package.
    """
    about, demand = site.site, queue.demand
    if about.mode == "bound" or demand.nodes > 1:
        return True
    if not demand.node_restriction or not about.places_nodes or about.kind == "local":
        return False
    return not site.slots[queue.shape]


def unmet(site: SiteState, demand: Demand) -> list[str]:
    """Resources that a site lacks for a demand, in words."""
    about = site.site
    shortages = [shortage(name, site.name, asked, given) for name, asked, given in lacking(demand, about.capacity)]
    if demand.nodes > about.nodes:
        shortages.append(f"it asks for {demand.nodes} nodes and {site.name} has {about.nodes}")
    longest = about.package_seconds_max
    if longest and demand.wall_seconds > longest:
        why = (
            f", {about.wall_seconds:.0f} s minus the time that its pilots need themselves"
            if longest < about.wall_seconds
            else ""
        )
        shortages.append(f"it asks for {demand.wall_seconds:.0f} s and {site.name} allows {longest:.0f} s{why}")
    return shortages
