"""A small real server on loopback that keeps events as the contract of the wire says, and can misbehave as told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Identity = tuple[str, str, int]
Refuse = Callable[[dict[str, Any]], tuple[str, str] | None]


class AgentServer:
    """Takes batches; `script` holds what to do wrong with the next requests, in order, and then all is well."""

    def __init__(self, *, events_max: int = 10_000, token: str = "") -> None:
        self.events: dict[Identity, dict[str, Any]] = {}  # in the order in which they first came
        self.batches: list[int] = []
        self.times_received = 0
        self.tokens: list[str] = []
        self.paths: list[str] = []
        self.script: list[str] = []
        self.refuse: Refuse = lambda event: None
        self.events_max = events_max
        self.token = token
        self.port = 0
        self.arrival = threading.Condition()
        self.released = threading.Event()  # ends a request that hangs
        self._http: _Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before if this is a restart."""
        self._http = _Listener(("127.0.0.1", self.port), type("Handler", (_Handler,), {"owner": self}))
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and hang up; what was acknowledged stays."""
        self.released.set()
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._http.hang_up()
            self._http.server_close()
        self._http = None
        self.released.clear()

    def numbers(self, stream: str) -> list[int]:
        """The numbers of the events of a stream in the order in which they first came."""
        return [n for _, name, n in self.events if name == stream]

    def wait_for(self, count: int, *, timeout_seconds: float = 60.0) -> None:
        """Wait until that many different events have come."""
        with self.arrival:
            assert self.arrival.wait_for(lambda: len(self.events) >= count, timeout_seconds), len(self.events)

    def wait_for_requests(self, count: int, *, timeout_seconds: float = 60.0) -> None:
        """Wait until that many requests have come, whatever became of them."""
        with self.arrival:
            assert self.arrival.wait_for(lambda: len(self.tokens) >= count, timeout_seconds), len(self.tokens)

    def keep(self, batch: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        """Keep a batch as a real server does: all but the refused ones."""
        refused = []
        kept = repeated = 0
        for index, event in enumerate(batch):
            identity = (event["source"], event["stream"], event["n"])
            why = self.refuse(event)
            if why is None and self.events.get(identity, event) != event:
                why = ("conflict", "the same identity with other content")
            if why is not None:
                refused.append({"index": index, "code": why[0], "message": why[1]})
            elif identity in self.events:
                repeated += 1
            else:
                self.events[identity] = event
                kept += 1
        told = {"position": len(self.events), "kept": kept, "repeated": repeated, "parked": 0, "refused": refused}
        conflicts = all(each["code"] == "conflict" for each in refused)
        return (200 if not refused else 409 if conflicts else 422), told


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    owner: AgentServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.owner.arrival:
            self.owner.tokens.append(self.headers.get("Authorization", ""))
            self.owner.paths.append(self.path)
            fault = self.owner.script.pop(0) if self.owner.script else ""
            self.owner.arrival.notify_all()
        if fault in ("drop", "hang"):
            if fault == "hang":
                self.owner.released.wait()
            return self._hang_up()
        if fault.isdigit():
            return self._answer(int(fault), {"error": {"code": "internal", "message": "as told"}})
        if fault == "redirect":
            return self._answer(307, {}, {"Location": "http://127.0.0.1:1/"})
        if fault.startswith("busy"):
            return self._answer(503, {}, {"Retry-After": fault[4:]})
        if self.owner.token and self.headers.get("Authorization") != f"Bearer {self.owner.token}":
            return self._answer(401, {"error": {"code": "unauthorized", "message": "no such token"}})
        return self._keep(body, fault)

    def _keep(self, body: bytes, fault: str) -> None:
        if fault == "garbage":
            return self._answer(200, {"welcome": "to the hotel's network"})
        batch = json.loads(body)["events"]
        if len(batch) > self.owner.events_max:
            return self._answer(413, {"error": {"code": "too_large", "message": "smaller batches, please"}})
        with self.owner.arrival:
            self.owner.batches.append(len(batch))
            self.owner.times_received += len(batch)
            status, told = self.owner.keep(batch)
            self.owner.arrival.notify_all()
        if fault == "lose-answer":
            return self._hang_up()
        return self._answer(status, told, half=fault == "half")

    def _answer(self, status: int, told: Any, headers: dict[str, str] | None = None, *, half: bool = False) -> None:
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if half:
            self.wfile.write(content[: len(content) // 2])
            return self._hang_up()
        self.wfile.write(content)
        return None

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def agent_server(**settings: Any) -> Iterator[AgentServer]:
    """A server that listens, and has stopped when the block ends."""
    server = AgentServer(**settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()
