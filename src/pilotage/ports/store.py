"""A store of files behind locators, such as `file:///data/in.root`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from pilotage.ports.job_tree import StoreError


class NotInStore(StoreError):
    """Nothing is at a locator."""


class AlreadyInStore(StoreError):
    """Something is at a locator, and nothing was written over it."""


class StoreObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a store as it is now."""

    locator: str
    size_bytes: int
    modified_at: float  # seconds since 1970, UTC


class Store(Protocol):
    """Files behind the locators of one scheme. Any thread may use it; every method raises `StoreError`.

    Nothing calls it yet: a document whose files lie behind locators is refused. It is here for the staging of such files,
    with the adapter for folders, and grows with what that needs.
    """

    def stat(self, locator: str) -> StoreObject | None:
        """What is at a locator; None where nothing is."""
        ...

    def checksum(self, locator: str) -> str:
        """The sha256 of what is at a locator. Raises `NotInStore`."""
        ...

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """Every file whose locator begins with that of a folder, at any depth, sorted by locator."""
        ...

    def fetch(self, locator: str, target: str) -> StoreObject:
        """Copy a file here; the target has its name only when it is whole. Raises `NotInStore`."""
        ...

    def put(self, source: str, locator: str) -> StoreObject:
        """Copy a file there; its locator names it only when it is whole. Raises `AlreadyInStore`."""
        ...

    def delete(self, locator: str) -> bool:
        """Remove a file; whether there was one."""
        ...
