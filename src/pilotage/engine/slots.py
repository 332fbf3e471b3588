"""The bond between an attempt and what it takes at its site."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pilotage.engine.parts import AttemptState
from pilotage.engine.readiness import reconsider, template_of
from pilotage.model.effects import CancelSubmitted
from pilotage.model.exchange import AttemptRef

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

_SURELY_STOPPED = frozenset({"platform-failure", "pilot-killed", "preempted", "wall-time"})
"""Why an attempt is lost whose pilot is known to be gone."""


def let_go(engine: Engine, attempt: AttemptState) -> None:
    """Nobody waits for an attempt any more: what it took is free, and a queued one is taken out of its batch system."""
    vacate(engine, attempt)
    if attempt.pilot:
        engine.told[attempt.pilot] = None
        start_acting(engine, attempt.ref, attempt.number, pilot=attempt.pilot, lost_reason=attempt.lost_reason)
    if attempt.key and not attempt.leased:
        engine.effects.append(CancelSubmitted(site=attempt.site.name, key=attempt.key))


def vacate(engine: Engine, attempt: AttemptState) -> None:
    """Free what an attempt takes, at its site and in its pilot; again does no harm."""
    if not attempt.counted:
        return
    attempt.counted = False
    engine.openings.free(attempt.site, attempt.shape)
    pilot = engine.pilots.get(attempt.pilot)
    if pilot is not None and pilot.give_back(attempt.ref) is not None and pilot.waiting:
        attempt.site.waiting[pilot.name] = pilot
        engine.asking[pilot] = None


def occupy(engine: Engine, attempt: AttemptState) -> None:
    """Take what an attempt takes."""
    attempt.counted = True
    engine.openings.use(attempt.site, attempt.shape)
    pilot = engine.pilots.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        engine.told[attempt.pilot] = None


# --- side effects: what nobody waits for may still act on the outside, and no other attempt may start beside it -----


def start_acting(engine: Engine, ref: AttemptRef, number: int, *, pilot: str, lost_reason: str) -> None:
    """Nobody waits for an attempt any more, and perhaps nobody knows that it has stopped."""
    job = engine.jobs[ref.job]
    if not template_of(job, number).side_effects or lost_reason in _SURELY_STOPPED:
        return
    acting = engine.acting.setdefault(pilot, {})
    if ref not in acting:
        acting[ref] = number
        job.acting[number] = job.acting.get(number, 0) + 1


def stop_acting(engine: Engine, pilot: str, ref: AttemptRef) -> None:
    """An attempt has stopped: its agent said so, holds it no longer, or is gone."""
    acting = engine.acting.get(pilot, {})
    number = acting.pop(ref, None)
    if number is None:
        return
    if not acting:
        del engine.acting[pilot]
    job = engine.jobs[ref.job]
    job.acting[number] -= 1
    if not job.acting[number]:
        del job.acting[number]
        reconsider(engine, job, number)


def stop_all_but(engine: Engine, pilot: str, held: Collection[AttemptRef] = ()) -> None:
    """Whatever a pilot does not hold has stopped there."""
    for ref in [ref for ref in engine.acting.get(pilot, ()) if ref not in held]:
        stop_acting(engine, pilot, ref)
