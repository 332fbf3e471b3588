"""Requests pilots for waiting work: no more than the work needs and the site allows, and fewer if that is hardly slower.

Pilot jobs that are still queued when no work is left for them are cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pilotage.engine.decisions.forecast_provisioning import WaitingWork, cancel_queued, forecasts, pilots_by_forecast
from pilotage.engine.decisions.pulling import may_fetch
from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import is_bound
from pilotage.engine.selection.candidates import CandidateSet
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import PackageStatus, QueueClass
from pilotage.engine.state.queues import any_reserved
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.readiness import may_start
from pilotage.engine.transitions.site_observations import is_test_pilot, submitting
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import SubmitPilot
from pilotage.model.resources import slots_for

Startable = dict[CandidateSet, tuple[QueueClass, int]]

WITHDRAW_SECONDS = 10.0
"""Queued pilots are cancelled after this time without work for them."""
HOPEFUL_SECONDS = 300.0
"""The same while packages wait for producers or a retry: they may become ready at any time."""
EVERY_SECONDS = 1.0
"""Minimum time between two runs: many packages become ready in a second, and one run serves them all."""


def request_pilots(state: EngineState) -> None:
    """Request as many pilots from every pilot site as the waiting work could use there."""
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
    if not _has_work(state):
        _withdraw_unused(state)
        return
    state.provisioning.idle_since = math.inf
    startable: Startable | None = None
    work = WaitingWork(state)
    for site in sites:
        if site.full and not site.expected:
            continue
        wanted, free = 0, pilots_allowed(site)
        site.full = free <= 0
        if not site.answers or site.removed or state.clock.now < site.quiet_until or site.asleep:
            continue
        if not site.full:
            startable = startable_in(state) if startable is None else startable
            wanted = pilots_wanted(state, site, free, startable)
        if (wanted or site.expected) and forecasts(state, site):
            wanted = pilots_by_forecast(state, site, wanted, work)
        for _ in range(wanted):
            request(state, site)


def _has_work(state: EngineState) -> bool:
    if any_reserved(state.queues.reserved_counts):
        return True
    return any(may_start(state, queue) for waiting in (state.queues.ready, state.queues.waiting) for queue in waiting)


def _withdraw_unused(state: EngineState) -> None:
    """Cancel queued pilots once no work could use them for a while; otherwise set a timer."""
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
    """Cancel the queued pilots of a site, except probes."""
    for request in list(site.requests.values()):
        if not request.contacted and not is_test_pilot(request.key, site=site.name):
            cancel_queued(state, site, request)


def pilots_allowed(site: SiteState) -> int:
    """How many more pilots a site may have."""
    return site.site.pilots_max - len(site.pilots) - site.expected if site.site.mode == "pilots" else 0


def pilots_wanted(state: EngineState, site: SiteState, most: int, startable: Startable | None = None) -> int:
    """How many more pilots the waiting work could use at a site, up to `most`; `startable` if it is already known."""
    canary, about = site.profile.canary, site.site
    pilots = [
        len(numbers) / slots
        for queue, numbers in state.queues.at[site].reserved.items()
        if (slots := slots_for(queue.demand, about.capacity))
    ]
    # A site that was just woken gets pilots for its reservations only; if nothing may be reserved before a pilot starts,
    # it gets one.
    left = float(most + site.expected)
    if not state.queues.at[site].reserved or not canary:
        left = min(left, 1.0) if canary else left
        for pool, (queue, ready) in (startable_in(state) if startable is None else startable).items():
            if pool.allowed(site.index) and not _starts_on_other_nodes(site, queue):
                slots = slots_for(queue.demand, about.capacity)
                pilots.append(ready / slots if slots else 0.0)
    if about.kind == "local":
        unserved = ((slots_for(queue.demand, about.capacity), count) for queue, count in _unserved(state, site))
        pilots += [count / slots for slots, count in unserved if slots]
    return max(0, min(most, math.ceil(min(left, math.fsum(pilots))) - site.expected))


def startable_in(state: EngineState) -> Startable:
    """What may start, by pool: one class (all of a pool need the same) and the number of ready packages.

    There are many classes and many sites; all classes of a pool can use the same sites.
    """
    found: Startable = {}
    for queue in (*state.queues.ready, *state.queues.waiting):
        if may_start(state, queue):
            pool = state.placement.pool(queue)
            first, ready = found.get(pool, (queue, 0))
            found[pool] = first, ready + queue.ready
    return found


def _unserved(state: EngineState, site: SiteState) -> Iterator[tuple[QueueClass, int]]:
    """Reservations behind batch systems whose pilots have not started, which this computer may fetch.

    A local pilot waits in no queue and costs nothing. It starts before those pilots do, if they ever do, and fetches their
    reservations.
    """
    for other in state.sites.by_name.values():
        if other.site.kind != "local":
            for queue, numbers in state.queues.at[other].reserved.items():
                if not other.slots[queue.shape] and may_fetch(state, site, queue):
                    yield queue, len(numbers)


def _starts_on_other_nodes(site: SiteState, queue: QueueClass) -> bool:
    """Whether a site has pilots but none on a node that a class names: another one may not help."""
    return bool(site.pilots and queue.demand.node_restriction) and is_bound(site, queue)


def request(state: EngineState, site: SiteState) -> None:
    """Request one pilot."""
    key = f"{site.name}-{state.log.next_number}"
    state.log.write(payloads.PilotRequested(site=site.name), pilot=key)
    submit_pilot(state, site, key)


def submit_pilot(state: EngineState, site: SiteState, key: str) -> None:
    """Submit a pilot, and set a timer to ask again if no report comes."""
    state.log.effects.append(SubmitPilot(site=site.name, key=key))
    if (asked := state.pilots.requests.get(key)) is not None:
        submitting(state, site, asked)
    state.clock.timers.at(state.clock.now + state.settings.submit_again_seconds, Due.REQUEST, key)
