"""Handles reports of batch systems, which only corroborate what agents say themselves."""

from __future__ import annotations

import math

from pilotage.engine.decisions.lost_pilots import LOSSES, mark_lost, take_back
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.prefetch import on_file_report
from pilotage.engine.folds.on_sites import is_excused
from pilotage.engine.retry.policy import PILOT_KILLED
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import attempts_of
from pilotage.engine.state.sites import AttemptState, SiteState, notice
from pilotage.engine.transitions.readiness import release_site
from pilotage.engine.transitions.site_observations import is_probe, is_test_pilot, note_unreachable, probed, submitted
from pilotage.model.events import payloads
from pilotage.model.exchange.reports import (
    AnyReport,
    FileArrived,
    FileGone,
    FileNotFetched,
    Gone,
    SiteNoticed,
    SiteSeen,
    SubmissionFailed,
    Submitted,
)
from pilotage.model.texts import NAME_MAX, REASON_MAX, clipped, named

DIED, REFUSED = "pilots in a row ended before making contact", "submissions in a row were refused"
_DOUBLINGS_MAX = 60  # of a pause that reaches its cap long before


def on_report(state: EngineState, report: AnyReport) -> None:
    """Handle a report of a batch system. It only corroborates: a valid lease takes precedence."""
    site = state.sites.by_name.get(report.site)
    if site is None:
        return
    match report:
        case SiteSeen():
            _site_seen(state, site, report)
        case Submitted():
            _submitted(state, site, report)
        case SubmissionFailed():
            request = site.requests.get(report.key)
            for what in [request] if request is not None else _bound_at(state, site, report.key):
                submitted(state, site, what, seconds=report.seconds, trouble=report.trouble)
            # The lines after the first say what to do about it.
            message = clipped(report.message.strip().partition("\n")[0])
            _never_started(state, site, report.key, reason=_reason(report.reason), message=message, what=REFUSED)
        case Gone():
            _gone(state, site, report)
        case SiteNoticed():
            notice(site, report)
        case FileArrived() | FileNotFetched() | FileGone():
            on_file_report(state, site, report)


def _site_seen(state: EngineState, site: SiteState, report: SiteSeen) -> None:
    was_known, site.answers = site.known, report.answers
    if not report.answers and report.trouble is not None:
        note_unreachable(state, site, report.trouble)
    if site.known != was_known:
        state.placement.site_changed(site)
        if was_known:
            release_site(state, site)


def _submitted(state: EngineState, site: SiteState, report: Submitted) -> None:
    native_id = clipped(report.native_id, NAME_MAX)
    request = site.requests.get(report.key)
    if request is not None:
        submitted(state, site, request, seconds=report.seconds)
        if native_id and request.native_id != native_id:
            requested = payloads.PilotRequested(site=site.name, slots=1, native_id=native_id)
            state.log.write(requested, pilot=report.key)
        return
    for attempt in _bound_at(state, site, report.key):
        submitted(state, site, attempt, seconds=report.seconds)
        if not attempt.queued:
            job = state.jobs.by_id[attempt.ref.job]
            queued = payloads.AttemptQueued(native_id=native_id or None)
            state.log.write(queued, job=job, number=attempt.number, attempt=attempt.ref.attempt, epoch=attempt.epoch)


def _bound_at(state: EngineState, site: SiteState, key: str) -> list[AttemptState]:
    """The bound attempts of a batch job, if it is at the reporting site: no site reports on another's."""
    return [each for each in attempts_of(key, jobs=state.jobs, sites=(site,)) if each.site is site]


def _reason(text: str) -> str:
    return named(text, most=REASON_MAX, otherwise="ended")


def _gone(state: EngineState, site: SiteState, report: Gone) -> None:
    reason, stderr = _reason(report.reason), clipped(report.stderr)
    for name, where in list(state.abandoned.pilots_by_request.get(report.key, {}).items()):
        if where == site.name and name not in state.pilots.by_name:
            state.log.write(payloads.PilotEnded(reason=reason), pilot=name)
    speaking = list(site.by_request.get(report.key, {}).values())
    for pilot in speaking:
        pilot.gone = reason
        if pilot.suspect:
            state.log.write(payloads.PilotEnded(reason=reason, stderr=stderr), pilot=pilot.name)
    if not speaking:
        _never_started(state, site, report.key, reason=reason, message=stderr)
    elif report.key in site.requests:
        state.log.write(payloads.PilotEnded(reason=reason, stderr=stderr), pilot=report.key)


def _never_started(
    state: EngineState, site: SiteState, key: str, *, reason: str, message: str, what: str = DIED
) -> None:
    request = site.requests.get(key)
    if request is not None:
        state.log.write(payloads.PilotEnded(reason=reason, stderr=message), pilot=key)
        if request.contacted:
            return
        if is_probe(key, site=site.name):
            waited = state.clock.wall_time - request.requested_at
            probed(state, site, passed=False, seconds=waited, message=message or f"no pilot started: {reason}")
        elif not is_test_pilot(key, site=site.name):
            back_off(state, site, message or reason, what=what)
        return
    waiting = [each for each in _bound_at(state, site, key) if not each.leased]
    if not waiting:
        return
    group = site.groups.get(key)
    if group is None or group.began_at == math.inf:
        loss = LOSSES.get(reason, "platform-failure")
        if loss == PILOT_KILLED:
            loss = "platform-failure"  # it never ran
        state.pilots.loss_excused = is_excused(state, site, reason)
        mark_lost(state, waiting[0], reason=loss, message=message or f"its batch job is gone: {reason}")
        state.pilots.loss_excused = False
    if group is not None:
        take_back(state, group, message=f"their batch job is gone: {reason}")


def back_off(state: EngineState, site: SiteState, message: str, *, what: str = DIED) -> None:
    """Pause a site after a pilot that never made contact, longer after each further one; in the end it is hibernated."""
    settings = state.settings
    if state.clock.now < site.quiet_until:
        return  # requested before the last counted one: pilots that die together count once
    wait = min(
        settings.dead_start_seconds * 2.0 ** min(site.dead_starts, _DOUBLINGS_MAX), settings.dead_start_seconds_max
    )
    site.dead_starts += 1
    site.quiet_until = state.clock.now + wait
    state.clock.timers.at(site.quiet_until, Due.SITE, site.name)
    if 0 < settings.dead_starts_max <= site.dead_starts:
        lines = message.strip().splitlines()
        state.pending.site_changes += state.selection.died_at_start(
            site.name,
            count=site.dead_starts,
            message=clipped(lines[-1] if lines else "", 200),
            at=state.clock.wall_time,
            what=what,
        )
