"""The framework, for what the dispatcher leaves to it: streams, bodies of a declared type, faulty requests, and the OpenAPI document.

It lays out the routes of the same table. The dispatcher has it made when it is first needed, since to import it takes longer
than most answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from litestar import HttpMethod, Litestar, MediaType, Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import (
    ClientException,
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPI,
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
    SecurityScheme,
)
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from litestar.types import Receive, Scope, Send

from pilotage.model.errors import did_you_mean
from pilotage.model.events.events import COUNTER_MAX, DOTTED, EVENT_TYPES, JOB_ID, NAME, STREAM, TIME_MAX, Source
from pilotage.model.version import VERSION
from pilotage.service.http.errors import BadParameter, ErrorBody, ErrorView
from pilotage.service.http.messages import HungUp, error_answer
from pilotage.service.http.route_table import API_ROUTES
from pilotage.service.http.routes.operations import KINDS
from pilotage.service.http.routing import JSON, Ask, Handler, Parameter, Reply, Route
from pilotage.service.http.services import Services

# Errors as the application answers them, and as its documentation tells of them.

AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[Any]

_MEANINGS: Mapping[int, str] = {
    400: "The request cannot be read: a bad parameter, query, cursor or body.",
    401: "No token, or one that is not known.",
    403: "The token has not the scope, or its user may read the job and not do this to it.",
    404: "There is no such job, package, subscription, file or log, or none that one may know of.",
    409: "It does not go with what there is; the code says what stands in its way.",
    410: "The job was purged.",
    413: "The batch is too large; nothing of it was kept.",
    425: "The clock of the sender may be wrong; nothing was kept. Send the same again, with the time of the answer.",
    422: "No index serves the query; or the document has faults.",
    503: "Busy, stopping, or the book cannot be reached; try again after the time that Retry-After names.",
    507: "No room left to write; nothing was kept.",
}


def faults(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors that a route may answer, for its documentation."""
    return {
        status: ResponseSpec(
            data_container=ErrorView, description=_MEANINGS[status], generate_examples=False, media_type=MediaType.JSON
        )
        for status in statuses
    }


def on_error(request: AnyRequest, error: Exception) -> AnyResponse:
    """An error of ours, or one that nobody foresaw."""
    status, view, headers = error_answer(request.scope, error)
    return _answer(status, view.error, headers)


def on_http_error(request: AnyRequest, error: HTTPException) -> AnyResponse:
    """An error of the framework: no such path, not this method, a parameter that cannot be read."""
    headers = dict(error.headers or {})
    match error:
        case ValidationException():
            body = ErrorBody(code="bad_parameter", message=_faulty(error))
        case MethodNotAllowedException():
            body = ErrorBody(code="method_not_allowed", message=f"{request.method} is not possible here")
        case NotFoundException():
            body = ErrorBody(code="not_found", message="there is nothing here", hint="what there is: GET /schema")
        case _ if error.status_code == 413:
            body = ErrorBody(
                code="too_large", message="the body is too large: nothing was kept", hint="send smaller batches"
            )
        case _ if error.status_code < 500:
            body = ErrorBody(code="bad_request", message=error.detail)
        case _:
            return on_error(request, error)
    return _answer(error.status_code, body, headers)


def _answer(status: int, body: ErrorBody, headers: Mapping[str, str]) -> AnyResponse:
    return Response(ErrorView(error=body), status_code=status, headers=dict(headers), media_type=MediaType.JSON)


def _faulty(error: ValidationException) -> str:
    parts = error.extra if isinstance(error.extra, list) else []
    told = "; ".join(f"{part.get('key', 'parameter')}: {part.get('message', '')}" for part in parts)
    return told or error.detail


# What the OpenAPI document says beyond what the handlers' signatures tell: the batch of events, the token.

_BEARER = "token"


def _text(pattern: str, description: str) -> Schema:
    return Schema(type=OpenAPIType.STRING, pattern=f"^({pattern})$", description=description)


def _number(least: int, most: int, description: str) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=least, maximum=most, description=description)


EVENT_SCHEMA = Schema(
    title="Event",
    description=(
        "One thing that happened. `(source, stream, n)` is its identity: the same one with the same content may be sent"
        " any number of times. The subject is a job, a package (with its job), an attempt (with both), a pilot, a site,"
        " or, without any of them, the service."
    ),
    type=OpenAPIType.OBJECT,
    required=["source", "stream", "n", "type", "time"],
    additional_properties=False,
    properties={
        "source": Schema(type=OpenAPIType.STRING, enum=list(get_args(Source)), description="Who says so."),
        "stream": _text(STREAM.pattern, "Which process or spool of the source counts."),
        "n": _number(1, COUNTER_MAX, "Counts on by one within the source and stream."),
        "type": Schema(type=OpenAPIType.STRING, enum=sorted(EVENT_TYPES), description="What happened."),
        "version": Schema(type=OpenAPIType.INTEGER, minimum=1, default=1, description="The version of `data`."),
        "time": Schema(
            type=OpenAPIType.NUMBER,
            minimum=0,
            exclusive_maximum=TIME_MAX,
            description="Seconds since 1970, UTC, by the source's own clock.",
        ),
        "epoch": _number(
            1, COUNTER_MAX, "The epoch of the subject, as far as the source knows; 1 where it is left out."
        ),
        "seen": _number(0, COUNTER_MAX, "The last position of the book that the source saw; 0 where it is left out."),
        "job": _text(JOB_ID.pattern, "The id of the job."),
        "package": _text(DOTTED.pattern, "The package within the job: stage.line.n."),
        "attempt": _number(1, 999_999_999, "The number of the attempt at the package."),
        "pilot": _text(NAME.pattern, "The name of a pilot."),
        "site": _text(NAME.pattern, "The name of a site."),
        "data": Schema(type=OpenAPIType.OBJECT, description="What the type of event says beyond its subject and time."),
    },
)

BATCH_SCHEMA = Schema(
    title="Batch",
    type=OpenAPIType.OBJECT,
    required=["events"],
    additional_properties=False,
    properties={"events": Schema(type=OpenAPIType.ARRAY, items=EVENT_SCHEMA)},
)


def _batch() -> RequestBody:
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=BATCH_SCHEMA)},
        required=True,
        description="A batch of events, each judged by itself.",
    )


def _submission() -> RequestBody:
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT))},
        required=True,
        description="A checked definition with its resolved lists, the folder, and what it captured.",
    )


def _clean() -> RequestBody:
    texts = Schema(type=OpenAPIType.STRING)
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=["submission"],
        properties={
            "submission": Schema(type=OpenAPIType.OBJECT),
            "read": Schema(type=OpenAPIType.ARRAY, items=texts),
            "remove": Schema(type=OpenAPIType.OBJECT, additional_properties=texts),
        },
    )
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=schema)},
        required=True,
        description="A submission of the document as it is now, files that it was read from, and what to remove: name and sha256.",
    )


def _content() -> RequestBody:
    schema = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
    return RequestBody(content={"application/octet-stream": OpenAPIMediaType(schema=schema)}, required=True)


def _operation(required: Sequence[str], **more: Schema) -> RequestBody:
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=list(required),
        properties={"operation": Schema(type=OpenAPIType.STRING, enum=list(KINDS)), **more},
    )
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _one_operation() -> RequestBody:
    text, number = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.INTEGER, minimum=1)
    flag = Schema(type=OpenAPIType.BOOLEAN)
    return _operation(
        ["operation"], package=text, message=text, stage=number, line=number, force=flag, remove_files=flag
    )


def _operation_on_many() -> RequestBody:
    text, target = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.STRING, enum=["packages", "jobs"])
    return _operation(["operation", "where"], where=text, target=target, job=text, message=text)


def _with_body(make: Callable[[], RequestBody]) -> type[Operation]:
    """An operation whose body the handler reads by itself: no signature says what it is."""

    @dataclass
    class OperationWithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = make()

    return OperationWithBody


BODIES = {
    "batch": _with_body(_batch),
    "submission": _with_body(_submission),
    "clean": _with_body(_clean),
    "content": _with_body(_content),
    "operation": _with_body(_one_operation),
    "operation on many": _with_body(_operation_on_many),
}
"""The bodies that routes name."""


class _JsonDocument(JsonRenderPlugin):
    """The document as JSON, in which a parameter that may be left out is not said to be null: no query could say so."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Write the document out."""
        for operations in openapi_schema["paths"].values():
            for operation in operations.values():
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
        return super().render(request, openapi_schema)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in schema.get("oneOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "oneOf"}, **kinds[0]}


def openapi_config() -> OpenAPIConfig:
    """The document at `/schema`, as JSON; no page that would fetch programs from elsewhere."""
    return OpenAPIConfig(
        title="pilotage",
        version=VERSION,
        summary="The book: every event kept, one state whatever the order.",
        path="/schema",
        render_plugins=[_JsonDocument(path=["/", "/openapi.json"], media_type=MediaType.JSON)],
        components=Components(
            security_schemes={
                _BEARER: SecurityScheme(type="http", scheme="bearer", description="The token of a principal.")
            }
        ),
        security=[{_BEARER: []}],
    )


# A route as the framework wants it: a handler whose signature names the framework's own kinds of parameters.
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
    """A route in the framework; `let_in` refuses who was not let in, where not everybody may come."""
    answers = {
        status: ResponseSpec(data_container=kind, description=words, generate_examples=False)
        for status, (kind, words) in route.answers.items()
    }
    sized: dict[str, Any] = {"request_max_body_size": route.body_bytes_max} if route.body_bytes_max else {}
    make = HTTPRouteHandler(
        route.path,
        http_method=HttpMethod(route.method),
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
            said["request"] = _FrameworkAsk(request)
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


class _FrameworkAsk(Ask):
    """A request as the framework reads it: with its words where a header or the body is not as it should be."""

    __slots__ = ("_request",)

    def __init__(self, request: AnyRequest) -> None:
        super().__init__(request.scope, request.receive, user=request.user, body_bytes_max=0)
        self._request = request

    def base_url(self) -> str:
        try:
            return str(self._request.base_url)
        except ValueError as error:
            raise ClientException(f"the header Host names no host: {error}") from error

    async def body(self) -> bytes:
        try:
            return await self._request.body()
        except InternalServerException as fault:  # what the framework makes of it
            raise HungUp("whoever asked hung up") from fault


def _reply(reply: Reply[Any]) -> Any:
    headers = dict(reply.headers)
    if reply.stream is not None:
        return Stream(reply.stream, media_type=reply.media_type, headers=headers)
    media_type = reply.media_type if reply.body is not None else None
    return Response(reply.body, status_code=reply.status, headers=headers, media_type=media_type)


AnyConnection = ASGIConnection[Any, Any, Any, Any]
_LAYOUTS_KEPT = 4


class Application:
    """The routes over some services, for requests that the dispatcher has let in."""

    def __init__(self, services: Services) -> None:
        """Take everything it needs."""
        self._services = services
        self._framework = _framework(services.settings.service.batch_bytes_max)

    @property
    def openapi_schema(self) -> OpenAPI:
        """What the OpenAPI document says."""
        return self._framework.openapi_schema

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._framework(with_services(scope, self._services), receive, send)


def make_app(services: Services) -> Application:
    """The application over some services."""
    return Application(services)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _framework(batch_bytes_max: int) -> Litestar:
    """The routes in the framework, over whatever services a request brings along: to lay them out takes long."""
    return Litestar(
        route_handlers=[laid_out(route, let_in=_let_in) for route in API_ROUTES],
        exception_handlers={
            HTTPException: on_http_error,
            Exception: on_error,
        },
        request_max_body_size=batch_bytes_max,
        openapi_config=openapi_config(),
        logging_config=None,
    )


def _let_in(route: Route, connection: AnyConnection, handler: BaseRouteHandler) -> None:
    # The dispatcher authenticates. What it has not let in must not be answered, even if it overlooked a form of a path.
    if "user" not in connection.scope:
        raise RuntimeError(f"nobody was let in to {route.method} {route.path}")
    if connection.scope.get("query_string"):
        _check_parameters(connection, handler)


def _check_parameters(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Refuse parameters that nobody reads: a misspelt one would be answered as if it were not there."""
    known = {
        field.kwarg_definition.name or name
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, QueryParameter)
    }
    for name in connection.query_params:
        if name not in known:
            raise BadParameter("no such parameter", subject=name[:64], next_step=did_you_mean(name[:64], known))
        if len(connection.query_params.getall(name)) > 1:
            raise BadParameter("said more than once", subject=name)
