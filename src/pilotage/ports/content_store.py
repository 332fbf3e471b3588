"""The content store: files of any size that users send to the service, addressed by their sha256."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from pilotage.model.jobs.submission import Captured
from pilotage.ports.job_tree import StoreError


class WrongContent(StoreError):
    """The bytes that were sent do not have the promised checksum or size; they were removed: send the file again."""


class UploadConflict(StoreError):
    """The piece does not continue the upload: ask how many bytes are there, and go on from there."""


class StoredContent(msgspec.Struct, frozen=True, kw_only=True):
    """A complete content."""

    sha256: str
    size_bytes: int
    stored_at: float  # seconds since 1970, UTC


class ContentStore(Protocol):
    """Content by sha256. Its holders are the users who sent it: nobody else gets it by naming its checksum.

    A content expires some time after it was last asked for, unless a user keeps it.

    Any thread may use it; every method raises `StoreError`.
    """

    def size(self, sha256: str) -> int | None:
        """The size of a complete content; None if it is not here."""
        ...

    def look_up(self, sha256: str) -> StoredContent | None:
        """A complete content that is as it was verified; None if it is not here. A damaged one is removed."""
        ...

    def is_held(self, sha256: str, *, by: str) -> bool:
        """Whether a content is here, intact, and this user sent it; keeps it from expiring."""
        ...

    def missing(self, wanted: Collection[str], *, by: str) -> list[str]:
        """Those contents that this user has to send; the others are kept from expiring."""
        ...

    def keep(self, sha256: str, *, by: str) -> bool:
        """Keep a content that this user holds until the user drops it; whether the user holds it."""
        ...

    def kept(self, *, by: str) -> list[StoredContent]:
        """What a user keeps, by sha256."""
        ...

    def is_kept(self, sha256: str, *, by: str) -> bool:
        """Whether this user holds a content, intact, and keeps it."""
        ...

    def drop(self, sha256: str, *, by: str) -> bool:
        """Take a content from this user; whether the user held it. It goes when nobody holds or needs it."""
        ...

    def received(self, sha256: str, *, by: str) -> int:
        """How many bytes of a user's unfinished upload are here."""
        ...

    def append(self, sha256: str, data: bytes, *, by: str, offset: int, size_bytes: int) -> int:
        """Continue an upload of `size_bytes` in all; returns how many bytes are here.

        Raises `UploadConflict` and `StoreFull`.
        """
        ...

    def complete(self, sha256: str, *, by: str, size_bytes: int) -> None:
        """End an upload: verify it and make it durable. Raises `WrongContent`, and removes the upload."""
        ...

    def add_small(self, files: Mapping[str, bytes], *, by: str) -> None:
        """Store many small contents at once, by their sha256: they are durable together. Raises `WrongContent`."""
        ...

    def read(self, sha256: str, *, offset: int, size_bytes: int) -> bytes:
        """Read part of a content; empty if it is not here."""
        ...

    def place(self, key: str, files: Mapping[str, Captured]) -> str:
        """Make the folder of a job with these inputs, by name; returns its path. Doing it again changes nothing."""
        ...

    def folders(self) -> list[str]:
        """The paths of all folders that `place` made."""
        ...

    def remove_folder(self, folder: str, *, unless_since: float) -> bool:
        """Remove a folder that `place` made, unless it was placed since then; returns whether it was removed."""
        ...

    def remove_unused(self, *, before: float, needed: Collection[str] = ()) -> int:
        """Remove contents that no folder uses, nobody keeps, and nobody asked for since then, and abandoned uploads.

        Those that are `needed` stay. Returns how many were removed.
        """
        ...
