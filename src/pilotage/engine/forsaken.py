"""Sites of which the book has something open, and which nobody named when the engine began: nobody acts there.

What runs there goes on, for its pilots speak themselves. Nobody can submit, withdraw or list anything: what was asked for
and has not come is written off. A site that is named again is as any other that was removed and comes back.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.book.rows import SiteRow
from pilotage.engine.behaviour import SITE_GONE, drain
from pilotage.engine.engine_state import EngineState
from pilotage.engine.on_pilots import lose
from pilotage.engine.places import SiteState
from pilotage.model import payloads
from pilotage.model.site import Site

REMOVED_REASON = "site-removed"
"""Why what was asked for is over where nobody can look after it."""


def forsake(state: EngineState, name: str) -> SiteState:
    """Know a site that only the book knows; `leave_forsaken` must follow when everything there is known."""
    site = state.add_site(Site(name=name, kind="unknown"))
    state.sites.unmanaged[site] = None
    return site


def leave_forsaken(state: EngineState, rows: Iterable[SiteRow] = ()) -> None:
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


def write_off(state: EngineState, site: SiteState) -> None:
    """Write down that a site is gone, and with it what waits there: again does no harm."""
    for request in list(site.requests.values()):
        if not request.spoke:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=request.key)
    for attempt in list(site.bound.values()):
        if not attempt.leased:
            lose(state, attempt, reason="rescheduled", message=SITE_GONE)
    if not site.described:
        gone = payloads.SiteDescribed(kind=site.site.kind, status="removed", mode=site.site.mode)
        state.log.write(gone, site=site.name)


def end_requests(state: EngineState) -> None:
    """Where nobody hears from a batch system, what was asked for is over when the pilot is that came of it."""
    for site in state.sites.unmanaged:
        for key in [key for key, each in site.requests.items() if each.spoke and key not in site.by_request]:
            state.log.write(payloads.PilotEnded(reason=REMOVED_REASON), pilot=key)
