"""The framework answers what the dispatcher cannot: streams, typed bodies, faulty requests, and the OpenAPI document.

It registers the routes of the same table. The dispatcher makes it when it is first needed, since importing it takes
longer than most answers.
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
from pilotage.service.http.routing import JSON, ApiRequest, Handler, Parameter, Reply, Route
from pilotage.service.http.services import Services

# Error answers, and their descriptions in the OpenAPI document.

AnyRequest = Request[Any, Any, Any]
AnyResponse = Response[Any]

_MEANINGS: Mapping[int, str] = {
    400: "The request cannot be read: a bad parameter, query, cursor or body.",
    401: "No token, or an unknown one.",
    403: "The token lacks the scope, or its user may read the job but not do this to it.",
    404: "There is no such job, package, subscription, file or log, or none that you may read.",
    409: "It conflicts with the present state; the code says how.",
    410: "The job was purged.",
    413: "The batch is too large; nothing of it was stored.",
    425: "The clock of the sender may be wrong; nothing was stored. Send the same again, with the time of the answer.",
    422: "No index serves the query; or the document has faults.",
    503: "Busy, stopping, or the book cannot be reached; try again after the time that Retry-After names.",
    507: "The disk is full; nothing was stored.",
}


def faults(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors that a route may answer, for the OpenAPI document."""
    return {
        status: ResponseSpec(
            data_container=ErrorView, description=_MEANINGS[status], generate_examples=False, media_type=MediaType.JSON
        )
        for status in statuses
    }


def on_error(request: AnyRequest, error: Exception) -> AnyResponse:
    """Answer an error of pilotage, or an unexpected one."""
    status, view, headers = error_answer(request.scope, error)
    return _answer(status, view.error, headers)


def on_http_error(request: AnyRequest, error: HTTPException) -> AnyResponse:
    """Answer an error of the framework: unknown path, wrong method, unreadable parameter."""
    headers = dict(error.headers or {})
    match error:
        case ValidationException():
            body = ErrorBody(code="bad_parameter", message=_faulty(error))
        case MethodNotAllowedException():
            body = ErrorBody(code="method_not_allowed", message=f"{request.method} is not allowed here")
        case NotFoundException():
            body = ErrorBody(code="not_found", message="no such path", hint="all paths: GET /schema")
        case _ if error.status_code == 413:
            body = ErrorBody(
                code="too_large", message="the body is too large: nothing was stored", hint="send smaller batches"
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
    faults = "; ".join(f"{part.get('key', 'parameter')}: {part.get('message', '')}" for part in parts)
    return faults or error.detail


# Parts of the OpenAPI document that the signatures of the handlers do not give: the batch of events, the token.

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
        "source": Schema(type=OpenAPIType.STRING, enum=list(get_args(Source)), description="The kind of sender."),
        "stream": _text(STREAM.pattern, "The process or spool that numbers the events."),
        "n": _number(1, COUNTER_MAX, "Increases by one within the source and stream."),
        "type": Schema(type=OpenAPIType.STRING, enum=sorted(EVENT_TYPES), description="What happened."),
        "version": Schema(type=OpenAPIType.INTEGER, minimum=1, default=1, description="The version of `data`."),
        "time": Schema(
            type=OpenAPIType.NUMBER,
            minimum=0,
            exclusive_maximum=TIME_MAX,
            description="Seconds since 1970, UTC, by the source's own clock.",
        ),
        "epoch": _number(1, COUNTER_MAX, "The epoch of the subject, as far as the source knows; 1 if omitted."),
        "seen": _number(0, COUNTER_MAX, "The last position of the book that the source saw; 0 if omitted."),
        "job": _text(JOB_ID.pattern, "The id of the job."),
        "package": _text(DOTTED.pattern, "The package within the job: stage.line.n."),
        "attempt": _number(1, 999_999_999, "The number of the attempt."),
        "pilot": _text(NAME.pattern, "The name of a pilot."),
        "site": _text(NAME.pattern, "The name of a site."),
        "data": Schema(type=OpenAPIType.OBJECT, description="The fields of the event type."),
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
        description="A batch of events, each checked by itself.",
    )


def _submission() -> RequestBody:
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT))},
        required=True,
        description="A checked definition with its resolved lists, its folder, and its captured files.",
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


def _checksums() -> RequestBody:
    texts = Schema(type=OpenAPIType.STRING, pattern="^[0-9a-f]{64}$")
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=["sha256"],
        properties={"sha256": Schema(type=OpenAPIType.ARRAY, items=texts)},
    )
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _folder_mark() -> RequestBody:
    names = ("folder", "mark", "text")
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=list(names),
        properties={name: Schema(type=OpenAPIType.STRING) for name in names},
    )
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _cached_files() -> RequestBody:
    text, flag = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.BOOLEAN)
    schema = Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "patterns": Schema(type=OpenAPIType.ARRAY, items=text),
            "site": text,
            "software": flag,
            "dry_run": flag,
        },
    )
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _record() -> RequestBody:
    schema = Schema(
        type=OpenAPIType.OBJECT,
        required=["version", "job", "revision", "owner", "name", "state", "made_at"],
        properties={"parts": Schema(type=OpenAPIType.ARRAY, items=Schema(type=OpenAPIType.OBJECT))},
    )
    return RequestBody(
        content={"application/json": OpenAPIMediaType(schema=schema)},
        required=True,
        description="A record, as `GET /v1/records/{job}` answers it.",
    )


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
    """An OpenAPI operation whose body the handler decodes itself, so that no signature describes it."""

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
    "checksums": _with_body(_checksums),
    "folder mark": _with_body(_folder_mark),
    "cached files": _with_body(_cached_files),
    "record": _with_body(_record),
    "operation": _with_body(_one_operation),
    "operation on many": _with_body(_operation_on_many),
}
"""The bodies that routes name."""


class _JsonDocument(JsonRenderPlugin):
    """The OpenAPI document as JSON; an optional parameter does not allow null, which no query could express."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Encode the document."""
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
    """The document at `/schema`, as JSON; no page that would load scripts from elsewhere."""
    return OpenAPIConfig(
        title="pilotage",
        version=VERSION,
        summary="The book: stores every event, and derives one state in whatever order they arrive.",
        path="/schema",
        render_plugins=[_JsonDocument(path=["/", "/openapi.json"], media_type=MediaType.JSON)],
        components=Components(
            security_schemes={
                _BEARER: SecurityScheme(type="http", scheme="bearer", description="The token of a principal.")
            }
        ),
        security=[{_BEARER: []}],
    )


# Turns a route into a handler of the framework, whose signature has the framework's own parameter types.
Authorize = Callable[[Route, Any, BaseRouteHandler], None]

_json_body: Any = JSONBody
_SERVICES = "pilotage.services"
_KINDS: dict[str, Any] = {"path": PathParameter, "query": QueryParameter, "header": HeaderParameter}


def with_services(scope: Scope, services: Services) -> Any:
    """A scope that carries the services for its request."""
    return {**scope, _SERVICES: services}


def services_of(scope: Any) -> Services:
    """The services for a request."""
    services: Services = scope[_SERVICES]
    return services


def registered(route: Route, *, authorize: Authorize) -> HTTPRouteHandler:
    """Register a route with the framework; unless the route is open, `authorize` refuses requests not admitted before."""
    answers = {
        status: ResponseSpec(data_container=kind, description=words, generate_examples=False)
        for status, (kind, words) in route.answers.items()
    }
    sized: dict[str, Any] = {"request_max_body_size": route.body_bytes_max} if route.body_bytes_max else {}
    make = HTTPRouteHandler(
        route.path,
        http_method=HttpMethod(route.method),
        status_code=route.status,
        media_type=route.media_type if route.media_type != JSON else None,  # if set here, no answer can change it
        guards=[] if route.is_open else [_guard(route, authorize)],
        security=[{}] if route.is_open else None,
        operation_id=route.operation_id,
        operation_class=BODIES.get(route.body, Operation),
        summary=route.summary,
        tags=route.tags,
        responses=answers | faults(*route.faults),
        **sized,
    )
    return make(_translated(route.handler))


def _guard(route: Route, authorize: Authorize) -> Any:
    # The framework would run a plain function in a thread, which costs more than its work.
    async def guard(connection: Any, handler: BaseRouteHandler) -> None:
        authorize(route, connection, handler)

    return guard


def _translated(handler: Handler) -> Any:
    """The function that the framework calls: it calls the handler with the services of the request."""
    known = get_type_hints(handler, include_extras=True)
    asked = inspect.signature(handler).parameters
    is_asked = "request" in asked

    async def answer(request: AnyRequest, **arguments: Any) -> Any:
        if is_asked:
            arguments["request"] = _FrameworkAsk(request)
        result = await handler(services=services_of(request.scope), **arguments)
        return _reply(result) if isinstance(result, Reply) else result

    hints = {name: _kind(known[name]) for name in asked if name not in ("request", "services")}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=asked[name].default, annotation=hint)
        for name, hint in hints.items()
    ]
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=AnyRequest)
    declared = known["return"]
    returned = Response[get_args(declared)[0]] if get_origin(declared) is Reply else declared  # type: ignore[misc]
    answer.__name__, answer.__qualname__, answer.__doc__ = handler.__name__, handler.__qualname__, handler.__doc__
    answer.__annotations__ = {"request": AnyRequest, **hints, "return": returned}
    answer.__signature__ = inspect.Signature([request, *parameters], return_annotation=returned)  # type: ignore[attr-defined]
    return answer


def _kind(hint: Any) -> Any:
    """One of our annotations as one of the framework's."""
    kind, parameter = get_args(hint)
    assert isinstance(parameter, Parameter)
    if parameter.place == "body":
        return _json_body[kind]
    options = {
        name: value
        for name in ("description", "name", "ge", "le", "max_length")
        if (value := getattr(parameter, name)) not in (None, "")
    }
    return Annotated[kind, _KINDS[parameter.place](**options)]


class _FrameworkAsk(ApiRequest):
    """A request as the framework decodes it, with its error messages for a faulty header or body."""

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
        except InternalServerException as fault:  # the framework's name for it
            raise HungUp("the client hung up") from fault


def _reply(reply: Reply[Any]) -> Any:
    headers = dict(reply.headers)
    if reply.stream is not None:
        return Stream(reply.stream, status_code=reply.status, media_type=reply.media_type, headers=headers)
    media_type = reply.media_type if reply.body is not None else None
    return Response(reply.body, status_code=reply.status, headers=headers, media_type=media_type)


AnyConnection = ASGIConnection[Any, Any, Any, Any]
_LAYOUTS_KEPT = 4


class Application:
    """The routes over some services, for requests that the dispatcher has admitted."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._framework = _framework(services.settings.service.batch_bytes_max)

    @property
    def openapi_schema(self) -> OpenAPI:
        """The OpenAPI document."""
        return self._framework.openapi_schema

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._framework(with_services(scope, self._services), receive, send)


def make_app(services: Services) -> Application:
    """The application over some services."""
    return Application(services)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _framework(batch_bytes_max: int) -> Litestar:
    """The routes in the framework, for the services that each request carries: registering them takes long."""
    return Litestar(
        route_handlers=[registered(route, authorize=_authorize) for route in API_ROUTES],
        exception_handlers={
            HTTPException: on_http_error,
            Exception: on_error,
        },
        request_max_body_size=batch_bytes_max,
        openapi_config=openapi_config(),
        logging_config=None,
    )


def _authorize(route: Route, connection: AnyConnection, handler: BaseRouteHandler) -> None:
    # The dispatcher authenticates. A request that it did not admit must not be answered, even if it missed a form of a path.
    if "user" not in connection.scope:
        raise RuntimeError(f"{route.method} {route.path} was not admitted by the dispatcher")
    if connection.scope.get("query_string"):
        _check_parameters(connection, handler)


def _check_parameters(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Refuse unknown parameters: a misspelt one would be ignored silently."""
    known = {
        field.kwarg_definition.name or name
        for name, field in handler.parsed_fn_signature.parameters.items()
        if isinstance(field.kwarg_definition, QueryParameter)
    }
    for name in connection.query_params:
        if name not in known:
            raise BadParameter("no such parameter", subject=name[:64], next_step=did_you_mean(name[:64], known))
        if len(connection.query_params.getall(name)) > 1:
            raise BadParameter("given more than once", subject=name)
