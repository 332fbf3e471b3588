"""Finds the stores of locators: by the longest prefix among `[stores.NAME]`, else by the scheme alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pilotage.app.adapter_registry import adapter_names, find_adapter
from pilotage.model.locators import Locator, parse_locator
from pilotage.model.settings.settings import Settings
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import FoundStore, MakesStore, Store

if TYPE_CHECKING:
    from pilotage.book.rows.rows import JobRow
    from pilotage.service.jobs.refusals import KnownStores

StoreOf = Callable[[str], Store]
"""The files that a service keeps for a user; for none, all of them, to be read."""


class StoreRegistry:
    """The stores of a service; each is made when its first locator is asked for. Any thread may use it."""

    def __init__(
        self,
        settings: Iterable[StoreSettings],
        *,
        archive: Sequence[str] = (),
        own: Mapping[str, StoreOf] | None = None,
    ) -> None:
        """Take the settings of stores, the names of the archives, and the service's own stores by their schemes."""
        self._own = own or {}
        self._settings = {each.name: each for each in settings}
        self._urls = {name: parse_locator(each.url) for name, each in self._settings.items()}
        self._archive = tuple(archive)
        self._made: dict[str, Store] = {}
        self._guard = threading.Lock()

    def find(self, locator: str, *, user: str = "") -> FoundStore:
        """The store of a locator."""
        parsed = parse_locator(locator)
        matching = [name for name, url in self._urls.items() if _covers(url, parsed)]
        if matching:
            # Of two that are as long, the one that names a user is the closer one.
            closest = max(matching, key=lambda name: (len(self._urls[name].path), self._urls[name].user))
            return self.named(closest, user=user)
        return FoundStore(
            name=parsed.origin if parsed.host else parsed.scheme,
            store=self._store(f"{parsed.scheme}:", parsed.scheme, StoreSettings(), user=user),
            settings=StoreSettings(),
        )

    def named(self, name: str, *, user: str = "") -> FoundStore:
        """The store of `[stores.NAME]`."""
        settings = self._settings.get(name)
        if settings is None:
            raise StoreError("no settings have this store", subject=name, next_step=f"write [stores.{name}]")
        store = self._store(name, self._urls[name].scheme, settings, user=user)
        return FoundStore(name=name, store=store, settings=settings)

    def archive(self) -> tuple[FoundStore, ...]:
        """The stores that outputs are archived in, in their order."""
        return tuple(map(self.named, self._archive))

    def close(self) -> None:
        """Close all stores."""
        with self._guard:
            made = list(self._made.values())
        for store in made:
            store.close()

    def _store(self, key: str, scheme: str, settings: StoreSettings, *, user: str = "") -> Store:
        if scheme in self._own:
            return self._own[scheme](user)
        with self._guard:
            if key not in self._made:
                make: MakesStore | None = find_adapter("pilotage.stores", scheme)
                if make is None:
                    known = ", ".join(sorted({*adapter_names("pilotage.stores"), *self._own}))
                    raise StoreError("no store has such locators", subject=f"{scheme}:", expected=known)
                self._made[key] = make(settings)
            return self._made[key]


def open_stores(settings: Settings) -> StoreRegistry:
    """The stores that the settings describe; none is reached before it is asked for."""
    return StoreRegistry(settings.stores, archive=settings.files.archive)


def known_stores(
    settings: Settings,
    *,
    may_read: Callable[[str, str], bool] | None = None,
    find_job: Callable[[str], JobRow | None] | None = None,
) -> KnownStores:
    """What submissions are checked against: the archive stores of the settings, installed stores, contents, and jobs."""
    from pilotage.service.jobs.refusals import KnownStores  # which needs numpy

    urls = {each.name: each.url for each in settings.stores}
    archives = tuple(urls[name] for name in settings.files.archive if name in urls)
    return KnownStores(
        archives=archives, installed=lambda: adapter_names("pilotage.stores"), may_read=may_read, find_job=find_job
    )


def _covers(url: Locator, locator: Locator) -> bool:
    """Whether a locator is below the URL of a store."""
    if (url.scheme, url.host, url.port) != (locator.scheme, locator.host, locator.port):
        return False
    if url.user and url.user != locator.user:
        return False
    folder = url.path.rstrip("/")
    if not folder and not url.host and not locator.path.startswith("/"):  # `store:` has no folders
        return True
    return locator.path == folder or locator.path.startswith(f"{folder}/")
