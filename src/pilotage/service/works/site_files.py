"""What work orders say of the files that were brought to the cache of a site."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Protocol

import msgspec

from pilotage.engine.engine import Engine
from pilotage.engine.files.queries import cached_file
from pilotage.language import Expansion
from pilotage.language.file_plan import brought_files
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import WorkInput
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.locators import parse_locator
from pilotage.model.site import Site


class NotAtSite(PilotageError):
    """A file that a package needs is not in the cache of its site, or has another content than the document requires."""


class CachedInput(Protocol):
    """A file in the cache of a site."""

    @property
    def name(self) -> str:
        """Its name in the cache folder."""
        ...

    @property
    def sha256(self) -> str:
        """Its checksum."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...


class SiteFiles(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What work orders say of the files at a site."""

    cache: str = ""  # the folder there that has the files that were brought there
    cached: Callable[[str], CachedInput | None] | None = None  # those files by locator; none: no site is meant
    visible_seconds: float = 0.0  # how long its nodes may see files late; 0: never late


NO_SITE = SiteFiles()


Contents = Callable[[Collection[str]], Mapping[str, CachedInput]]
"""Finds the contents that files with some locators have in the cache of any site, if they are known."""


AskContents = Callable[[Callable[[Engine], dict[str, CachedInput]]], "Future[dict[str, CachedInput]]"]


def known_contents(locators: Collection[str], engine: Engine) -> dict[str, CachedInput]:
    """The contents of these locators that the engine knows; only within a query. Files that a store has changed are not."""
    caches = engine.state.files.caches.values()
    found: dict[str, CachedInput] = {}
    for locator in locators if caches else ():
        for cache in caches:
            entry = cached_file(engine.state, cache.name, locator)
            if entry is not None and not entry.stale:
                found[locator] = entry
                break
    return found


def contents_of(plan: JobPlan, contents: Contents | None) -> SiteFiles:
    """What is known of the files that packages bring to sites, wherever they run."""
    known = contents(plan.files.locators) if plan.files is not None and contents is not None else {}
    return SiteFiles(cached=known.get) if plan.files is not None else NO_SITE


class FilesAtSites:
    """Knows the files at each site."""

    def __init__(self, cache_of: Callable[[str], str], *, visible_seconds: float, ask: AskContents) -> None:
        """Take the function that tells the cache folder of a site, and how long network file systems may lag behind.

        `ask` runs a query on the engine.
        """
        self._ask = ask
        self._cache_of = cache_of
        self._visible_seconds = visible_seconds

    def contents(self, locators: Collection[str]) -> Mapping[str, CachedInput]:
        """What is known of the contents of files, at any site; for any thread but the engine's."""
        return self._ask(partial(known_contents, locators)).result()

    def at(self, site: Site | None, engine: Engine) -> SiteFiles:
        """The files at a site, in the engine's thread; on this computer no file is seen late."""
        if site is None:
            return NO_SITE
        return SiteFiles(
            cache=self._cache_of(site.name),
            cached=partial(cached_file, engine.state, site.name),
            visible_seconds=0.0 if site.kind == "local" else self._visible_seconds,
        )


def cached_inputs(expansion: Expansion, number: int, site: Site | None, files: SiteFiles) -> Iterator[WorkInput]:
    """The inputs of a package that were brought to the cache of its site; raises `NotAtSite`."""
    for each in brought_files(expansion, number, platform=site.platform if site is not None else ""):
        if each.in_place:
            yield WorkInput(name=each.name, sha256=each.sha256, path=parse_locator(each.locator).path)
            continue
        if files.cached is None:
            yield WorkInput(name=each.name, sha256=each.sha256, unpacked=each.unpacked)
            continue
        found = files.cached(each.locator)
        where = f"at {site.name}" if site is not None else "there"
        if found is None:
            raise NotAtSite(f"it is not in the cache {where}", subject=each.locator)
        if each.sha256 and each.sha256 != found.sha256:
            raise NotAtSite(
                f"it has another content {where} than the document requires",
                subject=each.locator,
                expected=f"sha256 {each.sha256}",
                got=f"sha256 {found.sha256}",
            )
        yield WorkInput(
            name=each.name,
            sha256=found.sha256,
            size_bytes=found.size_bytes,
            cached=found.name,
            unpacked=each.unpacked,
        )


def refuse_unknown(inputs: Iterable[WorkInput]) -> None:
    """Raise `NotAtSite` if an input is at its own place, where only its node sees it, and no checksum says what it is."""
    for each in inputs:
        if each.path and not each.sha256:
            raise NotAtSite("its content is known at its site alone", subject=each.path)
