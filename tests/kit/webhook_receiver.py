"""A real receiver of webhooks on loopback that keeps what it is sent, and refuses, hangs, drips or breaks off when told to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

HOST = "127.0.0.1"


class Hang(msgspec.Struct, frozen=True):
    """Take the request and never answer."""


class Drip(msgspec.Struct, frozen=True):
    """Answer one byte at a time, for ever: each is in time, the whole never comes."""


class BreakOff(msgspec.Struct, frozen=True):
    """Take the request, keep it, and break the connection: the sender cannot know whether it was kept."""


class Status(msgspec.Struct, frozen=True):
    """Answer with a status and headers; what is not 2xx is not kept."""

    status: int
    headers: dict[str, str] = {}


Answer = Status | Hang | Drip | BreakOff


class Post(msgspec.Struct, frozen=True):
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The body, read."""
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class WebhookReceiver:
    """Keeps posts. `plan` says how the next ones are answered; after that all are kept."""

    def __init__(self) -> None:
        """Take a free port and serve on it."""
        self.attempts = 0
        self._posts: list[Post] = []
        self._plan: deque[Answer] = deque()
        self._change = threading.Condition()
        self._stopping = threading.Event()
        self._port = 0
        self._server: _Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._thread: threading.Thread | None = None
        self.start()

    def __enter__(self) -> WebhookReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens; the same after it was stopped and started."""
        return f"http://{HOST}:{self._port}/hook"

    @property
    def posts(self) -> tuple[Post, ...]:
        """What was kept, in the order it came."""
        with self._change:
            return tuple(self._posts)

    @property
    def planned(self) -> tuple[Answer, ...]:
        """The answers that no request has had yet."""
        with self._change:
            return tuple(self._plan)

    def plan(self, *answers: Answer) -> None:
        """Answer the next requests like this, one each."""
        with self._change:
            self._plan.extend(answers)

    def wait_for(self, count: int, *, timeout_seconds: float = 30) -> tuple[Post, ...]:
        """Wait until so many posts were kept; an `AssertionError` when they do not come."""
        with self._change:
            if not self._change.wait_for(lambda: len(self._posts) >= count, timeout_seconds):
                raise AssertionError(f"expected {count} posts, got {len(self._posts)}")
            return tuple(self._posts)

    def secure(self, certificate: Path) -> None:
        """Speak TLS from the next start on, with the certificate and key of a file."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)

    def start(self) -> None:
        """Listen, on the port it had before if it had one."""
        self._stopping.clear()
        self._server = _Server((HOST, self._port), self)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="webhook receiver")
        self._thread.start()

    def stop(self) -> None:
        """Break every connection and listen no more; nothing happens when it is stopped already."""
        if self._server is None or self._thread is None:
            return
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None

    def answer(self, handler: _Handler) -> None:
        """Answer one request as planned, or keep it."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        with self._change:
            self.attempts += 1
            answer: Answer = self._plan.popleft() if self._plan else Status(204)
            if isinstance(answer, BreakOff) or (isinstance(answer, Status) and 200 <= answer.status < 300):
                self._posts.append(Post(handler.path, dict(handler.headers), body))
            self._change.notify_all()
        match answer:
            case Status(status, headers):
                handler.send_response_only(status)
                for name, value in headers.items():
                    handler.send_header(name, value)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
            case Hang():
                self._stopping.wait()
            case Drip():
                with contextlib.suppress(OSError):
                    while not self._stopping.wait(0.01):
                        handler.wfile.write(b"H")
            case BreakOff():
                handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], receiver: WebhookReceiver) -> None:
        self.receiver = receiver
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Hand the request over."""
        with contextlib.suppress(OSError):
            self.server.receiver.answer(self)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is http.server's
        """Say nothing."""
