"""What events about pilots mean to the engine: one function for each; and what becomes of what a pilot held that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.engine.behaviour import SITE_GONE, drain, is_to_show, not_submitting, watch_queue
from pilotage.engine.histories import PILOT_KILLED, UNHEARD
from pilotage.engine.parts import AttemptState
from pilotage.engine.places import PilotRequest, PilotState, SiteState
from pilotage.engine.slots import haunt, owe, stop_all_but
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.events import Event
from pilotage.model.reasons import LossReason

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

LOSSES: dict[str, LossReason] = {
    **dict.fromkeys(("failed", "killed", "out-of-memory", "signal"), PILOT_KILLED),
    "preempted": "preempted",
    "wall-time": "wall-time",
    UNHEARD: UNHEARD,
}
"""Why a pilot ended → why what it held is lost; any other is a platform failure."""


_REMOVED = ("killed", "cancelled")
_TOGETHER_SECONDS = 60.0  # what is gone within such a time was removed by one command
_REMOVALS_SECONDS = 1800.0  # one that follows sooner than this is no coincidence


def on_pilot_requested(engine: Engine, event: Event, data: payloads.PilotRequested) -> None:
    """A pilot was asked for."""
    site = engine.sites.get(data.site)
    key = event.pilot or ""
    if site is None:
        return
    if key not in site.requests:
        request = engine.requests[key] = site.requests[key] = PilotRequest(key, site)
        request.requested_at = event.time
        site.expected += 1
        watch_queue(engine, key, event.time)
    if data.native_id is not None and key in site.requests:
        site.requests[key].native_id = data.native_id


def on_pilot_started(engine: Engine, event: Event, data: payloads.PilotStarted) -> None:
    """A pilot speaks: what was asked for has come."""
    name, site = event.pilot or "", engine.sites.get(data.site)
    if site is None or name in engine.pilots:
        return
    if event.source == "agent" and event.stream != name:
        return
    pilot = PilotState(name, site, request=data.request or "", heard_at=engine.now)
    pilot.node = data.node or ""
    engine.pilots[name] = pilot
    site.add_pilot(pilot)
    site.dead_starts = 0
    site.quiet_until = 0.0
    request = engine.requests.get(pilot.request)
    if request is not None and request.site is site and not request.spoke:
        request.spoke = True
        request.site.expected -= 1
        queued = max(0.0, engine.stamp - request.requested_at)
        not_submitting(engine, site, request)
        engine.changes += engine.selection.pilot_began(site.name, queued_seconds=queued)
        if is_to_show(request.key, site=request.site.name):
            engine.arrived[name] = queued
    if site.removed:
        drain(engine, pilot, SITE_GONE)  # it was in the queue when its site went
    engine.openings.tell_all(site)
    engine.timers.at(engine.now + engine.settings.lease_seconds, Due.LEASE, name)


def on_pilot_ended(engine: Engine, event: Event, data: payloads.PilotEnded) -> None:
    """A pilot, or a request that never came to be one, is gone. What it held is lost, which is decided next."""
    name = event.pilot or ""
    if event.source == "agent" and event.stream != name:
        return
    if event.source == "agent" and name in engine.acting:
        engine.confirmed[name] = data.reason  # written down again: the word of the engine stands in the book
    elif data.reason != UNHEARD:
        stop_all_but(engine, name)
    request = engine.requests.pop(name, None)
    if request is not None:
        del request.site.requests[name]
        request.site.expected -= not request.spoke
        request.site.full = False
        not_submitting(engine, request.site, request)
        engine.openings.tell_all(request.site)
    pilot = engine.pilots.pop(name, None)
    if pilot is None:
        return
    if event.source != "agent":
        owe(engine, name, pilot.owed | {ref: attempt.epoch for ref, attempt in pilot.assigned.items()})
    site = pilot.site
    site.remove_pilot(pilot)
    engine.selection.pilot_gone(site.name, name)
    engine.departed.append(name)
    if name in engine.acting and name not in engine.confirmed:
        haunt(engine, name)
    pilot.waiting = False
    engine.asking.pop(pilot, None)
    engine.openings.slots_changed(site, pilot, -1)
    engine.openings.backlog_changed(site, -pilot.backlog)
    if site.reserved:
        engine.timers.at(engine.now + engine.settings.unfit_seconds, Due.UNFIT, site.name)
    # Who only found it dead does not know why; its batch system may have said that it was its wall time.
    reason = pilot.gone if event.source == "agent" and data.reason == "killed" and pilot.gone else data.reason
    engine.bereft[name] = (reason, list(pilot.assigned.values()), pilot.count_running())


def bury(engine: Engine) -> None:
    """Attempts whose pilot is gone are lost, for the reason that is known of the pilot; what may act no more is noted."""
    while engine.confirmed:
        name = next(iter(engine.confirmed))
        engine.write(payloads.PilotEnded(reason=engine.confirmed.pop(name)), pilot=name)
    while engine.bereft:
        name = next(iter(engine.bereft))
        reason, attempts, running = engine.bereft.pop(name)
        engine.excused = bool(attempts) and is_excused(engine, attempts[0].site, reason)
        for position, attempt in enumerate(attempts):
            why = LOSSES.get(reason, "platform-failure")
            if why == PILOT_KILLED and position >= running:
                why = "platform-failure"  # it only waited there: whatever killed the pilot, it was another
            lose(engine, attempt, reason=why, message=f"its pilot {name} ended: {reason}")
        engine.excused = False


def is_excused(engine: Engine, site: SiteState, reason: str) -> bool:
    """Whether a batch job that is gone says nothing of its site: somebody removed it, or it was killed, once.

    A batch system may not tell the two apart. Those that go together are one case; another one soon after is the site's.
    """
    if reason not in _REMOVED:
        return False
    before = site.removal_at
    since = engine.now - before
    if since > _TOGETHER_SECONDS:
        site.removal_at = engine.now
    return since <= _TOGETHER_SECONDS or since > _REMOVALS_SECONDS


def lose(engine: Engine, attempt: AttemptState, *, reason: LossReason, message: str) -> None:
    """Write down that nobody waits for an attempt any more."""
    job = engine.jobs[attempt.ref.job]
    work = job.work.get(attempt.number)
    if work is None or work.attempts.get(attempt.ref.attempt) is not attempt:
        return
    if attempt.lost:
        return
    lost = payloads.AttemptLost(reason=reason, message=message)
    engine.write(lost, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)
