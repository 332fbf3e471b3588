"""One request to an application, without a server or a client in between."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.served_book import TOKEN

Answer = tuple[int, dict[bytes, bytes], bytes]


async def ask(
    app: Any, path: str, body: bytes = b"", *, method: str = "POST", query: str = "", **headers: str
) -> Answer:
    """Status, headers and body of the answer; the body of the request comes in two pieces."""
    shown = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "host": "127.0.0.1:2"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in shown.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    pieces = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(each.get("body", b"") for each in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), content
