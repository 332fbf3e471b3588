"""The bond between an attempt and what it takes at its site."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import UNHEARD
from pilotage.engine.selection.black_holes import Cause, cause_of
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import template_of
from pilotage.engine.state.sites import AttemptState
from pilotage.engine.transitions.readiness import reconsider
from pilotage.engine.transitions.site_observations import leave_phase, not_submitting, schedule_site_record
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted

_SURELY_STOPPED = frozenset({"platform-failure", "pilot-killed", "preempted", "wall-time"})
"""Why an attempt is lost whose pilot is known to be gone."""
OWING_MAX = 10_000
"""Pilots that were given up and may still say how what they held has ended; what one before them says is noted."""


def release_attempt(state: EngineState, attempt: AttemptState) -> None:
    """Nobody waits for an attempt any more: what it took is free, and a queued one is taken out of its batch system."""
    fault = attempt.lost_reason if attempt.lost else _silence(state, attempt)
    if state.pilots.loss_excused:
        fault = ""
    given_up = not attempt.counted  # before: what has stopped since does not act again
    free_slot(state, attempt, cause_of(fault) if fault else "nobody")
    if attempt.pilot and not given_up:
        state.pilots.to_notify[attempt.pilot] = None
        site, why = attempt.site.name, attempt.lost_reason
        add_abandoned(state, attempt.ref, attempt.number, pilot=attempt.pilot, site=site, lost_reason=why)
    if attempt.key and not attempt.leased:
        state.log.effects.append(CancelSubmitted(site=attempt.site.name, key=attempt.key))


def _silence(state: EngineState, attempt: AttemptState) -> str:
    """Why an attempt that was outrun is the fault of its place: its pilot was silent. A silence is one fault, not one for each."""
    pilot = state.pilots.by_name.get(attempt.pilot) if attempt.suspect else None
    if pilot is None or pilot.blamed_at == pilot.heard_at:
        return ""
    pilot.blamed_at = pilot.heard_at
    return UNHEARD


def free_slot(state: EngineState, attempt: AttemptState, cause: Cause, node: str = "") -> None:
    """Free what an attempt takes, at its site and in its pilot, and tell how it ended; again does no harm."""
    site = attempt.site
    if not attempt.counted:
        if cause == "success":
            state.pending.site_changes += state.selection.succeeded_late(site.name, at=state.clock.wall_time)
        return
    attempt.counted = False
    if attempt.key:
        del site.bound[attempt.key]
    state.queues.may_bind = True
    if state.selection.sites.free(site.place, attempt.shape) and state.queues.at[site].waiting:
        state.placement.retry_waiting(site, attempt.shape)
    pilot = state.pilots.by_name.get(attempt.pilot)
    plain = cause == "success" and attempt.leased and not attempt.key
    told = plain and state.selection.went_well(site.place, attempt.began_at, state.clock.wall_time, attempt.activity)
    if not told and not site.removed:
        state.pending.site_changes += state.selection.ended_at(
            site.place,
            cause,
            state.clock.wall_time,
            attempt.created_at,
            attempt.began_at if attempt.leased else None,
            attempt.began_at - attempt.created_at if attempt.key and attempt.leased else None,
            attempt.activity,
            attempt.pilot,
            node or (pilot.node if pilot is not None else ""),
        )
    if not site.record_scheduled:
        schedule_site_record(state, site)
    if attempt.submitting:
        not_submitting(state, site, attempt)
    if attempt.operation is not None:
        leave_phase(state, attempt, succeeded=cause == "success")
    if pilot is not None and pilot.give_back(attempt.ref) is not None and pilot.waiting:
        site.waiting[pilot.name] = pilot
        state.pilots.with_free_slots[pilot] = None


def take_slot(state: EngineState, attempt: AttemptState) -> None:
    """Take what an attempt takes."""
    state.selection.sites.use(attempt.site.place, attempt.shape)
    hold(state, attempt)


def hold(state: EngineState, attempt: AttemptState) -> None:
    """Take what an attempt takes of its pilot; the room at its site is taken already."""
    attempt.counted = True
    if attempt.key:
        attempt.site.bound[attempt.key] = attempt
    selection, place = state.selection, attempt.site.place
    activity = attempt.activity
    if attempt.leased and attempt.began_at == attempt.created_at:
        selection.started_at(place, attempt.began_at, activity)
    else:
        selection.created_at(place, attempt.created_at, activity)
        if attempt.leased:
            selection.began_at(place, attempt.began_at)
    pilot = state.pilots.by_name.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        state.pilots.to_notify[attempt.pilot] = None


def expect_report(state: EngineState, pilot: str, owed: Mapping[AttemptRef, int]) -> None:
    """Remember what a pilot may still tell the end of: as long as it lives, and of those given up since, of the latest."""
    if (known := state.pilots.by_name.get(pilot)) is not None:
        known.owed.update((ref, epoch) for ref, epoch in owed.items() if ref not in known.assigned)
        return
    if owed:
        state.pilots.unreported.setdefault(pilot, {}).update(owed)
    while len(state.pilots.unreported) > OWING_MAX:
        del state.pilots.unreported[next(iter(state.pilots.unreported))]


# --- side effects: what nobody waits for may still act on the outside, and no other attempt may start beside it -----


def request_of(pilot: str) -> str:
    """What a pilot was asked for by, after which it is named; the key of a bound attempt likewise."""
    return pilot.rpartition(".")[0]


def add_abandoned(state: EngineState, ref: AttemptRef, number: int, *, pilot: str, site: str, lost_reason: str) -> None:
    """Nobody waits for an attempt any more, and perhaps nobody knows that it has stopped."""
    job = state.jobs.by_id[ref.job]
    if not template_of(job, number).side_effects or lost_reason in _SURELY_STOPPED:
        return
    acting = state.abandoned.by_pilot.get(pilot)
    if acting is None:
        acting = state.abandoned.by_pilot[pilot] = {}
        state.abandoned.pilots_by_request.setdefault(request_of(pilot), {})[pilot] = site
        if pilot not in state.pilots.by_name:
            watch_abandoned(state, pilot)
    if ref not in acting:
        acting[ref] = number
        job.acting[number] = job.acting.get(number, 0) + 1


def watch_abandoned(state: EngineState, pilot: str) -> None:
    """A pilot that was given up may still act: from now on its batch system is asked to end it, until it says that it has."""
    if pilot not in state.abandoned.to_cancel:
        state.abandoned.to_cancel[pilot] = None
        state.clock.timers.at(state.clock.now, Due.ACTING, pilot)


def cancel_abandoned(state: EngineState, pilot: str) -> None:
    """Have a pilot ended that nobody listens to and that may still act, unless another of its request is well."""
    key = request_of(pilot)
    name = state.abandoned.pilots_by_request.get(key, {}).get(pilot)
    if name is None or pilot in state.pilots.by_name:
        state.abandoned.to_cancel.pop(pilot, None)
        return
    site = state.sites.by_name.get(name)
    if site is not None and key not in site.by_request:
        state.log.effects.append(CancelSubmitted(site=name, key=key))
    state.clock.timers.at(state.clock.now + state.settings.submit_again_seconds, Due.ACTING, pilot)


def remove_abandoned(state: EngineState, pilot: str, ref: AttemptRef) -> None:
    """An attempt has stopped: its agent said so, holds it no longer, or is gone."""
    acting = state.abandoned.by_pilot.get(pilot, {})
    number = acting.pop(ref, None)
    if number is None:
        return
    if not acting:
        del state.abandoned.by_pilot[pilot]
        alike = state.abandoned.pilots_by_request[request_of(pilot)]
        del alike[pilot]
        if not alike:
            del state.abandoned.pilots_by_request[request_of(pilot)]
    job = state.jobs.by_id[ref.job]
    job.acting[number] -= 1
    if not job.acting[number]:
        del job.acting[number]
        reconsider(state, job, number)


def stop_all_but(state: EngineState, pilot: str, held: Collection[AttemptRef] = ()) -> None:
    """Whatever a pilot does not hold has stopped there."""
    for ref in [ref for ref in state.abandoned.by_pilot.get(pilot, ()) if ref not in held]:
        remove_abandoned(state, pilot, ref)
