"""A route: what is asked for by a method and a path, who answers it, and what is told of it. It knows no framework.

So a plain request is answered where the framework was never imported (`plain.py`), and every other by the application,
which lays out the same routes (`layout.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from pilotage.model.events.events import COUNTER_MAX
from pilotage.reading.access import Principal, require_scopes
from pilotage.service.http.services import Services

Body = TypeVar("Body")
Handler = Callable[..., Awaitable[Any]]
Method = Literal["GET", "POST", "PATCH", "DELETE"]

JSON = "application/json"
TEXT = "text/plain"
EVENT_STREAM = "text/event-stream"


class Ask:
    """A request of somebody who is known."""

    __slots__ = ("base_url", "body", "header", "user")

    def __init__(
        self,
        *,
        user: Principal,
        base_url: Callable[[], str],
        header: Callable[[str], str],
        body: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Take who asks, and what says the rest: the URL of the service, with a slash in the end; a header; the body."""
        self.user = user
        self.base_url = base_url
        self.header = header
        self.body = body

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

    `faults` are the statuses of errors, `answers` what else may be answered, in words. `body` names what describes the body
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
    return lambda handler: Route(method="PATCH", path=path, handler=handler, **told)


def end(path: str, **told: Any) -> Callable[[Handler], Route]:
    """Have a function answer who wants what is at a path to be no more."""
    return lambda handler: Route(method="DELETE", path=path, handler=handler, status=204, **told)


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
