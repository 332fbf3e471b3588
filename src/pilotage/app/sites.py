"""Sites put together: for each entry of a file of sites, the way to it that the service uses."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pilotage.agent.connect import announced
from pilotage.model.configuration import Settings
from pilotage.model.errors import PilotageError
from pilotage.model.site_entry import SiteEntry
from pilotage.ports import SiteUnreachable, SubmissionRefused

if TYPE_CHECKING:
    from pilotage.adapters.sites.callers import Caller
    from pilotage.agent.batch import Dialect
    from pilotage.ports import SiteAccess
    from pilotage.service.tokens import Tokens

SITES_STATE = "sites"
"""In the state folder: what is kept of sites; a folder for each further one of the kind `local`."""
EVERYWHERE = ("0.0.0.0", "::", "")


class UnknownKind(PilotageError):
    """The kind of a site is no batch system that is known here."""


def access_for(entry: SiteEntry, *, state: Path, settings: Settings, tokens: Tokens) -> SiteAccess:
    """The way to one site. Raises `UnknownKind`."""
    if entry.kind == "local":
        return _local(entry, state=state)
    from pilotage.adapters.sites.batch import BatchSettings, BatchSite
    from pilotage.adapters.sites.identity import site_prefix

    known = refuse_unknown_kind(entry)
    prefix = site_prefix(state, entry.name)
    return BatchSite(
        BatchSettings(
            entry=entry,
            prefix=prefix,
            server=partial(server_for, entry, state=state, settings=settings),
            token=partial(tokens.for_pilot, entry.name),
            ca_file=partial(ca_file_of, state),
            notes=state / SITES_STATE / f"{entry.name}.asked",
        ),
        known[entry.kind](prefix),
        caller_for(entry, state=state),
    )


def refuse_unknown_kind(entry: SiteEntry) -> dict[str, type[Dialect]]:
    """The dialects there are, by name; raises `UnknownKind` where the entry's is none of them."""
    from pilotage.agent.batch import dialects

    known = dialects()
    if entry.kind not in known and entry.kind != "local":
        raise UnknownKind(
            "no batch system of this kind is known",
            subject=entry.name,
            expected=", ".join(["local", *known]),
            got=entry.kind,
            next_step="a dialect of your own is added by: pilotage site pack FILE.py",
        )
    return known


def caller_for(entry: SiteEntry, *, state: Path) -> Caller:
    """How commands are run at a site: here, or over ssh where it has an address."""
    from pilotage.adapters.sites.callers import Here, Ssh

    return Ssh(entry.address, state=state) if entry.address else Here()


def server_for(entry: SiteEntry, *, state: Path, settings: Settings) -> str:
    """The address by which pilots of a site reach the service of a state folder, as it announced it."""
    from pilotage.service.announcement import SERVICE_FILE

    if settings.service.address:
        return settings.service.address.rstrip("/")
    url = announced(str(state / SERVICE_FILE)).url
    if not url:
        raise SiteUnreachable("the service has not said yet where it answers", subject=entry.name)
    parts = urlsplit(url)
    if settings.service.host in EVERYWHERE:
        return f"{parts.scheme}://{socket.getfqdn()}:{parts.port}"
    if entry.address and is_loopback(parts.hostname or "") and not is_loopback(urlsplit(entry.address).hostname or ""):
        raise SubmissionRefused(
            f"the service listens only on this computer, at {url}: pilots of this site could not reach it",
            reason="unreachable-server",
            subject=entry.name,
            next_step="start it with --host and a name that the site knows, or let a site agent start its pilots",
        )
    return url


def is_loopback(host: str) -> bool:
    """Whether a host is the computer that asks."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ca_file_of(state: Path) -> Path | None:
    """The authority that clients of a service believe, as it announced it; None where there is none of its own."""
    from pilotage.service.announcement import SERVICE_FILE

    file = announced(str(state / SERVICE_FILE)).ca_file
    return Path(file) if file else None


def _local(entry: SiteEntry, *, state: Path) -> SiteAccess:
    from pilotage.adapters.local_token import token_file
    from pilotage.adapters.sites.local import LocalSettings, LocalSite
    from pilotage.adapters.sites.zipapp import build_in
    from pilotage.model.site_entry import site_of
    from pilotage.service.announcement import SERVICE_FILE
    from pilotage.service.server import SOCKET_FILE

    return LocalSite(
        LocalSettings(
            site=entry.name,
            state=state / SITES_STATE / entry.name,
            agent=build_in(state),
            server=f"unix:{state / SOCKET_FILE}",
            announcement=state / SERVICE_FILE,
            token_file=token_file(state),
            capacity=site_of(entry).capacity,
            idle_seconds=entry.idle_seconds,
            wall_seconds=entry.wall_time_seconds or 0.0,
        )
    )
