"""Sends files to a server by their sha256 and receives results from it, in ranges: both go on where they broke off."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pilotage.client.errors import ServerError, ServerRefused, ServerTroubled, ServerUnreachable
from pilotage.client.server import Server, path_of
from pilotage.model.answers import PublishedFile
from pilotage.model.errors import PilotageError

UPLOAD_BYTES = 8 * 2**20
"""How much of a file is sent in one request."""
SMALL_BYTES = 64 * 2**10
"""Files up to this size are sent many at once."""
ASKED_AT_ONCE = 1000
"""How many checksums are asked for, or small files sent, in one request."""
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Pauses after a broken connection; progress begins them anew."""
VERIFIED_BYTES_PER_SECOND = 50e6  # at least, when a server reads a file again to verify it

Moved = Callable[[int], None]
"""Called with the number of bytes that were moved since the last call."""


class FileChanged(PilotageError):
    """A file changed while it was sent or received: do it again."""


class FileThere(PilotageError):
    """Another file has the name of one that was to be received; it was left alone."""


def missing_contents(server: Server, checksums: Sequence[str]) -> set[str]:
    """Those contents that have to be sent; asks for many at once."""
    missing: set[str] = set()
    for start in range(0, len(checksums), ASKED_AT_ONCE):
        asked = {"sha256": checksums[start : start + ASKED_AT_ONCE]}
        missing.update(server.post(path_of("content", "missing"), asked)["missing"])
    return missing


def send_content(server: Server, path: Path, *, sha256: str, size_bytes: int, moved: Moved = lambda _: None) -> None:
    """Send a file; an unfinished upload of it goes on. Raises `FileChanged`."""
    target = path_of("content", sha256)
    # A small file is sent at once; it costs no more than to ask how much of it is there.
    offset, complete = (0, False) if size_bytes <= UPLOAD_BYTES else _received(server, target)
    moved(offset)
    pauses = iter(PAUSES_SECONDS)
    with path.open("rb") as file:
        while not complete:
            before = offset
            try:
                piece = _piece(file, offset=offset, size_bytes=size_bytes)
                offset, complete = _send_piece(server, target, piece, offset=offset, size_bytes=size_bytes)
            except ServerRefused as refused:
                if refused.code == "wrong_content":
                    raise FileChanged(
                        "this file changed while it was sent", subject=str(path), next_step=_AGAIN
                    ) from None
                if refused.code != "upload_conflict":
                    raise
                # Another program, or an earlier one, sent a part of it.
                pause_or_raise(refused, pauses)
                offset, complete = _received(server, target)
            except (ServerUnreachable, ServerTroubled) as broken:
                pause_or_raise(broken, pauses)
                offset, complete = _received_at_last(server, target, pauses)
            if offset > before:
                moved(offset - before)
                pauses = iter(PAUSES_SECONDS)


def send_small(server: Server, files: Mapping[str, Path], *, moved: Moved = lambda _: None) -> None:
    """Send files of at most `SMALL_BYTES` by their sha256, many in one request. Raises `FileChanged`."""
    batch: dict[str, bytes] = {}
    batch_bytes = 0
    for sha256, path in files.items():
        with path.open("rb") as file:
            data = file.read(SMALL_BYTES + 1)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FileChanged("this file changed while it was sent", subject=str(path), next_step=_AGAIN)
        batch[sha256] = data
        batch_bytes += len(data)
        if batch_bytes >= UPLOAD_BYTES or len(batch) >= ASKED_AT_ONCE:
            _send_batch(server, batch, moved)
            batch, batch_bytes = {}, 0
    if batch:
        _send_batch(server, batch, moved)


def _batch_of(files: Mapping[str, bytes]) -> bytes:
    return b"".join(b"%s %d\n%s" % (sha256.encode(), len(data), data) for sha256, data in files.items())


class CapturedFiles:
    """Sends the files that a job brings along to the book of a server: small ones wait, and many go with one request."""

    def __init__(self, server: Server) -> None:
        """Use a server, which the caller closes."""
        self._server = server
        self._waiting: dict[str, bytes] = {}
        self._waiting_bytes = 0

    def keep(self, content: bytes) -> str:
        """Take a file, and return its sha256; a large one is sent at once."""
        if len(content) > SMALL_BYTES:
            return self._send_one(content)
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 not in self._waiting:
            self._waiting[sha256] = content
            self._waiting_bytes += len(content)
            if len(self._waiting) >= ASKED_AT_ONCE or self._waiting_bytes >= UPLOAD_BYTES:
                self.send()
        return sha256

    def send(self) -> None:
        """Send those that wait: before the job is submitted."""
        files, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        if len(files) > 1:
            try:
                self._server.upload(path_of("content", "captured"), _batch_of(files))
            except ServerRefused as refused:
                if refused.status not in _NO_SUCH_REQUEST:
                    raise
            else:
                return
        for content in files.values():
            self._send_one(content)

    def _send_one(self, content: bytes) -> str:
        sha256: str = self._server.upload(path_of("content"), content)["sha256"]
        return sha256


_NO_SUCH_REQUEST = (404, 405)  # a server of an earlier release


def _send_batch(server: Server, batch: Mapping[str, bytes], moved: Moved) -> None:
    body = _batch_of(batch)
    pauses = iter(PAUSES_SECONDS)
    while True:
        try:
            server.upload(path_of("content", "batch"), body)
        except (ServerUnreachable, ServerTroubled) as broken:
            pause_or_raise(broken, pauses)
        else:
            moved(sum(map(len, batch.values())))
            return


_AGAIN = "submit it again; what was sent is not sent again"


def _piece(file: BinaryIO, *, offset: int, size_bytes: int) -> bytes:
    wanted_bytes = min(UPLOAD_BYTES, size_bytes - offset)
    file.seek(offset)
    piece = file.read(wanted_bytes)
    if len(piece) < wanted_bytes:
        raise FileChanged("this file became shorter while it was sent", subject=file.name, next_step=_AGAIN)
    return piece


def _send_piece(server: Server, target: str, piece: bytes, *, offset: int, size_bytes: int) -> tuple[int, bool]:
    """Send a piece; returns how many bytes are there now, and whether the file is complete."""
    if offset == 0 and len(piece) == size_bytes:
        server.upload(target, piece, method="PUT")
        return size_bytes, True
    end = offset + len(piece)
    answer = server.upload_piece(
        target,
        piece,
        # All of it is there, and was not verified, if the service ended just then.
        content_range=f"bytes {offset}-{end - 1}/{size_bytes}" if piece else f"bytes */{size_bytes}",
        answer_seconds=size_bytes / VERIFIED_BYTES_PER_SECOND if end == size_bytes else 0.0,
    )
    return answer["received_bytes"], answer["complete"]


def _received(server: Server, target: str) -> tuple[int, bool]:
    """How many bytes of an upload are at the server, and whether it is complete."""
    status, headers = server.head(target)
    return int(headers.get("upload-offset", 0)) if status in (200, 202) else 0, status == 200


def _received_at_last(server: Server, target: str, pauses: Iterator[float]) -> tuple[int, bool]:
    while True:
        try:
            return _received(server, target)
        except (ServerUnreachable, ServerTroubled) as broken:
            pause_or_raise(broken, pauses)


def pause_or_raise(error: ServerError, pauses: Iterator[float]) -> None:
    """Wait before the next try; raise the error if there were enough."""
    pause_seconds = next(pauses, None)
    if pause_seconds is None:
        raise error
    time.sleep(pause_seconds)


# Results.


def receive_file(
    server: Server, job: str, file: PublishedFile, target: Path, *, replace: bool, moved: Moved = lambda _: None
) -> None:
    """Receive a result under a draft name beside its target, verify it, and give it its name.

    A draft that an earlier call left goes on. Raises `FileThere` if the name is taken, unless `replace`, and
    `FileChanged` if the file at the server is not the granted one.
    """
    draft = target.with_name(
        f".pilotage-{file.sha256[:32]}-{hashlib.sha256(target.name.encode()).hexdigest()[:8]}.part"
    )
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "r+b") as stream:
        digest = _digest_of(stream, file.size_bytes, moved)
        went_on = stream.tell() > 0
        _receive_rest(server, job, file, stream, digest, moved)
        if digest.hexdigest() != file.sha256 and went_on:
            # The draft was not what it seemed: all of it again.
            stream.seek(0)
            stream.truncate()
            digest = hashlib.sha256()
            _receive_rest(server, job, file, stream, digest, lambda _: None)
        if digest.hexdigest() != file.sha256:
            stream.truncate(0)
            draft.unlink()
            raise FileChanged(
                "the file at the server is not the granted one",
                subject=file.name,
                expected=f"sha256 {file.sha256}",
                got=digest.hexdigest(),
            )
        stream.flush()
        os.fsync(stream.fileno())
    if replace:
        draft.replace(target)
        return
    try:
        _name(draft, target)
    except FileExistsError:
        raise FileThere("another file is there already", subject=str(target)) from None
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _name(draft: Path, target: Path) -> None:
    """Give a file its name, unless that is taken."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError from None
        draft.rename(target)


def _digest_of(stream: Any, size_bytes: int, moved: Moved) -> Any:
    """The checksum of what is in a draft; it stands at its end afterwards."""
    digest = hashlib.sha256()
    if os.fstat(stream.fileno()).st_size > size_bytes:
        stream.truncate(0)
    while piece := stream.read(2**20):
        digest.update(piece)
        moved(len(piece))
    return digest


def _receive_rest(server: Server, job: str, file: PublishedFile, stream: Any, digest: Any, moved: Moved) -> None:
    path = path_of("jobs", job, "packages", file.package, "file")
    pauses = iter(PAUSES_SECONDS)
    offset = stream.tell()
    while offset < file.size_bytes:
        try:
            for piece in server.pieces(path, {"name": file.name}, offset=offset):
                stream.write(piece)
                digest.update(piece)
                offset += len(piece)
                moved(len(piece))
                pauses = iter(PAUSES_SECONDS)
        except (ServerUnreachable, ServerTroubled) as broken:
            stream.flush()
            pause_or_raise(broken, pauses)
