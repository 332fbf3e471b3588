"""The service's own content store behind `store:` locators: a file's name is its checksum.

Reading is for the service, which has checked at its submission that the owner of a job may use the contents it names.
Writing is for a user, who keeps what is put.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

from pilotage.adapters.stores.contents import open_source, pieces_of
from pilotage.model.locators import CONTENT, shown_locator
from pilotage.ports.content_store import ContentStore, StoredContent, UploadConflict, WrongContent
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    CHUNK_BYTES,
    AccessDenied,
    FileChanged,
    NotInStore,
    PresignedRequest,
    StoreObject,
    StoreUnreachable,
)

_LOCATOR = re.compile(rf"{CONTENT}([0-9a-f]{{64}})")


class ContentChecksumDiffers(WrongContent):
    """The file is not the one that its locator names, since it changed: look up its checksum again."""

    reason = "wrong-checksum"


class KeptContent:
    """The contents that a user keeps in a content store; without a user, all of them, to be read."""

    def __init__(self, content: ContentStore, *, user: str = "") -> None:
        """Take the content store, and who writes."""
        self._content = content
        self._user = user

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a content; None if it is not here, or if this user does not keep it."""
        sha256 = _sha256_in(locator)
        if self._user and not self._content.is_kept(sha256, by=self._user):
            return None
        found = self._content.look_up(sha256)
        return _object(found) if found is not None else None

    def is_folder(self, locator: str) -> bool:
        """There are none."""
        return False

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on."""
        there = self.stat(locator)
        if there is None:
            raise NotInStore(
                "no such content is here", subject=shown_locator(locator), next_step="send it: pilotage files put FILE"
            )
        if version not in ("", there.version):
            raise FileChanged("the file is another one than before", subject=shown_locator(locator))
        while offset < there.size_bytes:
            piece = self._content.read(there.version, offset=offset, size_bytes=CHUNK_BYTES)
            if not piece:
                raise StoreUnreachable("the content went away while it was read", subject=shown_locator(locator))
            yield piece
            offset += len(piece)

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of what is there now."""
        hashed = hashlib.sha256()
        for piece in self.read(locator, version=version):
            hashed.update(piece)
        return hashed.hexdigest()

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """Everything that this user keeps."""
        if prefix != CONTENT:
            raise StoreError("there are no folders in this store", subject=shown_locator(prefix), expected=CONTENT)
        return map(_object, self._content.kept(by=self._by(prefix)))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Copy a file into the store, verify it, and keep it; an interrupted copy goes on."""
        sha256, user = _sha256_in(locator), self._by(locator)
        content = self._content
        with open_source(source) as reading:
            size_bytes = reading.seek(0, 2)
            if not content.is_held(sha256, by=user):
                offset = content.received(sha256, by=user)
                if not offset:  # an empty file is one, too
                    offset = content.append(sha256, b"", by=user, offset=0, size_bytes=size_bytes)
                reading.seek(offset)
                sent(offset)
                for piece in pieces_of(reading, sent=sent):
                    try:
                        offset = content.append(sha256, piece, by=user, offset=offset, size_bytes=size_bytes)
                    except UploadConflict as fault:  # of the same user: the other one may complete it
                        raise StoreUnreachable(
                            "another copy of the same content is under way", subject=shown_locator(locator)
                        ) from fault
                try:
                    content.complete(sha256, by=user, size_bytes=size_bytes)
                except WrongContent as fault:
                    raise ContentChecksumDiffers(fault.what, subject=source, expected=sha256) from fault
        there = content.look_up(sha256) if content.keep(sha256, by=user) else None
        if there is None:
            raise NotInStore("the content was removed at once", subject=shown_locator(locator))
        return _object(there)

    def delete(self, locator: str) -> bool:
        """Take a content from this user; it goes when nobody holds or needs it."""
        sha256, user = _sha256_in(locator), self._by(locator)
        return self._content.is_kept(sha256, by=user) and self._content.drop(sha256, by=user)

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """There is none: agents get contents over their own connection."""
        return None

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """There is none."""
        return None

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _by(self, locator: str) -> str:
        if not self._user:
            raise AccessDenied("contents belong to users, and none is named", subject=shown_locator(locator))
        return self._user


def _sha256_in(locator: str) -> str:
    found = _LOCATOR.fullmatch(locator)
    if found is None:
        expected = f"{CONTENT}SHA256, with 64 hexadecimal digits in lower case"
        raise StoreError("a content is named by its sha256", subject=shown_locator(locator), expected=expected)
    return found[1]


def _object(found: StoredContent) -> StoreObject:
    return StoreObject(
        locator=f"{CONTENT}{found.sha256}",
        size_bytes=found.size_bytes,
        modified_at=found.stored_at,
        version=found.sha256,
        sha256=found.sha256,
    )
