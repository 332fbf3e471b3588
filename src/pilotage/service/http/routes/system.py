"""What is around the jobs, over HTTP: pilots, nodes, statistics, how far the book is, and whether all is well."""

from __future__ import annotations

from typing import Annotated, Literal

from pilotage.model.version import VERSION
from pilotage.ports import JournalUnavailable
from pilotage.reading.access import READ
from pilotage.reading.view_builders import node_view, pilot_view
from pilotage.reading.views import FlowsView, HealthView, NodesPage, PilotsPage, PositionView
from pilotage.service.errors import NotRunning
from pilotage.service.http.errors import NotWell
from pilotage.service.http.routing import AfterName, Ask, Book, Limit, get, in_query
from pilotage.service.journal.writer import WriterStopped

Window = Annotated[Literal["1m", "1h", "1d"], in_query("The time before now that is looked at.")]
SiteName = Annotated[str | None, in_query("Only this site; empty for packages that have none.")]
Activity = Annotated[str | None, in_query("Only this activity; empty for packages that have none.")]


@get(
    "/v1/position",
    operation_id="position",
    needs=(READ,),
    is_for_packages=True,
    summary="How far the book is",
    tags=["book"],
    faults=(401, 403, 503),
)
async def position(request: Ask, services: Book) -> PositionView:
    """The position of the last event."""
    return PositionView(position=await services.ask(services.reading.position, request.user))


@get(
    "/v1/statistics",
    operation_id="statistics",
    needs=(READ,),
    summary="How work flows",
    tags=["statistics"],
    faults=(400, 401, 403, 503),
)
async def flows(
    request: Ask, services: Book, window: Window = "1h", site: SiteName = None, activity: Activity = None
) -> FlowsView:
    """Entries into each state and the times between any two states, for each site and activity."""

    def answer() -> FlowsView:
        found = services.reading.flows(request.user, window=window, site=site, activity=activity)
        return FlowsView(window=window, flows=found)

    return await services.ask(answer)


@get("/v1/pilots", operation_id="pilots", needs=(READ,), summary="Pilots", tags=["sites"], faults=(400, 401, 403, 503))
async def pilots(request: Ask, services: Book, after: AfterName = "", limit: Limit = 0) -> PilotsPage:
    """Pilots by name, each with why it ended and the last lines it wrote."""

    def answer() -> PilotsPage:
        found = services.reading.pilots(request.user, after=after, limit=limit)
        return PilotsPage(pilots=[pilot_view(row) for row in found.items], next=found.next)

    return await services.ask(answer)


@get("/v1/nodes", operation_id="nodes", needs=(READ,), summary="Nodes", tags=["sites"], faults=(400, 401, 403, 503))
async def nodes(request: Ask, services: Book, after: AfterName = "", limit: Limit = 0) -> NodesPage:
    """Computers by name, as they described themselves."""

    def answer() -> NodesPage:
        found = services.reading.nodes(request.user, after=after, limit=limit)
        return NodesPage(nodes=[node_view(row) for row in found.items], next=found.next)

    return await services.ask(answer)


@get(
    "/healthz",
    operation_id="health",
    needs=(),
    summary="Whether all is well",
    tags=["book"],
    is_open=True,
    faults=(503,),
)
async def health(services: Book) -> HealthView:
    """200 while events are taken, questions answered and jobs run; needs no token. Else 503, with the reason."""
    if not services.writer.alive:
        raise WriterStopped("the service does not write")
    if services.running is not None and not services.running.jobs.alive:
        raise NotRunning("the service runs nothing any more", next_step="its log says why; start it anew")
    if why := services.journal.trouble:
        raise JournalUnavailable(why)
    if services.is_full():
        raise NotWell("the disk of the service is full", next_step="make room there, and it goes on by itself")
    if services.writer.trouble:
        raise NotWell(services.writer.trouble)
    await services.ask(services.journal.position)
    return HealthView(status="ok", version=VERSION)


SURROUNDING_ROUTES = (position, flows, pilots, nodes, health)
