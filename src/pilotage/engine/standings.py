"""What follows from how sites behave: it is written down that one sleeps or wakes, and carried out."""

from __future__ import annotations

from typing import assert_never

from pilotage.engine.behaviour import drain, is_probe, learned, probed, write_down
from pilotage.engine.engine_state import EngineState
from pilotage.engine.places import SiteState
from pilotage.engine.releasing import release_site
from pilotage.engine.selection import Change, Drained, Hibernated, Woken
from pilotage.model import payloads
from pilotage.model.texts import clipped


def see_to_sites(state: EngineState) -> None:
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
            slept = payloads.SiteHibernated(reason=change.reason, message=message, score=score, learned=learned(site))
            state.log.write(slept, site=site.name)
            if site.asleep:
                release_site(state, site)
                # No pilot may ever come that would do it: it must be possible to wake the site for who waits.
                state.placement.reopen(site)
        case Woken():
            if change.rule in ("by-hand", "probe-passed"):
                site.dead_starts, site.quiet_until = 0, 0.0
            woken = payloads.SiteWoken(reason=change.rule, message=message, score=score, learned=learned(site))
            state.log.write(woken, site=site.name)
            state.placement.tell_all(site)
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
        site.place.pilots.condemn(pilot.name)
        drain(state, pilot, change.message)
    return bool(pilots)
