"""A client of one server over HTTP: sends and receives JSON, and raises refusals as errors that say what to do."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from pilotage.agent.errors import AgentError
from pilotage.agent.link.tls import NotTrusted, client_context, why_not_trusted
from pilotage.client.errors import (
    BadDocument,
    CertificateRefused,
    NotOurServer,
    ServerError,
    ServerRefused,
    ServerTroubled,
    ServerUnreachable,
)
from pilotage.model.errors import Problem
from pilotage.model.version import VERSION

ANSWER_BYTES_MAX = 256 * 2**20
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
JSON = "application/json"
BYTES = "application/octet-stream"
PAUSES_SECONDS = (0.2, 1.0, 2.0)
PIECE_BYTES = 2**20
"""How much of a file is received at once."""

Parameters = Mapping[str, str | int | float | None]


class Server:
    """A connection to a server, kept open between requests. One thread at a time."""

    resting = False
    """Whether the book answers without its service, which has stopped."""
    ended = ""
    """Why that service stopped, if it stopped by itself."""

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] | None = None,
        start_hint: str = "",
        answer_seconds: float = ANSWER_SECONDS,
        ca_file: str = "",
    ) -> None:
        """Set the base URL; `token` returns the current token, `start_hint` says what to do if the server is down.

        `ca_file` is the only certificate authority to trust; empty: those of this computer.
        """
        self.url = url.rstrip("/")
        self._parts = urlsplit(self.url)
        self._token = token
        self._start_hint = start_hint
        self._answer_seconds = answer_seconds
        self._ca_file = ca_file
        self._http: HTTPConnection | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str, parameters: Parameters | None = None) -> Any:
        """GET a path, decoded; parameters that are None are left out."""
        return self._asked("GET", path, parameters, None)

    def post(self, path: str, content: object = None) -> Any:
        """POST a value as JSON; return the decoded answer."""
        return self._asked("POST", path, None, content)

    def upload(self, path: str, content: bytes, *, method: str = "POST") -> Any:
        """POST or PUT raw bytes; return the decoded answer."""
        return self._asked(method, path, None, content, kind=BYTES)

    def upload_piece(self, path: str, content: bytes, *, content_range: str, answer_seconds: float) -> Any:
        """PUT a piece of a file; return the decoded answer, which may take so long beyond the usual."""
        usual_seconds = self._answer_seconds
        self._patience(usual_seconds + answer_seconds)
        try:
            return self._asked("PUT", path, None, content, kind=BYTES, more={"Content-Range": content_range})
        finally:
            self._patience(usual_seconds)

    def head(self, path: str) -> tuple[int, Mapping[str, str]]:
        """HEAD a path: the status, which may be that of a refusal, and the headers in lower case."""
        try:
            http = self._http = self._http or self._connect()
            response = self._request(http, "HEAD", path, None, {"Accept": JSON})
            response.read()
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise self._unreachable(error) from error
        if response.will_close:
            self.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}

    def pieces(self, path: str, parameters: Parameters | None = None, *, offset: int = 0) -> Iterator[bytes]:
        """GET a file from an offset, in pieces, on a connection of its own; raises `ServerUnreachable` if it breaks off."""
        http = self._connect()
        try:
            more = {"Accept": BYTES, **({"Range": f"bytes={offset}-"} if offset else {})}
            try:
                response = self._request(http, "GET", _with(path, parameters), None, more)
                if response.status not in (200, 206) or (offset and response.status != 206):
                    raise self._refusal(response.status, response.read(ANSWER_BYTES_MAX))
                left = int(response.getheader("Content-Length") or 0)
                while left and (piece := response.read(min(PIECE_BYTES, left))):
                    left -= len(piece)
                    yield piece
                if left:
                    raise ConnectionResetError("the answer broke off")
            except (OSError, HTTPException, ValueError) as error:
                raise self._unreachable(error) from error
        finally:
            http.close()

    def content(self, path: str) -> bytes:
        """GET a path as raw bytes."""
        status, answer = self._tried("GET", path, None, {"Accept": BYTES})
        if not 200 <= status < 300:
            raise self._refusal(status, answer)
        return answer

    def do(self, path: str, content: object, *, key: str) -> Any:
        """POST a value as JSON with an idempotency key: the server does it once, however often it is sent.

        So a broken connection is retried a few times.
        """
        for pause_seconds in PAUSES_SECONDS:
            try:
                return self._asked("POST", path, None, content, key=key)
            except ServerUnreachable:
                time.sleep(pause_seconds)
        return self._asked("POST", path, None, content, key=key)

    def text(self, path: str) -> str:
        """GET a path as text."""
        status, answer = self._tried("GET", path, None, {"Accept": "text/plain"})
        if not 200 <= status < 300:
            raise self._refusal(status, answer)
        return answer.decode("utf-8", "replace")

    def send(self, method: str, path: str, content: object = None) -> Any:
        """Send another method, such as DELETE or PATCH."""
        return self._asked(method, path, None, content)

    def lines(self, path: str, parameters: Parameters | None = None, *, quiet_seconds: float) -> Iterator[str]:
        """Yield the lines of a stream as they come, on a connection of its own.

        Raises `ServerUnreachable` if the stream breaks, or is silent for that long; ends when the server ends it.
        """
        http = self._connect()
        try:
            assert http.sock is not None
            http.sock.settimeout(quiet_seconds)
            try:
                response = self._request(http, "GET", _with(path, parameters), None, {"Accept": "text/event-stream"})
                if response.status != 200:
                    raise self._refusal(response.status, response.read(ANSWER_BYTES_MAX))
                while line := response.readline():
                    yield line.decode("utf-8", "replace").rstrip("\r\n")
            except (OSError, HTTPException, ValueError) as error:
                raise self._unreachable(error) from error
        finally:
            http.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def _asked(
        self,
        method: str,
        path: str,
        parameters: Parameters | None,
        content: object,
        *,
        kind: str = JSON,
        key: str = "",
        more: Mapping[str, str] | None = None,
    ) -> Any:
        body = content if kind == BYTES else None if content is None else msgspec.json.encode(content)
        headers = {"Accept": JSON, **(more or {})}
        if body is not None:
            headers["Content-Type"] = kind
        if key:
            headers["Idempotency-Key"] = key
        status, answer = self._tried(method, _with(path, parameters), cast("bytes | None", body), headers)
        if not 200 <= status < 300:
            raise self._refusal(status, answer)
        if not answer:
            return None
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise self._stranger(f"{len(answer)} bytes that are not JSON") from error

    def _tried(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        reused = self._http is not None
        try:
            try:
                return self._exchange(method, path, body, headers)
            except (OSError, HTTPException):
                self.close()
                # Servers close idle connections, so a failure here says nothing about the server. A request that
                # changes something is not repeated, since it may have been carried out.
                if not reused or method != "GET":
                    raise
                return self._exchange(method, path, body, headers)
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise self._unreachable(error) from error

    def _patience(self, seconds: float) -> None:
        """Wait so long for each answer."""
        self._answer_seconds = seconds
        if self._http is not None and self._http.sock is not None:
            self._http.sock.settimeout(seconds)

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        http = self._http
        if http is None:
            http = self._http = self._connect()
        response = self._request(http, method, path, body, headers)
        content = response.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            self.close()
            raise self._stranger(f"more than {ANSWER_BYTES_MAX} bytes")
        if response.will_close:
            self.close()
        return response.status, content

    def _request(
        self, http: HTTPConnection, method: str, path: str, body: bytes | None, more: Mapping[str, str]
    ) -> HTTPResponse:
        headers = {**more, "User-Agent": f"pilotage/{VERSION}"}
        try:
            token = self._token() if self._token is not None else ""
        except AgentError as error:
            if error.retryable:
                raise ServerUnreachable(error.what, subject=error.subject, next_step=self._start_hint) from error
            raise
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # A server that finds a request too large may answer and hang up before all of it is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            http.request(method, self._parts.path + path, body=body, headers=headers)
        return http.getresponse()

    def _connect(self) -> HTTPConnection:
        try:
            http = _connection(self._parts.scheme, self._parts.hostname or "", self._parts.port, self._ca_file)
            http.timeout = min(CONNECT_SECONDS, self._answer_seconds)
        except NotTrusted as error:
            raise self._unreachable(error) from error
        try:
            http.connect()
        except (OSError, ValueError) as error:
            http.close()
            raise self._unreachable(error) from error
        assert http.sock is not None
        http.sock.settimeout(self._answer_seconds)
        # Requests are small, and each waits for its answer.
        http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return http

    def _unreachable(self, error: Exception) -> ServerError:
        if isinstance(error, TimeoutError):
            why = "it did not answer in time"
        elif isinstance(error, ConnectionRefusedError):
            why = "connection refused"
        elif isinstance(error, NotTrusted):
            return CertificateRefused(str(error), subject=self.url)
        elif self._parts.scheme == "https" and (reason := _why_tls(error, self._parts.hostname or "", self._ca_file)):
            return CertificateRefused(reason, subject=self.url)
        else:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ServerUnreachable(f"no answer: {why}", subject=self.url, next_step=self._start_hint)

    def _stranger(self, got: str) -> ServerError:
        return NotOurServer(
            "this is not a pilotage server",
            subject=self.url,
            got=got,
            next_step="name the server itself with --server URL",
        )

    def _refusal(self, status: int, answer: bytes) -> ServerError | BadDocument:
        try:
            value = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            value = None
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return self._stranger(f"HTTP {status}")
        if problems := error.get("problems"):
            return BadDocument(msgspec.convert(problems, list[Problem]))
        message, hint = error["message"], str(error.get("hint") or "").replace("\n", "\n  ")
        subject, colon, rest = message.partition(": ")
        if status == 409 and colon and subject in rest.split():
            message = rest  # the message names what blocks the operation
        if status >= 500:
            return ServerTroubled(message, subject=self.url, next_step=hint)
        if status == 401 and not hint:
            hint = "show a token: --token-file FILE, PILOTAGE_TOKEN or PILOTAGE_TOKEN_FILE"
        return ServerRefused(message, subject="", status=status, code=str(error.get("code", "")), next_step=hint)


def path_of(*parts: str) -> str:
    """A path of the API with each part escaped: `path_of("jobs", "a/b")` is `/v1/jobs/a%2Fb`."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _with(path: str, parameters: Parameters | None) -> str:
    given = {name: str(value) for name, value in (parameters or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _why_tls(error: Exception, host: str, ca_file: str) -> str:
    """Why the certificate was rejected; empty if the fault is another."""
    import ssl

    return why_not_trusted(error, host, ca_file=ca_file) if isinstance(error, ssl.SSLError) else ""


def _connection(scheme: str, host: str, port: int | None, ca_file: str) -> HTTPConnection:
    if scheme == "https":
        from http.client import HTTPSConnection

        return HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=client_context(ca_file))
    return HTTPConnection(host, port, timeout=CONNECT_SECONDS)
