"""A relay for pilots whose nodes cannot reach the service: they connect to it inside the cluster, and it forwards.

It reads only the head of a request, acknowledges nothing, and stores nothing: if the service cannot be reached it
answers 503, and agents try again. It forwards only the paths for agents, and only with a token, which the service
checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pilotage.agent.link.folder_link import POLL_SECONDS, BadContent, Message, RelayFolder, next_pause
from pilotage.agent.site.relay_upstream import (
    HEAD_BYTES_MAX,
    HOP_BY_HOP,
    LATE,
    PIECE_BYTES,
    STALL_SECONDS,
    AnswerSink,
    BadMessage,
    Body,
    NoAnswer,
    Upstream,
    pieces_of,
    read_head,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pilotage.agent.site.relay_upstream import Fields, Head

KEPT_BYTES_MAX = 1 << 18  # a body up to this size is buffered, so that it can be sent again
REST_SECONDS = 600.0
CONNECTIONS_MAX = 8192
CLOSE_SECONDS = 2.0
_TARGET = re.compile(r"/agent/[!-~]*")
_ASTRAY = re.compile(r"\\|//|(^|/)(\.|%2e)", re.IGNORECASE)
_METHODS = frozenset((b"GET", b"POST", b"PUT"))
_EVENTS = {b"/v1/events": b"/agent/events"}  # the path for agents takes events of packages, too
_PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    411: "Length Required",
    503: "Service Unavailable",
}


def may_pass(target: str) -> bool:
    """Tell whether a target is for pilots, under every interpretation."""
    path = target.partition("?")[0]
    return _TARGET.fullmatch(target) is not None and not _ASTRAY.search(path) and path != "/agent/site"


def error_body(code: str, message: str) -> bytes:
    """An error body in the format of the service."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


class _RequestBody(Body):
    """The body of a request, as it arrives; `taken` is set when all of it was read."""

    def __init__(self, reader: asyncio.StreamReader, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken = asyncio.Event()
        self._reader = reader
        self._kept: bytes | None = None

    async def keep(self) -> None:
        """Buffer a small body."""
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


class _PilotAnswer(AnswerSink):
    """The answer to a pilot."""

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
        """Answer with an error of our own."""
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
            raise BadMessage("the pilot does not read its answer") from None


class Relay:
    """Listens inside the cluster; belongs to one event loop."""

    def __init__(self, upstream: Upstream, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._upstream = upstream
        self._connections_max = connections_max
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Serve a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES_MAX, backlog=512)

    async def close(self) -> None:
        """Close all connections: pilots reconnect."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()  # its `_serve` task notices
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
            pass  # it disconnected, sent no HTTP, or was idle too long
        finally:
            self._open.discard(writer)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: bytes) -> bytes | None:
        """Forward one request; returns the first bytes of the next one, or None if none may follow."""
        back = _PilotAnswer(writer)
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
        body = _RequestBody(reader, head.size_bytes() or 0)
        await body.keep()
        method, target = head.words[0].decode("ascii"), _EVENTS.get(head.words[1], head.words[1]).decode("ascii")
        carrying = asyncio.ensure_future(self._upstream.carry(method, target, head.kept(), body, back))
        watching = asyncio.ensure_future(_next_byte(reader, body))
        try:
            await asyncio.wait({carrying, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not carrying.done() and not watching.result():
                return None  # the pilot no longer waits for the answer
            await asyncio.wait({carrying})
            try:
                carrying.result()
            except NoAnswer as error:
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


async def _next_byte(reader: asyncio.StreamReader, body: _RequestBody) -> bytes:
    """The first byte of a pilot's next request; empty if it disconnects."""
    await body.taken.wait()
    try:
        return await reader.read(1)
    except OSError:
        return b""


def _refusal(head: Head) -> tuple[int, str, str] | None:
    """Why a request is not forwarded, as status, code and text."""
    method, target = head.words[0], _EVENTS.get(head.words[1], head.words[1]).decode("latin-1")
    if method not in _METHODS or head.words[-1] != b"HTTP/1.1" or not may_pass(target):
        return 404, "not_found", "only requests of pilots are relayed"
    if not head.field(b"authorization"):
        return 401, "unauthenticated", "a pilot must send its token"
    if head.field(b"transfer-encoding") or (head.size_bytes() is None and method != b"GET"):
        return 411, "malformed", "a body must state its length"
    return None


# The relay's side of a folder: it takes the requests that pilots put there, forwards each to the service, and writes
# the answer back.
#
# Slow file operations run in threads. A request is aborted when its pilot stops waiting, and files that no pilot
# fetches are removed after a while.

AT_ONCE_MAX = 4096
AWAITED_SECONDS = 5.0  # how often to check that the pilot still waits
OLD_SECONDS = 600.0
CLEAN_SECONDS = 60.0
_SPOOL_METHODS = frozenset(("GET", "POST", "PUT"))

Result = TypeVar("Result")


async def _in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    return await asyncio.get_event_loop().run_in_executor(None, work, *arguments)


class _FileBody(Body):
    """The body of a request, read from its file."""

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
                raise BadContent("the request was truncated")
            left -= len(piece)
            yield piece


class _FileAnswer(AnswerSink):
    """An answer that is written to a file."""

    def __init__(self, open_draft: Callable[[], IO[bytes]]) -> None:
        self._open = open_draft
        self._file: IO[bytes] | None = None

    async def begin(self, status: int, fields: Fields, size_bytes: int | None) -> None:
        self._file = await _in_thread(self._open)
        head: dict[str, Any] = {
            "status": status,
            "fields": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in fields],
        }
        if size_bytes is not None:
            head["size_bytes"] = size_bytes
        await self.take(json.dumps(head).encode() + b"\n")

    async def take(self, piece: bytes) -> None:
        assert self._file is not None
        await _in_thread(self._file.write, piece)

    async def end(self) -> None:
        if self._file is not None:
            await _in_thread(self._file.close)

    def drop(self) -> None:
        """Close the draft, if open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class SpoolRelay:
    """Serves a relay folder; belongs to one event loop."""

    def __init__(self, folder: RelayFolder, upstream: Upstream, *, say: Callable[[str], None] = lambda _: None) -> None:
        """Take an existing folder, and the connection to the service."""
        self._folder = folder
        self._upstream = upstream
        self._say = say
        self._busy: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
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
                        self._say(f"the relay cannot read {self._folder.folder}: {error}")
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
            self._say(f"a request in {self._folder.folder} failed: {error}")
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)
            self._busy.pop(name, None)
            await asyncio.shield(_in_thread(self._folder.done_with, name))

    async def _carry(self, name: str) -> None:
        message = await _in_thread(self._folder.open_taken, name)
        answering = _FileAnswer(lambda: self._folder.draft_answer(name))
        try:
            method, target, fields = _request(message.head)
            if not may_pass(target) or method not in _SPOOL_METHODS:
                await _answer(answering, 404, "not_found", "only requests of pilots are relayed")
            else:
                try:
                    await self._upstream.carry(method, target, fields, _FileBody(message), answering)
                except NoAnswer as error:
                    await _answer(answering, 503, "unreachable", f"the relay cannot reach the service: {error}")
            await _in_thread(self._folder.publish, name)
        finally:
            message.file.close()
            answering.drop()


async def _answer(answering: _FileAnswer, status: int, code: str, text: str) -> None:
    content = error_body(code, text)
    await answering.begin(status, [(b"content-type", b"application/json")], len(content))
    await answering.take(content)
    await answering.end()


def _request(head: dict[str, Any]) -> tuple[str, str, Fields]:
    """Method, target and fields of a request; raises `BadContent` if it is malformed."""
    try:
        method, target = str(head["method"]), str(head["target"])
        fields = []
        for name, value in head["fields"]:
            if any(char in f"{name}{value}" for char in "\r\n\0"):
                raise ValueError("a field with line breaks")
            field = str(name).lower().encode("latin-1")
            if field not in HOP_BY_HOP:
                fields.append((field, str(value).encode("latin-1")))
    except (KeyError, TypeError, ValueError) as error:
        raise BadContent(f"not a request: {error}") from error
    return method, target, fields


# The relays run in one thread with an event loop, for the network inside the cluster and for a folder.

STOP_SECONDS = 5.0


def bound(host: str, port: int) -> socket.socket:
    """A bound socket; raises `OSError`."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


class Relays:
    """The relays to one service, which run from `start` to `stop`."""

    def __init__(self, server: str, *, ca_file: str = "", say: Callable[[str], None] = lambda _: None) -> None:
        """Take the address of the service, and a function that logs errors."""
        self._server = server
        self._ca_file = ca_file
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._ready = threading.Event()
        self._ending: asyncio.Event | None = None
        self._listener: socket.socket | None = None
        self._folder: RelayFolder | None = None

    def start(self, *, listener: socket.socket | None = None, folder: Path | None = None) -> None:
        """Serve a bound socket, or a folder, or both; raises `OSError` if the folder cannot be used."""
        if folder is not None:
            self._folder = RelayFolder(folder)
            self._folder.make()
        self._listener = listener
        _raise_limit()
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Close all connections; pilots reconnect."""
        if self._ending is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        upstream = Upstream(self._server, ca_file=self._ca_file)
        relay = Relay(upstream)
        working = []
        if self._listener is not None:
            await relay.listen(self._listener)
        if self._folder is not None:
            working.append(asyncio.ensure_future(SpoolRelay(self._folder, upstream, say=self._say).run()))
        self._ready.set()
        await self._ending.wait()
        await relay.close()
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        upstream.close()
        await asyncio.sleep(0)  # lets transports close


def _raise_limit() -> None:
    """Raise the limit of open files: each pilot has some connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
