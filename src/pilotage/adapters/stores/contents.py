"""What all stores share: checksums of contents, names of drafts, and files of this computer as sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pilotage.model.locators import shown_locator
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import CHUNK_BYTES, AlreadyInStore, NotInStore, StoreObject

DRAFT = ".pilotage-draft-"
"""The beginning of the names of files that are not complete; no listing shows them."""


def sha256_of(pieces: Iterable[bytes]) -> str:
    """The checksum of a content that comes in pieces."""
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()


def draft_name(source: str, locator: str) -> str:
    """The draft's name for a source that goes to a locator: the same as long as the source is the same file."""
    status = Path(source).stat()
    told = f"{locator}\0{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return DRAFT + hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def open_source(source: str) -> BinaryIO:
    """Open a file to be sent. Raises `StoreError`, which speaks of the file, not of the store."""
    try:
        return Path(source).open("rb", buffering=0)
    except FileNotFoundError as fault:
        raise NotInStore("there is no such file to copy", subject=source) from fault
    except OSError as fault:
        raise StoreError(f"the file to copy cannot be read: {fault.strerror}", subject=source) from fault


def pieces_of(file: BinaryIO, *, sent: Callable[[int], None], most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The content of a source from where it stands; `sent` is called when the next piece is asked for, and at the end."""
    while piece := file.read(most):
        yield piece
        sent(len(piece))


def refuse_changed(file: BinaryIO, *, size_bytes: int, locator: str) -> None:
    """Raise `StoreError` if a source did not keep its size while it was sent."""
    now = os.fstat(file.fileno()).st_size
    if now != size_bytes:
        raise StoreError(
            "the file changed while it was copied",
            subject=shown_locator(locator),
            expected=f"{size_bytes} bytes",
            got=f"{now}",
        )


def refuse_other(found: StoreObject | None, replaces: str, locator: str) -> None:
    """Raise `AlreadyInStore` unless the store has what the caller expects to replace: nothing, or this version."""
    if (found.version if found is not None else "") == replaces:
        return
    what = "the file there is not the one to replace" if replaces else "another file is there, and is not replaced"
    raise AlreadyInStore(what, subject=shown_locator(locator))
