"""An agent's connection to its service, by TCP or a Unix socket: one request at a time, received piece by piece.

It is leaner than `http.client`, which costs as much as the rest of an exchange, and it does not block unless asked to:
a caller with several links waits for all of them at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS = 10.0
SOCKET_PATH_MAX = 100  # a socket's path may have 107 bytes; longer ones are reached through their folder
ANSWER_BYTES_MAX = 256 << 20
_PIECE_BYTES = 1 << 18


class LinkBroken(OSError):
    """The connection is broken, or the answer is not HTTP: whether the service has the request is unknown."""


class Answer(NamedTuple):
    """An answer of the service: status, header fields by lower-case name, and body."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes


class Address(NamedTuple):
    """Where a service listens: a socket path, or a host and a port."""

    path: str
    host: str
    port: int
    secure: bool
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `unix:PATH`, `http://HOST:PORT` or `https://HOST:PORT`; raises `ValueError` for anything else."""
        if text.startswith("unix:") and len(text) > len("unix:"):
            return cls(text[len("unix:") :], "", 0, False, "")
        scheme, _, rest = text.partition("://")
        place, slash, prefix = rest.partition("/")
        if scheme not in ("http", "https") or not place:
            raise ValueError(f"not the address of a service: {text!r}; expected unix:PATH or http://HOST:PORT")
        secure = scheme == "https"
        host, _, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
        if not host:
            host, port = place, ""
        return cls(
            "", host.strip("[]"), int(port) if port else (443 if secure else 80), secure, slash + prefix.rstrip("/")
        )


class Link:
    """An open connection. The caller marks the request that waits on it with `ticket`; 0: none waits."""

    def __init__(self, address: str, *, token: str | Callable[[], str] = "", ca_file: str = "") -> None:
        """Connect; raises `OSError` or `ValueError`.

        `token` is a token, or a function that returns one for each request; `ca_file` holds the only CA certificate to
        trust.
        """
        self.address = address
        self.ticket = 0
        self.answers = 0  # number of answers so far
        self._received = bytearray()
        where = Address.parse(address)
        host = "localhost" if where.path else f"{where.host}:{where.port}"
        self._usual = f"Host: {host}\r\nUser-Agent: pilotage-agent\r\nAccept: */*"
        self._prefix = where.prefix
        self._token = token if callable(token) else None
        self._show(token() if callable(token) else token)
        self._socket = connect_socket(where, ca_file)
        self._secure = where.secure

    def _show(self, token: str) -> None:
        self._shown = token
        shown = f"{self._usual}\r\nAuthorization: Bearer {token}" if token else self._usual
        self._fields = shown.encode("latin-1", "replace")

    def fileno(self) -> int:
        """Descriptor that becomes readable when an answer arrives."""
        return self._socket.fileno()

    def send(self, method: str, target: str, body: bytes = b"", *, fields: str = "", ticket: int = 1) -> None:
        """Send a request; raises `OSError`."""
        self.ticket = ticket
        if self._token is not None and (token := self._token()) != self._shown:
            self._show(token)
        line = f"{method} {self._prefix}{target} HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n"
        head = line.encode("latin-1") + self._fields + b"\r\n\r\n"
        self._socket.sendall(head + body)

    def receive(self) -> Answer | None:
        """Read the received bytes; returns the answer once complete. Raises `OSError` if the connection is closed."""
        if not self._secure:
            piece = self._socket.recv(_PIECE_BYTES)
            if not piece:
                raise LinkBroken("the service closed the connection")
            self._received += piece
        elif not self._receive_secure():
            return None
        found = _whole_answer(self._received)
        if found is None:
            if len(self._received) > ANSWER_BYTES_MAX:
                raise LinkBroken("the answer has no end")
            return None
        answer, size_bytes = found
        del self._received[:size_bytes]
        self.ticket = 0
        self.answers += 1
        return answer

    def _receive_secure(self) -> bool:
        """Read the received bytes, if any: messages of TLS itself make the socket readable, too."""
        import ssl

        self._socket.settimeout(0.0)
        came = False
        try:
            while True:
                piece = self._socket.recv(_PIECE_BYTES)
                if not piece:
                    raise LinkBroken("the service closed the connection")
                self._received += piece
                came = True
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return came
        finally:
            self._socket.settimeout(CONNECT_SECONDS)

    def wait(self, seconds: float) -> Answer:
        """Wait for the complete answer; raises `OSError` if it does not arrive in time."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            poll = select.poll()
            poll.register(self.fileno(), select.POLLIN)
            if left <= 0 or not poll.poll(left * 1000.0):
                raise LinkBroken(f"no answer within {seconds:g} s")
            answer = self.receive()
            if answer is not None:
                return answer

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()


def connect_socket(where: Address, ca_file: str) -> socket.socket:
    """Connect to a server; raises `OSError`. `ca_file` holds the only CA certificate to trust."""
    if where.path:
        return _connect_path(where.path)
    plain = socket.create_connection((where.host, where.port), timeout=CONNECT_SECONDS)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not where.secure:
        return plain
    from pilotage.agent.link.tls import secured

    try:
        return secured(plain, where.host, ca_file=ca_file)
    except OSError:
        plain.close()
        raise


def _connect_path(path: str) -> socket.socket:
    folder = -1
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(CONNECT_SECONDS)
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            parent, _, name = path.rpartition("/")
            folder = os.open(parent or "/", os.O_RDONLY | os.O_DIRECTORY)
            path = f"/proc/self/fd/{folder}/{name}"
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return connected


def _whole_answer(received: bytearray) -> tuple[Answer, int] | None:
    """The first answer in the received bytes and its length; None if it is incomplete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    lines = bytes(received[:end]).split(b"\r\n")
    words = lines[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise LinkBroken("the server there does not speak HTTP")
    fields = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip()
    status, begin = int(words[1]), end + 4
    if 100 <= status < 200:
        found = _whole_answer(received[begin:])
        return (found[0], found[1] + begin) if found is not None else None
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        chunks = _chunks(received, begin)
        return (Answer(status, fields, chunks[0]), chunks[1]) if chunks is not None else None
    length = fields.get(b"content-length", b"0")
    if not length.isdigit():
        raise LinkBroken("the server there does not speak HTTP")
    size_bytes = 0 if status in (204, 304) else int(length)
    if len(received) < begin + size_bytes:
        return None
    return Answer(status, fields, bytes(received[begin : begin + size_bytes])), begin + size_bytes


def _chunks(received: bytearray, begin: int) -> tuple[bytes, int] | None:
    """The body of a chunked answer, and where it ends."""
    content = bytearray()
    while True:
        end = received.find(b"\r\n", begin)
        if end < 0:
            return None
        try:
            size_bytes = int(received[begin:end].partition(b";")[0], 16)
        except ValueError as error:
            raise LinkBroken("the server there does not speak HTTP") from error
        begin = end + 2
        if len(received) < begin + size_bytes + 2:
            return None
        content += received[begin : begin + size_bytes]
        begin += size_bytes + 2
        if size_bytes == 0:
            return bytes(content), begin
