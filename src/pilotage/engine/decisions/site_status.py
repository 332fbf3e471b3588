"""Records status changes of sites (hibernated, woken, drained) and acts on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from pilotage.book.rows.rows import SiteRow
from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection import Change, Drained, Hibernated, Woken
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.readiness import release_site
from pilotage.engine.transitions.site_observations import (
    SITE_GONE,
    drain,
    encode_learned,
    is_probe,
    probed,
    record_site,
)
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted
from pilotage.model.site import Site
from pilotage.model.texts import clipped


def apply_site_changes(state: EngineState) -> None:
    """Record the results of probes and every change of a site's status, and act on them."""
    while state.pending.arrived_probes:
        name = next(iter(state.pending.arrived_probes))
        queued = state.pending.arrived_probes.pop(name)
        if (pilot := state.pilots.by_name.get(name)) is not None:
            drain(state, pilot, "probe finished: the pilot started")
            if is_probe(pilot.request, site=pilot.site.name):
                probed(state, pilot.site, passed=True, seconds=queued)
    while state.pending.site_changes:
        changes, state.pending.site_changes = state.pending.site_changes, []
        for change in changes:
            site = state.sites.by_name.get(change.site)
            if site is not None and not site.removed:
                _carry_out(state, site, change)


def _carry_out(state: EngineState, site: SiteState, change: Change) -> None:
    score, message = site.profile.score.value, clipped(change.message)
    match change:
        case Hibernated():
            slept = payloads.SiteHibernated(
                reason=change.reason, message=message, score=score, learned=encode_learned(site)
            )
            state.log.write(slept, site=site.name)
            if site.asleep:
                release_site(state, site)
                # A pilot that would wake the site may never start; so a waiting class must be able to wake it.
                state.placement.reopen(site)
        case Woken():
            if change.rule in ("by-hand", "probe-passed"):
                site.dead_starts, site.quiet_until = 0, 0.0
            woken = payloads.SiteWoken(reason=change.rule, message=message, score=score, learned=encode_learned(site))
            state.log.write(woken, site=site.name)
            state.placement.site_changed(site)
        case Drained():
            if _drain(state, site, change):
                drained = payloads.SiteDrained(kind=change.kind, name=clipped(change.name, 256), message=message)
                state.log.write(drained, site=site.name)
                record_site(state, site)  # so that an engine that starts from the book knows it
        case _:
            assert_never(change)


def _drain(state: EngineState, site: SiteState, change: Drained) -> bool:
    """Give no more work to a pilot, or to the pilots of a node; they leave when idle. Not if the site has no other node."""
    if change.kind == "pilot":
        pilots = [site.pilots[change.name]] if change.name in site.pilots else []
    else:
        site.profile.nodes.put_on_trial(change.name)
        pilots = [pilot for pilot in site.pilots.values() if pilot.node == change.name]
        if len(pilots) == len(site.pilots):
            return False
    for pilot in pilots:
        site.profile.pilots.mark_for_drain(pilot.name)
        drain(state, pilot, change.message)
    return bool(pilots)


# Sites with open pilots in the book that the configuration no longer lists.
#
# Their attempts go on, since their pilots talk to the service themselves. The service cannot submit, cancel or list
# batch jobs there: requests without a pilot are written off. A site that is configured again comes back like any other
# removed site.

REMOVED_REASON = "site-removed"
"""Why requests end at a site that the service cannot reach."""


def add_unmanaged(state: EngineState, name: str) -> SiteState:
    """Add a site that only the book knows; call `drain_unmanaged` once everything there is restored."""
    site = state.add_site(Site(name=name, kind="unknown"))
    state.sites.unmanaged[site] = None
    return site


def drain_unmanaged(state: EngineState, rows: Iterable[SiteRow] = ()) -> None:
    """Drain these sites: they get no more work, and their pilots leave when idle. `rows` are the recorded sites."""
    written = {row.site: row for row in rows}
    for site in state.sites.unmanaged:
        if site.removed:
            continue
        if (row := written.get(site.name)) is not None:
            site.site = msgspec.structs.replace(site.site, kind=row.kind or site.site.kind)
            site.described = row.status == "removed"
        site.removed = True
        state.selection.remove(site.name)
        state.placement.remove_site(site)
        for pilot in site.pilots.values():
            drain(state, pilot, SITE_GONE)


def retire_site(state: EngineState, site: SiteState) -> None:
    """Record that a site is removed, with its pending requests; repeating it does no harm."""
    for request in list(site.requests.values()):
        if not request.contacted:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=request.key)
    for attempt in list(site.bound.values()):
        if not attempt.leased:
            mark_lost(state, attempt, reason="rescheduled", message=SITE_GONE)
    if not site.described:
        gone = payloads.SiteDescribed(kind=site.site.kind, status="removed", mode=site.site.mode)
        state.log.write(gone, site=site.name)


def end_requests(state: EngineState) -> None:
    """At sites without batch reports, end each request together with its pilot."""
    for site in state.sites.unmanaged:
        for key in [key for key, each in site.requests.items() if each.contacted and key not in site.by_request]:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=key)


def end_probe(state: EngineState, key: str) -> None:
    """Fail a probe whose pilot did not start in time."""
    request = state.pilots.requests.get(key)
    if request is None or request.contacted:
        return
    site, waited = request.site, state.clock.wall_time - request.requested_at
    state.log.effects.append(CancelSubmitted(site=site.name, key=key))
    state.log.write(payloads.PilotEnded(reason="probe-timeout"), pilot=key)
    if is_probe(key, site=site.name):
        probed(state, site, passed=False, seconds=waited, message=f"no pilot started within {waited:.0f} s")
