"""Files that a user keeps in the content store of a service: jobs name them by their locators, `store:SHA256`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.app.jobs.elsewhere import Meter, Report
from pilotage.client.contents import SMALL_BYTES, FileChanged, missing_contents, send_content, send_small
from pilotage.client.server import path_of
from pilotage.model.errors import PilotageError
from pilotage.model.locators import CONTENT, shown_locator

if TYPE_CHECKING:
    from pilotage.client import Server

_PIECE_BYTES = 2**20
_AT_ONCE = 1000


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a service keeps."""

    locator: str
    size_bytes: int


class PutFile(KeptFile, frozen=True, kw_only=True):
    """A file of this computer that a service keeps now."""

    path: str


class NotAFile(PilotageError):
    """A file cannot be sent: it does not exist, or cannot be read."""


class NotContent(PilotageError):
    """A locator of a kept file is `store:SHA256`, as `pilotage files kept` lists it."""


def put_files(server: Server, paths: Sequence[str | Path], *, report: Report | None = None) -> list[PutFile]:
    """Send files, unless the service has them, and keep them there. Raises `NotAFile`, `FileChanged`."""
    measured = [_measured(Path(path), report) for path in paths]
    by_content = {sha256: (path, size_bytes) for path, sha256, size_bytes in measured}
    missing = missing_contents(server, list(by_content))
    wanted = {sha256: each for sha256, each in by_content.items() if sha256 in missing}
    moved = Meter("sent", sum(size_bytes for _, size_bytes in wanted.values()), report)
    small = {sha256: path for sha256, (path, size_bytes) in wanted.items() if size_bytes <= SMALL_BYTES}
    send_small(server, small, moved=moved)
    for sha256, (path, size_bytes) in wanted.items():
        if sha256 not in small:
            send_content(server, path, sha256=sha256, size_bytes=size_bytes, moved=moved)
    for lost in _refused(server, "keep", by_content):
        raise FileChanged("this file was removed at once", subject=str(by_content[lost][0]), next_step="put it again")
    return [
        PutFile(path=str(path), locator=f"{CONTENT}{sha256}", size_bytes=size_bytes)
        for path, sha256, size_bytes in measured
    ]


def kept_files(server: Server) -> list[KeptFile]:
    """The files that the user keeps at a service."""
    return msgspec.convert(server.get(path_of("content"))["files"], list[KeptFile])


def drop_files(server: Server, locators: Sequence[str]) -> list[str]:
    """Do not keep files any more; returns those that were not kept. Raises `NotContent`."""
    for locator in locators:
        name = locator.removeprefix(CONTENT)
        if locator == name or len(name) != hashlib.sha256().digest_size * 2 or set(name) - set("0123456789abcdef"):
            raise NotContent(
                "this names no kept file",
                subject=shown_locator(locator),
                expected=f"{CONTENT}SHA256",
                next_step="pilotage files kept",
            )
    return [f"{CONTENT}{each}" for each in _refused(server, "drop", [name.removeprefix(CONTENT) for name in locators])]


def _refused(server: Server, deed: str, checksums: Iterable[str]) -> list[str]:
    """Do something with many contents; returns those that the user does not hold."""
    asked, found = list(checksums), list[str]()
    for start in range(0, len(asked), _AT_ONCE):
        found += server.post(path_of("content", deed), {"sha256": asked[start : start + _AT_ONCE]})["missing"]
    return found


def _measured(path: Path, report: Callable[..., None] | None) -> tuple[Path, str, int]:
    """A file with its checksum and size."""
    hashed, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            meter = Meter(f"{path}: read", path.stat().st_size, report)
            while piece := file.read(_PIECE_BYTES):
                hashed.update(piece)
                size_bytes += len(piece)
                meter(len(piece))
    except OSError as fault:
        raise NotAFile(f"this file cannot be read: {fault.strerror}", subject=str(path)) from fault
    return path, hashed.hexdigest(), size_bytes
