"""One connection to one server, kept open between requests; a request that waits can be broken off by another thread."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pilotage.agent.errors import AgentError
from pilotage.agent.service_clock import TIME_FIELD, TOO_EARLY, ServiceClock, clock_fields
from pilotage.agent.tls import client_context, why_not_trusted

if TYPE_CHECKING:
    import socket
    from http.client import HTTPConnection

ANSWER_BYTES_MAX = 16 << 20
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
USER_AGENT = "pilotage-courier"


_abandoned: list[HTTPConnection] = []


class Unreachable(AgentError):
    """No whole answer came back: whether the server has what was sent is not known."""

    retryable = True


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    body: bytes
    retry_after: str
    location: str


class Connection:
    """A persistent connection. One thread posts at a time; any thread may break it off."""

    def __init__(self, server: str, *, answer_seconds: float = ANSWER_SECONDS, ca_file: str = "") -> None:
        """Name the server by its base URL; nothing is opened before the first request.

        `ca_file` has the only authority whose certificate is believed; none: those of this computer.
        """
        self.server = server
        self._parts = urlsplit(server)
        self._answer_seconds = answer_seconds
        self._ca_file = ca_file
        self._http: HTTPConnection | None = None
        self._guard = threading.Lock()
        self._broken_off = False
        self._service_clock = ServiceClock()

    def post(self, path: str, body: bytes, *, token: str, timeout_seconds: float | None = None) -> Answer:
        """Post JSON and return the answer; raises `Unreachable` where there is none."""
        from http.client import HTTPException

        limit = self._answer_seconds if timeout_seconds is None else min(timeout_seconds, self._answer_seconds)
        reused = self._http is not None
        try:
            try:
                return self._exchange(path, body, token=token, limit_seconds=limit)
            except (OSError, HTTPException):
                self.close()
                if not reused or self._broken_off:
                    raise
                # A server closes connections that rest: that says nothing about the server, so try once afresh.
                return self._exchange(path, body, token=token, limit_seconds=limit)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            why = self._why(error)
            raise Unreachable(f"no answer: {why}", subject=self.server) from error

    def _why(self, error: Exception) -> str:
        if self._parts.scheme == "https":
            import ssl

            if isinstance(error, ssl.SSLError):
                return why_not_trusted(error, self._parts.hostname or "", ca_file=self._ca_file)
        return str(error) or type(error).__name__

    def _exchange(self, path: str, body: bytes, *, token: str, limit_seconds: float) -> Answer:
        http = self._connected(limit_seconds)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": USER_AGENT}
        headers.update(clock_fields(self._service_clock))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # Who finds a request too large may answer before all of it is sent, and hang up.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            http.request("POST", self._parts.path.rstrip("/") + path, body=body, headers=headers)
        response = http.getresponse()
        self._service_clock.hear(response.getheader(TIME_FIELD))
        if response.status == TOO_EARLY:
            self._service_clock.doubted()
        content = response.read(ANSWER_BYTES_MAX + 1)
        answer = Answer(
            response.status, content, response.getheader("Retry-After", ""), response.getheader("Location", "")
        )
        if len(content) > ANSWER_BYTES_MAX or response.will_close:
            self.close()
        return answer

    def _connected(self, limit_seconds: float) -> HTTPConnection:
        """The open connection, with that limit on each wait for the network."""
        http = self._http
        if http is None:
            http = self._new(min(CONNECT_SECONDS, limit_seconds))
            http.connect()
            with self._guard:
                self._http = http
                broken_off = self._broken_off
            if broken_off:
                raise ConnectionAbortedError("broken off")
        connected: socket.socket = http.sock
        connected.settimeout(limit_seconds)
        return http

    def _new(self, connect_seconds: float) -> HTTPConnection:
        import http.client as client

        host = self._parts.hostname or ""
        if self._parts.scheme == "https":
            context = client_context(self._ca_file)
            return client.HTTPSConnection(host, self._parts.port, timeout=connect_seconds, context=context)
        return client.HTTPConnection(host, self._parts.port, timeout=connect_seconds)

    def break_off(self) -> None:
        """End a request that waits, from another thread, and refuse new ones."""
        import socket

        with self._guard:
            self._broken_off = True
            sock = self._http.sock if self._http is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Forget the connection in a forked child, without a word to the server.

        A thread of the parent may have been reading: its buffer is locked for ever in the child, so only the
        descriptor is closed, and the buffer is kept from being closed by the collector.
        """
        http, self._http = self._http, None
        if http is not None:
            _abandoned.append(http)
            if http.sock is not None:
                os.close(http.sock.detach())

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        with self._guard:
            http, self._http = self._http, None
        if http is not None:
            http.close()
