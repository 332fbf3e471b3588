"""Folds of events about sites and pilots."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import UNHEARD
from pilotage.engine.state.clock import Due
from pilotage.engine.state.sites import PilotRequest, PilotState, SiteState
from pilotage.engine.transitions.occupancy import expect_report, stop_all_but, watch_abandoned
from pilotage.engine.transitions.site_observations import (
    SITE_GONE,
    drain,
    is_test_pilot,
    pilot_never_started,
    pilot_started,
    submission_forgotten,
    watch_queue,
)
from pilotage.model.events import payloads
from pilotage.model.events.events import Event


def on_site_described(state: EngineState, event: Event, data: payloads.SiteDescribed) -> None:
    """The description of a site was recorded, or its removal."""
    site = state.sites.by_name.get(event.site or "")
    if site is not None and event.source == "service":
        site.described = True
        site.removed = data.status == "removed"


def on_site_stands(
    state: EngineState, event: Event, data: payloads.SiteHibernated | payloads.SiteWoken | payloads.SiteStanding
) -> None:
    """The status of a site was recorded."""
    site = state.sites.by_name.get(event.site or "")
    if site is None:
        return
    match data:
        case payloads.SiteHibernated():
            site.status, site.unchanged_records = "hibernated", 0
        case payloads.SiteWoken():
            site.status, site.unchanged_records = "candidate", 0
        case payloads.SiteStanding():
            site.status = data.status
            site.unchanged_records += 1
    site.record_scheduled = False
    site.recorded_at = state.clock.now


def on_site_latencies(state: EngineState, event: Event, data: payloads.SiteLatencies) -> None:
    """The latencies of a site were recorded."""
    known = state.latencies.at(event.site or "")
    known.adopt(data)
    known.recorded_at = state.clock.now
    known.records += 1
    known.record_scheduled = False


_REMOVED = ("killed", "cancelled")
_TOGETHER_SECONDS = 60.0  # batch jobs that vanish within this time were removed by one command
_REMOVALS_SECONDS = 1800.0  # a second removal within this time is no coincidence


def on_pilot_requested(state: EngineState, event: Event, data: payloads.PilotRequested) -> None:
    """A pilot was requested."""
    site = state.sites.by_name.get(data.site)
    key = event.pilot or ""
    if site is None:
        return
    if key not in site.requests:
        request = state.pilots.requests[key] = site.requests[key] = PilotRequest(key, site)
        request.requested_at = event.time
        site.expected += 1
        watch_queue(state, key, event.time)
    if data.native_id is not None and key in site.requests:
        request = site.requests[key]
        request.native_id = data.native_id
        if request.submitted_at is None:
            request.submitted_at = event.time


def on_pilot_started(state: EngineState, event: Event, data: payloads.PilotStarted) -> None:
    """A pilot made contact: a request is fulfilled."""
    name, site = event.pilot or "", state.sites.by_name.get(data.site)
    if site is None or name in state.pilots.by_name:
        return
    if event.source == "agent" and event.stream != name:
        return
    pilot = PilotState(name, site, request=data.request or "", heard_at=state.clock.now)
    pilot.node = data.node or ""
    state.pilots.by_name[name] = pilot
    site.add_pilot(pilot)
    site.dead_starts = 0
    site.quiet_until = 0.0
    request = state.pilots.requests.get(pilot.request)
    if request is not None and request.site is site and not request.contacted:
        request.contacted = True
        request.site.expected -= 1
        queued = max(0.0, state.clock.wall_time - request.requested_at)
        submission_forgotten(state, site, request)
        pilot_started(state, site, request)
        state.pending.site_changes += state.selection.pilot_began(site.name, queued_seconds=queued)
        if is_test_pilot(request.key, site=request.site.name):
            state.pending.arrived_probes[name] = queued
    if site.removed:
        drain(state, pilot, SITE_GONE)  # it was queued when its site was removed
    state.placement.site_changed(site)
    state.clock.timers.at(state.clock.now + state.settings.lease_seconds, Due.LEASE, name)


def on_pilot_ended(state: EngineState, event: Event, data: payloads.PilotEnded) -> None:
    """A pilot, or a request without a pilot, ended. The next decision marks its attempts lost."""
    name = event.pilot or ""
    if event.source == "agent" and event.stream != name:
        return
    if event.source == "agent" and name in state.abandoned.by_pilot:
        state.pending.reported_ends[name] = data.reason  # recorded again: the book keeps the engine's word
    elif data.reason != UNHEARD:
        stop_all_but(state, name)
    request = state.pilots.requests.pop(name, None)
    if request is not None:
        del request.site.requests[name]
        request.site.expected -= not request.contacted
        request.site.full = False
        submission_forgotten(state, request.site, request)
        if not request.contacted:
            pilot_never_started(state, request, data.reason)
        state.placement.site_changed(request.site)
    pilot = state.pilots.by_name.pop(name, None)
    if pilot is None:
        return
    if event.source != "agent":
        expect_report(state, name, pilot.owed | {ref: attempt.epoch for ref, attempt in pilot.assigned.items()})
    site = pilot.site
    site.remove_pilot(pilot)
    state.selection.pilot_gone(site.name, name)
    if pilot.request in site.groups and pilot.request not in site.by_request:
        state.pending.left_groups[pilot.request] = site
    state.pilots.ended.append(name)
    if name in state.abandoned.by_pilot and name not in state.pending.reported_ends:
        watch_abandoned(state, name)
    pilot.waiting = False
    state.pilots.with_free_slots.pop(pilot, None)
    state.placement.slots_changed(site, pilot, -1)
    state.placement.backlog_changed(site, -pilot.backlog)
    if state.queues.at[site].reserved:
        state.clock.timers.at(state.clock.now + state.settings.unfit_seconds, Due.UNFIT, site.name)
    # A report that it was found dead has no reason; its batch system may have given one, such as its wall time.
    reason = pilot.gone if event.source == "agent" and data.reason == "killed" and pilot.gone else data.reason
    state.pending.lost_pilots[name] = (reason, list(pilot.assigned.values()), pilot.count_running())


def is_excused(state: EngineState, site: SiteState, reason: str) -> bool:
    """Whether the end of a batch job says nothing about its site: a person removed it, or it was killed once.

    A batch system may not tell the two apart. Jobs that vanish together count once; a second time soon after is the site's fault.
    """
    if reason not in _REMOVED:
        return False
    before = site.removal_at
    since = state.clock.now - before
    if since > _TOGETHER_SECONDS:
        site.removal_at = state.clock.now
    return since <= _TOGETHER_SECONDS or since > _REMOVALS_SECONDS
