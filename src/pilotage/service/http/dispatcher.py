"""The single path of every request.

In this order: find the route in the table, authenticate the sender, check the scopes of the route, decode the
parameters, call the handler, and send its answer or error. Nothing else authenticates. The time for head, body and
answer, and the number of connections, are limited before (`connections.py`); the size of a body depends on its route.

Two kinds of routes are answered elsewhere, as the table says. `agent_exchange.py` answers agents, in whatever form they
ask: every attempt passes through it, and no agent must wait for the framework. The framework answers what is not plain:
streams, typed bodies, faulty parameters, unknown paths, and the OpenAPI document. Importing it and registering the
routes takes longer than the rest of a start. So a thread makes it when a request first needs it, or some time after the
start; plain requests, such as those of the commands, do without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.service.http.messages import Headers, header_of, length_of, principal_of, refuse, send_whole
from pilotage.service.http.route_table import ROUTES, RouteTable
from pilotage.service.http.routes.agents import PREFIX
from pilotage.service.http.routes.operations import submit_job
from pilotage.service.http.routing import EVENT_STREAM, JSON, OCTETS, TEXT, ApiRequest, Handler, Parameter, Reply, Route
from pilotage.service.http.services import Services, run_lifespan

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

    from pilotage.service.http.agent_exchange import AgentExchange

log = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""How long after the start the framework is made if no request needed it before: most services never need it."""
FIRST_SECONDS = 0.15
"""How long it waits after a submission, so that the first package of the job goes first."""
QUERY_BYTES_MAX = 8192

_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_HOST_CHARACTERS = re.compile(r"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")  # RFC 3986, 3.2.2
_COUNT = re.compile(r"0|[1-9][0-9]{0,14}")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?")
_CONTENT_TYPES = {
    JSON: (b"content-type", b"application/json"),
    TEXT: (b"content-type", b"text/plain; charset=utf-8"),
    OCTETS: (b"content-type", b"application/octet-stream"),
}
_encode = msgspec.json.Encoder().encode


class Dispatcher:
    """Answers every request, and starts and stops the services."""

    def __init__(
        self,
        services: Services,
        *,
        agents: AgentExchange | None = None,
        make_framework: Callable[[], ASGIApp] | None = None,
        late_seconds: float = LATE_SECONDS,
    ) -> None:
        """Take what answers agents, if anything, and what makes the framework; raises `ModuleNotFoundError`.

        The framework is made when first needed, or `late_seconds` after the start.
        """
        if make_framework is None and importlib.util.find_spec("litestar") is None:
            raise ModuleNotFoundError("No module named 'litestar'", name="litestar")
        self._services = services
        self._agents = agents
        self._table = RouteTable(each for each in ROUTES if agents is not None or each.answered_by != "agents")
        self._make = make_framework or partial(_make_framework, services)
        self._late_seconds = late_seconds
        self._framework: ASGIApp | None = None
        self._making: asyncio.Future[ASGIApp] | None = None
        self._not_before = 0.0  # by the clock of the event loop

    def stop(self) -> None:
        """Answer all requests that wait for events of a job, or for work."""
        self._services.commits.stop()
        if self._agents is not None:
            self._agents.stop()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the services."""
        backend = self._services.backend
        if scope["type"] != "http":
            await run_lifespan(self._services, receive, send, meanwhile=self._soon())
        elif backend is None or scope["path"].startswith(PREFIX):
            await self._dispatch(scope, receive, send)
        else:
            with backend.activity:
                await self._dispatch(scope, receive, send)

    async def _dispatch(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(scope, receive)
            if reply is not None:
                await _send(scope, send, reply)
                return
        except Exception as fault:  # noqa: BLE001 # answered, and logged
            await refuse(scope, send, fault)
            return
        await (self._framework or await self._made())(scope, receive, send)

    async def _reply(self, scope: Any, receive: Receive) -> Reply[Any] | None:
        """The answer to a request; None if the framework answers it. Raises errors to be sent as answers."""
        found = self._table.find(scope["method"], scope["path"])
        if found is not None and found[0].stands_for:
            path = found[0].stands_for
            scope.update(path=path, raw_path=path.encode())
            found = self._table.find(scope["method"], path)
        if found is not None and found[0].answered_by == "agents":
            route, in_path = found
            request = self._admit(route, scope, receive)
            reply: Reply[Any] = await route.handler(self._agents, request, **in_path)
            return reply
        if found is None or _is_odd(scope):
            self._admit_odd(scope, receive)
            return None
        route, in_path = found
        context = {} if route.is_open else {"request": self._admit(route, scope, receive)}
        arguments = self._plain_arguments(route, scope, in_path)
        if arguments is None:
            return None
        answer = await route.handler(services=self._services, **context, **arguments)
        if route is submit_job:
            self._not_before = asyncio.get_running_loop().time() + FIRST_SECONDS
        if isinstance(answer, Reply):
            return answer
        return Reply(body=answer, status=route.status, media_type=route.media_type)

    def _admit(self, route: Route, scope: Any, receive: Receive) -> ApiRequest:
        """Authenticate and authorize a request; raises `Unauthenticated`, `Forbidden` and `TooManyConnections`."""
        principal = scope["user"] = principal_of(self._services.access, scope)
        route.authorize(principal)
        return ApiRequest(scope, receive, user=principal, body_bytes_max=self._body_bytes_max(route))

    def _admit_odd(self, scope: Any, receive: Receive) -> None:
        """Admit a request in an unusual form, by the route that the framework finds for it.

        The framework itself refuses requests without a host or a route, whoever sends them.
        """
        if _HOST_CHARACTERS.fullmatch(header_of(scope, b"host")) is None:
            return
        found = self._table.find(scope["method"], _path_in_framework(scope))
        if found is not None and found[0].answered_by != "agents" and not found[0].is_open:
            self._admit(found[0], scope, receive)

    def _body_bytes_max(self, route: Route) -> int:
        return route.body_bytes_max or self._services.settings.service.batch_bytes_max

    def _plain_arguments(self, route: Route, scope: Any, in_path: Mapping[str, str]) -> dict[str, Any] | None:
        """The decoded parameters of a request; None if the framework has to decode or refuse them."""
        if route.answered_by == "framework" or EVENT_STREAM in header_of(scope, b"accept"):
            return None
        if route.method not in ("GET", "HEAD"):
            length = length_of(scope)
            if length is None or length > self._body_bytes_max(route):
                return None
        return _arguments(route, scope, in_path)

    # The framework, made late.

    async def _made(self) -> ASGIApp:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
        return await asyncio.shield(self._making)

    async def _make_it(self) -> ASGIApp:
        loop = asyncio.get_running_loop()
        # Wait once only: it is made even if jobs are submitted all the time.
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            self._framework = await loop.run_in_executor(None, self._make)
        except BaseException:
            self._making = None  # the next request tries again
            raise
        return self._framework

    @contextmanager
    def _soon(self) -> Iterator[None]:
        """Have the framework made some time from now, unless the service stops before."""
        soon = asyncio.get_running_loop().call_later(self._late_seconds, self._begin)
        try:
            yield
        finally:
            soon.cancel()

    def _begin(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_it())
            self._making.add_done_callback(_complain)


def make_dispatcher(services: Services) -> Dispatcher:
    """The dispatcher of a service.

    A service of the book alone answers no agents, and does not import that part, nor the language and the engine.
    """
    if services.backend is None:
        return Dispatcher(services)
    from pilotage.service.http.agent_exchange import AgentExchange

    return Dispatcher(services, agents=AgentExchange(services, services.backend))


def _make_framework(services: Services) -> ASGIApp:
    from pilotage.service.http.framework import make_app

    return make_app(services)


def _complain(made: asyncio.Future[Any]) -> None:
    if not made.cancelled() and (fault := made.exception()) is not None:
        log.error("the framework could not be made", exc_info=fault)


async def _send(scope: Any, send: Send, reply: Reply[Any]) -> None:
    """Send an answer, whole or in pieces."""
    headers: Headers = []
    if reply.headers:
        headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    if reply.stream is None:
        content, body = b"", reply.body
        if body is not None:
            headers.append(_CONTENT_TYPES[reply.media_type])
            content = body if isinstance(body, bytes) else body.encode() if reply.media_type == TEXT else _encode(body)
        await send_whole(send, reply.status, content, headers)
        return
    headers.append(_CONTENT_TYPES[reply.media_type])
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    try:
        async for piece in reply.stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except (PilotageError, OSError) as fault:
        # The status was sent long ago: the client notices the missing end, and asks again.
        log.warning("the answer to %s %s broke off: %s", scope["method"], scope["path"], fault)
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Decoding of plain requests.


def _is_odd(scope: Any) -> bool:
    """Whether the head of a request is not in its plainest form."""
    return bool(scope.get("root_path")) or _HOST.fullmatch(header_of(scope, b"host")) is None


def _path_in_framework(scope: Any) -> str:
    """The path of a request as the framework reads it: without its root, and without empty parts."""
    root = scope.get("root_path")
    path: str = scope["path"].split(root, maxsplit=1)[-1] if root else scope["path"]
    return "/" + "/".join(part for part in path.split("/") if part)


def _arguments(route: Route, scope: Any, in_path: Mapping[str, str]) -> dict[str, Any] | None:
    """The arguments of a handler, from a request; None if the request is not plain."""
    query = _query(scope.get("query_string", b""))
    if query is None:
        return None
    arguments: dict[str, Any] = dict(in_path)
    for name, (kind, parameter) in _parameters(route.handler).items():
        if parameter.place == "header":
            text = header_of(scope, parameter.name.lower().encode()) or None
        else:
            text = query.pop(parameter.name or name, None)
        if text is not None:
            value = _value(text, kind, parameter)
            if value is None:
                return None
            arguments[name] = value
    return None if query else arguments


@cache
def _parameters(handler: Handler) -> Mapping[str, tuple[Any, Parameter]]:
    """The query and header parameters of a handler, each with its type without None."""
    found: dict[str, tuple[Any, Parameter]] = {}
    for name, hint in get_type_hints(handler, include_extras=True).items():
        if name in ("request", "services", "return"):
            continue
        kind, parameter = get_args(hint)
        if get_origin(kind) is UnionType:
            (kind,) = (each for each in get_args(kind) if each is not type(None))
        if parameter.place in ("query", "header"):
            found[name] = (kind, parameter)
    return found


def _query(text: bytes) -> dict[str, str] | None:
    """The parameters of a query string; None if one has no value, or comes twice."""
    if not text:
        return {}
    if len(text) > QUERY_BYTES_MAX:
        return None
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:  # of its form, or of its encoding
        return None
    found = dict(pairs)
    return found if len(found) == len(pairs) and all(found.values()) else None


def _value(text: str, kind: Any, parameter: Parameter) -> Any:
    """The value of a text; None if it is not plainly of that type, or out of bounds."""
    if kind is str:
        return text if len(text) <= (parameter.max_length or math.inf) else None
    if get_origin(kind) is Literal:
        return text if text in get_args(kind) else None
    form, number = (_COUNT, int) if kind is int else (_NUMBER, float)
    if form.fullmatch(text) is None:
        return None
    value = number(text)
    return value if (parameter.ge or 0) <= value <= (math.inf if parameter.le is None else parameter.le) else None
