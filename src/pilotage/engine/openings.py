"""Which sites have room for which shape: the first with room is found without looking at the full ones.

Room, as in swift-site-selection with a score of 1: in bound mode 1 + jobThrottle · TScore; in pilot mode
1 + ⌈min(1, TScore) · 1.25 · live slots⌉ for each shape and what its pilots let wait besides, and as in bound mode while
no slot is live.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from pilotage.engine.parts import QueueClass
from pilotage.engine.places import PilotState, SiteState
from pilotage.model.demand import Demand, lacking, slots_for

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

TSCORE = 1.0
"""Every site behaves alike until it is scored."""


class Openings:
    """For each shape a heap of the sites that may have room; who turns out to have none leaves it until told again."""

    def __init__(self, engine: Engine) -> None:
        """Look after the sites and shapes of an engine."""
        self._engine = engine
        self._sites: list[SiteState] = []
        self._able: list[list[bool]] = []  # shape → site → whether it could ever run it
        self._open: list[list[int]] = []
        self._listed: list[set[int]] = []

    def add_site(self, site: SiteState) -> None:
        """Look after one more site."""
        self._sites.append(site)
        for shape, demand in enumerate(self._engine.demands):
            self._able[shape].append(is_able(site, demand))
            self.tell(site, shape)

    def add_shape(self, shape: int, demand: Demand) -> None:
        """Look after one more shape."""
        self._able.append([is_able(site, demand) for site in self._sites])
        self._open.append([])
        self._listed.append(set())
        for site in self._sites:
            site.rooms.pop(shape, None)
            site.slots[shape] = sum(slots_for(demand, pilot.capacity) for pilot in site.pilots.values())
            site.used.setdefault(shape, 0)
            self.tell(site, shape)

    def tell(self, site: SiteState, shape: int) -> None:
        """Something changed for the better."""
        self._engine.stirred = True
        if site.stuck:
            self._let_loose(site, shape)
        listed = self._listed[shape]
        if site.index not in listed and self._able[shape][site.index]:
            listed.add(site.index)
            heapq.heappush(self._open[shape], site.index)

    def stick(self, queue: QueueClass) -> None:
        """No site has room for a class that not every site would do for: it is not looked at until one of its own says so."""
        engine = self._engine
        engine.active.pop(queue, None)
        engine.stuck[queue] = None
        for site in self._sites:
            if self._able[queue.shape][site.index] and allowed(site, queue):
                site.stuck[queue] = None

    def _let_loose(self, site: SiteState, shape: int) -> None:
        engine = self._engine
        for queue in [each for each in site.stuck if each.shape == shape or each not in engine.stuck]:
            del site.stuck[queue]
            if engine.stuck.pop(queue, queue) is None and queue.job.open:
                engine.active[queue] = None

    def tell_all(self, site: SiteState) -> None:
        """The same for every shape."""
        for shape in range(len(self._open)):
            self.tell(site, shape)

    def slots_changed(self, site: SiteState, pilot: PilotState, sign: int) -> None:
        """A pilot came (1) or went (-1)."""
        for shape, demand in enumerate(self._engine.demands):
            slots = slots_for(demand, pilot.capacity)
            if slots:
                site.slots[shape] += sign * slots
                site.rooms.pop(shape, None)
                if sign > 0:
                    self.tell(site, shape)
        if sign > 0 and site.unfit:
            for queue in site.unfit:
                queue.unfit.discard(site.index)
                self.tell(site, queue.shape)
            site.unfit.clear()

    def backlog_changed(self, site: SiteState, by: int) -> None:
        """Its pilots let more, or fewer, attempts wait beyond what they run."""
        site.backlog += by
        site.rooms.clear()
        if by > 0:
            self.tell_all(site)

    def close(self, site: SiteState, queue: QueueClass) -> None:
        """Nothing more of a class is reserved there until another pilot comes."""
        site.unfit[queue] = None
        queue.unfit.add(site.index)

    def use(self, site: SiteState, shape: int) -> None:
        """One more is reserved or under way."""
        site.used[shape] += 1

    def free(self, site: SiteState, shape: int) -> None:
        """One less."""
        self._engine.stirred = True
        site.used[shape] -= 1
        if site.stuck or site.index not in self._listed[shape]:
            self.tell(site, shape)

    def room(self, site: SiteState, shape: int) -> int:
        """How many of a shape may be reserved or under way at a site at once."""
        slots = site.slots[shape]
        if site.site.mode == "pilots" and slots > 0:
            return 1 + math.ceil(min(1.0, TSCORE) * self._engine.settings.slots_factor * slots) + site.backlog
        return 1 + math.floor(site.site.job_throttle * TSCORE)

    def has_room(self, site: SiteState, shape: int) -> bool:
        """Whether one more may be reserved."""
        room = site.rooms.get(shape)
        if room is None:
            room = site.rooms[shape] = self.room(site, shape)
        return site.used[shape] < room and (site.answers or bool(site.pilots))

    def rounded_wall(self, seconds: float) -> float:
        """A wall time a little longer, so that packages that ran for about as long are one class; exact where none gives more."""
        if not seconds:
            return 0.0
        step = 60.0 if seconds < 3600.0 else 600.0
        rounded = math.ceil(seconds / step) * step
        given = (site.site.package_seconds_max for site in self._sites)
        return rounded if any(not wall or wall > rounded for wall in given) else seconds

    def able(self, site: SiteState, shape: int) -> bool:
        """Whether a site could ever run a shape."""
        return self._able[shape][site.index]

    def possible_sites(self, queue: QueueClass) -> list[SiteState]:
        """The sites that could ever run a class."""
        return [site for site in self._sites if self._able[queue.shape][site.index] and allowed(site, queue)]

    def is_impossible(self, queue: QueueClass) -> bool:
        """Whether none of the sites there are could ever run a class; looked at again only when a site is added."""
        if queue.sites_looked_at != len(self._sites):
            queue.sites_looked_at = len(self._sites)
            queue.impossible = bool(self._sites) and not self.possible_sites(queue)
        return queue.impossible

    def open_sites(self, queue: QueueClass) -> list[SiteState]:
        """The sites where a class may be reserved as things stand, those it avoids only where there are no others."""
        fit = [site for site in self.possible_sites(queue) if site.index not in queue.unfit]
        return [site for site in fit if site.name not in queue.avoid] or fit

    def first(self, queue: QueueClass) -> SiteState | None:
        """The first site with room for a class."""
        shape = queue.shape
        if queue.prefer:
            site = self._engine.sites.get(queue.prefer)
            if (
                site is not None
                and self._able[shape][site.index]
                and allowed(site, queue)
                and site.index not in queue.unfit
                and self.has_room(site, shape)
            ):
                return site
        if not queue.ordinary:
            return next((site for site in self.open_sites(queue) if self.has_room(site, shape)), None)
        heap = self._open[shape]
        while heap:
            site = self._sites[heap[0]]
            if self.has_room(site, shape):
                return site
            self._listed[shape].discard(heapq.heappop(heap))
        return None


def is_able(site: SiteState, demand: Demand) -> bool:
    """Whether a site could ever run a demand."""
    about = site.site
    if demand.nodes > about.nodes or lacking(demand, about.capacity):
        return False
    return not about.wall_seconds or demand.wall_seconds <= about.package_seconds_max


def allowed(site: SiteState, queue: QueueClass) -> bool:
    """Whether a site is one where a class may run at all."""
    about = site.site
    if queue.executor not in ("", about.name, about.kind):
        return False
    return not about.wall_seconds or about.package_seconds_max > queue.more_wall_than
