"""What follows from how sites behave: it is written down that one sleeps or wakes, and carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from pilotage.engine.behaviour import drain, is_probe, learned, probed, write_down
from pilotage.engine.places import SiteState
from pilotage.engine.releasing import release_site
from pilotage.engine.selection import Change, Drained, Hibernated, Woken
from pilotage.model import payloads
from pilotage.model.texts import clipped

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


def see_to_sites(engine: Engine) -> None:
    """Write down what came of probes and every change of how a site stands, and do what follows from it."""
    while engine.arrived:
        name = next(iter(engine.arrived))
        queued = engine.arrived.pop(name)
        if (pilot := engine.pilots.get(name)) is not None:
            drain(engine, pilot, "it was only to show that it comes")
            if is_probe(pilot.request, site=pilot.site.name):
                probed(engine, pilot.site, passed=True, seconds=queued)
    while engine.changes:
        changes, engine.changes = engine.changes, []
        for change in changes:
            site = engine.sites.get(change.site)
            if site is not None and not site.removed:
                _carry_out(engine, site, change)


def _carry_out(engine: Engine, site: SiteState, change: Change) -> None:
    score, message = site.place.score.value, clipped(change.message)
    match change:
        case Hibernated():
            slept = payloads.SiteHibernated(reason=change.reason, message=message, score=score, learned=learned(site))
            engine.write(slept, site=site.name)
            if site.asleep:
                release_site(engine, site)
                # No pilot may ever come that would do it: it must be possible to wake the site for who waits.
                engine.openings.reopen(site)
        case Woken():
            if change.rule in ("by-hand", "probe-passed"):
                site.dead_starts, site.quiet_until = 0, 0.0
            woken = payloads.SiteWoken(reason=change.rule, message=message, score=score, learned=learned(site))
            engine.write(woken, site=site.name)
            engine.openings.tell_all(site)
        case Drained():
            if _drain(engine, site, change):
                drained = payloads.SiteDrained(kind=change.kind, name=clipped(change.name, 256), message=message)
                engine.write(drained, site=site.name)
                write_down(engine, site)  # an engine that starts from the book must know it
        case _:
            assert_never(change)


def _drain(engine: Engine, site: SiteState, change: Drained) -> bool:
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
        drain(engine, pilot, change.message)
    return bool(pilots)
