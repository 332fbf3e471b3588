"""Makes the access to each configured site that the service uses."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from pilotage.adapters.settings.settings_files import stamp_of
from pilotage.agent.link.connect import announced
from pilotage.app.sites.entries import known_sites
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.settings.settings import Settings
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry, site_of
from pilotage.ports import SiteContext, SiteUnreachable, SubmissionRefused
from pilotage.service.sites.config_watch import ConfiguredSite

if TYPE_CHECKING:
    from pilotage.adapters.settings.settings_files import FileStamp
    from pilotage.adapters.sites.commands import Caller
    from pilotage.agent.batch import Dialect
    from pilotage.ports import MakesSiteAccess, SiteAccess
    from pilotage.service.sites.agent_worker import AgentSettings, AgentSupervisor
    from pilotage.service.sites.pool import SiteConnection
    from pilotage.service.tokens import Tokens

SITES_STATE = "sites"
"""In the state folder: files of sites; one folder for each further site of the kind `local`."""
EVERYWHERE = ("0.0.0.0", "::", "")


class UnknownKind(PilotageError):
    """The kind of a site is neither a known batch system nor an installed adapter."""


def access_for(entry: SiteEntry, *, state: Path, settings: Settings, tokens: Tokens) -> SiteAccess:
    """The access to one site. Raises `UnknownKind`."""
    context = _context(entry, state=state, settings=settings, tokens=tokens)
    dialect = refuse_unknown_kind(entry).get(entry.kind)
    if dialect is None:
        from pilotage.app.adapter_registry import find_adapter

        make: MakesSiteAccess = find_adapter("pilotage.sites", entry.kind)
        return make(entry, context)
    from pilotage.adapters.sites.batch import BatchSettings, BatchSite
    from pilotage.adapters.sites.install import site_prefix

    prefix = site_prefix(state, entry.name)
    return BatchSite(
        BatchSettings(
            entry=entry,
            prefix=prefix,
            server=context.server,
            token=context.token,
            ca_file=partial(ca_file_of, state),
            notes=state / SITES_STATE / f"{entry.name}.asked",
        ),
        dialect(prefix),
        caller_for(entry, state=state),
    )


def _context(entry: SiteEntry, *, state: Path, settings: Settings, tokens: Tokens) -> SiteContext:
    from pilotage.adapters.settings.tokens import token_file
    from pilotage.adapters.sites.zipapp import build_in
    from pilotage.service.announcement import SERVICE_FILE
    from pilotage.service.server import SOCKET_FILE

    return SiteContext(
        state=str(state),
        folder=str(state / SITES_STATE / entry.name),
        agent=lambda: str(build_in(state)),
        server=partial(server_for, entry, state=state, settings=settings),
        socket=f"unix:{state / SOCKET_FILE}",
        announcement=str(state / SERVICE_FILE),
        token=partial(tokens.for_pilot, entry.name),
        token_file=str(token_file(state)),
        ca_file=lambda: str(ca_file_of(state) or ""),
    )


def refuse_unknown_kind(entry: SiteEntry) -> dict[str, type[Dialect]]:
    """The known batch systems by name; raises `UnknownKind` if the entry's kind is neither one nor another adapter."""
    from pilotage.agent.batch import dialects
    from pilotage.app.adapter_registry import adapter_names, find_adapter

    known = dialects()
    if entry.kind in known or entry.kind == "local":
        return known
    if find_adapter("pilotage.sites", entry.kind) is not None:
        if entry.started_by == "agent":
            raise UnknownKind(
                "a site agent supports batch systems only, and this kind is an adapter of the service",
                subject=entry.name,
                expected=", ".join(known),
                got=entry.kind,
                next_step="leave `started_by` out of the site's entry",
            )
        return known
    raise UnknownKind(
        "this kind of site is unknown",
        subject=entry.name,
        expected=", ".join([*adapter_names("pilotage.sites"), *known]),
        got=entry.kind,
        next_step="add a dialect of your own with: pilotage site pack FILE.py",
    )


def caller_for(entry: SiteEntry, *, state: Path) -> Caller:
    """How to run commands at a site: here, or over ssh if it has an address."""
    from pilotage.adapters.sites.commands import LocalCaller, Ssh

    return Ssh(entry.address, state=state) if entry.address else LocalCaller()


def server_for(entry: SiteEntry, *, state: Path, settings: Settings) -> str:
    """The address at which pilots of a site reach the service of a state folder, from its announcement."""
    from pilotage.service.announcement import SERVICE_FILE

    if settings.service.address:
        return settings.service.address.rstrip("/")
    url = announced(str(state / SERVICE_FILE)).url
    if not url:
        raise SiteUnreachable("the service has not announced its address yet", subject=entry.name)
    parts = urlsplit(url)
    if settings.service.host in EVERYWHERE:
        return f"{parts.scheme}://{socket.getfqdn()}:{parts.port}"
    if entry.address and is_loopback(parts.hostname or "") and not is_loopback(urlsplit(entry.address).hostname or ""):
        raise SubmissionRefused(
            f"the service listens only on this computer, at {url}: pilots of this site could not reach it",
            reason="unreachable-server",
            subject=entry.name,
            next_step="start it with --host and a name that the site can resolve, or let a site agent start its pilots",
        )
    return url


def is_loopback(host: str) -> bool:
    """Whether a host is this computer."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ca_file_of(state: Path) -> Path | None:
    """The certificate authority in a service's announcement; None if it has none of its own."""
    from pilotage.service.announcement import SERVICE_FILE

    file = announced(str(state / SERVICE_FILE)).ca_file
    return Path(file) if file else None


# Sites with site agents: the settings for each, and the ssh connections that the service opens to some.

OUTPOSTS = "outposts"
"""In the state folder: the sockets of connections to login nodes."""


def agent_sites_for(entries: Iterable[SiteEntry], *, state: Path, tokens: Tokens) -> dict[str, AgentSettings]:
    """The settings for each site that has a site agent, by name; opens nothing yet."""
    from pilotage.adapters.sites.install import site_prefix
    from pilotage.service.sites.agent_worker import AgentSettings

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


def _outpost(entry: SiteEntry, *, state: Path, tokens: Tokens) -> AgentSupervisor:
    """Starts the agent of a site that has an address, and opens its connection to us."""
    from pilotage.adapters.sites.commands import Ssh
    from pilotage.adapters.sites.install import site_prefix
    from pilotage.adapters.sites.ssh_agent import SshSiteAgent, SshSiteAgentSettings
    from pilotage.service.server import SOCKET_FILE

    settings = SshSiteAgentSettings(
        entry=entry,
        prefix=site_prefix(state, entry.name),
        socket=state / SOCKET_FILE,
        token=partial(tokens.for_site_agent, entry.name),
    )
    # A connection of its own: it stays open while the service runs.
    return SshSiteAgent(settings, Ssh(entry.address, state=state / OUTPOSTS / entry.name))


# The sites of a service, from its file: this computer and the configured ones, each with what makes its access.

Here = Callable[[SiteEntry | None], ConfiguredSite | None]
"""This computer as a site, by its own entry if it has one; None if nothing runs here."""


class SitesReader:
    """Watches the file in effect: that of the project may come and go, and then the user's own counts."""

    def __init__(
        self, find: Callable[[], Path], arrange: Callable[[Sequence[SiteEntry]], Sequence[ConfiguredSite]]
    ) -> None:
        """Take what finds the file, and what makes sites of its entries."""
        self._find = find
        self._arrange = arrange
        self._stamp: FileStamp | tuple[()] | None = ()  # not read yet
        self._missed = False
        self.file = ""

    def changed(self) -> Sequence[ConfiguredSite] | None:
        """All sites, if anything changed since the last call; else None. Raises `DocumentError`, once per change.

        After any other error, the next call reads the file again.
        """
        file = self._find()
        stamp = stamp_of(file)
        first = self._stamp == ()
        if stamp == self._stamp:
            self._missed = False
            return None
        if not first and (stamp is None or str(file) != self.file) and not self._missed:
            self._missed = True  # editors replace a file, and for a moment there is none
            return None
        self._missed = False
        self.file = str(file)
        try:
            configured = self._arrange(known_sites(file).entries)
        except DocumentError:
            self._stamp = stamp
            raise
        self._stamp = stamp
        return configured


class FixedSites:
    """Fixed sites."""

    file = ""

    def __init__(self, configured: Sequence[ConfiguredSite]) -> None:
        self._configured: Sequence[ConfiguredSite] | None = configured

    def changed(self) -> Sequence[ConfiguredSite] | None:
        """All of them, once."""
        configured, self._configured = self._configured, None
        return configured


def configured_sites(
    entries: Iterable[SiteEntry], *, here: Here, state: Path, settings: Settings, tokens: Tokens
) -> list[ConfiguredSite]:
    """The local computer, and the sites of some entries; makes and calls nothing yet. Raises `UnknownKind`."""
    from pilotage.app.sites.entries import LOCAL

    entries = list(entries)
    own = here(next((each for each in entries if each.name == LOCAL), None))
    configured = [own] if own is not None else []
    for entry, site in other_sites(entries):
        make = partial(_way, entry, state=state, settings=settings, tokens=tokens)
        configured.append(ConfiguredSite(site=site, entry=entry, make=make))
    return configured


def other_sites(entries: Iterable[SiteEntry]) -> list[tuple[SiteEntry, Site]]:
    """The sites of some entries besides this computer. Raises `UnknownKind`."""
    from pilotage.app.sites.entries import LOCAL

    others = [entry for entry in entries if entry.name != LOCAL]
    return [(entry, _site(entry, refuse_unknown_kind(entry))) for entry in others]


def _site(entry: SiteEntry, known: Mapping[str, type[Dialect]]) -> Site:
    """A site for the engine, with what only its batch system, or this computer, can tell."""
    site = site_of(entry)
    if entry.kind == "local":
        return with_own_name(site)
    dialect = known.get(entry.kind)
    return msgspec.structs.replace(site, places_nodes=dialect.places) if dialect is not None else site


def with_own_name(site: Site) -> Site:
    """A site that is this computer: its node has this computer's name, and its platform.

    Unless the entry says otherwise; platforms are named as `site add` does: `x86_64-linux`.
    """
    about = os.uname()
    return msgspec.structs.replace(
        site,
        node_names=site.node_names or (about.nodename,),
        platform=site.platform or f"{about.machine}-{about.sysname.lower()}",
    )


def _way(entry: SiteEntry, *, state: Path, settings: Settings, tokens: Tokens) -> SiteConnection:

    if entry.started_by == "agent":
        return agent_sites_for([entry], state=state, tokens=tokens)[entry.name]
    return access_for(entry, state=state, settings=settings, tokens=tokens)


def slots_of(sites: Iterable[Site]) -> int:
    """The most packages of one core that may run at once at some sites."""
    return max(1, sum(each.pilots_max * each.capacity.cores_hundredths // 100 for each in sites))
