"""A proxy on loopback in front of a web server or of S3, which checks credentials as the real ones do and breaks answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

_ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
_NOT_CARRIED = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Answer(NamedTuple):
    """An answer in place of the server's."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class WebProxy:
    """Passes requests on, unless `rule` answers them; `cut_at` ends a body early, `ahead_seconds` is its clock's error.

    While it `is_cut`, connections end without an answer; the next `cut_requests` do so in any case.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.rule: Callable[[BaseHTTPRequestHandler], Answer | None] = lambda _: None
        self.cut_at: int | None = None
        self.is_cut = False
        self.cut_requests = 0
        self.ahead_seconds = 0.0
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> WebProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def refuse_expired(self, query: dict[str, list[str]]) -> Answer | None:
        """The answer of S3 to a presigned URL whose time is over."""
        if "X-Amz-Expires" not in query:
            return None
        signed_at = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if time.time() + self.ahead_seconds <= signed_at.timestamp() + int(query["X-Amz-Expires"][0]):
            return None
        return error("AccessDenied", "Request has expired")


def error(code: str, message: str, *, status: int = 403) -> Answer:
    """An error as S3 writes it."""
    body = _ERROR.format(code=code, message=message).encode()
    return Answer(status, body, (("Content-Type", "application/xml"),))


class _Handler(BaseHTTPRequestHandler):
    proxy: WebProxy
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._pass_on
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        self.proxy.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.proxy.is_cut or self.proxy.cut_requests > 0:
            self.proxy.cut_requests = max(self.proxy.cut_requests - 1, 0)
            self.close_connection = True
            return
        answer = self.proxy.rule(self) or self.proxy.refuse_expired(parse_qs(urlsplit(self.path).query))
        if answer is None:
            answer = self._ask(body)
        self.send_response(answer.status)
        headers = dict(answer.headers)
        for name, value in headers.items():
            if name.lower() not in _NOT_CARRIED:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        length = headers.get("Content-Length", "0") if is_head else str(len(answer.body))
        self.send_header("Content-Length", length)
        self.end_headers()
        cut_at = self.proxy.cut_at
        if is_head:
            return
        if cut_at is not None and cut_at < len(answer.body):
            self.wfile.write(answer.body[:cut_at])
            self.close_connection = True
        else:
            self.wfile.write(answer.body)

    def _ask(self, body: bytes) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.proxy.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            if "Destination" in headers:
                headers["Destination"] = headers["Destination"].replace(
                    self.proxy.url, f"http://127.0.0.1:{self.proxy.target}"
                )
                headers["Host"] = f"127.0.0.1:{self.proxy.target}"
            connection.request(self.command, self.path, body or None, headers)
            with connection.getresponse() as answer:
                return Answer(answer.status, answer.read(), tuple(answer.getheaders()))
        finally:
            connection.close()
