"""Where the cache of each site is that has no site agent: a folder of this computer, or one that sftp reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from pilotage.app.sites.connections import SITES_STATE
from pilotage.app.sites.entries import LOCAL
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.transfers.transfers import SiteCache

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_FOLDER = "cache"


def cache_of(site: str, entries: Mapping[str, SiteEntry | None], *, state: Path) -> SiteCache | None:
    """The cache of a configured site; None for any other, and for one whose site agent looks after its own."""
    if site not in entries:
        return None
    entry = entries[site]
    if entry is None:
        return SiteCache(folder=cache_folder(SiteEntry(name=site, kind="local"), state=state))
    if entry.started_by == "agent":
        return None
    folder = cache_folder(entry, state=state)
    locator = ""
    if entry.address:
        path = f"/{folder}" if folder.startswith("~") else folder
        locator, folder = f"sftp://{urlsplit(entry.address).netloc}{quote(path)}", ""
    return SiteCache(
        folder=str(Path(folder).expanduser()) if folder else "",
        locator=locator,
        transfers_max=entry.transfers_max,
        bytes_per_second=entry.transfer_bytes_per_second,
    )


def cache_folder(entry: SiteEntry, *, state: Path) -> str:
    """The folder of a site's cache as its own account names it: absolute, or below `~/`."""
    if entry.cache:
        return entry.cache if entry.cache.startswith("/") else f"~/{entry.cache.removeprefix('~').lstrip('/')}"
    if entry.kind == "local":
        own = state if entry.name == LOCAL else state / SITES_STATE / entry.name
        return str(own / CACHE_FOLDER)
    from pilotage.adapters.sites.install import home_relative, site_prefix

    folder = home_relative(entry.folder)
    below = f"~/{folder.removeprefix('./')}" if folder.startswith(".") else folder
    return f"{below.rstrip('/').removesuffix('/.')}/{site_prefix(state, entry.name)}/{CACHE_FOLDER}"
