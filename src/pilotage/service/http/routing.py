"""A route: a method and a path, the scopes it needs, its handler, and what the OpenAPI document tells of it.

A route knows no framework: the dispatcher calls its handler, and the framework lays the same route out where it is needed.
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
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "*"]
AnsweredBy = Literal["agents", "dispatcher", "framework"]

JSON = "application/json"
TEXT = "text/plain"
OCTETS = "application/octet-stream"
EVENT_STREAM = "text/event-stream"


class Ask:
    """A request whose sender is known and may ask for this."""

    __slots__ = ("_body_bytes_max", "_receive", "scope", "user")

    def __init__(self, scope: Any, receive: Receive, *, user: Principal, body_bytes_max: int) -> None:
        """Take the request as the server gives it, who sends it, and how large its body may be."""
        self.scope = scope
        self.user = user
        self._receive = receive
        self._body_bytes_max = body_bytes_max

    def base_url(self) -> str:
        """The URL of the service as the sender knows it, with a slash at its end."""
        return f"{self.scope['scheme']}://{header_of(self.scope, b'host')}/"

    def header(self, name: str) -> str:
        """A header; empty where it is not there."""
        return header_of(self.scope, name.lower().encode())

    def body(self) -> Awaitable[bytes]:
        """The whole body; raises `TooLarge`."""
        return read_body(self._receive, self._body_bytes_max)

    def piece(self) -> Awaitable[tuple[bytes, bool]]:
        """The next piece of the body, and whether more follow."""
        return piece_of(self._receive)

    @property
    def wants_stream(self) -> bool:
        """Whether an answer is wanted that does not end."""
        return EVENT_STREAM in self.header("accept")


Book = Services
"""The services, as a handler asks for them."""


class Reply(msgspec.Struct, Generic[Body], frozen=True, kw_only=True):
    """An answer that is more than a body: another status, headers, a text, or a stream."""

    body: Body | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = JSON
    stream: AsyncIterator[bytes] | None = None


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says besides its body; without a name of its own it has that of the argument."""

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
    """Who answers a method and a path, and what the OpenAPI document tells of it.

    The method `*` is any. A path may end with `{name:path}`, which takes all that follows. `faults` are the statuses of errors, `answers` what else may be answered, in words. `body` names what describes the body
    of a request that the handler reads by itself.
    """

    method: Method
    path: str
    handler: Handler
    operation_id: str
    needs: tuple[str, ...]
    """The scopes that a token must have, each of them, before anything is looked up or read; none where it `is_open`."""
    summary: str
    tags: list[str]
    faults: tuple[int, ...]
    status: int = 200
    answers: Mapping[int, tuple[type, str]] = {}
    body: str = ""
    body_bytes_max: int = 0
    """How large a body may be; as large as a batch of events, where it is 0."""
    media_type: str = JSON
    is_open: bool = False
    """Whether it is answered to whoever comes, without a token."""
    is_for_packages: bool = False
    """Whether the token of a package opens it, too: it has no scope but its own."""
    answered_by: AnsweredBy = "dispatcher"
    """`dispatcher`: at once if the request is plain, else by the framework. `framework`: always by the framework. `agents`:
    at once, whatever its form, by what speaks with agents."""
    stands_for: str = ""
    """The path that is meant, where this is another name of it."""

    def let_in(self, principal: Principal) -> None:
        """Refuse who may not ask for this at all; raises `Forbidden`."""
        if not (self.is_for_packages and principal.package is not None):
            require_scopes(principal, self.needs)


def get(path: str, **told: Any) -> Callable[[Handler], Route]:
    """Have a function answer who reads at a path; what is told of the route is as `Route` has it."""
    return lambda handler: Route(method="GET", path=path, handler=handler, **told)


def post(path: str, *, status: int = 201, **told: Any) -> Callable[[Handler], Route]:
    """Have a function answer who sends something to a path."""
    return lambda handler: Route(method="POST", path=path, handler=handler, status=status, **told)


def change(path: str, **told: Any) -> Callable[[Handler], Route]:
    """Have a function answer who changes what is at a path."""
    return lambda handler: Route(method="PATCH", path=path, handler=handler, answered_by="framework", **told)


def end(path: str, **told: Any) -> Callable[[Handler], Route]:
    """Have a function answer who wants what is at a path to be no more."""
    return lambda handler: Route(
        method="DELETE", path=path, handler=handler, status=204, answered_by="framework", **told
    )


# The parameters that many routes share, each described once.

LIMIT_MAX = 10_000
WAIT_SECONDS_MAX = 60.0

JobPath = Annotated[str, in_path("The id of the job.")]
LinePath = Annotated[str, in_path("The line within its job: `stage.line`, such as `1.2`.")]
PackagePath = Annotated[str, in_path("The package within its job: `stage.line.n`, such as `1.2.1`.")]
QueryText = Annotated[str, in_query("A query, such as `state=RUNNING and site=lyon`; without it, all.", name="query")]
Limit = Annotated[
    int,
    in_query(
        "Rows of a page at most, never more than the setting `query.page_rows_max`; 0 for its usual number.",
        ge=0,
        le=LIMIT_MAX,
    ),
]
CursorText = Annotated[
    str | None,
    in_query("The `next` of the page before, with the same query; left out for the first."),
]
After = Annotated[int, in_query("Only events behind this position; 0 for all there are.", ge=0, le=COUNTER_MAX)]
AfterStage = Annotated[int, in_query("Only stages behind this one.", name="after", ge=0, le=COUNTER_MAX)]
AfterName = Annotated[
    str,
    in_query("The `next` of the page before: names behind this one.", name="after", max_length=256),
]
WaitSeconds = Annotated[
    float,
    in_query("Where there is nothing yet, wait up to this long for it: a long poll.", ge=0, le=WAIT_SECONDS_MAX),
]
LastEventId = Annotated[
    str | None,
    in_header("Last-Event-ID", "Where a stream of server-sent events was broken off."),
]
