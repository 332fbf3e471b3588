"""What events about pilots mean to the engine, and what it hears of them: exchanges, and the batch systems' own words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pilotage.book.codec import Checked
from pilotage.engine.dispatch import release_site
from pilotage.engine.on_attempts import PILOT_KILLED, UNHEARD, attempt_key
from pilotage.engine.parts import AttemptState, PilotRequest, PilotState, SiteState
from pilotage.engine.slots import stop_all_but
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.events import Event, parse_dotted
from pilotage.model.exchange import AttemptRef, Exchange
from pilotage.model.operations import Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.reasons import LossReason

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

_ATTEMPT = re.compile("[1-9][0-9]{0,8}")
_DOUBLINGS_MAX = 60  # of a wait that is capped long before
_OF_THE_ENGINE = (payloads.AttemptStarted, payloads.AttemptSuspected)  # what no agent says of an attempt
_LOSSES: dict[str, LossReason] = {
    # Why a pilot ended → why what it held is lost; any other is a platform failure.
    **dict.fromkeys(("failed", "killed", "out-of-memory", "signal"), PILOT_KILLED),
    "preempted": "preempted",
    "wall-time": "wall-time",
    UNHEARD: UNHEARD,
}


def on_pilot_requested(engine: Engine, event: Event, data: payloads.PilotRequested) -> None:
    """A pilot was asked for."""
    site = engine.sites.get(data.site)
    key = event.pilot or ""
    if site is None:
        return
    if key not in site.requests:
        engine.requests[key] = site.requests[key] = PilotRequest(key, site)
        site.expected += 1
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
    engine.pilots[name] = site.pilots[name] = pilot
    site.dead_starts = 0
    site.quiet_until = 0.0
    request = engine.requests.get(pilot.request)
    if request is not None and not request.spoke:
        request.spoke = True
        request.site.expected -= 1
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
        engine.openings.tell_all(request.site)
    pilot = engine.pilots.pop(name, None)
    if pilot is None:
        return
    site = pilot.site
    site.pilots.pop(name, None)
    site.waiting.pop(name, None)
    pilot.waiting = False
    engine.asking.pop(pilot, None)
    engine.openings.slots_changed(site, pilot, -1)
    if site.reserved:
        engine.timers.at(engine.now + engine.settings.unfit_seconds, Due.UNFIT, site.name)
    engine.bereft[name] = (data.reason, list(pilot.assigned.values()))


def bury(engine: Engine) -> None:
    """Attempts whose pilot is gone are lost, for the reason that is known of the pilot; what may act no more is noted."""
    while engine.confirmed:
        name = next(iter(engine.confirmed))
        engine.write(payloads.PilotEnded(reason=engine.confirmed.pop(name)), pilot=name)
    while engine.bereft:
        name = next(iter(engine.bereft))
        reason, attempts = engine.bereft.pop(name)
        for attempt in attempts:
            lose(
                engine,
                attempt,
                reason=_LOSSES.get(reason, "platform-failure"),
                message=f"its pilot {name} ended: {reason}",
            )


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


# --- exchanges ------------------------------------------------------------------------------------------------------


def hear(engine: Engine, exchange: Exchange) -> None:
    """A pilot speaks, and this is its newest exchange: its lease goes on, and it may take more.

    Its events were applied before; what it holds and should not is found when the answer is written. One that is not
    known has to leave, which the answer says.
    """
    pilot = engine.pilots.get(exchange.pilot)
    if pilot is None:
        return
    pilot.sequence = exchange.sequence
    pilot.heard_at = engine.now
    pilot.leaving = exchange.leaving
    pilot.backlog = exchange.backlog
    pilot.ends_at = None if exchange.remaining_seconds is None else engine.now + exchange.remaining_seconds
    if pilot.capacity is not exchange.capacity and pilot.capacity != exchange.capacity:
        engine.openings.slots_changed(pilot.site, pilot, -1)
        pilot.offers(exchange.capacity)
        engine.openings.slots_changed(pilot.site, pilot, 1)
    if pilot.suspect:
        pilot.suspect = False
        for ref in list(pilot.assigned):
            _recover(engine, pilot, ref)
    if engine.acting:
        stop_all_but(engine, pilot.name, exchange.held)
    if exchange.serves is not None:
        _lease(engine, pilot, exchange.serves, exchange.node)
    site = pilot.site
    pilot.waiting = not pilot.leaving and exchange.serves is None
    if pilot.waiting:
        site.waiting[pilot.name] = pilot
        engine.asking[pilot] = None
    else:
        site.waiting.pop(pilot.name, None)


def _recover(engine: Engine, pilot: PilotState, ref: AttemptRef) -> None:
    """An attempt that was suspected because its pilot was silent goes on."""
    found = pilot.assigned.get(ref)
    if found is not None and found.suspect:
        job = engine.jobs[ref.job]
        recovered = payloads.AttemptRecovered()
        engine.write(recovered, job=job, number=found.number, attempt=ref.attempt, epoch=found.epoch)


def find_attempt(engine: Engine, ref: AttemptRef) -> AttemptState | None:
    """An attempt that is not over."""
    job, place = engine.jobs.get(ref.job), parse_dotted(ref.package)
    if job is None or place is None:
        return None
    number = job.number((place.stage, place.line, place.number))
    work = job.work.get(number) if number is not None else None
    return work.attempts.get(ref.attempt) if work is not None else None


def may_say(engine: Engine, pilot: str, one: Checked) -> int | None:
    """Of which package an agent says something; None where it may not: of an attempt that was not created, or another's.

    Whatever it says of another would be in the book, and an engine that starts from the book would believe it.
    """
    event, place = one.event, one.place
    if type(one.data) in _OF_THE_ENGINE:
        return None
    attempt = event.attempt or 0
    speaking = engine.pilots.get(pilot)
    if speaking is not None:
        held = speaking.assigned.get(AttemptRef(event.job or "", event.package or "", attempt))
        if held is not None and held.epoch == event.epoch:
            return held.number  # what it was given and did not lose is its own
    job = engine.jobs.get(event.job or "")
    number = job.number(place) if job is not None and place is not None else None
    if job is None or number is None or attempt > job.last_attempt[number] or event.epoch > job.epoch_of(number):
        return None
    work = job.work.get(number)
    found = work.attempts.get(attempt) if work is not None else None
    return number if found is None or (found.pilot == pilot and found.epoch == event.epoch) else None


def _lease(engine: Engine, pilot: PilotState, ref: AttemptRef, node: str) -> None:
    """The first agent that asks for a bound attempt has its lease."""
    found = find_attempt(engine, ref)
    if found is None or found.leased or found.lost or found.key != attempt_key(ref):
        return
    started = payloads.AttemptStarted(pilot=pilot.name, node=node or None)
    job = engine.jobs[ref.job]
    engine.write(started, job=job, number=found.number, attempt=ref.attempt, epoch=found.epoch)


def unwanted(pilot: PilotState, exchange: Exchange) -> list[AttemptRef]:
    """What a pilot holds and should not."""
    return [ref for ref in exchange.held if ref not in pilot.assigned]


# --- leases ---------------------------------------------------------------------------------------------------------


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


# --- batch systems --------------------------------------------------------------------------------------------------


def on_report(engine: Engine, report: Submitted | SubmissionFailed | Gone | SiteSeen) -> None:
    """What a batch system says. It only corroborates: a lease that holds is believed before it."""
    site = engine.sites.get(report.site)
    if site is None:
        return
    match report:
        case SiteSeen():
            _seen(engine, site, answers=report.answers)
        case Submitted():
            _submitted(engine, site, report)
        case SubmissionFailed():
            _never_came(engine, site, report.key, reason=report.reason, message=report.message)
        case Gone():
            _gone(engine, site, report)


def _seen(engine: Engine, site: SiteState, *, answers: bool) -> None:
    was_known, site.answers = site.known, answers
    if site.known and not was_known:
        engine.openings.tell_all(site)
    elif was_known and not site.known:
        release_site(engine, site)


def _submitted(engine: Engine, site: SiteState, report: Submitted) -> None:
    request = site.requests.get(report.key)
    if request is not None:
        if request.native_id != report.native_id:
            requested = payloads.PilotRequested(site=site.name, slots=1, native_id=report.native_id)
            engine.write(requested, pilot=report.key)
        return
    attempt = bound_attempt(engine, report.key)
    if attempt is not None and not attempt.queued:
        job = engine.jobs[attempt.ref.job]
        queued = payloads.AttemptQueued(native_id=report.native_id)
        engine.write(queued, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)


def bound_attempt(engine: Engine, key: str) -> AttemptState | None:
    """The bound attempt that was submitted under a key."""
    parts = key.rsplit(":", 2)
    if len(parts) != 3 or not _ATTEMPT.fullmatch(parts[2]) or parts[1].count(".") != 2:
        return None
    return find_attempt(engine, AttemptRef(parts[0], parts[1], int(parts[2])))


def _gone(engine: Engine, site: SiteState, report: Gone) -> None:
    # A pilot is named after what it was asked for by.
    for name in [name for name in engine.acting if name.rpartition(".")[0] == report.key]:
        if name not in engine.pilots:
            engine.write(payloads.PilotEnded(reason=report.reason), pilot=name)
    speaking = [pilot for pilot in site.pilots.values() if pilot.request == report.key]
    for pilot in speaking:
        pilot.gone = report.reason
        if pilot.suspect:
            engine.write(payloads.PilotEnded(reason=report.reason, stderr=report.stderr), pilot=pilot.name)
    if not speaking:
        _never_came(engine, site, report.key, reason=report.reason, message=report.stderr)
    elif report.key in site.requests:
        engine.write(payloads.PilotEnded(reason=report.reason, stderr=report.stderr), pilot=report.key)


def _never_came(engine: Engine, site: SiteState, key: str, *, reason: str, message: str) -> None:
    request = site.requests.get(key)
    if request is not None:
        engine.write(payloads.PilotEnded(reason=reason, stderr=message), pilot=key)
        if not request.spoke:
            leave_alone(engine, site)
        return
    attempt = bound_attempt(engine, key)
    if attempt is not None and attempt.site is site and not attempt.leased:
        told = _LOSSES.get(reason, "platform-failure")
        if told == PILOT_KILLED:
            told = "platform-failure"  # it never ran
        lose(engine, attempt, reason=told, message=message or f"its batch job is gone: {reason}")


def leave_alone(engine: Engine, site: SiteState) -> None:
    """After a pilot that never spoke a site is left alone for a while, longer with each that follows."""
    settings = engine.settings
    wait = min(
        settings.dead_start_seconds * 2.0 ** min(site.dead_starts, _DOUBLINGS_MAX), settings.dead_start_seconds_max
    )
    site.dead_starts += 1
    site.quiet_until = engine.now + wait
    engine.timers.at(site.quiet_until, Due.SITE, site.name)
