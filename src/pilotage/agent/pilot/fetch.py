"""Transfers files that a slot cannot see: fetches captured files and files of a job's tree, and uploads outputs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pilotage.agent.attempt.diagnosis import TokenEnded
from pilotage.agent.attempt.files import KnownFiles
from pilotage.agent.durable_files import FOLDER_MODE, write_all
from pilotage.agent.link.connect import UNAUTHENTICATED
from pilotage.agent.link.link import Link, LinkBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pilotage.agent.link.link import Answer

ANSWER_SECONDS = 60.0
PATIENCE_SECONDS = 300.0  # how long a slot waits for an absent service: without it the attempt can only fail
AGAIN_SECONDS = (0.05, 1.0)
_AWAY = 503
_REFUSED = (400, 403, 404, 413)
PIECE_BYTES = 4 << 20
SMALL_BYTES = 64 << 10
"""A captured file that is larger comes by itself, in pieces."""
AT_ONCE_MAX, AT_ONCE_BYTES = 1000, 8 << 20
"""The most captured files, and bytes of them, to ask for with one request; the service answers no more."""
_CONTENTS = "/agent/contents"
_FRAME = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,9})\n")


class ServerFetch:
    """Asks the pilot's service. Each slot uses it from its own thread, with a connection of its own."""

    def __init__(
        self,
        folder: Path,
        connect: Callable[[], Link],
        *,
        is_over: Callable[[], bool] = lambda: False,
        patience_seconds: float = PATIENCE_SECONDS,
        checksums: KnownFiles | None = None,
    ) -> None:
        """Cache captured files in a folder; `is_over` ends the waiting for an absent service.

        `checksums` is told those of files that were verified here, so that nobody reads them again.
        """
        self._folder = folder
        self._checksums = checksums or KnownFiles()
        self._asks_for_many = True  # until the service says that it does not know the request
        self._connect = connect
        self._is_over = is_over
        self._patience_seconds = patience_seconds
        self._local = threading.local()
        self._guard = threading.Lock()
        self._known: dict[str, str] = {}
        self._cached: dict[str, str] = {}  # files of the site's cache, by name
        self._fetching: dict[str, threading.Lock] = {}  # their locks: a large one delays no other
        self._links: list[Link] = []
        self._numbers = itertools.count(1)

    def bring(self, sizes: Mapping[str, int]) -> None:
        """Fetch small captured files, by their sha256, many with one request. Raises `OSError`.

        `content` fetches those that the service leaves out, and those that were removed since.
        """
        if not self._asks_for_many or all(sha256 in self._known for sha256 in sizes):
            return
        with self._guard:
            wanted = {each: size for each, size in sizes.items() if each not in self._known and size <= SMALL_BYTES}
            for asked in _at_once(wanted):
                answer = self._ask("POST", _CONTENTS, json.dumps({"sha256": asked}).encode(), "")
                if answer.status == 404:
                    self._asks_for_many = False  # a service of an earlier release
                if answer.status in _REFUSED:
                    return  # the requests for each file tell which, and why
                _check(answer, _CONTENTS)
                self._keep(answer.body, frozenset(asked))

    def _keep(self, body: bytes, asked: frozenset[str]) -> None:
        """Write the files of an answer to the cache, each verified; the caller holds the guard."""
        import hashlib

        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        for sha256, content in _frames(body):
            found = hashlib.sha256(content).hexdigest()
            if found != sha256 or sha256 not in asked:
                raise OSError(f"{_CONTENTS}: expected sha256 {sha256}, got {found}")
            file = f"{self._folder}/{sha256}"
            # Nobody looks for the file before it is known here; another attempt may still have a link to one of this name.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o555)
            try:
                write_all(descriptor, content)
                os.fchmod(descriptor, 0o555)
                self._checksums.keep(os.fstat(descriptor), sha256)
            except OSError:
                os.unlink(file)
                raise
            finally:
                os.close(descriptor)
            self._known[sha256] = file

    def content(self, sha256: str) -> str:
        """The path of a captured file in the pilot's cache; fetched once. Raises `OSError`."""
        path = self._known.get(sha256)
        if path is not None and os.path.exists(path):
            return path
        with self._guard:
            # A slot removes a file that a command has changed; it is then fetched again.
            if sha256 not in self._known or not Path(self._known[sha256]).exists():
                draft = self._fetch(f"/agent/content/{quote(sha256, safe='')}", checksum=sha256)
                if draft is None:
                    raise OSError(f"the service does not have the captured file {sha256}")
                draft.chmod(0o555)
                file = draft.with_name(sha256)
                draft.rename(file)
                self._known[sha256] = str(file)
            return self._known[sha256]

    def cached(self, name: str, sha256: str) -> str | None:
        """The path of a file of the site's cache in the pilot's own; fetched once. Raises `OSError`.

        None if the service has no such file.
        """
        with self._guard:
            fetching = self._fetching.setdefault(name, threading.Lock())
        with fetching:
            # A slot removes a file that a command has changed; it is then fetched again.
            path = self._cached.get(name)
            if path is None or not Path(path).exists():
                draft = self._fetch(f"/agent/cached/{quote(name)}", checksum=sha256)
                if draft is None:
                    return None
                draft.chmod(0o444)
                file = draft.with_name(f"cached-{name.replace('/', '-')}")
                draft.rename(file)
                path = self._cached[name] = str(file)
            return path

    def cached_here(self, name: str) -> str | None:
        """The same, if it was fetched before."""
        return self._cached.get(name)

    def file(self, job: str, name: str) -> str | None:
        """The path of a copy of a file of the job's tree, which the caller may move away; None if it does not exist."""
        target = f"/agent/files/{quote(job, safe='')}?name={quote(name, safe='')}"
        found = self._fetch(target, checksum="")
        return None if found is None else str(found)

    def stage(self, ref: Mapping[str, object], number: int, path: str) -> None:
        """Upload a file as the output with this number in the attempt's manifest. Raises `OSError`."""
        target = "/agent/staged/" + "/".join(quote(str(ref[each]), safe="") for each in ("job", "package", "attempt"))
        with Path(path).open("rb") as file:
            offset = 0
            while True:
                piece = file.read(PIECE_BYTES)
                if piece or not offset:
                    answer = self._ask("PUT", f"{target}/{number}?offset={offset}", piece, "")
                    _check(answer, target)
                offset += len(piece)
                if len(piece) < PIECE_BYTES:
                    return

    def close(self) -> None:
        """Close all connections."""
        for link in list(self._links):
            link.close()

    def _fetch(self, target: str, *, checksum: str) -> Path | None:
        """Download a file, piece by piece; None if the service has no such file."""
        import hashlib

        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        draft = self._folder / f".fetched-{next(self._numbers)}"
        digest = hashlib.sha256()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            offset = 0
            while True:
                answer = self._ask("GET", target, b"", f"Range: bytes={offset}-{offset + PIECE_BYTES - 1}\r\n")
                if answer.status == 404:
                    draft.unlink()
                    return None
                if answer.status == 416:
                    break  # the file ends with this piece
                _check(answer, target)
                write_all(descriptor, answer.body)
                digest.update(answer.body)
                offset += len(answer.body)
                if answer.status == 200 or len(answer.body) < PIECE_BYTES:
                    break
            if checksum and digest.hexdigest() != checksum:
                raise OSError(f"{target}: expected sha256 {checksum}, got {digest.hexdigest()}")
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(descriptor)
        return draft

    def _ask(self, method: str, target: str, body: bytes, fields: str) -> Answer:
        """Send a request, and retry while the service is away."""
        until, again_seconds = time.monotonic() + self._patience_seconds, AGAIN_SECONDS[0]
        while True:
            try:
                answer = self._ask_once(method, target, body, fields)
                if answer.status != _AWAY or time.monotonic() >= until or self._is_over():
                    return answer
            except OSError:
                if time.monotonic() >= until or self._is_over():
                    raise
            time.sleep(again_seconds)
            again_seconds = min(2.0 * again_seconds, AGAIN_SECONDS[1])

    def _ask_once(self, method: str, target: str, body: bytes, fields: str) -> Answer:
        link: Link | None = getattr(self._local, "link", None)
        if link is not None:
            try:
                return self._say(link, method, target, body, fields)
            except OSError:
                self._drop(link)  # services close idle connections: try once on a new one
        link = self._local.link = self._connect()
        self._links.append(link)
        try:
            return self._say(link, method, target, body, fields)
        except OSError:
            self._drop(link)
            raise

    def _drop(self, link: Link) -> None:
        link.close()
        self._links.remove(link)
        self._local.link = None

    def _say(self, link: Link, method: str, target: str, body: bytes, fields: str) -> Answer:
        link.send(method, target, body, fields=fields)
        return link.wait(ANSWER_SECONDS)


def _at_once(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The files of each request."""
    asked: list[str] = []
    asked_bytes = 0
    for sha256, size_bytes in sizes.items():
        if asked and (len(asked) >= AT_ONCE_MAX or asked_bytes + size_bytes > AT_ONCE_BYTES):
            yield asked
            asked, asked_bytes = [], 0
        asked.append(sha256)
        asked_bytes += size_bytes
    if asked:
        yield asked


def _frames(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The sha256 and bytes of each file in an answer; raises `LinkBroken` if it is not whole."""
    position = 0
    while position < len(body):
        frame = _FRAME.match(body, position)
        start = frame.end() if frame is not None else 0
        end = start + int(frame[2]) if frame is not None else 0
        if frame is None or end > len(body):
            raise LinkBroken(f"{_CONTENTS}: the answer is not whole: {len(body)} bytes")
        yield frame[1].decode(), body[start:end]
        position = end


def _check(answer: Answer, target: str) -> None:
    if answer.status == UNAUTHENTICATED:
        raise TokenEnded(f"{target}: {answer.body[:200].decode('utf-8', 'replace')}")
    if answer.status not in (200, 201, 204, 206):
        raise LinkBroken(
            f"{target}: the service answered {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
        )
