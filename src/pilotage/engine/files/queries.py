"""Answers questions about files at sites, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.holding import not_brought
from pilotage.engine.state.caches import WISH_NAMES, CachedFile, FileState, SiteCache
from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.file_needs import files_of, needing_jobs
from pilotage.model.answers import FileNeed, Why
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.texts import moment

_SHOWN_MAX = 3
_PACKAGES_NAMED_MAX = 5
_LOOKED_AT_MAX = 1000  # failed files


def cached_file(state: EngineState, site: str, locator: str) -> CachedFile | None:
    """The file with a locator in the cache of a site, if it is there now: for the work order of a package."""
    cache = state.files.caches.get(site)
    entry = cache.entries.get(locator) if cache is not None else None
    return entry if entry is not None and entry.state == FileState.PRESENT else None


def cached_under(state: EngineState, name: str, *, site: str) -> FetchFile | None:
    """The file that is in the cache of a site under a name, as an order to fetch it; of any site, if none is named."""
    caches = state.files.caches
    for cache in [caches[site]] if site in caches else () if site else caches.values():
        for entry in cache.entries.values():
            if entry.name == name and entry.state == FileState.PRESENT:
                return FetchFile(
                    site=cache.name, key=entry.key, locator=entry.locator, name=name, size_bytes=entry.size_bytes
                )
    return None


def needed_by(state: EngineState, locator: str) -> list[tuple[str, int]]:
    """The jobs with packages that may still run and need a file, and how many these are."""
    return [(job.id, files_of(job).open_users[file]) for job, file in needing_jobs(state, locator)]


def needs_of(state: EngineState, site: str, locator: str) -> tuple[FileNeed, ...]:
    """The jobs with packages that may still run and need a file."""
    cache = state.files.caches.get(site)
    waiting = cache.waiting.get(locator, {}) if cache is not None else {}
    found = []
    for job, file in needing_jobs(state, locator):
        files = files_of(job)
        users = (number for number in files.plan.users.few(file) if not job.is_final(number))
        found.append(
            FileNeed(
                job=job.id,
                owner=job.owner,
                packages=files.open_users[file],
                some=tuple(job.dotted(number) for number in islice(users, _PACKAGES_NAMED_MAX)),
                waiting=sum(work.job is job for work in waiting),
                wish=WISH_NAMES[files.wish(file)],
            )
        )
    return tuple(found)


def needing_job_ids(state: EngineState, locators: Sequence[str]) -> dict[str, list[str]]:
    """For each file, the jobs with packages that may still run and need it."""
    return {locator: [job.id for job, _ in needing_jobs(state, locator)] for locator in locators}


def explain_files(state: EngineState, work: ActivePackage, site: SiteState) -> Iterator[Why]:
    """Which files a reserved package waits for, the first ones, and what becomes of them."""
    files, cache = files_of(work.job), state.files.at(site.name)
    needed = files.needed(work.number, site.site)
    there = f"{len(needed) - work.lacks} of {len(needed)} files are there"
    shown = 0
    for file in needed:
        locator = files.locator(file)
        if work in cache.waiting.get(locator, {}):
            yield _missing(state, cache, site, locator, there)
            shown += 1
            if shown == _SHOWN_MAX:
                return


def late_files(state: EngineState, job: JobState) -> str:
    """Why reserved packages of a job still wait for files: the first that could not be fetched, or a full cache; else empty."""
    wall = state.clock.wall_time - state.clock.now
    for cache in state.files.caches.values():
        for locator, fault in islice(cache.faults.items(), _LOOKED_AT_MAX):
            entry = cache.entries.get(locator)
            if fault.given_up or entry is None or not _is_awaited(cache, locator, job):
                continue
            again = f"at {moment(fault.retry_at + wall)}" if entry.state == FileState.FAILED else "now"
            return f"{not_brought(cache, locator, fault)}; it is tried again {again}"
        if cache.blocked_since is not None and any(work.job is job for work in islice(cache.line, _LOOKED_AT_MAX)):
            return f"the cache of {cache.name} has no space: packages need what is in it"
    return ""


def _is_awaited(cache: SiteCache, locator: str, job: JobState) -> bool:
    return any(work.job is job for work in islice(cache.waiting.get(locator, ()), _LOOKED_AT_MAX))


def fetched_for(state: EngineState, job: str, *, site: str, key: str) -> str:
    """The locator of a file on its way to a site, if packages of this job need it; else empty."""
    known, cache = state.jobs.by_id.get(job), state.files.caches.get(site)
    if known is None or known.files is None or cache is None:
        return ""
    locator = cache.by_key.get(key, "")
    return locator if locator and known.files.find(locator) is not None else ""


def _missing(state: EngineState, cache: SiteCache, site: SiteState, locator: str, there: str) -> Why:
    entry, fault = cache.entries.get(locator), cache.faults.get(locator)
    wall = state.clock.wall_time - state.clock.now
    what, since, until = "it is about to be fetched", None, None
    if entry is None and cache.blocked_since is not None:
        limit = site.site.cache_bytes or 0
        since = cache.blocked_since + wall
        what = f"the cache has no space: {cache.taken_bytes:,} of {limit:,} bytes are used by files that are needed or kept"
    elif entry is not None:
        since = entry.since
        if entry.state == FileState.ORDERED:
            what = "it is being fetched"
        elif entry.state == FileState.REMOVING:
            what = "an earlier copy of it is being removed first"
        elif fault is not None:
            words = f": {fault.message}" if fault.message else ""
            what = f"it could not be fetched ({fault.reason}){words}"
            until = None if fault.given_up else fault.retry_at + wall
    message = f"it waits for {locator} at {site.name}: {what}; {there}"
    return Why(code="waits-for-file", message=message, subject=locator, since=since, until=until)
