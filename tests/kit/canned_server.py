"""A small HTTP server on loopback that answers what a test put into its mouth, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from pilotage.reading.views import AttemptView, CountsView, EventView, JobView, PackageView


class Asked(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    parameters: dict[str, str]
    authorization: str
    body: Any


class Answer(NamedTuple):
    """What to answer: a value as JSON, or bytes as they are; `hang_up` ends the connection afterwards."""

    body: Any
    status: int = 200
    hang_up: bool = False


Responder = Callable[[Asked], Answer]


class CannedServer:
    """Answers each path by its responder; a path without one is unknown."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.responders: dict[str, Responder] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def answer(self, path: str, body: Any, *, status: int = 200, hang_up: bool = False) -> None:
        """Answer a path always in the same way."""
        self.responders[path] = lambda _: Answer(body, status, hang_up)

    def refuse(self, path: str, status: int, code: str, message: str, hint: str = "") -> None:
        """Refuse a path as a real server does."""
        self.answer(path, {"error": {"code": code, "message": message, "hint": hint}}, status=status)

    def pages(self, path: str, name: str, items: list[Any], *, size: int) -> None:
        """Answer a path with items in pages, whose cursors are numbers."""

        def respond(asked: Asked) -> Answer:
            start = int(asked.parameters.get("cursor", "0"))
            end = start + min(size, int(asked.parameters.get("limit", "100")))
            following = str(end) if end < len(items) else None
            return Answer({name: items[start:end], "next": following})

        self.responders[path] = respond


@contextlib.contextmanager
def canned_server() -> Iterator[CannedServer]:
    """A server that listens, and has stopped when the block ends."""
    server = CannedServer()
    server._thread.start()
    try:
        yield server
    finally:
        server._http.shutdown()
        server._thread.join()
        server._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: CannedServer
    protocol_version = "HTTP/1.1"
    timeout = 10

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(
            self.command,
            parts.path,
            {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
            self.headers.get("Authorization", ""),
            json.loads(content) if content else None,
        )
        self.owner.asked.append(asked)
        responder = self.owner.responders.get(asked.path)
        unknown = Answer({"error": {"code": "not_found", "message": "there is nothing here"}}, 404)
        answer = unknown if responder is None else responder(asked)
        body = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
        self.send_response(answer.status)
        if answer.hang_up:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = answer.hang_up

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _handle  # noqa: N815 # the names of http.server

    def log_message(self, *arguments: Any) -> None:
        pass


# --- what a real server answers ---------------------------------------------------------------------------------------


def _said(kind: type[msgspec.Struct], **said: Any) -> dict[str, Any]:
    """A view with what a test says of it, and the nothing of each type for the rest."""
    empty: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}
    values = {}
    for field in msgspec.structs.fields(kind):
        if field.name in said:
            values[field.name] = said[field.name]
        elif field.type in empty:
            values[field.name] = empty[field.type]
        elif str(field.type).endswith("| None"):
            values[field.name] = None
        else:
            values[field.name] = {} if str(field.type).startswith("dict") else []
    unknown = said.keys() - values.keys()
    assert not unknown, f"{kind.__name__} has no {unknown}"
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.convert(values, kind))
    return plain


def job_view(**said: Any) -> dict[str, Any]:
    """A job as it is answered."""
    counts = dict.fromkeys(CountsView.__struct_fields__, 0) | said.pop("counts", {})
    return _said(JobView, **({"state": "WAITING", "epoch": 1, "place": "live", "counts": counts} | said))


def package_view(**said: Any) -> dict[str, Any]:
    """A package as it is answered."""
    return _said(PackageView, **({"state": "WAITING", "epoch": 1, "heard": True} | said))


def event_view(**said: Any) -> dict[str, Any]:
    """An event as it is answered."""
    return _said(EventView, **({"source": "client", "type": "Noted", "n": 1, "version": 1, "epoch": 1} | said))


def attempt_view(**said: Any) -> dict[str, Any]:
    """An attempt as it is answered."""
    return _said(AttemptView, **({"epoch": 1} | said))
