"""Leases end: what a silent pilot holds is suspected, and given up when the silence lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.engine.histories import UNHEARD
from pilotage.engine.parts import AttemptState
from pilotage.engine.timers import Due
from pilotage.model import payloads

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


def check_lease(engine: Engine, name: str) -> None:
    """Suspect what a silent pilot holds, and count it as lost when the silence lasts; look again when that may be."""
    pilot = engine.pilots.get(name)
    if pilot is None:
        return
    lease = engine.settings.lease_seconds
    silent = engine.now - pilot.heard_at
    if silent < lease:
        engine.timers.at(pilot.heard_at + lease, Due.LEASE, name)
        return
    if not pilot.suspect:
        pilot.suspect = True
        pilot.site.waiting.pop(name, None)
        pilot.waiting = False
        for attempt in list(pilot.assigned.values()):
            _suspect(engine, attempt, f"its pilot {name} was not heard for {silent:.0f} s")
    if pilot.gone or silent >= lease * engine.settings.lost_after_leases:
        reason = pilot.gone or UNHEARD
        engine.write(payloads.PilotEnded(reason=reason), pilot=name)
        return
    engine.timers.at(pilot.heard_at + lease * engine.settings.lost_after_leases, Due.LEASE, name)


def _suspect(engine: Engine, attempt: AttemptState, message: str) -> None:
    job = engine.jobs[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is not None and work.attempts.get(attempt.ref.attempt) is attempt and not attempt.suspect:
        suspected = payloads.AttemptSuspected(message=message)
        engine.write(suspected, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)
