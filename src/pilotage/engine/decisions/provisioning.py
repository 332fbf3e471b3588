"""Pilots are asked for where work could use them: no more than the work needs and the site allows.

Those that are still in a queue when nothing waits for them any more are taken out of it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pilotage.engine.decisions.binding import may_start
from pilotage.engine.decisions.pulling import may_fetch
from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import is_bound
from pilotage.engine.selection.candidates import CandidateSet
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import PackageStatus, QueueClass
from pilotage.engine.state.queues import any_reserved
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.site_observations import is_to_show, submitting
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted, SubmitPilot
from pilotage.model.resources import slots_for

Startable = dict[CandidateSet, tuple[QueueClass, int]]

WITHDRAW_SECONDS = 10.0
"""Pilots that have not come are withdrawn when nothing could use them for so long."""
HOPEFUL_SECONDS = 300.0
"""The same while packages wait for others, or for their next attempt: they may become ready at any time."""
EVERY_SECONDS = 1.0
"""Sites are not asked more often than this: many packages become ready in a second, and one look serves them all."""


def request_pilots(state: EngineState) -> None:
    """Ask every pilot site for as many pilots as the work that waits could use there; where none does, for none."""
    if state.provisioning.stopping:
        return
    sites = state.sites.by_name.values()
    if (
        not state.queues.ready
        and not state.queues.waiting
        and not any_reserved(state.queues.reserved_counts)
        and not any(each.expected for each in sites)
    ):
        state.provisioning.idle_since = math.inf
        return
    if state.clock.now < state.provisioning.last_run + EVERY_SECONDS:
        if not state.provisioning.timer_set:
            state.provisioning.timer_set = True
            state.clock.timers.at(state.provisioning.last_run + EVERY_SECONDS, Due.PROVISION, "")
        return
    state.provisioning.last_run = state.clock.now
    state.provisioning.timer_set = False
    if not _is_work_there(state):
        _withdraw_unused(state)
        return
    state.provisioning.idle_since = math.inf
    startable: Startable | None = None
    for site in sites:
        if site.full:
            continue
        free = spare(site)
        if free <= 0:
            site.full = True
        elif site.answers and not site.removed and state.clock.now >= site.quiet_until and not site.asleep:
            startable = startable_in(state) if startable is None else startable
            for _ in range(wanted(state, site, free, startable)):
                request(state, site)


def _is_work_there(state: EngineState) -> bool:
    if any_reserved(state.queues.reserved_counts):
        return True
    return any(may_start(state, queue) for waiting in (state.queues.ready, state.queues.waiting) for queue in waiting)


def _withdraw_unused(state: EngineState) -> None:
    """Withdraw the pilots that have not come, once nothing could use them for a while; else look again then."""
    if not any(site.expected for site in state.sites.by_name.values()):
        return
    hopeful = any(
        job.open and (job.counts[PackageStatus.BLOCKED] or job.counts[PackageStatus.DELAYED])
        for job in state.jobs.by_id.values()
    )
    state.provisioning.idle_since = min(state.provisioning.idle_since, state.clock.now)
    due_at = state.provisioning.idle_since + (HOPEFUL_SECONDS if hopeful else WITHDRAW_SECONDS)
    if state.clock.now < due_at:
        state.clock.timers.at(due_at, Due.PROVISION, "")
        return
    for site in state.sites.by_name.values():
        withdraw(state, site)


def withdraw(state: EngineState, site: SiteState) -> None:
    """Take the pilots of a site that have not come out of its queue, but for those that are only to show that they come."""
    for request in list(site.requests.values()):
        if not request.spoke and not is_to_show(request.key, site=site.name):
            state.log.effects.append(CancelSubmitted(site=site.name, key=request.key))
            state.log.write(payloads.PilotEnded(reason="withdrawn"), pilot=request.key)


def spare(site: SiteState) -> int:
    """How many more pilots a site allows."""
    return site.site.pilots_max - len(site.pilots) - site.expected if site.site.mode == "pilots" else 0


def wanted(state: EngineState, site: SiteState, most: int, startable: Startable | None = None) -> int:
    """How many more pilots the work that waits could use at a site, at most so many; `startable` where it is known."""
    canary, about = site.place.canary, site.site
    pilots = [
        len(numbers) / slots
        for queue, numbers in state.queues.at[site].reserved.items()
        if (slots := slots_for(queue.demand, about.capacity))
    ]
    # One that was just woken is asked for what is reserved there, and no more; but where nothing may be reserved before a
    # pilot comes, for that one.
    left = float(most + site.expected)
    if not state.queues.at[site].reserved or not canary:
        left = min(left, 1.0) if canary else left
        for pool, (queue, ready) in (startable_in(state) if startable is None else startable).items():
            if pool.allowed(site.index) and not _in_vain(site, queue):
                slots = slots_for(queue.demand, about.capacity)
                pilots.append(ready / slots if slots else 0.0)
    if about.kind == "local":
        unserved = ((slots_for(queue.demand, about.capacity), count) for queue, count in _unserved(state, site))
        pilots += [count / slots for slots, count in unserved if slots]
    return max(0, min(most, math.ceil(min(left, math.fsum(pilots))) - site.expected))


def startable_in(state: EngineState) -> Startable:
    """What may be started, by its pool: one of the classes, since all of them take the same, and how many are ready in all.

    There are many classes and many sites; what could go where is the same for all of a pool.
    """
    found: Startable = {}
    for queue in (*state.queues.ready, *state.queues.waiting):
        if may_start(state, queue):
            pool = state.placement.pool(queue)
            first, ready = found.get(pool, (queue, 0))
            found[pool] = first, ready + queue.ready
    return found


def _unserved(state: EngineState, site: SiteState) -> Iterator[tuple[QueueClass, int]]:
    """What is reserved behind batch systems for pilots that have not come, and this computer may fetch.

    A pilot here waits in no queue and costs nobody anything. It is there before those come, if they ever do, and fetches
    what waits for them.
    """
    for other in state.sites.by_name.values():
        if other.site.kind != "local":
            for queue, numbers in state.queues.at[other].reserved.items():
                if not other.slots[queue.shape] and may_fetch(state, site, queue):
                    yield queue, len(numbers)


def _in_vain(site: SiteState, queue: QueueClass) -> bool:
    """Whether pilots came up at a site, and none on a node that a class names: another may not do so either."""
    return bool(site.pilots and queue.demand.node_restriction) and is_bound(site, queue)


def request(state: EngineState, site: SiteState) -> None:
    """Ask for one pilot."""
    key = f"{site.name}-{state.log.next_number}"
    state.log.write(payloads.PilotRequested(site=site.name), pilot=key)
    submit_pilot(state, site, key)


def submit_pilot(state: EngineState, site: SiteState, key: str) -> None:
    """Have a pilot submitted, and look again if nothing is heard of it."""
    state.log.effects.append(SubmitPilot(site=site.name, key=key))
    if (asked := state.pilots.requests.get(key)) is not None:
        submitting(state, site, asked)
    state.clock.timers.at(state.clock.now + state.settings.submit_again_seconds, Due.REQUEST, key)
