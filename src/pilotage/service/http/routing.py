"""A route: a method and a path, the scopes it needs, its handler, and its description in the OpenAPI document.

Routes are independent of the framework: the dispatcher calls their handlers, and the framework registers the same
routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec

from pilotage.model.events.events import COUNTER_MAX
from pilotage.reading.access import Principal, require_scopes
from pilotage.service.http.messages import header_of, piece_of, read_body
from pilotage.service.http.services import Services

if TYPE_CHECKING:
    from litestar.types import Receive

Body = TypeVar("Body")
Handler = Callable[..., Awaitable[Any]]
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "*"]
AnsweredBy = Literal["agents", "dispatcher", "framework"]

JSON = "application/json"
TEXT = "text/plain"
OCTETS = "application/octet-stream"
EVENT_STREAM = "text/event-stream"


class ApiRequest:
    """An authenticated and authorized request."""

    __slots__ = ("_body_bytes_max", "_receive", "scope", "user")

    def __init__(self, scope: Any, receive: Receive, *, user: Principal, body_bytes_max: int) -> None:
        """Take the request from the server, its sender, and the largest body allowed."""
        self.scope = scope
        self.user = user
        self._receive = receive
        self._body_bytes_max = body_bytes_max

    def base_url(self) -> str:
        """The URL of the service as the sender knows it, with a trailing slash."""
        return f"{self.scope['scheme']}://{header_of(self.scope, b'host')}/"

    def header(self, name: str) -> str:
        """A header; empty if it is missing."""
        return header_of(self.scope, name.lower().encode())

    def body(self) -> Awaitable[bytes]:
        """The whole body; raises `TooLarge`."""
        return read_body(self._receive, self._body_bytes_max)

    def piece(self) -> Awaitable[tuple[bytes, bool]]:
        """The next piece of the body, and whether more follow."""
        return piece_of(self._receive)

    @property
    def wants_stream(self) -> bool:
        """Whether the client asks for a stream."""
        return EVENT_STREAM in self.header("accept")


ServicesArgument = Services
"""The services, as a handler's argument."""


class Reply(msgspec.Struct, Generic[Body], frozen=True, kw_only=True):
    """An answer that is more than a body: with a status, headers, a text, or a stream."""

    body: Body | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = JSON
    stream: AsyncIterator[bytes] | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a request; without a name it has that of the argument."""

    place: Literal["path", "query", "header", "body"]
    description: str = ""
    name: str = ""
    ge: int | None = None
    le: float | None = None
    max_length: int | None = None


def in_path(description: str) -> Parameter:
    """A part of the path."""
    return Parameter(place="path", description=description)


def in_query(description: str, **bounds: Any) -> Parameter:
    """A parameter of the query."""
    return Parameter(place="query", description=description, **bounds)


def in_header(name: str, description: str, *, max_length: int | None = None) -> Parameter:
    """A header."""
    return Parameter(place="header", description=description, name=name, max_length=max_length)


def in_body() -> Parameter:
    """The whole body, as JSON."""
    return Parameter(place="body")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What answers a method and a path, and its description in the OpenAPI document.

    The method `*` matches any. A path may end with `{name:path}`, which matches the rest. `faults` are the statuses of
    errors, `answers` the other possible answers. `body` names the schema of a body that the handler decodes itself.
    """

    method: Method
    path: str
    handler: Handler
    operation_id: str
    needs: tuple[str, ...]
    """The scopes that a token must have, all of them, before anything is read; none if the route `is_open`."""
    summary: str
    tags: list[str]
    faults: tuple[int, ...]
    status: int = 200
    answers: Mapping[int, tuple[type, str]] = {}
    body: str = ""
    body_bytes_max: int = 0
    """The largest body; 0: as large as a batch of events."""
    media_type: str = JSON
    is_open: bool = False
    """Whether it needs no token."""
    is_for_packages: bool = False
    """Whether the token of a package, which has only its own scope, may be used as well."""
    answered_by: AnsweredBy = "dispatcher"
    """`dispatcher`: at once if the request is plain, else by the framework. `framework`: always by the framework.
    `agents`: at once, whatever its form, by the exchange with agents."""
    stands_for: str = ""
    """The path that this one is another name of."""

    def authorize(self, principal: Principal) -> None:
        """Raise `Forbidden` unless the principal may use this route."""
        if not (self.is_for_packages and principal.package is not None):
            require_scopes(principal, self.needs)


def get(path: str, **fields: Any) -> Callable[[Handler], Route]:
    """Make a function the GET handler of a path; keywords as in `Route`."""
    return lambda handler: Route(method="GET", path=path, handler=handler, **fields)


def post(path: str, *, status: int = 201, **fields: Any) -> Callable[[Handler], Route]:
    """Make a function the POST handler of a path."""
    return lambda handler: Route(method="POST", path=path, handler=handler, status=status, **fields)


def put(path: str, **fields: Any) -> Callable[[Handler], Route]:
    """Make a function the PUT handler of a path."""
    return lambda handler: Route(method="PUT", path=path, handler=handler, **fields)


def change(path: str, **fields: Any) -> Callable[[Handler], Route]:
    """Make a function the PATCH handler of a path."""
    return lambda handler: Route(method="PATCH", path=path, handler=handler, answered_by="framework", **fields)


def end(path: str, **fields: Any) -> Callable[[Handler], Route]:
    """Make a function the DELETE handler of a path."""
    return lambda handler: Route(
        method="DELETE", path=path, handler=handler, status=204, answered_by="framework", **fields
    )


# Parameters that many routes share, each described once.

LIMIT_MAX = 10_000
WAIT_SECONDS_MAX = 60.0

JobPath = Annotated[str, in_path("The id of the job.")]
LinePath = Annotated[str, in_path("The line within its job: `stage.line`, such as `1.2`.")]
PackagePath = Annotated[str, in_path("The package within its job: `stage.line.n`, such as `1.2.1`.")]
QueryText = Annotated[str, in_query("A query, such as `state=RUNNING and site=lyon`; without it, all.", name="query")]
Limit = Annotated[
    int,
    in_query(
        "The most rows of a page, never more than the setting `query.page_rows_max`; 0 for the default.",
        ge=0,
        le=LIMIT_MAX,
    ),
]
CursorText = Annotated[
    str | None,
    in_query("The `next` of the page before, with the same query; omitted for the first."),
]
After = Annotated[int, in_query("Only events after this position; 0 for all.", ge=0, le=COUNTER_MAX)]
AfterStage = Annotated[int, in_query("Only stages after this one.", name="after", ge=0, le=COUNTER_MAX)]
AfterName = Annotated[
    str,
    in_query("The `next` of the page before: names after this one.", name="after", max_length=256),
]
WaitSeconds = Annotated[
    float,
    in_query("Wait up to this long if there is nothing yet: a long poll.", ge=0, le=WAIT_SECONDS_MAX),
]
LastEventId = Annotated[
    str | None,
    in_header("Last-Event-ID", "Where a stream of server-sent events broke off."),
]
