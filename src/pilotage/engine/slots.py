"""The bond between an attempt and what it takes at its site."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pilotage.engine.behaviour import leave_phase, not_submitting, unsettle
from pilotage.engine.classes import template_of
from pilotage.engine.histories import UNHEARD
from pilotage.engine.parts import AttemptState
from pilotage.engine.readiness import reconsider
from pilotage.engine.selection.causes import Cause, cause_of
from pilotage.engine.timers import Due
from pilotage.model.effects import CancelSubmitted
from pilotage.model.exchange import AttemptRef

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

_SURELY_STOPPED = frozenset({"platform-failure", "pilot-killed", "preempted", "wall-time"})
"""Why an attempt is lost whose pilot is known to be gone."""
OWING_MAX = 10_000
"""Pilots that were given up and may still say how what they held has ended; what one before them says is noted."""


def let_go(engine: Engine, attempt: AttemptState) -> None:
    """Nobody waits for an attempt any more: what it took is free, and a queued one is taken out of its batch system."""
    fault = attempt.lost_reason if attempt.lost else _silence(engine, attempt)
    if engine.excused:
        fault = ""
    given_up = not attempt.counted  # before: what has stopped since does not act again
    vacate(engine, attempt, cause_of(fault) if fault else "nobody")
    if attempt.pilot and not given_up:
        engine.told[attempt.pilot] = None
        site, why = attempt.site.name, attempt.lost_reason
        start_acting(engine, attempt.ref, attempt.number, pilot=attempt.pilot, site=site, lost_reason=why)
    if attempt.key and not attempt.leased:
        engine.effects.append(CancelSubmitted(site=attempt.site.name, key=attempt.key))


def _silence(engine: Engine, attempt: AttemptState) -> str:
    """Why an attempt that was outrun is the fault of its place: its pilot was silent. A silence is one fault, not one for each."""
    pilot = engine.pilots.get(attempt.pilot) if attempt.suspect else None
    if pilot is None or pilot.blamed_at == pilot.heard_at:
        return ""
    pilot.blamed_at = pilot.heard_at
    return UNHEARD


def vacate(engine: Engine, attempt: AttemptState, cause: Cause, node: str = "") -> None:
    """Free what an attempt takes, at its site and in its pilot, and tell how it ended; again does no harm."""
    site = attempt.site
    if not attempt.counted:
        if cause == "success":
            engine.changes += engine.selection.succeeded_late(site.name, at=engine.stamp)
        return
    attempt.counted = False
    if attempt.key:
        del site.bound[attempt.key]
    engine.stirred = True
    if engine.selection.sites.free(site.place, attempt.shape) and site.stuck:
        engine.openings.let_loose(site, attempt.shape)
    pilot = engine.pilots.get(attempt.pilot)
    plain = cause == "success" and attempt.leased and not attempt.key
    told = plain and engine.selection.went_well(site.place, attempt.began_at, engine.stamp, attempt.activity)
    if not told and not site.removed:
        engine.changes += engine.selection.ended_at(
            site.place,
            cause,
            engine.stamp,
            attempt.created_at,
            attempt.began_at if attempt.leased else None,
            attempt.began_at - attempt.created_at if attempt.key and attempt.leased else None,
            attempt.activity,
            attempt.pilot,
            node or (pilot.node if pilot is not None else ""),
        )
    if not site.restless:
        unsettle(engine, site)
    if attempt.submitting:
        not_submitting(engine, site, attempt)
    if attempt.operation is not None:
        leave_phase(engine, attempt, succeeded=cause == "success")
    if pilot is not None and pilot.give_back(attempt.ref) is not None and pilot.waiting:
        site.waiting[pilot.name] = pilot
        engine.asking[pilot] = None


def occupy(engine: Engine, attempt: AttemptState) -> None:
    """Take what an attempt takes."""
    engine.selection.sites.use(attempt.site.place, attempt.shape)
    hold(engine, attempt)


def hold(engine: Engine, attempt: AttemptState) -> None:
    """Take what an attempt takes of its pilot; the room at its site is taken already."""
    attempt.counted = True
    if attempt.key:
        attempt.site.bound[attempt.key] = attempt
    selection, place = engine.selection, attempt.site.place
    activity = attempt.activity
    if attempt.leased and attempt.began_at == attempt.created_at:
        selection.started_at(place, attempt.began_at, activity)
    else:
        selection.created_at(place, attempt.created_at, activity)
        if attempt.leased:
            selection.began_at(place, attempt.began_at)
    pilot = engine.pilots.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        engine.told[attempt.pilot] = None


def owe(engine: Engine, pilot: str, owed: Mapping[AttemptRef, int]) -> None:
    """Remember what a pilot may still tell the end of: as long as it lives, and of those given up since, of the latest."""
    if (known := engine.pilots.get(pilot)) is not None:
        known.owed.update((ref, epoch) for ref, epoch in owed.items() if ref not in known.assigned)
        return
    if owed:
        engine.owed.setdefault(pilot, {}).update(owed)
    while len(engine.owed) > OWING_MAX:
        del engine.owed[next(iter(engine.owed))]


# --- side effects: what nobody waits for may still act on the outside, and no other attempt may start beside it -----


def request_of(pilot: str) -> str:
    """What a pilot was asked for by, after which it is named; the key of a bound attempt likewise."""
    return pilot.rpartition(".")[0]


def start_acting(engine: Engine, ref: AttemptRef, number: int, *, pilot: str, site: str, lost_reason: str) -> None:
    """Nobody waits for an attempt any more, and perhaps nobody knows that it has stopped."""
    job = engine.jobs[ref.job]
    if not template_of(job, number).side_effects or lost_reason in _SURELY_STOPPED:
        return
    acting = engine.acting.get(pilot)
    if acting is None:
        acting = engine.acting[pilot] = {}
        engine.acting_under.setdefault(request_of(pilot), {})[pilot] = site
        if pilot not in engine.pilots:
            haunt(engine, pilot)
    if ref not in acting:
        acting[ref] = number
        job.acting[number] = job.acting.get(number, 0) + 1


def haunt(engine: Engine, pilot: str) -> None:
    """A pilot that was given up may still act: from now on its batch system is asked to end it, until it says that it has."""
    if pilot not in engine.haunted:
        engine.haunted[pilot] = None
        engine.timers.at(engine.now, Due.ACTING, pilot)


def exorcise(engine: Engine, pilot: str) -> None:
    """Have a pilot ended that nobody listens to and that may still act, unless another of its request is well."""
    key = request_of(pilot)
    name = engine.acting_under.get(key, {}).get(pilot)
    if name is None or pilot in engine.pilots:
        engine.haunted.pop(pilot, None)
        return
    site = engine.sites.get(name)
    if site is not None and key not in site.by_request:
        engine.effects.append(CancelSubmitted(site=name, key=key))
    engine.timers.at(engine.now + engine.settings.submit_again_seconds, Due.ACTING, pilot)


def stop_acting(engine: Engine, pilot: str, ref: AttemptRef) -> None:
    """An attempt has stopped: its agent said so, holds it no longer, or is gone."""
    acting = engine.acting.get(pilot, {})
    number = acting.pop(ref, None)
    if number is None:
        return
    if not acting:
        del engine.acting[pilot]
        alike = engine.acting_under[request_of(pilot)]
        del alike[pilot]
        if not alike:
            del engine.acting_under[request_of(pilot)]
    job = engine.jobs[ref.job]
    job.acting[number] -= 1
    if not job.acting[number]:
        del job.acting[number]
        reconsider(engine, job, number)


def stop_all_but(engine: Engine, pilot: str, held: Collection[AttemptRef] = ()) -> None:
    """Whatever a pilot does not hold has stopped there."""
    for ref in [ref for ref in engine.acting.get(pilot, ()) if ref not in held]:
        stop_acting(engine, pilot, ref)
