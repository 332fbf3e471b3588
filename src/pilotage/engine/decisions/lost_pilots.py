"""Checks leases: attempts of a silent pilot become suspect, and are lost if the silence lasts."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds.on_sites import is_excused
from pilotage.engine.retry.policy import PILOT_KILLED, REGROUPED, UNHEARD
from pilotage.engine.state.clock import Due
from pilotage.engine.state.sites import AttemptState, BatchGroup
from pilotage.model.events import payloads
from pilotage.model.states import LossReason


def check_lease(state: EngineState, name: str) -> None:
    """Suspect the attempts of a silent pilot, mark them lost if the silence lasts, and set the next timer."""
    pilot = state.pilots.by_name.get(name)
    if pilot is None:
        return
    lease = state.settings.lease_seconds
    silent = state.clock.now - pilot.heard_at
    if silent < lease:
        state.clock.timers.at(pilot.heard_at + lease, Due.LEASE, name)
        return
    if not pilot.suspect:
        pilot.suspect = True
        pilot.site.waiting.pop(name, None)
        pilot.waiting = False
        for attempt in list(pilot.assigned.values()):
            _suspect(state, attempt, f"its pilot {name} has been silent for {silent:.0f} s")
        if pilot.request in pilot.site.groups:
            state.pending.left_groups[pilot.request] = pilot.site
    if pilot.gone or silent >= lease * state.settings.lost_after_leases:
        reason = pilot.gone or UNHEARD
        state.log.write(payloads.PilotEnded(reason=reason), pilot=name)
        return
    state.clock.timers.at(pilot.heard_at + lease * state.settings.lost_after_leases, Due.LEASE, name)


def _suspect(state: EngineState, attempt: AttemptState, message: str) -> None:
    job = state.jobs.by_id[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is not None and work.attempts.get(attempt.ref.attempt) is attempt and not attempt.suspect:
        suspected = payloads.AttemptSuspected(message=message)
        state.log.write(suspected, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)


LOSSES: dict[str, LossReason] = {
    **dict.fromkeys(("failed", "killed", "out-of-memory", "signal"), PILOT_KILLED),
    "preempted": "preempted",
    "wall-time": "wall-time",
    UNHEARD: UNHEARD,
}
"""Reason of a pilot's end → reason why its attempts are lost; any other is a platform failure."""


def end_lost_pilots(state: EngineState) -> None:
    """Mark the attempts of ended pilots as lost, with the pilot's reason, and note attempts that have certainly stopped."""
    while state.pending.reported_ends:
        name = next(iter(state.pending.reported_ends))
        state.log.write(payloads.PilotEnded(reason=state.pending.reported_ends.pop(name)), pilot=name)
    while state.pending.lost_pilots:
        name = next(iter(state.pending.lost_pilots))
        reason, attempts, running = state.pending.lost_pilots.pop(name)
        state.pilots.loss_excused = bool(attempts) and is_excused(state, attempts[0].site, reason)
        for position, attempt in enumerate(attempts):
            why = LOSSES.get(reason, "platform-failure")
            if why == PILOT_KILLED and position >= running:
                why = "platform-failure"  # it was only in the backlog: another attempt killed the pilot
            mark_lost(state, attempt, reason=why, message=f"its pilot {name} ended: {reason}")
        state.pilots.loss_excused = False
    while state.pending.left_groups:
        key, site = state.pending.left_groups.popitem()
        speaking = any(not each.suspect for each in site.by_request.get(key, {}).values())
        if (group := site.groups.get(key)) is not None and not speaking:
            take_back(state, group, message="the agent of its batch job is gone")


def take_back(
    state: EngineState, group: BatchGroup, *, message: str, count: int | None = None, decision: int = 0
) -> None:
    """Give up attempts of a batch job that have not begun, all or the last ones: they are bound anew, and nobody is at fault."""
    waiting = group.waiting
    for attempt in waiting if count is None else waiting[len(waiting) - count :]:
        mark_lost(state, attempt, reason=REGROUPED, message=message, decision=decision)


def mark_lost(
    state: EngineState, attempt: AttemptState, *, reason: LossReason, message: str, decision: int = 0
) -> None:
    """Record that an attempt is lost; `decision` is that of healing, if it follows from one."""
    job = state.jobs.by_id[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is None or work.attempts.get(attempt.ref.attempt) is not attempt:
        return
    if attempt.lost:
        return
    lost = payloads.AttemptLost(reason=reason, message=message, decision=decision)
    state.log.write(lost, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)
