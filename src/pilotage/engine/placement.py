"""Which site a class gets: the choice of sites is asked, and what found none waits until one of its own says so.

What follows from how sites behave is in `engine.selection`. Here is what the engine adds: who waits for room where, where a
class was reserved in vain, and when to ask again.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from pilotage.engine.decision_log import DecisionLog
from pilotage.engine.selection import Change, Selection
from pilotage.engine.selection.candidates import CANDIDATE, CandidateSet
from pilotage.engine.selection.filters import Asked, allows, estimated_seconds
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

_AGAIN_SECONDS = 0.05  # sooner nobody asks again: a time that is rounded must not come again and again


class Placement:
    """The engine's side of the choice of sites."""

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
        """Look after sites and shapes; the number of the next decision and the seed determine every draw."""
        self.retry_at = math.inf  # when a timer looks again for what found no site
        self.woken: list[Change] = []  # sites that a choice has woken; whoever asked for the choice carries it out
        self._selection = selection
        self._candidates = selection.sites
        self._candidates.listener = self._note_change
        self._changes = selection.sites.changes
        self._sites, self._queues, self._shapes, self._clock, self._log = sites, queues, shapes, clock, log
        shapes.on_new = self._add_shape
        self._by_index: dict[int, SiteState] = {}
        self._seed = seed
        self._draws = Draws(seed)
        self._draws_n = 0  # of the decision before which these are drawn

    def add_site(self, site: SiteState) -> None:
        """Look after one more site."""
        self._by_index[site.index] = site
        for shape, demand in self._shapes.by_number.items():
            self._count(site, shape, demand)
        self.site_changed(site)

    def remove_site(self, site: SiteState) -> None:
        """Look after it no more."""
        self._by_index.pop(site.index, None)

    def _add_shape(self, shape: int, demand: Demand) -> None:
        """Look after one more shape."""
        for site in self._by_index.values():
            self._count(site, shape, demand)
        self._queues.may_bind = True

    def _count(self, site: SiteState, shape: int, demand: Demand) -> None:
        site.slots[shape] = sum(_slots(pilot, shape, demand) for pilot in site.pilots.values())
        site.used.setdefault(shape, 0)

    # --- what changes -------------------------------------------------------------------------------------------------

    def _note_change(self, place: SiteProfile) -> None:
        """Something changed at a site, perhaps for the better."""
        self._queues.may_bind = True
        site = self._by_index.get(place.index)
        if site is not None and self._queues.at[site].waiting:
            self.retry_waiting(site, None)

    def retry_waiting(self, site: SiteState, shape: int | None) -> None:
        """There is room at a site for a shape, or perhaps for any: who waits for that is looked at again."""
        for queue in [
            each
            for each in self._queues.at[site].waiting
            if shape in (None, each.shape) or each not in self._queues.waiting
        ]:
            del self._queues.at[site].waiting[queue]
            if self._queues.waiting.pop(queue, queue) is None and queue.job.open:
                self._queues.ready[queue] = None

    def wait_for_room(self, queue: QueueClass) -> None:
        """No site has room for a class that not every site would do for: it is not looked at until one of its own says so."""
        self._queues.ready.pop(queue, None)
        self._queues.waiting[queue] = None
        for site in self.possible_sites(queue):
            self._queues.at[site].waiting[queue] = None

    def offer(self, site: SiteState) -> None:
        """A site came, or is another than it was: who found none and could run there asks again."""
        for queue in [each for each in self._queues.waiting if self.able(site, each)]:
            del self._queues.waiting[queue]
            if queue.job.open:
                self._queues.ready[queue] = None
        self._queues.may_bind = True

    def ask_again(self) -> None:
        """The time has come that somebody waits for who found no site."""
        if self._clock.now < self.retry_at:
            return
        self.retry_at = math.inf
        for queue in list(self._queues.waiting):
            del self._queues.waiting[queue]
            if queue.job.open:
                self._queues.ready[queue] = None
        self._queues.may_bind = True

    def site_changed(self, site: SiteState) -> None:
        """Something changed at a site that the choice must know: whether it can be reached, what its pilots take."""
        site.place.answers = site.known
        self._candidates.touch(site.place)

    def slots_changed(self, site: SiteState, pilot: PilotState, sign: int) -> None:
        """A pilot came (1) or went (-1)."""
        for shape, demand in self._shapes.by_number.items():
            slots = _slots(pilot, shape, demand)
            if slots:
                site.slots[shape] += sign * slots
        if sign > 0:
            self.reopen(site, barred=pilot.barred)
        self.site_changed(site)

    def backlog_changed(self, site: SiteState, by: int) -> None:
        """Its pilots let more, or fewer, attempts wait beyond what they run."""
        if by:
            site.place.backlog += by
            self.site_changed(site)

    def close(self, site: SiteState, queue: QueueClass) -> None:
        """Nothing more of a class is reserved there until another pilot comes, or the site falls asleep."""
        self._queues.at[site].unfit[queue] = None
        queue.unfit.add(site.index)

    def reopen(self, site: SiteState, *, barred: Collection[int] = ()) -> None:
        """Whatever was reserved there in vain may be again, but for some shapes."""
        for queue in [each for each in self._queues.at[site].unfit if each.shape not in barred]:
            queue.unfit.discard(site.index)
            del self._queues.at[site].unfit[queue]

    def free(self, site: SiteState, shape: int) -> None:
        """One less."""
        self._queues.may_bind = True
        if self._candidates.free(site.place, shape) and self._queues.at[site].waiting:
            self.retry_waiting(site, shape)

    # --- what is asked ------------------------------------------------------------------------------------------------

    def pool(self, queue: QueueClass) -> CandidateSet:
        """The sites for a class, as things stand."""
        pool = queue.pool
        if pool is None:
            pool = queue.pool = self._selection.pool(queue.asked, queue.shape)
            pool.users += 1
        elif pool.position != self._changes.end:
            self._candidates.refresh(pool)
        return pool

    def leave_pool(self, queue: QueueClass) -> None:
        """A class asks no more: its pool is forgotten, unless another class asks for the same."""
        pool, queue.pool = queue.pool, None
        if pool is not None:
            pool.users -= 1
            if not pool.users:
                self._selection.forget(pool.asked, pool.shape)

    def first(self, queue: QueueClass) -> SiteState | None:
        """The site that is chosen for one more of a class."""
        sites = self._candidates
        pool = queue.pool
        if pool is None or pool.position != self._changes.end:
            pool = self.pool(queue)
        if not (sites.trials or queue.unfit or queue.avoid or queue.prefer):
            # What mostly happens, in short: one site or none has room, and nothing is drawn.
            _, candidates, hibernated, _ = pool.counts
            if candidates == 1:
                return self._by_index[pool.status.index(CANDIDATE)]
            if not candidates and not hibernated:
                return None
        return self._chosen(queue, pool)

    def all_of(self, queue: QueueClass, count: int) -> list[tuple[SiteState, int]]:
        """The sites that have room for a class, each with how much, if so many fill all of it; none where they do not.

        None either where something else than room says where the class goes.
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
            free = site.place.left(shape)
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
            # The chance of a choice follows from the seed, the number of the next decision, and what was drawn before it.
            self._draws_n = self._log.next_number
            self._draws = Draws(self._seed, self._draws_n)
        found = self._selection.choose(
            self._draws, pool, self._clock.wall_time, avoid, queue.unfit, prefer, queue.activity
        )
        if found is None:
            if self._candidates.trials or self._candidates.asleep.queue:
                self._ask_later(queue, pool, avoid)
            return None
        place, woken, _ = found
        if woken is not None:
            self.woken.append(woken)
        return self._by_index[place.index]

    def _indices(self, queue: QueueClass) -> tuple[int, ...]:
        sites = self._sites.by_name
        return tuple(site.index for name in queue.avoid if (site := sites.get(name)) is not None and not site.removed)

    def _ask_later(self, queue: QueueClass, pool: CandidateSet, avoid: tuple[int, ...]) -> None:
        at = self._selection.choose_again_at(pool, self._clock.wall_time, avoid, queue.unfit)
        if at is None:
            return
        at = self._clock.now + max(_AGAIN_SECONDS, at - self._clock.wall_time)
        if at < self.retry_at:
            self.retry_at = at
            self._clock.timers.at(at, Due.CHOICE, "")

    def rounded_wall(self, seconds: float, asked: Asked) -> float:
        """A wall time a little longer, so that packages that ran for about as long are one class.

        Exact where none of the sites that would do for what is asked gives more.
        """
        if not seconds:
            return 0.0
        step = 60.0 if seconds < 3600.0 else 600.0
        rounded = math.ceil(seconds / step) * step
        fit = (site.site for site in self._by_index.values() if allows(site.place.description, asked))
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
        """Whether every site that could run a class has as much as it may, and nothing else keeps it waiting."""
        _, candidates, hibernated, overloaded = self.pool(queue).counts
        return bool(overloaded) and not (candidates or hibernated or self._candidates.trials)

    def is_impossible(self, queue: QueueClass) -> bool:
        """Whether none of the sites there are could ever run a class."""
        _, candidates, hibernated, overloaded = self.pool(queue).counts
        return not (candidates or hibernated or overloaded) and bool(self._by_index)

    def forget_estimate(self, queue: QueueClass) -> bool:
        """Ask no more that a site lasts as long as a class is expected to take; whether that was asked.

        An estimate says which of several sites would do. Where none of them lasts so long it may be wrong, and is tried.
        """
        if not queue.asked.run_seconds:
            return False
        self.leave_pool(queue)
        queue.asked = msgspec.structs.replace(queue.asked, run_seconds=0.0)
        return True

    def recall_estimate(self, queue: QueueClass, site: SiteState) -> bool:
        """Ask again that a site lasts as long as a class is expected to take, where one does so now; whether one does."""
        if queue.asked.run_seconds == queue.run_seconds:
            return False
        asked = msgspec.structs.replace(queue.asked, run_seconds=queue.run_seconds)
        if not allows(site.place.description, asked):
            return False
        self.leave_pool(queue)
        queue.asked = asked
        return True

    def open_sites(self, queue: QueueClass) -> list[SiteState]:
        """The sites where a class may be reserved as things stand, those it avoids only where there are no others."""
        fit = [site for site in self.possible_sites(queue) if site.index not in queue.unfit]
        return [site for site in fit if site.name not in queue.avoid] or fit

    def has_room(self, site: SiteState, shape: int) -> bool:
        """Whether one more may be reserved."""
        return site.place.has_room(shape)


def _slots(pilot: PilotState, shape: int, demand: Demand) -> int:
    """How many of a shape a pilot holds at once: none where they may run on other nodes only, which is noted with it."""
    if demand.node_restriction and not _is_on(pilot, demand.node_restriction):
        pilot.barred |= {shape}
        return 0
    return slots_for(demand, pilot.capacity)


def _is_on(pilot: PilotState, names: tuple[str, ...]) -> bool:
    """Whether a pilot is on one of some nodes. A site that is a computer is that one node, whatever it is called."""
    if is_named(pilot.node, names):
        return True
    about = pilot.site.site
    return about.kind == "local" and any(can_mean(each, other) for each in names for other in about.node_names)


# What fits into a pilot: beside what it runs, into its backlog, and into the time that it has left.

AHEAD_SECONDS = 0.5
"""What waits in the backlog of a pilot waits for no longer than this.

So nothing waits there of a kind of which nobody knows how long it takes: it may be hours, while others have nothing to do.
"""


def takes(pilot: PilotState, queue: QueueClass, now: float) -> bool:
    """Whether a pilot can take one more of a class: beside what it runs, or into its backlog, and long enough."""
    if pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred:
        return False
    demand, ends_at = queue.demand, pilot.ends_at
    if pilot.free.fits(demand):
        return ends_at is None or suffices(ends_at - now, pilot, queue)
    if not pilot.backlog or not (slots := slots_for(demand, pilot.capacity)):
        return False
    most, usual = pilot.backlog, usual_seconds(queue)
    # It asks by what it ran lately, which may have been shorter.
    if usual > AHEAD_SECONDS:
        most = min(most, int(slots * AHEAD_SECONDS / usual))
    elif not usual and queue.kind not in queue.job.took:
        return False
    if pilot.in_backlog() >= most:
        return False
    return ends_at is None or suffices(_left(pilot, demand, ends_at - now), pilot, queue)


def emptiest(site: SiteState, queue: QueueClass, now: float) -> PilotState | None:
    """The pilot with most room among those that could take one of a class if they had nothing else: it stays that one."""
    able = (
        pilot
        for pilot in site.pilots.values()
        if not (pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred)
        and slots_for(queue.demand, pilot.capacity)
        and lasts(pilot, queue, now)
    )
    return max(able, key=lambda pilot: pilot.free.cores_hundredths, default=None)


def remaining(site: SiteState, pilot: PilotState | None, demand: Demand, now: float) -> float | None:
    """How long an attempt can last: as long as its pilot when it begins, or as any batch job of its site."""
    if pilot is None:
        return site.site.wall_seconds or None
    return None if pilot.ends_at is None else _left(pilot, demand, max(0.0, pilot.ends_at - now))


def _left(pilot: PilotState, demand: Demand, seconds: float) -> float:
    """What is left of so many seconds of a pilot for one more attempt, if those that it waits for take as long as it may."""
    if pilot.free.fits(demand):
        return seconds
    return seconds / (1.0 + (pilot.in_backlog() + 1) / max(1, slots_for(demand, pilot.capacity)))


def lasts(pilot: PilotState, queue: QueueClass, now: float) -> bool:
    """Whether a pilot that does nothing else has the time that a class needs."""
    return pilot.ends_at is None or suffices(pilot.ends_at - now, pilot, queue)


def suffices(seconds: float, pilot: PilotState, queue: QueueClass) -> bool:
    """Whether so much time of a pilot is enough for one of a class."""
    if seconds < queue.demand.wall_seconds or seconds <= queue.more_wall_than:
        return False
    if queue.run_seconds:
        return seconds >= expected_seconds(pilot.site, queue)
    learned = learned_seconds(queue)
    # Half of what a pilot has when it comes is always enough: what seldom takes so long must be begun somewhere.
    return seconds >= learned or seconds >= 0.5 * (pilot.site.site.package_seconds_max or math.inf)


def expected_seconds(site: SiteState, queue: QueueClass) -> float:
    """How long packages of a class are expected to take at a site; 0 where nobody knows, or no pilot there lasts so long."""
    if not queue.run_seconds:
        return 0.0
    wall_seconds = queue.demand.wall_seconds
    seconds = estimated_seconds(site.site, run_seconds=queue.run_seconds, wall_seconds=wall_seconds)
    longest = site.site.package_seconds_max
    return seconds if not longest or seconds <= longest else 0.0


def could_take(site: SiteState, queue: QueueClass, now: float) -> bool:
    """Whether any live pilot of a site could run a class when it is free: large enough, and for long enough."""
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
    """Whether an attempt of a class has a batch job of its own at a site.

    So has what may run on some nodes only, where pilots came up on others or did not come yet: nobody can say where the next
    one comes up, but the batch system can be told of the nodes of a package.
    """
    about, demand = site.site, queue.demand
    if about.mode == "bound" or demand.nodes > 1:
        return True
    if not demand.node_restriction or not about.places_nodes or about.kind == "local":
        return False
    return not site.slots[queue.shape]


def unmet(site: SiteState, demand: Demand) -> list[str]:
    """What a site cannot give of a demand, in words."""
    about = site.site
    told = [shortage(name, site.name, asked, given) for name, asked, given in lacking(demand, about.capacity)]
    if demand.nodes > about.nodes:
        told.append(f"it asks for {demand.nodes} nodes and {site.name} gives {about.nodes}")
    longest = about.package_seconds_max
    if longest and demand.wall_seconds > longest:
        why = (
            f", {about.wall_seconds:.0f} s less what its pilots need themselves" if longest < about.wall_seconds else ""
        )
        told.append(f"it asks for {demand.wall_seconds:.0f} s and {site.name} gives {longest:.0f} s{why}")
    return told
