"""What follows from how sites behave: it is written down that one sleeps or wakes, and carried out."""

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
from pilotage.engine.transitions.site_observations import SITE_GONE, drain, encode_learned, is_probe, probed, write_down
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted
from pilotage.model.site import Site
from pilotage.model.texts import clipped


def apply_site_changes(state: EngineState) -> None:
    """Write down what came of probes and every change of how a site stands, and do what follows from it."""
    while state.pending.arrived_probes:
        name = next(iter(state.pending.arrived_probes))
        queued = state.pending.arrived_probes.pop(name)
        if (pilot := state.pilots.by_name.get(name)) is not None:
            drain(state, pilot, "it was only to show that it comes")
            if is_probe(pilot.request, site=pilot.site.name):
                probed(state, pilot.site, passed=True, seconds=queued)
    while state.pending.site_changes:
        changes, state.pending.site_changes = state.pending.site_changes, []
        for change in changes:
            site = state.sites.by_name.get(change.site)
            if site is not None and not site.removed:
                _carry_out(state, site, change)


def _carry_out(state: EngineState, site: SiteState, change: Change) -> None:
    score, message = site.place.score.value, clipped(change.message)
    match change:
        case Hibernated():
            slept = payloads.SiteHibernated(
                reason=change.reason, message=message, score=score, learned=encode_learned(site)
            )
            state.log.write(slept, site=site.name)
            if site.asleep:
                release_site(state, site)
                # No pilot may ever come that would do it: it must be possible to wake the site for who waits.
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
                write_down(state, site)  # an engine that starts from the book must know it
        case _:
            assert_never(change)


def _drain(state: EngineState, site: SiteState, change: Drained) -> bool:
    """Give a pilot, or those of a node, nothing more: they leave when they hold nothing. Not where there is no other node."""
    if change.kind == "pilot":
        pilots = [site.pilots[change.name]] if change.name in site.pilots else []
    else:
        site.place.nodes.put_on_trial(change.name)
        pilots = [pilot for pilot in site.pilots.values() if pilot.node == change.name]
        if len(pilots) == len(site.pilots):
            return False
    for pilot in pilots:
        site.place.pilots.mark_for_drain(pilot.name)
        drain(state, pilot, change.message)
    return bool(pilots)


# Sites of which the book has something open, and which nobody named when the engine began: nobody acts there.
#
# What runs there goes on, for its pilots speak themselves. Nobody can submit, withdraw or list anything: what was
# asked for and has not come is written off. A site that is named again is as any other that was removed and comes
# back.

REMOVED_REASON = "site-removed"
"""Why what was asked for is over where nobody can look after it."""


def add_unmanaged(state: EngineState, name: str) -> SiteState:
    """Know a site that only the book knows; `drain_unmanaged` must follow when everything there is known."""
    site = state.add_site(Site(name=name, kind="unknown"))
    state.sites.unmanaged[site] = None
    return site


def drain_unmanaged(state: EngineState, rows: Iterable[SiteRow] = ()) -> None:
    """Nothing more goes to these sites, and pilots leave when they hold nothing. The rows tell what is written of sites."""
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
    """Write down that a site is gone, and with it what waits there: again does no harm."""
    for request in list(site.requests.values()):
        if not request.spoke:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=request.key)
    for attempt in list(site.bound.values()):
        if not attempt.leased:
            mark_lost(state, attempt, reason="rescheduled", message=SITE_GONE)
    if not site.described:
        gone = payloads.SiteDescribed(kind=site.site.kind, status="removed", mode=site.site.mode)
        state.log.write(gone, site=site.name)


def end_requests(state: EngineState) -> None:
    """Where nobody hears from a batch system, what was asked for is over when the pilot is that came of it."""
    for site in state.sites.unmanaged:
        for key in [key for key, each in site.requests.items() if each.spoke and key not in site.by_request]:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=key)


def end_probe(state: EngineState, key: str) -> None:
    """A pilot that was to show that it comes, and did not in its time, has failed."""
    request = state.pilots.requests.get(key)
    if request is None or request.spoke:
        return
    site, waited = request.site, state.clock.wall_time - request.requested_at
    state.log.effects.append(CancelSubmitted(site=site.name, key=key))
    state.log.write(payloads.PilotEnded(reason="probe-timeout"), pilot=key)
    if is_probe(key, site=site.name):
        probed(state, site, passed=False, seconds=waited, message=f"no pilot came within {waited:.0f} s")
