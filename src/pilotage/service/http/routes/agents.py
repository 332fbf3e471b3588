"""The routes of agents, under `/agent/`: answered by `agent_exchange.py`, through which every attempt passes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.reading.access import EXCHANGE, SITE_AGENT
from pilotage.service.http.routes.events import log_events
from pilotage.service.http.routing import OCTETS, ApiRequest, Reply, Route

if TYPE_CHECKING:
    from pilotage.service.http.agent_exchange import AgentExchange

PREFIX = "/agent/"
EXCHANGE_BYTES_MAX = 64 * 2**20


def _exchange(agents: AgentExchange, request: ApiRequest) -> Awaitable[Reply[bytes]]:
    """Process an agent's message, and answer what it should do."""
    return agents.exchange(request)


def _exchange_with_site(agents: AgentExchange, request: ApiRequest) -> Awaitable[Reply[bytes]]:
    """Process a site agent's message, and answer what it should submit and cancel."""
    return agents.exchange_with_site(request)


def _content(agents: AgentExchange, request: ApiRequest, sha256: str) -> Awaitable[Reply[bytes]]:
    """Content that a job brought along."""
    return agents.content(request, sha256)


def _contents(agents: AgentExchange, request: ApiRequest) -> Awaitable[Reply[bytes]]:
    """Many small contents that jobs brought along."""
    return agents.contents(request)


def _file(agents: AgentExchange, request: ApiRequest, job: str) -> Awaitable[Reply[bytes]]:
    """A file of a job's folder, or the piece of it that `Range` names."""
    return agents.file(request, job)


def _transfer(agents: AgentExchange, request: ApiRequest, key: str) -> Awaitable[Reply[bytes]]:
    """A file of a store that a site agent is to bring to its site, or the piece of it that `Range` names."""
    return agents.transfer(request, key)


def _cached(agents: AgentExchange, request: ApiRequest, name: str) -> Awaitable[Reply[bytes]]:
    """A file in the cache of the agent's site, or the piece of it that `Range` names."""
    return agents.cached(request, name)


def _stage(agents: AgentExchange, request: ApiRequest, place: str) -> Awaitable[Reply[None]]:
    """Receive a piece of an output."""
    return agents.stage(request, place)


def _nothing(agents: AgentExchange, request: ApiRequest, place: str) -> Awaitable[Reply[Any]]:  # noqa: ARG001
    """Answer that there is no such path."""
    return agents.nothing(request)


def _route(method: Any, path: str, handler: Any, summary: str, **options: Any) -> Route:
    return Route(
        method=method,
        path=f"{PREFIX}{path}",
        handler=handler,
        operation_id=f"agent{handler.__name__}",
        summary=summary,
        tags=["agents"],
        faults=(),
        answered_by="agents",
        **{"needs": (EXCHANGE,), "body_bytes_max": EXCHANGE_BYTES_MAX, **options},
    )


AGENT_ROUTES = (
    _route("POST", "exchange", _exchange, "Report what an agent holds, and get what it should do"),
    _route("POST", "site", _exchange_with_site, "The same for the agent of a site", needs=(SITE_AGENT,)),
    # Events of packages, through a relay, which only forwards the paths of agents.
    msgspec.structs.replace(log_events, path=f"{PREFIX}events", answered_by="agents", stands_for=log_events.path),
    _route("GET", "content/{sha256:path}", _content, "Content that a job brought along", media_type=OCTETS),
    _route("POST", "contents", _contents, "Many small contents that jobs brought along", media_type=OCTETS),
    _route("GET", "files/{job:path}", _file, "A file of a job's folder", media_type=OCTETS),
    _route(
        "GET",
        "transfers/{key:path}",
        _transfer,
        "A file that a site agent is to bring to its site",
        needs=(SITE_AGENT,),
        media_type=OCTETS,
    ),
    _route("GET", "cached/{name:path}", _cached, "A file in the cache of the agent's site", media_type=OCTETS),
    _route("PUT", "staged/{place:path}", _stage, "A piece of an output; its size has no bound", status=204),
    _route("*", "{place:path}", _nothing, "Any other path"),
)
