"""A relay for pilots without a way out: they speak to it inside the cluster, and it carries what they say to the service.

It reads no more of a request than its head, acknowledges nothing, and keeps nothing: a service that cannot be reached is
told as 503, which agents answer by asking again. Only what is for agents goes through. Whoever connects must show a token,
which the service judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from typing import TYPE_CHECKING

from pilotage.agent.relay_upstream import (
    HEAD_BYTES_MAX,
    LATE,
    STALL_SECONDS,
    Answering,
    BadMessage,
    Body,
    Unheard,
    Upstream,
    pieces_of,
    read_head,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pilotage.agent.relay_upstream import Fields, Head

KEPT_BYTES_MAX = 1 << 18  # a body of this size is kept until it was heard, so that it can be said twice
REST_SECONDS = 600.0
CONNECTIONS_MAX = 8192
CLOSE_SECONDS = 2.0
_TARGET = re.compile(r"/agent/[!-~]*")
_ASTRAY = re.compile(r"\\|//|(^|/)(\.|%2e)", re.IGNORECASE)
_METHODS = frozenset((b"GET", b"POST", b"PUT"))
_EVENTS = {b"/v1/events": b"/agent/events"}  # what packages say of themselves has a door for agents, too
_PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    411: "Length Required",
    503: "Service Unavailable",
}


def may_pass(target: str) -> bool:
    """Whether a target is for the pilots of a service, however it is read."""
    path = target.partition("?")[0]
    return _TARGET.fullmatch(target) is not None and not _ASTRAY.search(path) and path != "/agent/site"


def error_body(code: str, message: str) -> bytes:
    """An error, in the form of the service's own."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


class _Coming(Body):
    """The body of a request, as it comes; `taken` is set when all of it was."""

    def __init__(self, reader: asyncio.StreamReader, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken = asyncio.Event()
        self._reader = reader
        self._kept: bytes | None = None

    async def keep(self) -> None:
        """Read it now, where it is small."""
        if self.size_bytes <= KEPT_BYTES_MAX:
            self._kept = b"".join([piece async for piece in pieces_of(self._reader, self.size_bytes)])
            self.is_kept = True
            self.taken.set()

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._kept is not None:
            if self._kept:
                yield self._kept
            return
        async for piece in pieces_of(self._reader, self.size_bytes):
            yield piece
        self.taken.set()


class _Back(Answering):
    """The way back to a pilot."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._chunked = False

    async def begin(self, status: int, fields: Fields, size_bytes: int | None) -> None:
        self._chunked = size_bytes is None
        length = b"Transfer-Encoding: chunked" if size_bytes is None else b"Content-Length: %d" % size_bytes
        lines = [b"HTTP/1.1 %d Relayed" % status, *(name + b": " + value for name, value in fields), length]
        await self._write(b"\r\n".join([*lines, b"\r\n"]))

    async def take(self, piece: bytes) -> None:
        await self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    async def end(self) -> None:
        if self._chunked:
            await self._write(b"0\r\n\r\n")

    async def refuse(self, status: int, code: str, message: str, *, lasting: bool = False) -> None:
        """Answer by oneself."""
        content = error_body(code, message)
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
        )
        if not lasting:
            head += "\r\nConnection: close"
        await self._write(head.encode() + b"\r\n\r\n" + content)

    async def _write(self, content: bytes) -> None:
        self._writer.write(content)
        try:
            await asyncio.wait_for(self._writer.drain(), STALL_SECONDS)
        except LATE:
            raise BadMessage("the pilot takes nothing") from None


class Relay:
    """Listens inside the cluster; of one event loop."""

    def __init__(self, upstream: Upstream, *, connections_max: int = CONNECTIONS_MAX) -> None:
        """Take the way to the service."""
        self._upstream = upstream
        self._connections_max = connections_max
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Serve a socket that is bound."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES_MAX, backlog=512)

    async def close(self) -> None:
        """Hang up on everybody: they ask again."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()  # whoever serves it notices
        until = asyncio.get_event_loop().time() + CLOSE_SECONDS
        while self._open and asyncio.get_event_loop().time() < until:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._connections_max:
            writer.close()
            return
        self._open.add(writer)
        connected = writer.get_extra_info("socket")
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            begun: bytes | None = b""
            while begun is not None:
                begun = await self._carry(reader, writer, begun)
        except (OSError, LATE):
            pass  # it hung up, spoke no HTTP, or rested too long
        finally:
            self._open.discard(writer)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes) -> bytes | None:
        """Carry one request; what was read of the next one, or None where none may follow."""
        back = _Back(writer)
        try:
            head = await asyncio.wait_for(read_head(reader, begun), REST_SECONDS)
            if head is None:
                return None
            refusal = _refusal(head)
        except BadMessage as error:
            await back.refuse(400, "malformed", str(error))
            return None
        if refusal is not None:
            await back.refuse(*refusal)
            return None
        body = _Coming(reader, head.size_bytes() or 0)
        await body.keep()
        method, target = head.words[0].decode("ascii"), _EVENTS.get(head.words[1], head.words[1]).decode("ascii")
        carrying = asyncio.ensure_future(self._upstream.carry(method, target, head.kept(), body, back))
        watching = asyncio.ensure_future(_next_byte(reader, body))
        try:
            await asyncio.wait({carrying, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not carrying.done() and not watching.result():
                return None  # nobody waits for the answer any more
            await asyncio.wait({carrying})
            try:
                carrying.result()
            except Unheard as error:
                if back.begun:
                    return None
                message = f"the relay cannot reach the service: {error}"
                await back.refuse(503, "unreachable", message, lasting=body.taken.is_set())
            if not body.taken.is_set():
                return None
            return (watching.result() or None) if watching.done() else b""
        finally:
            for each in (carrying, watching):
                each.cancel()
            await asyncio.gather(carrying, watching, return_exceptions=True)


async def _next_byte(reader: asyncio.StreamReader, body: _Coming) -> bytes:
    """The first byte of what a pilot says next; nothing where it hangs up."""
    await body.taken.wait()
    try:
        return await reader.read(1)
    except OSError:
        return b""


def _refusal(head: Head) -> tuple[int, str, str] | None:
    """Why a request does not go through, as status, code and text."""
    method, target = head.words[0], _EVENTS.get(head.words[1], head.words[1]).decode("latin-1")
    if method not in _METHODS or head.words[-1] != b"HTTP/1.1" or not may_pass(target):
        return 404, "not_found", "only requests of pilots are relayed"
    if not head.field(b"authorization"):
        return 401, "unauthenticated", "a pilot shows its token"
    if head.field(b"transfer-encoding") or (head.size_bytes() is None and method != b"GET"):
        return 411, "malformed", "a body says its length before it comes"
    return None
