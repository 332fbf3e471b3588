"""Leases end: what a silent pilot holds is suspected, and given up when the silence lasts."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.histories import UNHEARD
from pilotage.engine.places import AttemptState
from pilotage.engine.timers import Due
from pilotage.model import payloads


def check_lease(state: EngineState, name: str) -> None:
    """Suspect what a silent pilot holds, and count it as lost when the silence lasts; look again when that may be."""
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
            _suspect(state, attempt, f"its pilot {name} was not heard for {silent:.0f} s")
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
