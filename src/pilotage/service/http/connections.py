"""Connections with limits: how long each step of a request may take, how large it may be, and how many there may be.

uvicorn has one limit, for keep-alive, and answers 503 to everyone above a total. Here every step has a time limit: the
handshake and the head of a request, its body by a minimum rate, and reading the answer. Only our own time to make the
answer has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import math
import socket
from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pilotage.service.http.admission import (
    CONNECTION,
    RESTS,
    WAITS_FOR_BODY,
    WAITS_FOR_HEAD,
    WAITS_FOR_US,
    ClientConnection,
    Kind,
    OpenConnections,
    TooManyConnections,
)
from pilotage.service.http.errors import ErrorBody, ErrorView

log = logging.getLogger(__name__)

_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ACCEPTED_AT_ONCE = 16  # then the accepted ones are read
_PAUSE_SECONDS = 1.0  # when the system has no more file descriptors
_FULL_PAUSE_SECONDS = 0.02  # in which connections that just sent something are read, and authenticate or close
_FULL_SECONDS = 2.0
_PREFIX_BITS = 64  # of an IPv6 address: its owner can choose the rest


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long each step of a request may take, and how large it may be."""

    head_seconds: float = 20.0  # including the TLS handshake
    head_bytes_max: int = 64 * 1024
    body_seconds: float = 30.0  # and as much longer as it arrives at this rate:
    body_bytes_per_second: int = 1024
    discard_seconds: float = 10.0  # for the rest of an unwanted body, after its request was answered
    discard_bytes_max: int = 16 * 2**20
    taking_seconds: float = 60.0  # without the client reading any of its answer


class LimitedProtocol(HttpToolsProtocol):
    """Handles one connection within the limits."""

    def __init__(
        self, clients: OpenConnections, client: ClientConnection, bounds: ConnectionLimits, **options: Any
    ) -> None:
        super().__init__(**options)
        self._clients = clients
        self._client = client
        self._bounds = bounds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection is open."""
        super().connection_made(transport)
        self._client.close = transport.abort
        self._client.is_held_back = lambda: self.flow.read_paused
        self._client.since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed."""
        self._clients.remove(self._client)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Data arrived."""
        client = self._client
        client.head_bytes += len(data)
        super().data_received(data)
        if client.waits is WAITS_FOR_HEAD and client.head_bytes > self._bounds.head_bytes_max:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope[CONNECTION] = client = self._client  # type: ignore[literal-required]
        if client.waits is not WAITS_FOR_HEAD:
            client.since = self.loop.time()
            client.waits = WAITS_FOR_HEAD

    def on_headers_complete(self) -> None:
        """The head is complete."""
        client = self._client
        client.since, client.waits, client.body_bytes, client.is_discarding = self.loop.time(), WAITS_FOR_BODY, 0, False
        self._clients.busy(client)
        # More than the head may have arrived: count only if the head could be too long.
        if client.head_bytes > self._bounds.head_bytes_max and self._head_bytes() > self._bounds.head_bytes_max:
            app, self.app = self.app, _too_long
            super().on_headers_complete()
            self.app = app
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body arrived."""
        self._client.body_bytes += len(body)
        super().on_body(body)
        if self._client.is_discarding and self._client.body_bytes > self._bounds.discard_bytes_max:
            self._client.close()

    def on_message_complete(self) -> None:
        """The request is complete."""
        client = self._client
        client.head_bytes = 0
        client.waits = RESTS if client.is_discarding else WAITS_FOR_US
        client.is_discarding = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The request was answered, perhaps before all of it arrived."""
        client = self._client
        if client.waits is WAITS_FOR_US:
            client.waits = RESTS
        elif client.waits is WAITS_FOR_BODY:
            client.is_discarding, client.body_bytes = True, 0
        client.since = self.loop.time()
        self._clients.idle(client)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._client.stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._client.stalled_since = math.inf
        super().resume_writing()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_plain_answer(431, "Request Header Fields Too Large", _TOO_LONG))
            self.transport.close()


class Acceptor:
    """Accepts connections on a socket; uvicorn takes it for an asyncio server."""

    def __init__(
        self,
        bound: socket.socket,
        *,
        clients: OpenConnections,
        bounds: ConnectionLimits,
        make_protocol: Callable[..., LimitedProtocol],
        context: SSLContext | None = None,
    ) -> None:
        """Accept connections on a bound socket from now on; with a context they use TLS."""
        self._bound = bound
        self._clients = clients
        self._bounds = bounds
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Future[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._is_open = True
        bound.setblocking(False)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        if self._is_open:
            self._is_open = False
            if self._again is not None:
                self._again.cancel()
            self._loop.remove_reader(self._bound)
            for entry in self._coming:
                entry.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is in progress."""
        if self._coming:
            await asyncio.wait(self._coming)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                level = logging.WARNING if fault.errno in _OUT_OF_FILES else logging.ERROR
                log.log(level, "connections cannot be accepted for a moment: %s", fault)
                self._pause(_PAUSE_SECONDS, self._resume)
                return
            connection.setblocking(False)
            if not self._receive(connection):
                self._pause(_FULL_PAUSE_SECONDS, partial(self._try_again, connection, self._loop.time()))
                return

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        """Leave new connections in the kernel's queue for a moment."""
        self._loop.remove_reader(self._bound)
        self._again = self._loop.call_later(seconds, then)

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._bound, self._accept)

    def _try_again(self, connection: socket.socket, since: float) -> None:
        """Try again to admit a connection that found no slot; refuse it when its time is up."""
        if not self._is_open:
            connection.close()
        elif self._receive(connection):
            self._resume()
        elif self._loop.time() < since + _FULL_SECONDS:
            self._pause(_FULL_PAUSE_SECONDS, partial(self._try_again, connection, since))
        else:
            if self._context is None:
                with contextlib.suppress(OSError):
                    connection.send(_plain_answer(503, "Service Unavailable", _FULL))
            connection.close()
            self._resume()

    def _receive(self, connection: socket.socket) -> bool:
        """Admit a connection; whether there was a slot."""
        peer = _peer_of(connection)
        kind = Kind.LOCAL if connection.family == socket.AF_UNIX else Kind.STRANGER
        client = ClientConnection(self._clients, kind=kind, peer=peer, now=self._loop.time())
        try:
            self._clients.add(client)
        except TooManyConnections:
            return False
        client.is_speaking = partial(_has_come, connection)
        if kind is not Kind.LOCAL:
            _keep_alive(connection)
        entry = asyncio.ensure_future(self._handshake(connection, client))
        client.close = entry.cancel
        self._coming.add(entry)
        entry.add_done_callback(partial(self._established, connection, client))
        return True

    async def _handshake(self, connection: socket.socket, client: ClientConnection) -> None:
        context, bounds = self._context, self._bounds
        await self._loop.connect_accepted_socket(
            lambda: self._make_protocol(self._clients, client, bounds),
            connection,
            ssl=context,
            ssl_handshake_timeout=bounds.head_seconds if context is not None else None,
        )

    def _established(self, connection: socket.socket, client: ClientConnection, entry: asyncio.Future[None]) -> None:
        """A connection is established, or was closed before that."""
        self._coming.discard(entry)
        fault = None if entry.cancelled() else entry.exception()
        if fault is not None and not isinstance(fault, OSError):
            log.error("a connection could not be accepted", exc_info=fault)
        if fault is not None or entry.cancelled():
            self._clients.remove(client)
            connection.close()


def close_overdue(clients: OpenConnections, bounds: ConnectionLimits, *, now: float, passed_seconds: float) -> None:
    """Close every connection that exceeds its time; to be called every so many seconds."""
    for client in list(clients.all):
        waits, took_seconds = client.waits, now - client.since
        if now - client.stalled_since > bounds.taking_seconds:
            late = True
        elif client.is_discarding:
            late = took_seconds > bounds.discard_seconds
        elif waits is WAITS_FOR_HEAD:
            late = took_seconds > bounds.head_seconds
        elif waits is WAITS_FOR_BODY:
            if client.is_held_back():
                client.since += passed_seconds  # we stopped reading: this time is not the client's
            late = took_seconds > bounds.body_seconds + client.body_bytes / bounds.body_bytes_per_second
        else:
            late = False  # uvicorn closes idle ones, and time waiting for our answer does not count
        if late:
            client.close()


def _peer_of(connection: socket.socket) -> str:
    """The address that a connection is counted for."""
    if connection.family == socket.AF_UNIX:
        return ""
    try:
        address = ipaddress.ip_address(str(connection.getpeername()[0]).partition("%")[0])
    except (OSError, ValueError):
        return "?"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _PREFIX_BITS), strict=False))
    return str(address)


def _has_come(connection: socket.socket) -> bool:
    """Whether data can be read."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel detect a peer that is gone without closing."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _body(code: str, message: str, hint: str = "") -> bytes:
    return msgspec.json.encode(ErrorView(error=ErrorBody(code=code, message=message, hint=hint)))


_FULL = _body("busy", "too many connections are open", "try again in a moment")
_TOO_LONG = _body("too_large", "the head of this request is too long", "send less in its path, query and headers")


def _plain_answer(status: int, phrase: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    again = "Retry-After: 2\r\n" if status == 503 else ""
    return f"{head}{again}Connection: close\r\n\r\n".encode() + body


async def _too_long(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_TOO_LONG)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_LONG, "more_body": False})
