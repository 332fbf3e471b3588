"""The sites of a service, from its file: this computer and those that are written down, each with what makes a way to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.sites_file import mark_of
from pilotage.app.site_entries import known_sites
from pilotage.model.errors import DocumentError
from pilotage.model.site import Site
from pilotage.model.site_entry import SiteEntry, site_of
from pilotage.service.running.site_keeping import Placed

if TYPE_CHECKING:
    from pilotage.adapters.sites_file import Mark
    from pilotage.agent.batch import Dialect
    from pilotage.model.configuration import Settings
    from pilotage.service.running.workers import Way
    from pilotage.service.tokens import Tokens

Here = Callable[[SiteEntry | None], Placed | None]
"""This computer as a site, by its own entry where it has one; None where nothing is run here."""


class SitesReader:
    """Looks at the file that holds now: that of the project may come and go, and then the user's own does."""

    def __init__(self, find: Callable[[], Path], arrange: Callable[[Sequence[SiteEntry]], Sequence[Placed]]) -> None:
        """Take what finds the file, and what makes sites of its entries."""
        self._find = find
        self._arrange = arrange
        self._seen: Mark | tuple[()] | None = ()  # nothing was looked at yet
        self._missed = False
        self.file = ""

    def changed(self) -> Sequence[Placed] | None:
        """All sites, where anything has changed since they were last told. Raises `DocumentError`, once for each change.

        Whatever else keeps us from it may be over when we are asked again, and the file is read again then.
        """
        file = self._find()
        mark = mark_of(file)
        first = self._seen == ()
        if mark == self._seen:
            self._missed = False
            return None
        if not first and (mark is None or str(file) != self.file) and not self._missed:
            self._missed = True  # editors replace a file, and for a moment there is none
            return None
        self._missed = False
        self.file = str(file)
        try:
            placed = self._arrange(known_sites(file).entries)
        except DocumentError:
            self._seen = mark
            raise
        self._seen = mark
        return placed


class GivenSites:
    """Sites that nothing changes."""

    file = ""

    def __init__(self, placed: Sequence[Placed]) -> None:
        """Take them."""
        self._placed: Sequence[Placed] | None = placed

    def changed(self) -> Sequence[Placed] | None:
        """All of them, once."""
        placed, self._placed = self._placed, None
        return placed


def arranged(
    entries: Iterable[SiteEntry], *, here: Here, state: Path, settings: Settings, tokens: Tokens
) -> list[Placed]:
    """The computer that we are on, and every site of some entries; nothing is made or called yet. Raises `UnknownKind`."""
    from pilotage.app.site_entries import LOCAL

    entries = list(entries)
    own = here(next((each for each in entries if each.name == LOCAL), None))
    placed = [own] if own is not None else []
    for entry, site in other_sites(entries):
        make = partial(_way, entry, state=state, settings=settings, tokens=tokens)
        placed.append(Placed(site=site, entry=entry, make=make))
    return placed


def other_sites(entries: Iterable[SiteEntry]) -> list[tuple[SiteEntry, Site]]:
    """The sites of some entries besides this computer. Raises `UnknownKind`."""
    from pilotage.app.site_entries import LOCAL
    from pilotage.app.sites import refuse_unknown_kind

    others = [entry for entry in entries if entry.name != LOCAL]
    return [(entry, _site(entry, refuse_unknown_kind(entry))) for entry in others]


def _site(entry: SiteEntry, known: Mapping[str, type[Dialect]]) -> Site:
    """What the engine knows of a site, with what only its batch system, or this computer, can tell."""
    site = site_of(entry)
    if entry.kind == "local":
        return with_own_name(site)
    return msgspec.structs.replace(site, places_nodes=known[entry.kind].places)


def with_own_name(site: Site) -> Site:
    """A site that is this computer: its one node is called as it calls itself, and its platform is its own.

    Unless it is said otherwise; a platform is told in the words that `site add` finds for others: `x86_64-linux`.
    """
    about = os.uname()
    return msgspec.structs.replace(
        site,
        node_names=site.node_names or (about.nodename,),
        platform=site.platform or f"{about.machine}-{about.sysname.lower()}",
    )


def _way(entry: SiteEntry, *, state: Path, settings: Settings, tokens: Tokens) -> Way:
    from pilotage.app.agent_sites import agent_sites_for
    from pilotage.app.sites import access_for

    if entry.started_by == "agent":
        return agent_sites_for([entry], state=state, tokens=tokens)[entry.name]
    return access_for(entry, state=state, settings=settings, tokens=tokens)


def slots_of(sites: Iterable[Site]) -> int:
    """How many packages of one core may run at once at some sites, at most."""
    return max(1, sum(each.pilots_max * each.capacity.cores_hundredths // 100 for each in sites))
