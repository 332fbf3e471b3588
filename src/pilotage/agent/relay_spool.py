"""The relay's side of a folder: it takes the requests that pilots put there, carries each to the service, and puts the answer back.

What a file server does slowly is done in threads. A request whose asker waits no longer is broken off, and what nobody
fetches is removed after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pilotage.agent.relay import error_body, may_pass
from pilotage.agent.relay_folder import POLL_SECONDS, BadContent, Message, RelayFolder, next_pause
from pilotage.agent.relay_upstream import HOP_BY_HOP, PIECE_BYTES, Answering, Body, Unheard, Upstream

if TYPE_CHECKING:
    from pilotage.agent.relay_upstream import Fields

AT_ONCE_MAX = 4096
AWAITED_SECONDS = 5.0  # how often to look whether somebody still waits
OLD_SECONDS = 600.0
CLEAN_SECONDS = 60.0
_METHODS = frozenset(("GET", "POST", "PUT"))

Told = TypeVar("Told")


async def _in_thread(work: Callable[..., Told], *arguments: object) -> Told:
    return await asyncio.get_event_loop().run_in_executor(None, work, *arguments)


class _Written(Body):
    """The body of a request, in its file."""

    is_kept = True

    def __init__(self, message: Message) -> None:
        self.size_bytes = message.size_bytes
        self._file = message.file
        self._begin = message.file.tell()

    async def pieces(self) -> AsyncIterator[bytes]:
        await _in_thread(self._file.seek, self._begin)
        left = self.size_bytes
        while left:
            piece = await _in_thread(self._file.read, min(left, 4 * PIECE_BYTES))
            if not piece:
                raise BadContent("the request has shrunk")
            left -= len(piece)
            yield piece


class _Writing(Answering):
    """An answer on its way into a file."""

    def __init__(self, open_draft: Callable[[], IO[bytes]]) -> None:
        self._open = open_draft
        self._file: IO[bytes] | None = None

    async def begin(self, status: int, fields: Fields, size_bytes: int | None) -> None:
        self._file = await _in_thread(self._open)
        told: dict[str, Any] = {
            "status": status,
            "fields": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in fields],
        }
        if size_bytes is not None:
            told["size_bytes"] = size_bytes
        await self.take(json.dumps(told).encode() + b"\n")

    async def take(self, piece: bytes) -> None:
        assert self._file is not None
        await _in_thread(self._file.write, piece)

    async def end(self) -> None:
        if self._file is not None:
            await _in_thread(self._file.close)

    def drop(self) -> None:
        """Close what may be open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class SpoolRelay:
    """Serves a folder; of one event loop."""

    def __init__(self, folder: RelayFolder, upstream: Upstream, *, say: Callable[[str], None] = lambda _: None) -> None:
        """Take a folder, which must have been made, and the way to the service."""
        self._folder = folder
        self._upstream = upstream
        self._say = say
        self._busy: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Serve until it is cancelled."""
        loop = asyncio.get_event_loop()
        pause_seconds, clean_at, ill = POLL_SECONDS[0], 0.0, False
        try:
            while True:
                try:
                    if loop.time() >= clean_at:
                        clean_at = loop.time() + CLEAN_SECONDS
                        await _in_thread(self._clean)
                    taken = await _in_thread(self._folder.take, AT_ONCE_MAX - len(self._busy))
                    ill = False
                except OSError as error:
                    if not ill:
                        self._say(f"the relay cannot look into {self._folder.folder}: {error}")
                    taken, ill = [], True
                for name in taken:
                    self._busy[name] = asyncio.ensure_future(self._see_to(name))
                pause_seconds = POLL_SECONDS[0] if taken else next_pause(pause_seconds)
                await asyncio.sleep(pause_seconds)
        finally:
            for each in list(self._busy.values()):
                each.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    def _clean(self) -> None:
        self._folder.clean(older_seconds=OLD_SECONDS, busy=frozenset(self._busy))

    async def _see_to(self, name: str) -> None:
        carrying = asyncio.ensure_future(self._carry(name))
        try:
            while not (await asyncio.wait({carrying}, timeout=AWAITED_SECONDS))[0]:
                if not await _in_thread(self._folder.is_awaited, name):
                    break
            else:
                carrying.result()
        except (OSError, ValueError) as error:
            self._say(f"a request in {self._folder.folder} came to nothing: {error}")
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)
            self._busy.pop(name, None)
            await asyncio.shield(_in_thread(self._folder.done_with, name))

    async def _carry(self, name: str) -> None:
        message = await _in_thread(self._folder.open_taken, name)
        answering = _Writing(lambda: self._folder.draft_answer(name))
        try:
            method, target, fields = _request(message.head)
            if not may_pass(target) or method not in _METHODS:
                await _answer(answering, 404, "not_found", "only requests of pilots are relayed")
            else:
                try:
                    await self._upstream.carry(method, target, fields, _Written(message), answering)
                except Unheard as error:
                    await _answer(answering, 503, "unreachable", f"the relay cannot reach the service: {error}")
            await _in_thread(self._folder.publish, name)
        finally:
            message.file.close()
            answering.drop()


async def _answer(answering: _Writing, status: int, code: str, text: str) -> None:
    content = error_body(code, text)
    await answering.begin(status, [(b"content-type", b"application/json")], len(content))
    await answering.take(content)
    await answering.end()


def _request(head: dict[str, Any]) -> tuple[str, str, Fields]:
    """What a request asks for; raises `BadContent` for what is none."""
    try:
        method, target = str(head["method"]), str(head["target"])
        fields = []
        for name, value in head["fields"]:
            if any(char in f"{name}{value}" for char in "\r\n\0"):
                raise ValueError("a field of several lines")
            field = str(name).lower().encode("latin-1")
            if field not in HOP_BY_HOP:
                fields.append((field, str(value).encode("latin-1")))
    except (KeyError, TypeError, ValueError) as error:
        raise BadContent(f"this is no request: {error}") from error
    return method, target, fields
