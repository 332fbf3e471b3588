"""Cached files over HTTP: lists of them, why they are kept, and operations on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from pilotage.book.fold.cached_files import CachedFile
from pilotage.model.answers import FileNeed
from pilotage.model.exchange.operations import AnyFileOperation, PinFiles, PurgedFile, PurgeFiles, UnpinFiles
from pilotage.reading.access import OPERATE, READ, SITES, Principal, may
from pilotage.reading.cached_files import (
    CachedFileReasons,
    CachedFilesPage,
    all_cached_files,
    cached_file_view,
    cached_files,
    is_theirs,
    matches,
    reason_of,
)
from pilotage.reading.views import View
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.errors import Malformed
from pilotage.service.http.routes.operations import OnceKey
from pilotage.service.http.routes.sites import site_names, unknown_site
from pilotage.service.http.routing import ApiRequest, CursorText, Limit, ServicesArgument, get, in_query, post
from pilotage.service.http.services import Services, backend_of

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

PAGE_ROWS = 1000
PAGE_ROWS_MAX = 10_000
REASONS_MAX = 20
"""Files that are explained at once."""
CHANGED_AT_ONCE = 10_000
PATTERNS_MAX = 1000
SHOWN_MAX = 1000
OTHERS_NAMED_MAX = 3
_ASKED_AT_ONCE = 1000  # files that the engine looks up between two steps

FileDeed = Literal["pin", "unpin", "purge"]
SiteName = Annotated[str | None, in_query("Only files of this site.", name="site", max_length=256)]
Pattern = Annotated[
    str, in_query("The locator of a file, its last part, or a shell pattern for one of them.", max_length=4096)
]


class FilesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cached files to change: those that match a pattern, at one site or at all; or archives of software."""

    patterns: tuple[str, ...] = ()
    site: str = ""
    software: bool = False
    dry_run: bool = False


class ChangedFile(View, frozen=True, kw_only=True):
    """A cached file that was changed."""

    site: str
    locator: str


class KeptFile(View, frozen=True, kw_only=True):
    """A cached file that was left alone, and why."""

    site: str
    locator: str
    message: str


class FilesChanged(View, frozen=True, kw_only=True):
    """What an operation on cached files did, or would do: counts, the first files, and those left alone with the reason."""

    operation: FileDeed
    dry_run: bool
    changed: int
    changed_bytes: int
    files: list[ChangedFile]
    kept: int
    kept_files: list[KeptFile]
    unmatched: list[str]


@get(
    "/v1/files",
    operation_id="cached_files",
    needs=(READ,),
    summary="Cached files",
    tags=["files"],
    faults=(400, 401, 403, 404, 503),
)
async def list_files(
    request: ApiRequest,
    services: ServicesArgument,
    site: SiteName = None,
    pattern: Pattern = "",
    cursor: CursorText = None,
    limit: Limit = 0,
) -> CachedFilesPage:
    """Files in the caches of sites: those that your jobs asked for, and those that a job needs which you may read.

    A page may have fewer files than asked for, or none, and still a next one.
    """
    sites = await _sites(request, services, site)
    rows_max = min(limit or PAGE_ROWS, PAGE_ROWS_MAX)
    read = partial(
        cached_files,
        services.journal,
        sites,
        after=cursor,
        wanted=lambda file: not pattern or matches(file, pattern),
        rows_max=rows_max,
    )
    found, following = await services.ask(read)
    seen = await _visible(request.user, services, found)
    return CachedFilesPage(files=[cached_file_view(file) for file in seen], next=following)


@get(
    "/v1/files/why",
    operation_id="why_cached",
    needs=(READ,),
    summary="Why cached files are kept",
    tags=["files"],
    faults=(400, 401, 403, 404, 503),
)
async def why_files(
    request: ApiRequest, services: ServicesArgument, pattern: Pattern = "", site: SiteName = None
) -> CachedFileReasons:
    """Who needs files, whose wish keeps them, and when they may go; of many, the first ones."""
    if not pattern:
        raise Malformed("which files?", expected="the parameter `pattern`")
    sites = await _sites(request, services, site)
    read = partial(_first_files, services, sites, pattern)
    seen = await _visible(request.user, services, await services.ask(read))
    shown = seen[:REASONS_MAX]
    known = await _needs(services, shown)
    files = []
    for file, (needs, cache_bytes) in zip(shown, known, strict=True):
        own = await services.do(_readable, services, request.user, needs) if needs is not None else None
        others = len(needs or ()) - len(own or ())
        files.append(reason_of(file, own, others=others, cache_bytes=cache_bytes))
    return CachedFileReasons(files=files, more=len(seen) > REASONS_MAX)


_change = partial(
    post, status=200, needs=(READ, OPERATE), tags=["files"], faults=(400, 401, 403, 404, 409, 503), body="cached files"
)


@_change("/v1/files/pin", operation_id="pin_files", summary="Pin cached files")
async def pin_files(request: ApiRequest, services: ServicesArgument, key: OnceKey = None) -> FilesChanged:
    """Keep cached files until you unpin them; those that your jobs asked for, or as an operator any."""
    return await _changed(request, services, "pin", key)


@_change("/v1/files/unpin", operation_id="unpin_files", summary="Unpin cached files")
async def unpin_files(request: ApiRequest, services: ServicesArgument, key: OnceKey = None) -> FilesChanged:
    """Remove your pins from cached files; as an operator, the pins of everyone."""
    return await _changed(request, services, "unpin", key)


@_change("/v1/files/purge", operation_id="purge_files", summary="Purge cached files")
async def purge_files(request: ApiRequest, services: ServicesArgument, key: OnceKey = None) -> FilesChanged:
    """Remove cached files that no package needs; with `dry_run`, say what would go.

    Files that packages need, that are pinned, or that other users keep are left alone and named.
    """
    return await _changed(request, services, "purge", key)


async def _changed(request: ApiRequest, services: Services, deed: FileDeed, key: str | None) -> FilesChanged:
    backend, user = backend_of(services), request.user
    wanted = _request_of(await request.body())
    sites = await _sites(request, services, wanted.site or None)
    found = await services.ask(partial(_matching, services, sites, wanted))
    seen = await _visible(user, services, found)
    allowed: list[CachedFile] = []
    kept: list[KeptFile] = []
    for file in seen:
        if why := _not_allowed(user, deed, file):
            kept.append(KeptFile(site=file.site, locator=file.locator, message=why))
        else:
            allowed.append(file)

    async def operate() -> FilesChanged:
        done: list[CachedFile] = []
        for site, files in groupby(allowed, key=lambda file: file.site):
            for part in _parts(list(files), CHANGED_AT_ONCE):
                left = part if deed != "purge" else await _purgeable(backend, site, part, kept)
                if left and not wanted.dry_run:
                    for operation in _operations(deed, site, left, user):
                        await asyncio.wrap_future(backend.jobs.change_files(operation))
                done += left
        return FilesChanged(
            operation=deed,
            dry_run=wanted.dry_run,
            changed=len(done),
            changed_bytes=sum(file.size_bytes for file in done if file.state == "present"),
            files=[ChangedFile(site=file.site, locator=file.locator) for file in done[:SHOWN_MAX]],
            kept=len(kept),
            kept_files=kept[:SHOWN_MAX],
            unmatched=[each for each in wanted.patterns if not any(matches(file, each) for file in seen)],
        )

    return await backend.once(user, key, operate)


def _not_allowed(user: Principal, deed: FileDeed, file: CachedFile) -> str:
    """Why a user may not change a file; empty if they may: it is theirs alone, or they operate the service."""
    if SITES in user.scopes:
        return ""
    if user.user not in (*file.wishes, *file.pins):
        return "no job of yours asked for it"
    others = sorted(owner for owner, wish in file.wishes.items() if wish and owner != user.user)
    if deed == "purge" and others:
        return f"{', '.join(others[:OTHERS_NAMED_MAX])} wants to keep it, too"
    return ""


async def _purgeable(
    backend: JobBackend, site: str, files: Sequence[CachedFile], kept: list[KeptFile]
) -> list[CachedFile]:
    """The files that a purge would remove now; the others are added to those kept."""
    locators = tuple(file.locator for file in files)
    previewed = await asyncio.wrap_future(backend.jobs.ask(partial(_preview, site=site, locators=locators)))
    reasons = {each.locator: each.kept for each in previewed}
    for file in files:
        why = reasons.get(file.locator, "it has gone meanwhile")
        if why:
            kept.append(KeptFile(site=site, locator=file.locator, message=why))
    return [file for file in files if reasons.get(file.locator) == ""]


def _operations(deed: FileDeed, site: str, files: Sequence[CachedFile], user: Principal) -> Iterator[AnyFileOperation]:
    """The operations on files of a site; an operator ends the pins of everyone."""
    locators = tuple(file.locator for file in files)
    match deed:
        case "pin":
            yield PinFiles(site=site, locators=locators, by=user.user)
        case "purge":
            yield PurgeFiles(site=site, locators=locators)
        case "unpin":
            owners = {owner for file in files for owner in file.pins}
            for owner in sorted(owners if SITES in user.scopes else owners & {user.user}):
                pinned = tuple(file.locator for file in files if owner in file.pins)
                yield UnpinFiles(site=site, locators=pinned, by=owner)


def _parts(files: Sequence[CachedFile], size: int) -> Iterator[Sequence[CachedFile]]:
    return (files[start : start + size] for start in range(0, len(files), size))


def _request_of(body: bytes) -> FilesRequest:
    try:
        wanted = msgspec.json.decode(body or b"{}", type=FilesRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise Malformed(f"the body must name files: {fault}") from None
    if not wanted.patterns and not wanted.software:
        raise Malformed("which files?", expected="`patterns`, or `software`")
    if len(wanted.patterns) > PATTERNS_MAX:
        raise Malformed("too many patterns", expected=f"at most {PATTERNS_MAX}", got=str(len(wanted.patterns)))
    return wanted


def _matching(services: Services, sites: Sequence[str], wanted: FilesRequest) -> list[CachedFile]:
    def fits(file: CachedFile) -> bool:
        named = not wanted.patterns or any(matches(file, each) for each in wanted.patterns)
        return named and (file.software or not wanted.software)

    return list(all_cached_files(services.journal, sites, wanted=fits))


def _first_files(services: Services, sites: Sequence[str], pattern: str) -> list[CachedFile]:
    files = all_cached_files(services.journal, sites, wanted=lambda file: matches(file, pattern))
    return list(islice(files, _ASKED_AT_ONCE))


async def _sites(request: ApiRequest, services: Services, only: str | None) -> list[str]:
    """The names of all sites, or of one; raises `UnknownSite`."""
    names = {row.site for row in await services.ask(services.reader.sites, request.user)}
    backend = services.backend
    if backend is not None and backend.jobs.alive:
        names.update(await asyncio.wrap_future(backend.jobs.ask(site_names)))
    if only is not None and only not in names:
        raise unknown_site(only, names)
    return sorted(names) if only is None else [only]


async def _visible(user: Principal, services: Services, files: Sequence[CachedFile]) -> list[CachedFile]:
    """The files that a user may see: their own, and those that a job needs which they may read."""
    backend = services.backend
    asked = [file.locator for file in files if not is_theirs(user, file)]
    readable: set[str] = set()
    if asked and backend is not None and backend.jobs.alive and not user.is_bound:
        for start in range(0, len(asked), _ASKED_AT_ONCE):
            part = asked[start : start + _ASKED_AT_ONCE]
            jobs = await asyncio.wrap_future(backend.jobs.ask(partial(_needing_jobs, locators=part)))
            allowed = await services.do(_readable_jobs, services, user, {job for each in jobs.values() for job in each})
            readable.update(locator for locator, needing in jobs.items() if allowed.intersection(needing))
    return [file for file in files if is_theirs(user, file) or file.locator in readable]


async def _needs(
    services: Services, files: Sequence[CachedFile]
) -> list[tuple[tuple[FileNeed, ...] | None, int | None]]:
    """For each file the jobs that need it, and the limit of its cache, as far as a service runs."""
    backend = services.backend
    if backend is None or not backend.jobs.alive:
        return [(None, None)] * len(files)
    return await asyncio.wrap_future(backend.jobs.ask(partial(_needs_and_limits, files=files)))


def _needs_and_limits(
    engine: Engine, files: Sequence[CachedFile]
) -> list[tuple[tuple[FileNeed, ...] | None, int | None]]:
    from pilotage.engine.files.queries import needs_of

    sites = engine.state.sites.by_name
    limits = [known.site.cache_bytes if (known := sites.get(file.site)) is not None else None for file in files]
    needs = [needs_of(engine.state, file.site, file.locator) for file in files]
    return list(zip(needs, limits, strict=True))


def _needing_jobs(engine: Engine, locators: Sequence[str]) -> dict[str, list[str]]:
    from pilotage.engine.files.queries import needing_job_ids

    return needing_job_ids(engine.state, locators)


def _preview(engine: Engine, site: str, locators: Sequence[str]) -> list[PurgedFile]:
    """What a purge of these files would do, as far as they are there."""
    from pilotage.engine.files.purging import keeps

    cache = engine.state.files.caches.get(site)
    entries = (cache.entries.get(each) for each in locators) if cache is not None else ()
    return [
        PurgedFile(locator=each.locator, size_bytes=each.size_bytes, kept=keeps(engine.state, each, named=True))
        for each in entries
        if each is not None
    ]


def _readable_jobs(services: Services, user: Principal, jobs: set[str]) -> set[str]:
    rows = (services.journal.job(job) for job in jobs)
    return {row.job for row in rows if row is not None and may(user, "read", row)}


def _readable(services: Services, user: Principal, needs: Sequence[FileNeed]) -> tuple[FileNeed, ...]:
    allowed = _readable_jobs(services, user, {need.job for need in needs})
    return tuple(need for need in needs if need.job in allowed)


FILE_ROUTES = (list_files, why_files, pin_files, unpin_files, purge_files)
