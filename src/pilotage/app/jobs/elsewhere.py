"""Submits a job to a service that does not see its folder: every file that it reads is sent by content.

Whether the service sees the folder is proven by a mark in it, not concluded from names of computers.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.client.contents import SMALL_BYTES, FileChanged, missing_contents, receive_file, send_content, send_small
from pilotage.client.errors import ServerRefused
from pilotage.client.server import path_of
from pilotage.service.works.capture import DiskFiles, FoundFile, capture_everything

if TYPE_CHECKING:
    from pilotage.client import Server
    from pilotage.language import LoadedJob
    from pilotage.model.answers import PublishedFile
    from pilotage.model.jobs.submission import Captured

MARK = ".pilotage-seen-"
QUIET_SECONDS = 5.0
"""What takes longer reports its progress."""

Report = Callable[["Transferred"], None]


class Transferred(msgspec.Struct, frozen=True, kw_only=True):
    """How far a transfer of several files is."""

    deed: str  # "read", "sent" or "received"
    bytes_done: int
    bytes_all: int
    seconds: float

    @property
    def text(self) -> str:
        """In words."""
        from pilotage.model.texts import size_text

        rate = f", {size_text(int(self.bytes_done / self.seconds))}/s" if self.seconds > 0 else ""
        return f"{self.deed} {size_text(self.bytes_done)} of {size_text(self.bytes_all)}{rate}"


class Meter:
    """Counts the bytes of a transfer, and reports every few seconds if it takes long."""

    def __init__(
        self, deed: str, bytes_all: int, report: Report | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Report to a function, if there is one."""
        self._deed = deed
        self._bytes_all = bytes_all
        self._report = report
        self._clock = clock
        self._begun = self._last = clock()
        self.bytes_done = 0

    def begin(self, deed: str, bytes_all: int) -> None:
        """Go on with another file; the next report comes when the last one is some seconds old."""
        self._deed, self._bytes_all = deed, bytes_all
        self._begun, self.bytes_done = self._clock(), 0

    def __call__(self, moved_bytes: int) -> None:
        """Count some bytes."""
        self.bytes_done += moved_bytes
        if self._report is None:
            return
        now = self._clock()
        if now - self._last >= QUIET_SECONDS:
            self._last = now
            self._report(
                Transferred(
                    deed=self._deed, bytes_done=self.bytes_done, bytes_all=self._bytes_all, seconds=now - self._begun
                )
            )


class SentFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a job that were sent, and those that the service had already."""

    captured: dict[str, Captured]
    sent: int
    sent_bytes: int
    there: int


def sees_folder(server: Server, folder: Path) -> bool:
    """Whether a service sees this very folder: it finds a mark that is written there for a moment.

    A folder where no mark can be written counts as not seen: no results could be written there either.
    """
    name, text = f"{MARK}{secrets.token_hex(16)}", secrets.token_hex(16)
    file = folder / name
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "w") as mark:
            mark.write(text)
        asked = {"folder": os.path.realpath(folder), "mark": name, "text": text}
        return bool(server.post(path_of("folders", "seen"), asked)["seen"])
    except ServerRefused as refused:
        if refused.status in (404, 405, 409):  # an older service, or one that runs no jobs: it refuses the job itself
            return True
        raise
    finally:
        with suppress(FileNotFoundError):
            file.unlink()


class WatchedFiles(DiskFiles):
    """The document's folder on disk; remembers each file that was read, to notice if it changes."""

    def __init__(self, folder: Path, report: Report | None) -> None:
        """Report the reading of large files."""
        super().__init__(folder)
        self.folder = folder
        self._report = report
        self._read: dict[str, tuple[int, int, int]] = {}

    def find(self, name: str) -> FoundFile | None:
        """A regular file; a link is read as the file it leads to."""
        found = super().find(name)
        if found is not None:
            self._read[name] = self._state(name)
        return found

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content, with its progress."""
        meter = Meter(f"{name}: read", self._read[name][0] if name in self._read else 0, self._report)
        for piece in super().pieces(name):
            meter(len(piece))
            yield piece

    def refuse_changed(self) -> None:
        """Raise `FileChanged` for a file that is not as it was when it was read first."""
        for name, state in self._read.items():
            if self._state(name) != state:
                raise FileChanged(
                    "this file changed while the job was submitted",
                    subject=name,
                    next_step="submit it again when nothing writes to it; what was sent is not sent again",
                )

    def _state(self, name: str) -> tuple[int, int, int]:
        try:
            found = (self.folder / name).stat()
        except OSError:
            return (-1, 0, 0)
        return found.st_size, found.st_mtime_ns, found.st_ino


def send_files(
    server: Server, loaded: LoadedJob, folder: Path, *, keep: Callable[[bytes], str], report: Report | None
) -> SentFiles:
    """Send every file that a job reads and the service does not have. Raises `MissingInput` and `FileChanged`."""
    files = WatchedFiles(folder, report)
    captured = capture_everything(loaded.expansion, files, keep)
    by_content = {file.sha256: (name, file.size_bytes) for name, file in captured.items() if not file.content}
    missing = missing_contents(server, list(by_content))
    wanted = {sha256: each for sha256, each in by_content.items() if sha256 in missing}
    meter = Meter("sent", sum(size_bytes for _, size_bytes in wanted.values()), report)
    small = {sha256: folder / name for sha256, (name, size_bytes) in wanted.items() if size_bytes <= SMALL_BYTES}
    send_small(server, small, moved=meter)
    for sha256, (name, size_bytes) in wanted.items():
        if sha256 in small:
            continue
        send_content(server, folder / name, sha256=sha256, size_bytes=size_bytes, moved=meter)
    files.refuse_changed()
    return SentFiles(
        captured=captured, sent=len(wanted), sent_bytes=meter.bytes_done, there=len(by_content) - len(wanted)
    )


class Receiver:
    """Receives the results of a job from its service; reports the progress of files that take long."""

    def __init__(self, server: Server, job: str, *, report: Report | None = None) -> None:
        """Use a server, which the caller closes."""
        self._server = server
        self._job = job
        self._meter = Meter("received", 0, report)

    def __call__(self, file: PublishedFile, target: Path, *, replace: bool) -> None:
        """Receive a file, or the rest of it. Raises `FileThere`, `FileChanged`, `ServerError` and `OSError`."""
        self._meter.begin(f"{file.name}: received", file.size_bytes)
        receive_file(self._server, self._job, file, target, replace=replace, moved=self._meter)
