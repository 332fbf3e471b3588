"""Sites over HTTP: the status of each, the reasons for it, and operations on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.model.errors import did_you_mean
from pilotage.model.exchange.operations import Accepted, SiteDeed
from pilotage.model.exchange.reports import Noticed
from pilotage.model.jobs.definition import plain
from pilotage.reading.access import READ, SITES
from pilotage.reading.latencies import SiteLatencyView
from pilotage.reading.view_builders import pilot_view
from pilotage.reading.views import PilotView, SiteReason, SitesConfiguration, SiteStatus, View
from pilotage.service.errors import UnknownSite
from pilotage.service.http.errors import Malformed
from pilotage.service.http.routes.operations import OnceKey
from pilotage.service.http.routing import ApiRequest, ServicesArgument, get, in_path, post
from pilotage.service.http.services import Services, backend_of

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

PILOTS_LOOKED_AT = 1000
PILOTS_SHOWN = 20
WORDS_LINES = 5
GONE = "gone"
"""The status of a site that the book knows but the service does not."""

SitePath = Annotated[str, in_path("The name of the site.")]


class SiteView(View, frozen=True, kw_only=True):
    """A site and its status: `says` is the site's own message about what delays work there.

    `unheard` tells of batch jobs that do not start, or run without contacting the service.
    """

    site: str
    kind: str
    mode: str
    status: str
    message: str
    says: str
    score: float | None
    tscore: float | None
    queue_seconds: float | None
    pilots_queued: int
    pilots_live: int
    slots: int
    used: int
    dead_starts: int
    closed: str
    next_try_at: float | None
    unheard: str
    last_words: str
    updated_at: float


class SitesView(View, frozen=True, kw_only=True):
    """All sites, the file that configures them, and its fault."""

    sites: list[SiteView]
    file: str
    fault: str


class SiteDetail(View, frozen=True, kw_only=True):
    """A site, its entry, why it is or is not chosen, its latest pilots, and those that do not contact us."""

    site: SiteView
    entry: dict[str, Any] | None
    reasons: list[SiteReason]
    pilots: list[PilotView]
    noticed: list[Noticed]


class _SiteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the service knows of a site."""

    name: str
    row: SiteRow | None
    stand: SiteStatus | None
    kept: SitesConfiguration
    site_message: str
    pilots: list[PilotRow]
    runs: bool  # then a site unknown to the engine is gone, whatever the book says


@get("/v1/sites", operation_id="sites", needs=(READ,), summary="Sites", tags=["sites"], faults=(401, 403, 503))
async def sites(request: ApiRequest, services: ServicesArgument) -> SitesView:
    """All sites and their status; those that the service knows first."""
    known = await _known(request, services, None)
    kept = _kept(services)
    return SitesView(sites=[_view(each) for each in known], file=kept.file, fault=kept.fault)


@get(
    "/v1/sites/{site:str}",
    operation_id="site",
    needs=(READ,),
    summary="A site",
    tags=["sites"],
    faults=(400, 401, 403, 404, 503),
)
async def one_site(request: ApiRequest, services: ServicesArgument, site: SitePath) -> SiteDetail:
    """A site, its entry, why it is or is not chosen, and its latest pilots."""
    known = (await _known(request, services, site))[0]
    entry = known.kept.entries.get(site)
    shown = sorted(known.pilots, key=lambda row: row.updated_at, reverse=True)[:PILOTS_SHOWN]
    return SiteDetail(
        site=_view(known),
        entry=plain(entry) if entry is not None else None,
        reasons=list(known.stand.reasons) if known.stand is not None else [],
        pilots=[pilot_view(row) for row in shown],
        noticed=list(known.stand.noticed) if known.stand is not None else [],
    )


@get(
    "/v1/sites/{site:str}/latencies",
    operation_id="site_latencies",
    needs=(READ,),
    summary="The latency of pilots of a site",
    tags=["sites"],
    faults=(400, 401, 403, 404, 503),
)
async def latencies(request: ApiRequest, services: ServicesArgument, site: SitePath) -> SiteLatencyView:
    """How long the next pilots of a site take from their request to their start, by all that is known of earlier ones."""
    found = await services.ask(services.reader.site_latency, request.user, site)
    if found is not None:
        return found
    await _known(request, services, site)  # one without any pilot is known, too
    return SiteLatencyView(site=site, known_starts=0)


_site_operation = partial(post, status=200, needs=(SITES,), tags=["sites"], faults=(400, 401, 403, 404, 409, 503))


@_site_operation("/v1/sites/{site:str}/hibernate", operation_id="hibernate_site", summary="Hibernate a site")
async def hibernate(request: ApiRequest, services: ServicesArgument, site: SitePath, key: OnceKey = None) -> Accepted:
    """Send nothing more to a site until it is woken; running packages continue. The body may have a `message`."""
    return await _operated(request, services, site, "hibernate", key)


@_site_operation("/v1/sites/{site:str}/wake", operation_id="wake_site", summary="Wake a site")
async def wake(request: ApiRequest, services: ServicesArgument, site: SitePath, key: OnceKey = None) -> Accepted:
    """Choose a site again that hibernates, or at which pilots could not start. The body may have a `message`."""
    return await _operated(request, services, site, "wake", key)


@_site_operation("/v1/sites/{site:str}/probe", operation_id="probe_site", summary="Probe a site")
async def probe(request: ApiRequest, services: ServicesArgument, site: SitePath, key: OnceKey = None) -> Accepted:
    """Start one pilot that ends at once; whether it started is recorded as an event, `SiteProbed`."""
    return await _operated(request, services, site, "probe", key)


@_site_operation("/v1/sites/{site:str}/try", operation_id="try_site", summary="Test a site with one pilot")
async def try_site(request: ApiRequest, services: ServicesArgument, site: SitePath, key: OnceKey = None) -> Accepted:
    """Start one pilot that ends at once, in addition to the live ones; the site is not judged by it.

    Its name consists of the site's name, `-trial-`, and the number of the operation.
    """
    return await _operated(request, services, site, "try", key)


async def _operated(request: ApiRequest, services: Services, site: str, deed: SiteDeed, key: str | None) -> Accepted:
    backend = backend_of(services)
    message = _message(await request.body())
    known = await asyncio.wrap_future(backend.jobs.ask(site_names))
    if site not in known:
        raise unknown_site(site, known)

    def operate() -> Awaitable[Accepted]:
        return asyncio.wrap_future(backend.jobs.operate_site(deed, site, message=message))

    return await backend.once(request.user, key, operate)


def _message(body: bytes) -> str:
    if not body:
        return ""
    try:
        fields = msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise Malformed(f"the body may have a text `message` only: {fault}") from None
    unknown = [name for name in fields if name != "message"]
    if unknown:
        raise Malformed("no such field", subject=unknown[0][:64], expected="message")
    return fields.get("message", "")


async def _known(request: ApiRequest, services: Services, only: str | None) -> list[_SiteRecord]:
    """What is known of one site, or of all of them; raises `UnknownSite`."""
    rows = {row.site: row for row in await services.ask(services.reader.sites, request.user)}
    backend, stands = services.backend, {}
    runs = backend is not None and backend.jobs.alive
    if backend is not None and runs:
        stands = await asyncio.wrap_future(backend.jobs.ask(lambda engine: _stands(engine, only)))
    if only is not None and only not in rows and only not in stands:
        served = await asyncio.wrap_future(backend.jobs.ask(site_names)) if backend is not None and runs else []
        raise unknown_site(only, {*rows, *served})
    names = [only] if only is not None else [*stands, *sorted(rows.keys() - stands.keys())]
    found = []
    for name in names:
        stand = stands.get(name)
        # In the list of all sites, the last words are shown only for those in trouble.
        looks = only is not None or (stand is not None and bool(stand.dead_starts))
        found.append(
            _SiteRecord(
                name=name,
                row=rows.get(name),
                stand=stand,
                kept=_kept(services),
                site_message=backend.jobs.site_message(name) if backend is not None else "",
                pilots=await services.ask(_pilots, services, name) if looks else [],
                runs=runs,
            )
        )
    return found


def _stands(engine: Engine, only: str | None) -> dict[str, SiteStatus]:
    from pilotage.service.sites.status import status_of_site

    names = list(engine.state.sites.by_name) if only is None else [only]
    return {name: stand for name in names if (stand := status_of_site(engine, name)) is not None}


def _kept(services: Services) -> SitesConfiguration:
    sites = services.backend.sites if services.backend is not None else None
    return sites.known if sites is not None else SitesConfiguration()


def _pilots(services: Services, site: str) -> list[PilotRow]:
    """The latest pilots and pilot requests of a site."""
    return services.journal.latest_pilots(site, limit=PILOTS_LOOKED_AT)


def last_words(pilots: list[PilotRow]) -> str:
    """The last lines of the latest pilot that ended without contacting the service; empty if there is none."""
    dead = [row for row in pilots if row.ended_at is not None and row.started_at is None and row.stderr]
    last = max(dead, key=lambda row: row.ended_at or 0.0, default=None)
    if last is None:
        return ""
    lines = (last.stderr or "").strip().splitlines()[-WORDS_LINES:]
    return "\n".join([f"{last.reason}:", *lines] if last.reason and len(lines) > 1 else lines)


def _view(known: _SiteRecord) -> SiteView:
    row = known.row or SiteRow(site=known.name)
    entry = known.kept.entries.get(known.name)
    kind = entry.kind if entry is not None else row.kind or ("local" if known.name in known.kept.entries else "")
    stand = known.stand
    status = stand.status if stand is not None else GONE if known.runs else row.status or GONE
    stand = stand if stand is not None else SiteStatus(status=status)
    words = last_words(known.pilots) if stand.dead_starts else ""
    words = next(("\n".join(each.words.splitlines()[-WORDS_LINES:]) for each in stand.noticed if each.words), words)
    return SiteView(
        site=known.name,
        kind=kind,
        mode=entry.mode if entry is not None else "pilots",
        status=status,
        message=known.site_message or row.message,
        says=known.site_message,
        score=stand.score,
        tscore=stand.tscore,
        queue_seconds=stand.queue_seconds,
        pilots_queued=stand.pilots_queued,
        pilots_live=stand.pilots_live,
        slots=stand.slots,
        used=stand.used,
        dead_starts=stand.dead_starts,
        closed=stand.closed,
        next_try_at=stand.next_try_at,
        unheard=stand.unheard,
        last_words=words,
        updated_at=row.updated_at,
    )


def site_names(engine: Engine) -> list[str]:
    """The names of the sites that the engine knows."""
    return list(engine.state.sites.by_name)


def unknown_site(site: str, known: Collection[str]) -> UnknownSite:
    """The error for a site that is not among the known ones."""
    hint = did_you_mean(site, sorted(known)) or "list all: pilotage site list"
    return UnknownSite("no such site", subject=f"site {site[:64]}", next_step=hint)


SITE_ROUTES = (sites, one_site, latencies, hibernate, wake, probe, try_site)
