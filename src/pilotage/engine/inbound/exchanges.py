"""Handles exchanges of pilots: renews leases, offers work, and checks what pilots may report."""

from __future__ import annotations

import math

from pilotage.book.codec import Checked
from pilotage.engine.decisions.attempts import cancel_queued_replicas
from pilotage.engine.decisions.grouping import usual_run_seconds
from pilotage.engine.decisions.lost_pilots import take_back
from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds.on_attempts import attempt_key
from pilotage.engine.state.job_queries import find_attempt
from pilotage.engine.state.sites import AttemptState, BatchGroup, PilotState
from pilotage.engine.transitions.occupancy import stop_all_but
from pilotage.engine.transitions.site_observations import SITE_CHANGED, drain
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef, Exchange
from pilotage.model.resources import Capacity, is_what_was_asked_for
from pilotage.model.site import Site
from pilotage.model.texts import NAME_MAX, amount, clipped

_ENGINE_ONLY = (payloads.AttemptStarted, payloads.AttemptSuspected)  # events that no agent may report
_UNREPORTED_MAX = 64  # unreported ends of attempts that a pilot no longer holds; checked above this number


def on_exchange(state: EngineState, pilot: PilotState, exchange: Exchange) -> None:
    """Handle the newest exchange of a pilot: renew its lease and let it take more work.

    Its events were applied before; attempts that it should not hold are found when the reply is written.
    """
    pilot.sequence = exchange.sequence
    pilot.heard_at = state.clock.now
    pilot.leaving = exchange.leaving
    if pilot.backlog != exchange.backlog:
        state.placement.backlog_changed(pilot.site, exchange.backlog - pilot.backlog)
        pilot.backlog = exchange.backlog
    pilot.ends_at = None
    if exchange.remaining_seconds is not None and (left := amount(exchange.remaining_seconds)) is not None:
        pilot.ends_at = state.clock.now + left
    if pilot.capacity is not exchange.capacity and pilot.capacity != exchange.capacity:
        state.placement.slots_changed(pilot.site, pilot, -1)
        pilot.offers(exchange.capacity)
        state.placement.slots_changed(pilot.site, pilot, 1)
    if pilot.taken_over:
        _take_over(state, pilot, exchange)
    if pilot.suspect:
        pilot.suspect = False
        for ref in list(pilot.assigned):
            _recover(state, pilot, ref)
    if state.abandoned.by_pilot and exchange.seen >= state.log.start_position:
        # An exchange sent before its first reply from this engine may be older than its last assignments.
        stop_all_but(state, pilot.name, exchange.held)
    if pilot.owed and len(pilot.owed) > len(exchange.held) + _UNREPORTED_MAX:
        # It holds every attempt whose end it has not reported; the others it has forgotten, as it was told.
        held = set(exchange.held)
        pilot.owed = {ref: epoch for ref, epoch in pilot.owed.items() if ref in held}
    if exchange.serves is not None:
        _lease(state, pilot, exchange.serves, exchange.node)
    site = pilot.site
    pilot.waiting = not pilot.leaving and exchange.serves is None
    if pilot.waiting:
        site.waiting[pilot.name] = pilot
        state.pilots.with_free_slots[pilot] = None
    else:
        site.waiting.pop(pilot.name, None)


def _take_over(state: EngineState, pilot: PilotState, exchange: Exchange) -> None:
    """A pilot of an earlier engine makes contact for the first time.

    No event says that it was to leave because its site had changed, and the site may have changed meanwhile: both follow
    from the pilot's capacity.
    """
    pilot.taken_over = False
    if exchange.serves is None and not pilot.draining and not _matches_site(pilot.site.site, exchange.capacity):
        drain(state, pilot, SITE_CHANGED)


def _matches_site(site: Site, capacity: Capacity) -> bool:
    """Whether pilots requested from a site today would have this capacity; pilots find out values that are not configured."""
    return site.mode == "pilots" and is_what_was_asked_for(capacity, site.capacity)


def _recover(state: EngineState, pilot: PilotState, ref: AttemptRef) -> None:
    """An attempt that was suspect because its pilot was silent goes on."""
    found = pilot.assigned.get(ref)
    if found is not None and found.suspect:
        job = state.jobs.by_id[ref.job]
        recovered = payloads.AttemptRecovered()
        state.log.write(recovered, job=job, number=found.number, attempt=ref.attempt, epoch=found.epoch)


def may_report(state: EngineState, pilot: str, one: Checked, *, site: str) -> int | None:
    """The package that an agent may report on; None if it may not: it neither holds the attempt nor owes its end.

    Otherwise the report would be in the book, and an engine that starts from the book would believe it. The agent states
    its `site` itself, and is authorised for that one.
    """
    event, place = one.event, one.place
    if type(one.data) in _ENGINE_ONLY:
        return None
    speaker = state.pilots.by_name.get(pilot)
    if speaker is not None and (held := speaker.holds(event)) is not None:
        return held.number
    ref = AttemptRef(event.job or "", event.package or "", event.attempt or 0)
    job = state.jobs.by_id.get(ref.job)
    number = job.number(place) if job is not None and place is not None else None
    if job is None or number is None:
        return None
    work = job.work.get(number)
    found = work.attempts.get(ref.attempt) if work is not None else None
    if found is not None:
        ours = (found.pilot, found.site.name, found.epoch) == (pilot, site, event.epoch)
        return number if ours else None
    epoch = (speaker.owed if speaker is not None else state.pilots.unreported.get(pilot, {})).get(ref)
    if epoch is None and ref in state.abandoned.by_pilot.get(pilot, ()):
        epoch = 0
    if epoch is None:
        return None
    return number if (event.epoch == epoch if epoch else event.epoch <= job.epoch_of(number)) else None


def _lease(state: EngineState, pilot: PilotState, ref: AttemptRef, node: str) -> None:
    """Give the lease of a bound attempt to the first agent of its site that asks; of a group, one attempt after the other."""
    if (group := pilot.site.groups.get(attempt_key(ref))) is not None:
        found = _next_of(state, pilot, group)
    else:
        found = find_attempt(state.jobs, ref)
        if found is not None and found.group:
            return
    if found is None or found.leased or found.lost or found.site is not pilot.site:
        return
    if group is None and found.key != attempt_key(ref):
        return
    started = payloads.AttemptStarted(pilot=pilot.name, node=clipped(node, NAME_MAX) or None)
    job = state.jobs.by_id[ref.job]
    state.log.write(started, job=job, number=found.number, attempt=ref.attempt, epoch=found.epoch)
    cancel_queued_replicas(state, job, found)


def _next_of(state: EngineState, pilot: PilotState, group: BatchGroup) -> AttemptState | None:
    """The next attempt of a batch job for its agent, which has none; without enough time for it, the rest is taken back."""
    waiting = group.waiting
    if not waiting or pilot.assigned or pilot.leaving:
        return None
    ends_at, usual = pilot.ends_at, usual_run_seconds(state, waiting[0])
    wanted = max(waiting[0].demand.wall_seconds, usual)
    if group.began_at < math.inf and ends_at is not None and ends_at - state.clock.now < wanted:
        take_back(state, group, message="the time of its batch job is not enough for it")
        return None
    return waiting[0]


def unwanted(pilot: PilotState, exchange: Exchange) -> list[AttemptRef]:
    """Attempts that a pilot holds and should not."""
    return [ref for ref in exchange.held if ref not in pilot.assigned]
