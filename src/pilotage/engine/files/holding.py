"""Packages whose files cannot be had at their site: they are held, and say which file it is and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.caches import CachedFile, Fault, FileState, SiteCache
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.file_needs import accepting_jobs, files_of
from pilotage.model.answers import Why
from pilotage.model.events import payloads
from pilotage.model.texts import clipped

HELD_FOR_FILES = "its files cannot be had"
"""How the message of such a hold begins: a submission of the same document releases it."""
_LOOKED_AT_MAX = 1000  # files of one package


def hold_without_files(state: EngineState) -> None:
    """Hold the packages whose files cannot be had; of many packages that need one file, hold the job."""
    while state.files.to_hold:
        work, locator = state.files.to_hold.popitem()
        job, site = work.job, work.bound
        if site is None or job.held:
            continue
        cache = state.files.at(site.name)
        fault = cache.faults.get(locator)
        if fault is not None and fault.given_up:
            message = not_brought(cache, locator, fault)
        elif not (
            message := _too_large(state, job, work.number, site)
            or _other_content(state, job, locator, cache)
            or _not_there(job, locator, cache)
        ):
            continue  # it is tried again
        if fault is not None:
            count = fault.held[job.id] = fault.held.get(job.id, 0) + 1
            bound = state.settings.flood_packages
            if bound and count > bound:
                message = f"{message}; {bound} packages are held for it: release them when it is there"
                state.log.write(payloads.Held(operation=state.log.next_number, message=clipped(message)), job=job)
                continue
        state.files.again = True  # its room is free
        if not work.held:
            message = clipped(f"{HELD_FOR_FILES}: {message}")
            held = payloads.Held(operation=state.log.next_number, message=message)
            state.log.write(held, job=job, number=work.number, epoch=job.epoch_of(work.number))


def explain_lacks(state: EngineState, job: JobState, number: int) -> Iterator[Why]:
    """Why a held package cannot have its files, at each site where that is so."""
    files = files_of(job)
    for each in files.of(number):
        if files.must_be_present(each):
            locator = files.locator(each)
            having = [cache.name for cache in state.files.caches.values() if _present(cache, locator) is not None]
            where = f"is in that of {', '.join(having)} alone" if having else "is not there"
            message = f"{locator} must be in the cache of the site (acquisition: none), and {where}"
            yield Why(code="waits-for-file", message=message, subject=locator, next_step="release it when it is there")
    for site in state.sites.by_name.values():
        if too_large := _too_large(state, job, number, site):
            step = f"raise cache_bytes of {site.name}, then release it"
            yield Why(code="waits-for-file", message=too_large, subject=site.name, next_step=step)
        cache = state.files.caches.get(site.name)
        if cache is None:
            continue
        for file in islice(files.of(number), _LOOKED_AT_MAX):
            locator = files.locator(file)
            entry, fault = cache.entries.get(locator), cache.faults.get(locator)
            if entry is not None and entry.state == FileState.FAILED and fault is not None:
                # A release of the whole job lets the file be tried again, but leaves the packages held that need it.
                message, step = not_brought(cache, locator, fault), "release it to try again"
            elif message := _other_content(state, job, locator, cache):
                step = "release it when those are done"
            else:
                continue
            yield Why(code="waits-for-file", message=message, subject=locator, next_step=step)


def _present(cache: SiteCache, locator: str) -> CachedFile | None:
    entry = cache.entries.get(locator)
    return entry if entry is not None and entry.state == FileState.PRESENT else None


def _not_there(job: JobState, locator: str, cache: SiteCache) -> str:
    """Why a file that is not brought cannot be had at a site; empty if it is there, or is brought."""
    files, entry = files_of(job), cache.entries.get(locator)
    file = files.find(locator)
    is_there = entry is not None and entry.state in (FileState.PRESENT, FileState.ORDERED)
    if file is None or is_there or not files.must_be_present(file):
        return ""
    return f"{locator} must be in the cache of {cache.name} (acquisition: none), and is not there"


def not_brought(cache: SiteCache, locator: str, fault: Fault) -> str:
    """Why a file could not be brought to a site."""
    words = f": {fault.message}" if fault.message else ""
    return f"{locator} could not be brought to {cache.name} ({fault.reason}){words}"


def _too_large(state: EngineState, job: JobState, number: int, site: SiteState) -> str:
    """Why the cache of a site can never have all files of a package; empty if it can, as far as their sizes are known."""
    limit = site.site.cache_bytes
    if limit is None:
        return ""
    files, cache = files_of(job), state.files.at(site.name)
    total_bytes = 0
    for file in files.of(number):
        entry = cache.entries.get(files.locator(file))
        total_bytes += (entry.size_bytes if entry is not None else 0) or files.size_bytes(file) or 0
    if total_bytes <= limit:
        return ""
    return f"its files are larger than the cache of {site.name}: {total_bytes:,} bytes, and that holds {limit:,}"


def _other_content(state: EngineState, job: JobState, locator: str, cache: SiteCache) -> str:
    """Why the file at a site is of no use for a job, and not fetched anew: others need it as it is. Else empty."""
    files, entry = files_of(job), _present(cache, locator)
    file = files.find(locator) if entry is not None else None
    if entry is None or file is None or files.accepts(file, entry.sha256):
        return ""
    users = ", ".join(sorted(other.id for other in accepting_jobs(state, locator, entry.sha256))[:3])
    kept = f"which {users} needs" if users else "which is kept there"
    return (
        f"{locator} has another content at {cache.name} than the document requires (input-checksum): "
        f"expected sha256 {files.sha256(file)}, got sha256 {entry.sha256}, {kept}"
    )
