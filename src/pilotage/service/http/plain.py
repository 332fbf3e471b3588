"""Plain requests, answered without the framework: by the same routes, and with the same words.

To import the framework and to lay out the routes in it takes longer than most answers. So what is asked for in its plainest
form needs neither. Whatever is odd about a request, or wrong with it, is left to the application, which says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from pilotage.service.http.every_route import EVERY_ROUTE
from pilotage.service.http.messages import Headers, header_of, length_of, principal_of, read_body, send_whole
from pilotage.service.http.routes import EVENT_STREAM, JSON, TEXT, Ask, Parameter, Reply, Route
from pilotage.service.http.services import Services

if TYPE_CHECKING:
    from litestar.types import Receive, Send

QUERY_BYTES_MAX = 8192
_METHODS = ("GET", "POST")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_COUNT = re.compile(r"0|[1-9][0-9]{0,14}")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?")
_CONTENT_TYPES = {JSON: JSON, TEXT: f"{TEXT}; charset=utf-8"}
_encode = msgspec.json.Encoder().encode


class Plain(msgspec.Struct, frozen=True):
    """A request that needs no framework: its route, and what it says."""

    route: Route
    said: dict[str, Any]


def plain_request(scope: Any) -> Plain | None:
    """A request that can be answered here; None where it is for the application."""
    if scope["method"] not in _METHODS or EVENT_STREAM in header_of(scope, b"accept"):
        return None
    if scope.get("root_path") or _HOST.fullmatch(header_of(scope, b"host")) is None:
        return None
    parts = tuple(scope["path"].split("/"))
    for template, route in _routes().get((scope["method"], len(parts)), ()):
        in_path = _matched(template, parts)
        if in_path is not None:
            said = _said(route, scope, in_path)
            return Plain(route, said) if said is not None else None
    return None


async def answer(plain: Plain, services: Services, scope: Any, receive: Receive, send: Send) -> None:
    """Answer it; raises whatever is to be told as an error."""
    route, said = plain.route, dict(plain.said)
    if not route.is_open:
        said["request"] = _ask(route, services, scope, receive)
    told = await route.handler(services=services, **said)
    reply = told if isinstance(told, Reply) else Reply(body=told, status=route.status, media_type=route.media_type)
    headers: Headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    content = b""
    if reply.body is not None:
        headers.append((b"content-type", _CONTENT_TYPES[reply.media_type].encode()))
        content = reply.body.encode() if reply.media_type == TEXT else _encode(reply.body)
    await send_whole(send, reply.status, content, headers)


def is_too_large(plain: Plain, services: Services, scope: Any) -> bool:
    """Whether its body is larger than it may be, or nobody says how large it is."""
    if plain.route.method == "GET":
        return False
    length = length_of(scope)
    return length is None or length > _body_bytes_max(plain.route, services)


def _body_bytes_max(route: Route, services: Services) -> int:
    return route.body_bytes_max or services.settings.service.batch_bytes_max


def _ask(route: Route, services: Services, scope: Any, receive: Receive) -> Ask:
    principal = principal_of(services.access, scope)
    route.let_in(principal)
    body_bytes_max = _body_bytes_max(route, services)
    return Ask(
        user=principal,
        base_url=lambda: f"{scope['scheme']}://{header_of(scope, b'host')}/",
        header=lambda name: header_of(scope, name.lower().encode()),
        body=lambda: read_body(receive, body_bytes_max),
    )


@cache
def _routes() -> Mapping[tuple[str, int], list[tuple[tuple[str, ...], Route]]]:
    """The routes by their methods and how many parts their paths have; those with the fewest parameters first."""
    found: dict[tuple[str, int], list[tuple[tuple[str, ...], Route]]] = {}
    for route in sorted(EVERY_ROUTE, key=lambda each: each.path.count("{")):
        template = tuple(route.path.split("/"))
        found.setdefault((route.method, len(template)), []).append((template, route))
    return found


def _matched(template: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    """What a path says, if it is of a template."""
    said: dict[str, str] = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            if _PART.fullmatch(part) is None:
                return None
            said[wanted[1:-1].partition(":")[0]] = part
        elif wanted != part:
            return None
    return said


def _said(route: Route, scope: Any, in_path: Mapping[str, str]) -> dict[str, Any] | None:
    """What a request says to a route; None where that is not plain."""
    query = _query(scope.get("query_string", b""))
    if query is None:
        return None
    said: dict[str, Any] = dict(in_path)
    for name, (kind, parameter) in _parameters(route.operation_id).items():
        if parameter.place == "header":
            text = header_of(scope, parameter.name.lower().encode()) or None
        elif parameter.place == "query":
            text = query.pop(parameter.name or name, None)
        else:
            text = None
            if parameter.place == "body":
                return None
        if text is not None:
            value = _value(text, kind, parameter)
            if value is None:
                return None
            said[name] = value
    return None if query else said


@cache
def _parameters(operation_id: str) -> Mapping[str, tuple[Any, Parameter]]:
    """What a route reads besides its services: of each argument what it may be, without that it may be left out."""
    route = next(each for each in EVERY_ROUTE if each.operation_id == operation_id)
    found: dict[str, tuple[Any, Parameter]] = {}
    for name, hint in get_type_hints(route.handler, include_extras=True).items():
        if name not in ("request", "services", "return"):
            kind, parameter = get_args(hint)
            if get_origin(kind) is UnionType:
                (kind,) = (each for each in get_args(kind) if each is not type(None))
            found[name] = (kind, parameter)
    return found


def _query(text: bytes) -> dict[str, str] | None:
    """The parameters of a query; None where one has no value, or comes twice."""
    if not text:
        return {}
    if len(text) > QUERY_BYTES_MAX:
        return None
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:  # of its form, or of the characters in it
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) and all(found.values()) else None


def _value(text: str, kind: Any, parameter: Parameter) -> Any:
    """What a text means; None where it is no such value in its plainest form, or out of bounds."""
    if kind is str:
        return text if len(text) <= (parameter.max_length or math.inf) else None
    if get_origin(kind) is Literal:
        return text if text in get_args(kind) else None
    form, number = (_COUNT, int) if kind is int else (_NUMBER, float)
    if form.fullmatch(text) is None:
        return None
    value = number(text)
    return value if (parameter.ge or 0) <= value <= (math.inf if parameter.le is None else parameter.le) else None
