"""HTTP requests and answers on the wire: headers, bodies, senders and errors."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.ports import JournalError
from pilotage.reading.access import EXCHANGE, Access, Principal
from pilotage.service.http.admission import CONNECTION, ClientConnection
from pilotage.service.http.errors import ErrorView, TooLarge, error_of, headers_of

if TYPE_CHECKING:
    from litestar.types import Receive, Send

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
JSON_HEADER = (b"content-type", b"application/json")

_LENGTH = re.compile(r"0|[1-9][0-9]{0,14}")
_WITHOUT_LENGTH = (204, 304)
_encode = msgspec.json.Encoder().encode


class HungUp(ConnectionResetError):
    """The client closed the connection before its request was complete: nobody is left to answer."""


def header_of(scope: Any, name: bytes) -> str:
    """A header of a request; empty if it is missing."""
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found.decode("latin-1")


def principal_of(access: Access, scope: Any) -> Principal:
    """The sender of a request; raises `Unauthenticated`. From now on its connection counts as authenticated."""
    principal = access.principal(header_of(scope, b"authorization") or None)
    client: ClientConnection | None = scope.get(CONNECTION)
    if client is not None:
        client.mark_authenticated(agent=EXCHANGE in principal.scopes and scope["path"].startswith("/agent/"))
    return principal


def length_of(scope: Any) -> int | None:
    """The length of a body according to its header; None if the header is missing or odd."""
    length = header_of(scope, b"content-length")
    return int(length) if _LENGTH.fullmatch(length) is not None else None


async def piece_of(receive: Receive) -> tuple[bytes, bool]:
    """The next piece of a body, and whether more follow."""
    message: Any = await receive()
    if message["type"] == "http.disconnect":
        raise HungUp("the client hung up")
    return message.get("body", b""), message.get("more_body", False)


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """The body of a request; raises `TooLarge`."""
    body, more = await piece_of(receive)
    if not more:
        return body
    whole = bytearray(body)
    while more:
        piece, more = await piece_of(receive)
        whole += piece
        if len(whole) > bytes_max:
            raise TooLarge("this is too large", expected=f"at most {bytes_max:,} bytes")
    return bytes(whole)


async def send_whole(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole answer."""
    if status not in _WITHOUT_LENGTH:  # it would be the length of another answer (RFC 9110, 8.6)
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def error_answer(scope: Any, fault: Exception) -> tuple[int, ErrorView, dict[str, str]]:
    """Status, body and headers of the answer to a failed request; our own faults are logged."""
    status, body = error_of(fault)
    if status == 500 and not isinstance(fault, HungUp):
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=fault)
    elif isinstance(fault, JournalError):
        log.error("%s %s: %s", scope["method"], scope["path"], fault)
    return status, ErrorView(error=body), headers_of(status, fault)


async def refuse(scope: Any, send: Send, fault: Exception) -> None:
    """Answer a request with an error."""
    if isinstance(fault, HungUp):
        return
    status, body, more = error_answer(scope, fault)
    headers: Headers = [JSON_HEADER, *((name.lower().encode(), value.encode()) for name, value in more.items())]
    await send_whole(send, status, _encode(body), headers)
