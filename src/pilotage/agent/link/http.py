"""A persistent HTTP connection to one server; another thread can abort a request that waits."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pilotage.agent.errors import AgentError
from pilotage.agent.link.tls import client_context, why_not_trusted
from pilotage.agent.service_clock import TIME_FIELD, TOO_EARLY, ServiceClock, clock_fields

if TYPE_CHECKING:
    import socket
    from http.client import HTTPConnection

ANSWER_BYTES_MAX = 16 << 20
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
USER_AGENT = "pilotage-courier"


_abandoned: list[HTTPConnection] = []


class Unreachable(AgentError):
    """No complete answer arrived: whether the server has the request is unknown."""

    retryable = True


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    body: bytes
    retry_after: str
    location: str


class Connection:
    """A persistent connection. One thread posts at a time; any thread may abort it."""

    def __init__(self, server: str, *, answer_seconds: float = ANSWER_SECONDS, ca_file: str = "") -> None:
        """Take the server's base URL; the connection opens at the first request.

        `ca_file` holds the only CA certificate to trust; default: those of this computer.
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
        """Post JSON and return the answer; raises `Unreachable` if none arrives."""
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
                # Servers close idle connections, which says nothing about their health: try once on a new one.
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
        # A server may reject a large request before all of it is sent, and close the connection.
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
        """The open connection, with that time limit on each network operation."""
        http = self._http
        if http is None:
            http = self._new(min(CONNECT_SECONDS, limit_seconds))
            http.connect()
            with self._guard:
                self._http = http
                broken_off = self._broken_off
            if broken_off:
                raise ConnectionAbortedError("aborted")
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
        """Abort a waiting request, from another thread, and refuse new ones."""
        import socket

        with self._guard:
            self._broken_off = True
            sock = self._http.sock if self._http is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Forget the connection in a forked child, without a word to the server.

        A thread of the parent may have been reading: its buffer stays locked for ever in the child, so only the
        descriptor is closed, and the buffer is kept alive so that the garbage collector does not close it.
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


# A courier's connection over a link of the pilot: it reaches the service whichever way the pilot does, also through the
# folder of a relay.

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.link.link import Link

    Connect = Callable[[Callable[[], str]], Link]
    """Connects to the pilot's service; the callable returns the token for each request."""


class LinkConnection:
    """The interface of `Connection`, over a link. One thread posts at a time."""

    def __init__(self, server: str, connect: Connect) -> None:
        """Take the server's name for messages; the link opens at the first request."""
        self.server = server
        self._connect = connect
        self._link: Link | None = None
        self._token = ""
        self._service_clock = ServiceClock()

    def post(self, path: str, body: bytes, *, token: str, timeout_seconds: float | None = None) -> Answer:
        """Post JSON and return the answer; raises `Unreachable` if none arrives."""
        limit_seconds = ANSWER_SECONDS if timeout_seconds is None else min(timeout_seconds, ANSWER_SECONDS)
        self._token = token
        reused = self._link is not None
        try:
            try:
                return self._say(path, body, limit_seconds)
            except OSError:
                self.close()
                if not reused:
                    raise
                # Servers close idle connections, which says nothing about their health: try once on a new one.
                return self._say(path, body, limit_seconds)
        except (OSError, ValueError) as error:
            self.close()
            raise Unreachable(f"no answer: {error}", subject=self.server) from error

    def _say(self, path: str, body: bytes, limit_seconds: float) -> Answer:
        if self._link is None:
            self._link = self._connect(lambda: self._token)
        headers = {"Content-Type": "application/json", **clock_fields(self._service_clock)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._link.send("POST", path, body, fields=lines)
        answer = self._link.wait(limit_seconds)
        fields = answer.fields
        self._service_clock.hear(fields.get(TIME_FIELD.lower().encode(), b""))
        if answer.status == TOO_EARLY:
            self._service_clock.doubted()
        return Answer(
            answer.status,
            answer.body,
            fields.get(b"retry-after", b"").decode("latin-1"),
            fields.get(b"location", b"").decode("latin-1"),
        )

    def break_off(self) -> None:
        """Do nothing: requests end by their time limit."""

    def abandon(self) -> None:
        """Forget the link in a forked child."""
        self._link = None

    def close(self) -> None:
        """Close the link; the next request opens another."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


# The server's answer to a batch of events: only an explicit acknowledgement counts.

RETRY_AFTER_MAX_SECONDS = 3600.0


class Refusal(NamedTuple):
    """One event of a batch that the server refused."""

    batch_index: int
    code: str
    message: str


class BatchAccepted(NamedTuple):
    """The server has stored every event of the batch except the refused ones."""

    position: int
    refused: list[Refusal]
    parked: int = 0  # events whose jobs are not registered yet


class BatchTooLarge(NamedTuple):
    """Nothing was stored; smaller batches may be accepted, and a single event that is too large is refused."""

    code: str
    message: str


class RetryLater(NamedTuple):
    """The server may have stored nothing: send the same batch again later."""

    reason: str
    retry_after_seconds: float
    denied: bool = False  # because of the token: waiting alone does not help


def judge(
    answer: Answer, *, count: int, now_seconds: float | None = None
) -> BatchAccepted | BatchTooLarge | RetryLater:
    """Interpret the answer to a batch of that many events; an unclear answer means "not now"."""
    value = _object(answer.body)
    if answer.status in (200, 409, 422):
        taken = _taken(value, count=count)
        if taken is not None and (answer.status == 200 or taken.refused):
            return taken
    code, message = _error(value)
    if answer.status == 413:
        return BatchTooLarge("too_large", message or "the server rejects this batch as too large")
    # Other programs also answer 400; only our server gives the reason in this form.
    if answer.status in (400, 409, 422) and code:
        return BatchTooLarge(code, message)
    return RetryLater(
        _reason(answer, code=code, message=message),
        _seconds(answer.retry_after, now_seconds=now_seconds),
        denied=answer.status in (401, 403),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _taken(value: dict[str, Any], *, count: int) -> BatchAccepted | None:
    position, refusals = _count(value.get("position")), value.get("refused")
    if position is None or not isinstance(refusals, list):
        return None
    refused: dict[int, Refusal] = {}
    for each in refusals:
        index = _count(each.get("index")) if isinstance(each, dict) else None
        if index is None or index >= count or index in refused:
            return None
        refused[index] = Refusal(index, str(each.get("code", "refused")), str(each.get("message", "")))
    return BatchAccepted(position, [refused[index] for index in sorted(refused)], _count(value.get("parked")) or 0)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error(value: dict[str, Any]) -> tuple[str, str]:
    error = value.get("error")
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("code", "")), str(error.get("message", ""))


def _reason(answer: Answer, *, code: str, message: str) -> str:
    reason = ": ".join(part for part in (code, message) if part)
    if 300 <= answer.status < 400:
        reason = reason or f"redirected to {answer.location or 'nowhere'}; use the server's own address"
    elif answer.status == 200:
        reason = "the answer is not from a pilotage server"
    elif answer.status in (401, 403) and not reason:
        reason = "the token is missing, invalid or not allowed to log events"
    return f"HTTP {answer.status}" + (f": {reason}" if reason else "")


def _seconds(retry_after: str, *, now_seconds: float | None) -> float:
    """Pause requested by a Retry-After header, in seconds or as a date; 0 if it is missing or malformed."""
    text = retry_after.strip()
    if not text:
        return 0.0
    if text.isdigit():
        seconds = float(text[:9])
    else:
        from email.utils import mktime_tz, parsedate_tz

        moment = parsedate_tz(text)
        if moment is None:
            return 0.0
        seconds = mktime_tz(moment) - (time.time() if now_seconds is None else now_seconds)
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)
