"""Streams a file from the service: at once from the service itself, or from the address that it names for this file.

The service may answer with the address of a store, valid for this transfer only. It is asked without our token, and is
never written down: errors name the service's own path instead.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pilotage.agent.link.link import Address, LinkBroken, connect_socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPConnection, HTTPResponse

CONNECT_SECONDS = 10.0
STALL_SECONDS = 60.0
"""A transfer without a byte for so long is broken off."""
REFUSAL_BYTES_MAX = 16 << 10

VERSION_FIELD, SHA256_FIELD = "Pilotage-Version", "Pilotage-Sha256"
_REDIRECTS = (302, 303, 307, 308)
_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


class TransferRefused(Exception):
    """The service, or the store that it named, refuses the file: a reason of the book, and a message for people."""

    def __init__(self, reason: str, message: str, *, status: int, direct: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.direct = direct  # the store refuses it, and not the service


class StoreUnreachable(LinkBroken):
    """The store that the service named does not answer here."""


class FileFacts(NamedTuple):
    """What is known of a file before it is read; `sha256` and `version` are empty if the store does not tell them."""

    start: int  # where this answer begins
    size_bytes: int | None
    version: str
    sha256: str


class Transfer:
    """An open answer; the caller reads it to its end, or closes it. Another thread may `abort` it."""

    def __init__(
        self, http: HTTPConnection, response: HTTPResponse, connected: socket.socket, facts: FileFacts, *, direct: bool
    ) -> None:
        self._http = http
        self._response = response
        self._socket = connected  # http.client gives it up when the answer ends the connection
        self.facts = facts
        self.direct = direct  # it comes from a store

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes; 0 at the end. Raises `OSError`."""
        from http.client import HTTPException

        try:
            return self._response.readinto(buffer)
        except (HTTPException, ValueError) as error:  # closed by another thread
            raise LinkBroken(f"the transfer broke off: {error}") from error

    def abort(self) -> None:
        """Make a read that waits fail, from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
        self._http.close()


class Downloads:
    """Opens files of one service."""

    def __init__(self, server: str, *, token: Callable[[], str], ca_file: str = "") -> None:
        """Take the service's address, and a function that returns the token for each request."""
        self._server = server
        self._token = token
        self._ca_file = ca_file

    def open(self, target: str, *, offset: int = 0, direct: bool = True) -> Transfer:
        """Open a file from a byte on; without `direct` the service must send it itself.

        Raises `TransferRefused`, or `OSError` if no answer arrives.
        """
        where = Address.parse(self._server)
        connected = connect_socket(where, self._ca_file)
        connected.settimeout(STALL_SECONDS)
        http = _connection("localhost" if where.path else where.host, where.port, connected)
        path = f"{where.prefix}{target}" if direct else f"{where.prefix}{target}?direct=no"
        headers = {"Authorization": f"Bearer {self._token()}"} if self._token() else {}
        response = _ask(http, path, headers, offset)
        if response.status not in _REDIRECTS:
            return _opened(http, response, connected, what=target, direct=False)
        told, url = response.headers, response.headers.get("Location", "")
        response.close()
        http.close()
        return self._open_direct(url, target, offset, version=told.get(VERSION_FIELD), sha256=told.get(SHA256_FIELD))

    def _open_direct(self, url: str, target: str, offset: int, *, version: str | None, sha256: str | None) -> Transfer:
        """Open a file at the address of its store, which no message may contain."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StoreUnreachable(f"{target}: the service names a store that is not reached by http")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        what = f"{target} at {parts.hostname}"
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        try:
            connected = connect_socket(Address("", parts.hostname, port, parts.scheme == "https", ""), "")
            connected.settimeout(STALL_SECONDS)
            http = _connection(parts.hostname, port, connected)
            # As it was signed: http.client would add the port, or add it twice.
            response = _ask(http, path, {"Host": parts.netloc.rpartition("@")[2]}, offset)
        except OSError as error:
            raise StoreUnreachable(f"{what}: {error}") from None
        opened = _opened(http, response, connected, what=what, direct=True)
        facts = opened.facts
        opened.facts = facts._replace(version=version or facts.version, sha256=sha256 or facts.sha256)
        return opened


def _connection(host: str, port: int, connected: socket.socket) -> HTTPConnection:
    from http.client import HTTPConnection

    http = HTTPConnection(host, port)
    http.sock = connected
    http.auto_open = 0  # a closed connection must not be opened without TLS
    return http


def _ask(http: HTTPConnection, path: str, headers: dict[str, str], offset: int) -> HTTPResponse:
    from http.client import HTTPException

    try:
        headers = {"User-Agent": "pilotage-agent", "Accept-Encoding": "identity", **headers}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        http.request("GET", path, headers=headers)
        return http.getresponse()
    except HTTPException as error:
        http.close()
        raise LinkBroken(f"not an answer in HTTP: {type(error).__name__}") from None
    except OSError:
        http.close()
        raise


def _opened(
    http: HTTPConnection, response: HTTPResponse, connected: socket.socket, *, what: str, direct: bool
) -> Transfer:
    """The transfer of an answer; raises `TransferRefused` if it has no file."""
    status, headers = response.status, response.headers
    if status in (200, 206):
        length = headers.get("Content-Length", "")
        start, size_bytes = 0, int(length) if length.isdigit() else None
        if status == 206:
            found = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
            if found is None:
                response.close()
                http.close()
                raise LinkBroken(f"{what}: the answer does not say which part of the file it is")
            start, size_bytes = int(found[1]), int(found[3])
        version = headers.get(VERSION_FIELD) or headers.get("ETag") or ""
        facts = FileFacts(start, size_bytes, version, headers.get(SHA256_FIELD) or "")
        return Transfer(http, response, connected, facts, direct=direct)
    try:
        body = response.read(REFUSAL_BYTES_MAX)
    except OSError:
        body = b""
    finally:
        response.close()
        http.close()
    raise _refusal(status, body, what=what, direct=direct)


# Reasons by status, where the service does not say more; an error of a store is not in our format.
_REASONS = {401: "credential-expired", 403: "access-denied", 404: "not-in-store", 410: "not-in-store"}
_CODES = frozenset(
    ("access-denied", "credential-expired", "file-changed", "not-in-store", "store-unreachable", "timed-out")
)


def _refusal(status: int, body: bytes, *, what: str, direct: bool) -> TransferRefused:
    reason, message = _REASONS.get(status, "store-unreachable"), ""
    if direct:
        # A store's own words may repeat the address with its signature.
        return TransferRefused(reason, f"{what}: the store answered {status}", status=status, direct=True)
    try:
        told = json.loads(body)["error"]
        code, message = str(told["code"]).replace("_", "-"), str(told["message"])
        reason = code if code in _CODES else reason
    except (ValueError, KeyError, TypeError, AttributeError):
        message = body[:200].decode("utf-8", "replace")
    message = message or f"{what}: the service answered {status}"
    return TransferRefused(reason, message, status=status, direct=False)
