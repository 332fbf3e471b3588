"""Plain requests, answered without the framework: by the same routes, and with the same words.

To import the framework and to lay out the routes in it takes longer than most answers. So what is asked for in its plainest
form needs neither. Whatever is odd about a request, or wrong with it, is left to the application, which says so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from pilotage.model.events.events import JOB_ID
from pilotage.reading.access import SUBMIT, require_scope
from pilotage.service.http.backend import CONTENT_BYTES_MAX, ONCE_KEY_LENGTH_MAX, SUBMISSION_BYTES_MAX
from pilotage.service.http.messages import (
    JSON_HEADER,
    Headers,
    header_of,
    length_of,
    principal_of,
    read_body,
    refuse,
    send_whole,
)
from pilotage.service.http.route_table import EVERY_ROUTE
from pilotage.service.http.routing import EVENT_STREAM, JSON, TEXT, Ask, Parameter, Reply, Route
from pilotage.service.http.services import Services, live
from pilotage.service.http.submissions import keep_content, submit

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

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


# The application, made late: new jobs, who waits for them, and whoever asks plainly are answered without it.
#
# To import the framework and to lay out the routes takes longer than everything else at a start. Neither a first
# package nor a whole run that is short need wait for it: it is made in a thread of its own, when somebody asks for
# something that only it can answer, or some time after the start.

log = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""How long after the start the application is made, if nobody has needed it by then: most services never do."""
FIRST_SECONDS = 0.15
"""How long it waits behind a job that has just come in: the first package of that goes before."""

_PROGRESS = re.compile(rf"/v1/jobs/({JOB_ID.pattern})/progress")
_EARLY_BYTES_MAX = {"/v1/jobs": SUBMISSION_BYTES_MAX, "/v1/content": CONTENT_BYTES_MAX}


class LateApp:
    """Answers what is asked for plainly, and has the application made for everything else, when it is needed."""

    def __init__(self, make: Callable[[], ASGIApp], services: Services, *, late_seconds: float = LATE_SECONDS) -> None:
        """Take what makes it; nothing is made before the start."""
        self._make = make
        self._services = services
        self._late_seconds = late_seconds
        self._app: ASGIApp | None = None
        self._making: asyncio.Future[ASGIApp] | None = None
        self._not_before = 0.0  # by the clock of the loop

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the services."""
        if scope["type"] == "lifespan":
            await live(self._services, receive, send, meanwhile=self._soon())
            return
        try:
            if _is_early(scope):
                await self._answer_early(scope, receive, send)
                return
            if await self._answer_plainly(scope, receive, send):
                return
        except Exception as fault:  # noqa: BLE001 # whatever it is, who asked is told, and the log
            await refuse(scope, send, fault)
            return
        await (self._app or await self._made())(scope, receive, send)

    async def _answer_plainly(self, scope: Any, receive: Receive, send: Send) -> bool:
        """Answer a request that needs no framework; whether it was one."""
        plain = plain_request(scope)
        if plain is None or is_too_large(plain, self._services, scope):
            return False
        await answer(plain, self._services, scope, receive, send)
        return True

    async def _made(self) -> ASGIApp:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
        return await asyncio.shield(self._making)

    async def _make_it(self) -> ASGIApp:
        loop = asyncio.get_running_loop()
        # Once: where jobs come in all the time, it is made all the same.
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            self._app = await loop.run_in_executor(None, self._make)
        except BaseException:
            self._making = None  # the next who asks has it tried again
            raise
        return self._app

    async def _answer_early(self, scope: Any, receive: Receive, send: Send) -> None:
        """A job, bytes that it brings along, or the question how far it is, as the application would."""
        services = self._services
        principal = principal_of(services.access, scope)
        told: Any
        if found := _PROGRESS.fullmatch(scope["path"]):
            from pilotage.service.http.progress import how_far

            await send_whole(send, 200, _encode(await how_far(services, principal, found[1])), [JSON_HEADER])
            return
        require_scope(principal, SUBMIT)  # before anything of the body is read
        if scope["path"] == "/v1/jobs":
            key = header_of(scope, b"idempotency-key") or None
            body = await read_body(receive, SUBMISSION_BYTES_MAX)
            told = await submit(services, principal, body, key=key)
            self._not_before = asyncio.get_running_loop().time() + FIRST_SECONDS
        else:
            told = await keep_content(services, await read_body(receive, CONTENT_BYTES_MAX))
        await send_whole(send, 201, _encode(told), [JSON_HEADER])

    @contextmanager
    def _soon(self) -> Iterator[None]:
        """Have it made some time from now, unless everything ends before."""
        soon = asyncio.get_running_loop().call_later(self._late_seconds, self._begin)
        try:
            yield
        finally:
            soon.cancel()

    def _begin(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
            self._making.add_done_callback(_complain)


def _complain(made: asyncio.Future[Any]) -> None:
    if not made.cancelled() and (fault := made.exception()) is not None:
        log.error("the application cannot be made", exc_info=fault)


def _is_early(scope: Any) -> bool:
    """Whether a request can be answered before the application is there: in its plainest form only."""
    if scope.get("query_string"):
        return False
    if scope["method"] == "GET":
        return _PROGRESS.fullmatch(scope["path"]) is not None
    bytes_max = _EARLY_BYTES_MAX.get(scope["path"]) if scope["method"] == "POST" else None
    if bytes_max is None or (length_of(scope) or 0) > bytes_max:
        return False
    return len(header_of(scope, b"idempotency-key")) <= ONCE_KEY_LENGTH_MAX


def late_app(services: Services) -> LateApp:
    """The application over some services, made late; what it needs must be there at once."""
    if importlib.util.find_spec("litestar") is None:
        raise ModuleNotFoundError("No module named 'litestar'", name="litestar")

    def make() -> ASGIApp:
        from pilotage.service.http.framework import make_app

        return make_app(services)

    return LateApp(make, services)
