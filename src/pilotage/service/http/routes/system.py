"""The system around the jobs, over HTTP: pilots, nodes, statistics, the book's position, and health."""

from __future__ import annotations

from typing import Annotated, Literal

from pilotage.model.version import VERSION
from pilotage.ports import JournalUnavailable
from pilotage.reading.access import READ
from pilotage.reading.view_builders import node_view, pilot_view
from pilotage.reading.views import FlowsView, HealthView, NodesPage, PilotsPage, PositionView
from pilotage.service.errors import NotRunning
from pilotage.service.http.errors import NotWell
from pilotage.service.http.routing import AfterName, ApiRequest, Limit, ServicesArgument, get, in_query
from pilotage.service.journal.writer import WriterStopped

Window = Annotated[Literal["1m", "1h", "1d"], in_query("The period up to now to cover.")]
SiteName = Annotated[str | None, in_query("Only this site; empty for packages that have none.")]
Activity = Annotated[str | None, in_query("Only this activity; empty for packages that have none.")]


@get(
    "/v1/position",
    operation_id="position",
    needs=(READ,),
    is_for_packages=True,
    summary="The position of the book",
    tags=["book"],
    faults=(401, 403, 503),
)
async def position(request: ApiRequest, services: ServicesArgument) -> PositionView:
    """The position of the last event."""
    return PositionView(position=await services.ask(services.reader.position, request.user))


@get(
    "/v1/statistics",
    operation_id="statistics",
    needs=(READ,),
    summary="Flow of packages",
    tags=["statistics"],
    faults=(400, 401, 403, 503),
)
async def flows(
    request: ApiRequest,
    services: ServicesArgument,
    window: Window = "1h",
    site: SiteName = None,
    activity: Activity = None,
) -> FlowsView:
    """Entries into each state and the times between any two states, for each site and activity."""

    def answer() -> FlowsView:
        found = services.reader.flows(request.user, window=window, site=site, activity=activity)
        return FlowsView(window=window, flows=found)

    return await services.ask(answer)


@get("/v1/pilots", operation_id="pilots", needs=(READ,), summary="Pilots", tags=["sites"], faults=(400, 401, 403, 503))
async def pilots(
    request: ApiRequest, services: ServicesArgument, after: AfterName = "", limit: Limit = 0
) -> PilotsPage:
    """Pilots by name, each with why it ended and the last lines it wrote."""

    def answer() -> PilotsPage:
        found = services.reader.pilots(request.user, after=after, limit=limit)
        return PilotsPage(pilots=[pilot_view(row) for row in found.items], next=found.next)

    return await services.ask(answer)


@get("/v1/nodes", operation_id="nodes", needs=(READ,), summary="Nodes", tags=["sites"], faults=(400, 401, 403, 503))
async def nodes(request: ApiRequest, services: ServicesArgument, after: AfterName = "", limit: Limit = 0) -> NodesPage:
    """Nodes by name, as they described themselves."""

    def answer() -> NodesPage:
        found = services.reader.nodes(request.user, after=after, limit=limit)
        return NodesPage(nodes=[node_view(row) for row in found.items], next=found.next)

    return await services.ask(answer)


@get(
    "/healthz",
    operation_id="health",
    needs=(),
    summary="Health",
    tags=["book"],
    is_open=True,
    faults=(503,),
)
async def health(services: ServicesArgument) -> HealthView:
    """200 while the service stores events, answers queries and runs jobs; needs no token. Else 503, with the reason."""
    if not services.writer.alive:
        raise WriterStopped("the service no longer writes its book")
    if services.backend is not None and not services.backend.jobs.alive:
        raise NotRunning("the service no longer runs jobs", next_step="its log says why; start it again")
    if why := services.journal.trouble:
        raise JournalUnavailable(why)
    if services.is_full():
        raise NotWell("the disk of the service is full", next_step="free some space there; work resumes by itself")
    if services.writer.trouble:
        raise NotWell(services.writer.trouble)
    await services.ask(services.journal.position)
    return HealthView(status="ok", version=VERSION)


SURROUNDING_ROUTES = (position, flows, pilots, nodes, health)
