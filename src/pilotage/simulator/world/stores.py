"""Stores of a simulated world: what lies behind each locator, the copies of outputs, and when a store does not answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pilotage.simulator.world.jobs import Sketch


class StoreSketch(Sketch, frozen=True, kw_only=True):
    """A store: every locator that begins with its URL."""

    url: str
    outages: tuple[tuple[float, float], ...] = ()  # start and duration, from the beginning of the world
    failure_probability: float = 0.0  # of each transfer
    bytes_per_second: float = 0.0  # of one transfer; 0: no limit
    latency_seconds: float = 0.0  # of each transfer


class Stores:
    """The truth about files in stores. A store that no sketch describes never fails, and takes no time."""

    def __init__(self, sketches: Sequence[StoreSketch], *, began_at: float) -> None:
        """Start with the first content behind every locator; no output has a copy."""
        self.sketches = tuple(sketches)
        self._began_at = began_at
        self._by_length = sorted(sketches, key=lambda each: -len(each.url))
        self._versions: dict[str, int] = {}  # of locators whose content has changed
        self._copies: dict[str, str] = {}  # by locator: the checksum

    def store_of(self, locator: str) -> StoreSketch:
        """The store of a locator: that with the longest URL that fits."""
        for each in self._by_length:
            if locator.startswith(each.url):
                return each
        return StoreSketch(url=locator)

    def answers(self, store: StoreSketch, now: float) -> bool:
        """Whether a store answers."""
        elapsed_seconds = now - self._began_at
        return not any(begins <= elapsed_seconds < begins + lasts for begins, lasts in store.outages)

    def version(self, locator: str) -> int:
        """How often the content behind a locator has changed."""
        return self._versions.get(locator, 0)

    def change(self, locator: str) -> None:
        """Put another content behind a locator."""
        self._versions[locator] = self.version(locator) + 1

    def put(self, locator: str, sha256: str) -> None:
        """Store a copy of an output in the place of what was there."""
        self._copies[locator] = sha256

    def copy(self, locator: str) -> str:
        """The checksum of the copy behind a locator; empty: there is none."""
        return self._copies.get(locator, "")


def checksum_of(locator: str, version: int) -> str:
    """The checksum of a version of the content behind a locator."""
    return hashlib.sha256(f"{version} {locator}".encode()).hexdigest()


def copy_locators(stores: Stores, *, job: str, package: str, name: str, count: int) -> list[str]:
    """Where the copies of an output lie: one in each of the first stores, the same for all attempts of a package."""
    return [f"{each.url}{job}/{package}/{name}" for each in stores.sketches[:count]]
