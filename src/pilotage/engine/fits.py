"""What fits into a pilot: beside what it runs, into its backlog, and into the time that it has left."""

from __future__ import annotations

import math

from pilotage.engine.fairness_work import learned_seconds, usual_seconds
from pilotage.engine.jobs import QueueClass
from pilotage.engine.places import PilotState, SiteState
from pilotage.engine.selection.filters import estimated_seconds
from pilotage.model.demand import Demand, slots_for

AHEAD_SECONDS = 0.5
"""What waits in the backlog of a pilot waits for no longer than this.

So nothing waits there of a kind of which nobody knows how long it takes: it may be hours, while others have nothing to do.
"""


def takes(pilot: PilotState, queue: QueueClass, now: float) -> bool:
    """Whether a pilot can take one more of a class: beside what it runs, or into its backlog, and long enough."""
    if pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred:
        return False
    demand, ends_at = queue.demand, pilot.ends_at
    if pilot.fits(demand):
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


def is_in_the_way(small: Demand, large: Demand, pilot: PilotState) -> bool:
    """Whether an attempt would take something that there is too little of for another one."""
    return bool(
        large.cores_hundredths > pilot.free_cores_hundredths
        or (small.memory_bytes and large.memory_bytes > pilot.free_memory_bytes)
        or (small.gpus and large.gpus > pilot.free_gpus)
        or (small.scratch_bytes and large.scratch_bytes > pilot.free_scratch_bytes)
    )


def emptiest(site: SiteState, queue: QueueClass, now: float) -> PilotState | None:
    """The pilot with most room among those that could take one of a class if they had nothing else: it stays that one."""
    able = (
        pilot
        for pilot in site.pilots.values()
        if not (pilot.leaving or pilot.suspect or pilot.draining or queue.shape in pilot.barred)
        and slots_for(queue.demand, pilot.capacity)
        and lasts(pilot, queue, now)
    )
    return max(able, key=lambda pilot: pilot.free_cores_hundredths, default=None)


def remaining(site: SiteState, pilot: PilotState | None, demand: Demand, now: float) -> float | None:
    """How long an attempt can last: as long as its pilot when it begins, or as any batch job of its site."""
    if pilot is None:
        return site.site.wall_seconds or None
    return None if pilot.ends_at is None else _left(pilot, demand, max(0.0, pilot.ends_at - now))


def _left(pilot: PilotState, demand: Demand, seconds: float) -> float:
    """What is left of so many seconds of a pilot for one more attempt, if those that it waits for take as long as it may."""
    if pilot.fits(demand):
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
