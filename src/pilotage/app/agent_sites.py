"""Sites with an agent of their own, put together: what the service tells each, and the ssh connections that it opens to some."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.model.site_entry import SiteEntry

if TYPE_CHECKING:
    from pilotage.service.running.agent_site import AgentSettings, Tends
    from pilotage.service.tokens import Tokens

OUTPOSTS = "outposts"
"""In the state folder: the sockets of connections to login nodes."""


def agent_sites_for(entries: Iterable[SiteEntry], *, state: Path, tokens: Tokens) -> dict[str, AgentSettings]:
    """How the service deals with each site whose own agent submits there, by name; nothing is opened yet."""
    from pilotage.adapters.sites.identity import site_prefix
    from pilotage.service.running.agent_site import AgentSettings

    return {
        entry.name: AgentSettings(
            entry=entry,
            prefix=site_prefix(state, entry.name),
            make_token=partial(tokens.for_pilot, entry.name),
            outpost=_outpost(entry, state=state, tokens=tokens) if entry.address else None,
        )
        for entry in entries
        if entry.started_by == "agent"
    }


def _outpost(entry: SiteEntry, *, state: Path, tokens: Tokens) -> Tends:
    """Who starts the agent of a site that has an address, and opens its way to us."""
    from pilotage.adapters.sites.callers import Ssh
    from pilotage.adapters.sites.identity import site_prefix
    from pilotage.adapters.sites.outpost import Outpost, OutpostSettings
    from pilotage.service.server import SOCKET_FILE

    settings = OutpostSettings(
        entry=entry,
        prefix=site_prefix(state, entry.name),
        socket=state / SOCKET_FILE,
        token=partial(tokens.for_site_agent, entry.name),
    )
    # A connection of its own: it is held for as long as the service runs.
    return Outpost(settings, Ssh(entry.address, state=state / OUTPOSTS / entry.name))
