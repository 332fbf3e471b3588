"""Packages whose files cannot be had at their site: they are held, and say which file it is and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.caches import CachedFile, Fault, FileState, SiteCache
from pilotage.engine.state.jobs import ActivePackage, JobState, QueueClass
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.file_needs import accepting_jobs, files_of, is_needed
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.model.answers import Why
from pilotage.model.events import payloads
from pilotage.model.texts import clipped

HELD_FOR_FILES = "its files cannot be had"
"""How the message of such a hold begins: a submission of the same document releases it."""
NO_SPACE_LEFT = "no space can come free"
"""How the message says that packages which cannot start before need what is in a cache: only a person can go on."""
_LOOKED_AT_MAX = 1000  # files of one package
_SHOWN_MAX = 3


def hold_without_files(state: EngineState) -> None:
    """Hold the packages whose files cannot be had; of many packages that need one file, hold the job."""
    while state.files.to_hold:
        work, locator = state.files.to_hold.popitem()
        job, site, no_space = work.job, work.bound, ""
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
            or (no_space := why_no_space_comes(state, job, work.number))
        ):
            continue  # it is tried again
        if fault is not None:
            count = fault.held[job.id] = fault.held.get(job.id, 0) + 1
            bound = state.settings.flood_packages
            if bound and count > bound:
                message = f"{message}; {bound} packages are held for it: release them when it is there"
                state.log.write(payloads.Held(operation=state.log.next_number, message=clipped(message)), job=job)
                continue
        if no_space:
            count = cache.crowded[job.id] = cache.crowded.get(job.id, 0) + 1
            bound = state.settings.flood_packages
            if bound and count > bound:
                message = f"{HELD_FOR_FILES}: {message}; {bound} packages are held for it"
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
        elif state.placement.able(site, queue_of(state, job, number)) and (full := _no_space(state, job, number, site)):
            step = f"raise cache_bytes of {site.name}, or kill one of the packages, then release it"
            yield Why(code="waits-for-file", message=full, subject=site.name, next_step=step)
        cache = state.files.caches.get(site.name)
        if cache is None:
            continue
        for file in islice(files.needed(number, site.site), _LOOKED_AT_MAX):
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
    for file in files.needed(number, site.site):
        entry = cache.entries.get(files.locator(file))
        total_bytes += (entry.size_bytes if entry is not None else 0) or files.size_bytes(file) or 0
    if total_bytes <= limit:
        return ""
    return f"its files are larger than the cache of {site.name}: {total_bytes:,} bytes, and that holds {limit:,}"


def why_no_space_comes(state: EngineState, job: JobState, number: int) -> str:
    """Why a package can have its files at no site, if nothing that goes on can end a need; empty if it may have them later."""
    if not _is_quiet(state):
        return ""
    queue = queue_of(state, job, number)
    able = [site for site in state.sites.by_name.values() if not site.removed and state.placement.able(site, queue)]
    found = [_too_large(state, job, number, site) or _no_space(state, job, number, site) for site in able]
    return "; ".join(found) if all(found) else ""


def other_site_with_space(state: EngineState, site: SiteState, work: ActivePackage) -> SiteState | None:
    """Another site that could run a package and has space for its files, where nothing goes on that it could wait for."""
    if not _is_quiet(state):
        return None
    for other in state.placement.possible_sites(queue_at(work)):
        if other is not site and _has_space(state, work, other):
            return other
    return None


def _has_space(state: EngineState, work: ActivePackage, site: SiteState) -> bool:
    """Whether the files of a package fit into a cache beside all that is needed there, pinned or retained."""
    limit, cache, files = site.site.cache_bytes, state.files.at(site.name), files_of(work.job)
    if limit is None:
        return True
    own = {files.locator(file): files.size_bytes(file) or 1 for file in files.needed(work.number, site.site)}
    stays = sum(
        each.size_bytes
        for locator, each in cache.entries.items()
        if locator not in own
        and each.state != FileState.FAILED
        and (not each.is_evictable or is_needed(state, locator))
    )
    return stays + sum(own.values()) <= limit


def queue_at(work: ActivePackage) -> QueueClass:
    """The class in which a package is reserved."""
    assert work.bound_as is not None
    return work.bound_as


def _no_space(state: EngineState, job: JobState, number: int, site: SiteState) -> str:
    """Why the cache of a site has no space for a package even without all that nobody needs; empty if it has."""
    limit, cache = site.site.cache_bytes, state.files.caches.get(site.name)
    if limit is None or cache is None:
        return ""
    files = files_of(job)
    own = {files.locator(file): files.size_bytes(file) or 1 for file in files.needed(number, site.site)}
    there = {each.locator: each.size_bytes for each in cache.entries.values() if each.state != FileState.FAILED}
    kept = [each for each in there if each not in own and is_needed(state, each)]
    own_bytes = sum(there.get(locator, size_bytes) for locator, size_bytes in own.items())
    kept_bytes = sum(there[each] for each in kept)
    if own_bytes + kept_bytes <= limit:
        return ""
    kept.sort(key=lambda each: (-there[each], each))
    more = f" and {len(kept) - _SHOWN_MAX} more" if len(kept) > _SHOWN_MAX else ""
    return (
        f"{NO_SPACE_LEFT} in the cache of {site.name}: its files take {own_bytes:,} of {limit:,} bytes, and "
        f"{kept_bytes:,} are of files that other packages need, which cannot start now: "
        f"{', '.join(kept[:_SHOWN_MAX])}{more}; raise cache_bytes of {site.name}, or kill one of the packages"
    )


def _is_quiet(state: EngineState) -> bool:
    """Whether nothing goes on, at any site, after which a package could be over that needs files."""
    for site in state.sites.by_name.values():
        cache = state.files.caches.get(site.name)
        if site.removed:
            continue
        if site.profile.live or (cache is not None and (cache.by_key or cache.admitted)):
            return False
        reserved = state.queues.at[site].reserved
        if any(not queue.job.work[numbers[0]].lacks for queue, numbers in reserved.items()):
            return False
    now = state.clock.now
    return not any(
        work.delayed_until > now
        or (work.candidates and not work.refused)
        or any(not attempt.lost for attempt in work.attempts.values())  # a lost one may never come back
        for job in state.jobs.by_id.values()
        for work in job.work.values()
    )


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
