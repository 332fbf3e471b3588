"""A store of files behind locators, such as `file:///data/in.root` or `s3://bucket/in.root`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from pilotage.ports.job_tree import StoreError

if TYPE_CHECKING:
    from pilotage.model.settings.stores import StoreSettings

CHUNK_BYTES = 1 << 20
"""Files are read and sent in pieces of about this size: a transfer needs the same memory whatever the size of its file."""


class NotInStore(StoreError):
    """No file has this locator."""

    reason = "not-in-store"


class AlreadyInStore(StoreError):
    """Another file has this locator, or another version of it than the one to replace; it was not overwritten."""

    reason = "already-in-store"


class FileChanged(StoreError):
    """The file is not the version that was asked for, or changed while it was read: start again from its beginning."""

    reason = "file-changed"
    retryable = True


class AccessDenied(StoreError):
    """The store knows who asks, and refuses: its owner must allow it."""

    reason = "access-denied"


class CredentialExpired(StoreError):
    """The store refused the credential, which was read again from its source first: renew it there."""

    reason = "credential-expired"


class StoreUnreachable(StoreError):
    """The store did not answer, or broke off: try again, a read from where it stopped."""

    reason = "store-unreachable"
    retryable = True


class StoreFull(StoreError):
    """The store has no room for the file, or the account may not use more."""

    reason = "store-full"


class StoreObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a store, as it is now."""

    locator: str
    size_bytes: int  # -1: the store does not tell
    modified_at: float  # seconds since 1970, UTC; 0: the store does not tell
    version: str  # changes with the content: an ETag, or time and size
    sha256: str = ""  # if the store knows it


class PresignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request that needs no credential until it expires. Never log or store it: its URL is a secret."""

    method: str
    url: str
    headers: Mapping[str, str]  # to be sent as they are
    expires_at: float

    def __repr__(self) -> str:
        return f"PresignedRequest({self.method} {self.url.partition('?')[0]}?…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("method", self.method), ("url", f"{self.url.partition('?')[0]}?…")]


def _unobserved(_: int) -> None:
    pass


class Store(Protocol):
    """Files behind the locators of one origin. Any thread may use it. Every method raises `StoreError`.

    A credential that the store refuses is read again from its source, once, before `CredentialExpired` is raised.
    """

    def stat(self, locator: str) -> StoreObject | None:
        """The file at a locator; None if there is none."""
        ...

    def is_folder(self, locator: str) -> bool:
        """Whether a locator without a file is that of a folder, as far as the store knows folders."""
        ...

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset to the end, in pieces of `CHUNK_BYTES` at most.

        With a version, raises `FileChanged` if the file is another one, also if it changes meanwhile. Content that ends
        early raises `StoreUnreachable`. Raises `NotInStore`. Closing the iterator ends the transfer.
        """
        ...

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of a file. Raises `NotInStore`, `FileChanged`."""
        ...

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """Every file below a folder's locator, at any depth, by locator."""
        ...

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = _unobserved
    ) -> StoreObject:
        """Copy a file of this computer into the store; it appears at its locator when complete, or not at all.

        `replaces` is the version to overwrite; without it, nothing is. Raises `AlreadyInStore`, `StoreFull`. `sent` is
        called with the bytes sent since its last call; it may wait, to limit the rate, and what it raises ends the
        transfer. Where the store can, calling it again with the same source goes on where an earlier one broke off.
        """
        ...

    def delete(self, locator: str) -> bool:
        """Remove a file; whether it existed."""
        ...

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """A request by which anybody can read a file for some time; None if the store has no such requests."""
        ...

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """A request by which anybody can write a new file for some time; None if the store has no such requests."""
        ...

    def close(self) -> None:
        """Close idle connections; the next call opens new ones."""
        ...


class MakesStore(Protocol):
    """Makes stores of one scheme. Found by its entry point in `pilotage.stores`."""

    def __call__(self, settings: StoreSettings, /) -> Store:
        """A store with these settings; connects at the first call. Raises `StoreError`."""
        ...


class FoundStore(msgspec.Struct, frozen=True, kw_only=True):
    """The store of a locator, with the settings that hold for it."""

    name: str  # of `[stores.NAME]`; without one, scheme and host
    store: Store
    settings: StoreSettings


class FindsStores(Protocol):
    """Finds the stores of locators."""

    def find(self, locator: str, *, user: str = "") -> FoundStore:
        """The store of a locator, where the service keeps files for users that of a user.

        Raises `BadLocator`, or `StoreError` if no store has its scheme.
        """
        ...

    def named(self, name: str) -> FoundStore:
        """The store of `[stores.NAME]`. Raises `StoreError`."""
        ...

    def archive(self) -> tuple[FoundStore, ...]:
        """The stores that outputs with the disposition `store` are copied to, in order."""
        ...

    def close(self) -> None:
        """Close all stores."""
        ...
