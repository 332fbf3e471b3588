"""Takes and frees the slot of an attempt."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import UNHEARD
from pilotage.engine.selection.black_holes import Cause, cause_of
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import template_of
from pilotage.engine.state.sites import AttemptState, BatchGroup
from pilotage.engine.transitions.readiness import reconsider
from pilotage.engine.transitions.site_observations import (
    bound_attempt_ended,
    leave_phase,
    schedule_site_record,
    submission_forgotten,
)
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted

_SURELY_STOPPED = frozenset({"platform-failure", "pilot-killed", "preempted", "wall-time"})
"""Why attempts of an ended pilot are lost."""
OWING_MAX = 10_000
"""How many lost pilots may still report the end of their attempts; reports of older ones are only stored."""


def release_attempt(state: EngineState, attempt: AttemptState) -> None:
    """Give up an attempt: free its room, and cancel it if it is queued in a batch system."""
    fault = attempt.lost_reason if attempt.lost else _silence(state, attempt)
    if state.pilots.loss_excused:
        fault = ""
    given_up = not attempt.counted  # before the next step: an attempt that stopped does not act again
    group = attempt.site.groups.get(attempt.group)
    goes_on = bool(attempt.group) and (group is None or group.began_at < math.inf or len(group.members) > 1)
    free_slot(state, attempt, cause_of(fault) if fault else "neutral")
    if attempt.pilot and not given_up:
        state.pilots.to_notify[attempt.pilot] = None
        site, why = attempt.site.name, attempt.lost_reason
        add_abandoned(state, attempt.ref, attempt.number, pilot=attempt.pilot, site=site, lost_reason=why)
    if attempt.key and not attempt.leased and not goes_on:
        if not given_up:
            is_fault = attempt.lost_reason in _SURELY_STOPPED and not state.pilots.loss_excused
            owner = state.jobs.by_id[attempt.ref.job].owner
            bound_attempt_ended(state, attempt, owner=owner, is_fault=is_fault)
        state.log.effects.append(CancelSubmitted(site=attempt.site.name, key=attempt.batch_key))


def _silence(state: EngineState, attempt: AttemptState) -> str:
    """Why an attempt that was outrun is its site's fault: its pilot was silent. A silence counts once, not per attempt."""
    pilot = state.pilots.by_name.get(attempt.pilot) if attempt.suspect else None
    if pilot is None or pilot.blamed_at == pilot.heard_at:
        return ""
    pilot.blamed_at = pilot.heard_at
    return UNHEARD


def free_slot(state: EngineState, attempt: AttemptState, cause: Cause, node: str = "") -> None:
    """Free the room of an attempt at its site and pilot, and record its end; repeating it does no harm."""
    site = attempt.site
    if attempt.counted and attempt.leased and state.healing.enabled:
        state.healing.left(attempt, succeeded=cause == "success")
    if not attempt.counted:
        if cause == "success":
            state.pending.site_changes += state.selection.succeeded_late(site.name, at=state.clock.wall_time)
        return
    attempt.counted = False
    if attempt.key:
        del site.bound[attempt.key]
    state.queues.may_bind = True
    is_free = not attempt.group or _leave_group(attempt)
    if is_free and state.selection.sites.free(site.profile, attempt.shape) and state.queues.at[site].waiting:
        state.placement.retry_waiting(site, attempt.shape)
    pilot = state.pilots.by_name.get(attempt.pilot)
    plain = cause == "success" and attempt.leased and not attempt.key
    recorded = plain and state.selection.record_success(
        site.profile, attempt.began_at, state.clock.wall_time, attempt.activity
    )
    if not recorded and not site.removed:
        state.pending.site_changes += state.selection.ended_at(
            site.profile,
            cause,
            state.clock.wall_time,
            attempt.created_at,
            attempt.began_at if attempt.leased else None,
            attempt.began_at - attempt.created_at if attempt.key and attempt.leased and not attempt.follows else None,
            attempt.activity,
            attempt.pilot,
            node or (pilot.node if pilot is not None else ""),
        )
    if not site.record_scheduled:
        schedule_site_record(state, site)
    if attempt.submitting:
        submission_forgotten(state, site, attempt)
    if attempt.operation is not None:
        leave_phase(state, attempt, succeeded=cause == "success")
    if pilot is not None and pilot.give_back(attempt.ref) is not None and pilot.waiting:
        site.waiting[pilot.name] = pilot
        state.pilots.with_free_slots[pilot] = None


def take_slot(state: EngineState, attempt: AttemptState) -> None:
    """Take room for an attempt; those that share a batch job take it once."""
    if not attempt.group or _join_group(attempt):
        state.selection.sites.use(attempt.site.profile, attempt.shape)
    hold(state, attempt)


def _join_group(attempt: AttemptState) -> bool:
    """Count an attempt in its batch job; returns whether it is the only one there."""
    groups = attempt.site.groups
    group = groups.get(attempt.group)
    if group is None:
        group = groups[attempt.group] = BatchGroup(attempt.group)
    group.members[attempt] = None
    if attempt.leased:
        group.began_at = min(group.began_at, attempt.began_at)
    return len(group.members) == 1


def _leave_group(attempt: AttemptState) -> bool:
    """An attempt in a batch job is over; returns whether it was the last one there."""
    group = attempt.site.groups[attempt.group]
    del group.members[attempt]
    if group.members:
        return False
    del attempt.site.groups[attempt.group]
    return True


def hold(state: EngineState, attempt: AttemptState) -> None:
    """Take the slot of an attempt in its pilot; its room at the site is taken already."""
    attempt.counted = True
    if attempt.key:
        attempt.site.bound[attempt.key] = attempt
    selection, profile = state.selection, attempt.site.profile
    activity = attempt.activity
    if attempt.leased and attempt.began_at == attempt.created_at:
        selection.started_at(profile, attempt.began_at, activity)
    else:
        selection.created_at(profile, attempt.created_at, activity)
        if attempt.leased:
            selection.began_at(profile, attempt.began_at)
    if attempt.leased and state.healing.enabled:
        state.healing.began(attempt)
    pilot = state.pilots.by_name.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        state.pilots.to_notify[attempt.pilot] = None


def expect_report(state: EngineState, pilot: str, owed: Mapping[AttemptRef, int]) -> None:
    """Remember attempts whose end a pilot may still report: while it lives, and for the latest lost pilots."""
    if (known := state.pilots.by_name.get(pilot)) is not None:
        known.owed.update((ref, epoch) for ref, epoch in owed.items() if ref not in known.assigned)
        return
    if owed:
        state.pilots.unreported.setdefault(pilot, {}).update(owed)
    while len(state.pilots.unreported) > OWING_MAX:
        del state.pilots.unreported[next(iter(state.pilots.unreported))]


# --- side effects: an abandoned attempt may still act, and no other attempt may start beside it ----------------------


def request_of(pilot: str) -> str:
    """The request of a pilot, which its name begins with; likewise the key of a bound attempt."""
    return pilot.rpartition(".")[0]


def add_abandoned(state: EngineState, ref: AttemptRef, number: int, *, pilot: str, site: str, lost_reason: str) -> None:
    """Record an attempt that was given up and may still be running."""
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
    """A lost pilot may still act: cancel its batch job repeatedly, until it is reported as ended."""
    if pilot not in state.abandoned.to_cancel:
        state.abandoned.to_cancel[pilot] = None
        state.clock.timers.at(state.clock.now, Due.ACTING, pilot)


def cancel_abandoned(state: EngineState, pilot: str) -> None:
    """Cancel the batch job of an abandoned pilot, unless another pilot of the same request is alive."""
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
    """An attempt has stopped: its agent reported so, no longer holds it, or is gone."""
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
    """Attempts that a pilot does not hold have stopped there."""
    for ref in [ref for ref in state.abandoned.by_pilot.get(pilot, ()) if ref not in held]:
        remove_abandoned(state, pilot, ref)
