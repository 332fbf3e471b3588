"""A store of files behind locators, such as `file:///data/in.root`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from pilotage.ports.job_tree import StoreError


class NotInStore(StoreError):
    """No file has this locator."""


class AlreadyInStore(StoreError):
    """A file has this locator already; it was not overwritten."""


class StoreObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a store, as it is now."""

    locator: str
    size_bytes: int
    modified_at: float  # seconds since 1970, UTC


class Store(Protocol):
    """Files behind the locators of one scheme. Any thread may use it; every method raises `StoreError`.

    Nothing calls it yet: documents with locators are rejected. It is here, with an adapter for folders, for the staging
    of such files, and grows with what that needs.
    """

    def stat(self, locator: str) -> StoreObject | None:
        """The file at a locator; None if there is none."""
        ...

    def checksum(self, locator: str) -> str:
        """The sha256 of a file. Raises `NotInStore`."""
        ...

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """Every file below a folder's locator, at any depth, by locator."""
        ...

    def fetch(self, locator: str, target: str) -> StoreObject:
        """Copy a file here; it appears under the target's name only when complete. Raises `NotInStore`."""
        ...

    def put(self, source: str, locator: str) -> StoreObject:
        """Copy a file into the store; it appears at its locator only when complete. Raises `AlreadyInStore`."""
        ...

    def delete(self, locator: str) -> bool:
        """Remove a file; whether it existed."""
        ...
