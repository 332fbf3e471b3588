"""A route as the framework wants it: a handler whose signature names the framework's own kinds of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from litestar import Request, Response
from litestar.exceptions import ClientException, InternalServerException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Operation
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from litestar.types import Scope

from pilotage.service.http.error_responses import faults
from pilotage.service.http.messages import HungUp
from pilotage.service.http.openapi import BODIES
from pilotage.service.http.routes import JSON, Ask, Handler, Parameter, Reply, Route
from pilotage.service.http.services import Services

AnyRequest = Request[Any, Any, Any]
LetIn = Callable[[Route, Any, BaseRouteHandler], None]

_json_body: Any = JSONBody
_SERVICES = "pilotage.services"
_KINDS: dict[str, Any] = {"path": PathParameter, "query": QueryParameter, "header": HeaderParameter}


def with_services(scope: Scope, services: Services) -> Any:
    """A request that brings along the services that it is for."""
    return {**scope, _SERVICES: services}


def services_of(scope: Any) -> Services:
    """The services that a request is for."""
    services: Services = scope[_SERVICES]
    return services


def laid_out(route: Route, *, let_in: LetIn) -> HTTPRouteHandler:
    """A route in the framework; `let_in` says who may come in, where not everybody may."""
    answers = {
        status: ResponseSpec(data_container=kind, description=words, generate_examples=False)
        for status, (kind, words) in route.answers.items()
    }
    sized: dict[str, Any] = {"request_max_body_size": route.body_bytes_max} if route.body_bytes_max else {}
    make = HTTPRouteHandler(
        route.path,
        http_method=route.method,
        status_code=route.status,
        media_type=route.media_type if route.media_type != JSON else None,  # what is said here, no answer can change
        guards=[] if route.is_open else [_guard(route, let_in)],
        security=[{}] if route.is_open else None,
        operation_id=route.operation_id,
        operation_class=BODIES.get(route.body, Operation),
        summary=route.summary,
        tags=route.tags,
        responses=answers | faults(*route.faults),
        **sized,
    )
    return make(_translated(route.handler))


def _guard(route: Route, let_in: LetIn) -> Any:
    # A plain function would be run in a thread of its own, which costs more than what it does.
    async def guard(connection: Any, handler: BaseRouteHandler) -> None:
        let_in(route, connection, handler)

    return guard


def _translated(handler: Handler) -> Any:
    """What the framework calls: it asks the handler, with the services that the request brings along."""
    known = get_type_hints(handler, include_extras=True)
    asked = inspect.signature(handler).parameters
    is_asked = "request" in asked

    async def answer(request: AnyRequest, **said: Any) -> Any:
        if is_asked:
            said["request"] = _asked(request)
        told = await handler(services=services_of(request.scope), **said)
        return _reply(told) if isinstance(told, Reply) else told

    hints = {name: _kind(known[name]) for name in asked if name not in ("request", "services")}
    said = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=asked[name].default, annotation=hint)
        for name, hint in hints.items()
    ]
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=AnyRequest)
    told = known["return"]
    returned = Response[get_args(told)[0]] if get_origin(told) is Reply else told  # type: ignore[misc]
    answer.__name__, answer.__qualname__, answer.__doc__ = handler.__name__, handler.__qualname__, handler.__doc__
    answer.__annotations__ = {"request": AnyRequest, **hints, "return": returned}
    answer.__signature__ = inspect.Signature([request, *said], return_annotation=returned)  # type: ignore[attr-defined]
    return answer


def _kind(hint: Any) -> Any:
    """An annotation of ours as one of the framework's."""
    kind, parameter = get_args(hint)
    assert isinstance(parameter, Parameter)
    if parameter.place == "body":
        return _json_body[kind]
    told = {
        name: value
        for name in ("description", "name", "ge", "le", "max_length")
        if (value := getattr(parameter, name)) not in (None, "")
    }
    return Annotated[kind, _KINDS[parameter.place](**told)]


def _base_url(request: AnyRequest) -> str:
    try:
        return str(request.base_url)
    except ValueError as error:
        raise ClientException(f"the header Host names no host: {error}") from error


def _asked(request: AnyRequest) -> Ask:
    return Ask(
        user=request.user,
        base_url=lambda: _base_url(request),
        header=lambda name: request.headers.get(name, ""),
        body=lambda: _body(request),
    )


async def _body(request: AnyRequest) -> bytes:
    try:
        return await request.body()
    except InternalServerException as fault:  # what the framework makes of it
        raise HungUp("whoever asked hung up") from fault


def _reply(reply: Reply[Any]) -> Any:
    headers = dict(reply.headers)
    if reply.stream is not None:
        return Stream(reply.stream, media_type=reply.media_type, headers=headers)
    media_type = reply.media_type if reply.body is not None else None
    return Response(reply.body, status_code=reply.status, headers=headers, media_type=media_type)
