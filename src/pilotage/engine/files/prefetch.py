"""Prefetch: files are brought to a site once, when the first package that needs them is reserved there.

A reserved package waits for its files and keeps its reservation; pilots pull it when all of them are there. Fetches are
ordered in the order of the reservations, as far as the cache has space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.eviction import make_space, remove
from pilotage.engine.files.holding import hold_without_files, other_site_with_space, queue_at, why_no_space_comes
from pilotage.engine.files.keeping import order_wished, wish_again
from pilotage.engine.state.caches import WISH_NAMES, CachedFile, FileState, SiteCache, covers, is_output, name_in_cache
from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.file_needs import accepting_jobs, files_of, needing_jobs, required_sha256, want_again
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.engine.transitions.readiness import may_start, move, reserve
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.file_payloads import FailedFetch, FetchedFile, OrderedFetch, RemovalCause, Retention
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.exchange.reports import FileArrived, FileGone, FileNotFetched
from pilotage.model.texts import REASON_MAX, clipped, named

FILES_MAX = 10_000
"""Files in one event."""
_LOOKED_AT_MAX = 100  # files, or packages of a file, that are looked at to find one that makes space

Part = TypeVar("Part")


# --- reports --------------------------------------------------------------------------------------------------------


def on_file_report(state: EngineState, site: SiteState, report: FileArrived | FileNotFetched | FileGone) -> None:
    """Note what a site says of a file; a report on an order that is not open changes nothing."""
    cache = state.files.caches.get(site.name)
    if cache is None:
        return
    locator = cache.by_key.pop(report.key, None)
    entry = cache.entries.get(locator) if locator is not None else None
    match report:
        case FileArrived() if entry is not None and entry.state == FileState.ORDERED:
            cache.arrived.append(
                FetchedFile(
                    locator=entry.locator,
                    key=entry.key,
                    size_bytes=max(0, report.size_bytes),
                    sha256=report.sha256,
                    version=clipped(report.version),
                    seconds=max(0.0, report.seconds),
                )
            )
        case FileNotFetched() if entry is not None and entry.state == FileState.ORDERED:
            cache.not_fetched.append(
                FailedFetch(
                    locator=entry.locator,
                    key=entry.key,
                    reason=named(report.reason, most=REASON_MAX, otherwise="failed"),
                    message=clipped(report.message),
                    seconds=max(0.0, report.seconds),
                    failures=(fault.failures if (fault := cache.faults.get(entry.locator)) is not None else 0) + 1,
                )
            )
        case FileGone():
            if entry is None:
                # A pilot that found a damaged file knows it by its name.
                known = (each for each in cache.entries.values() if report.key in (each.key, each.name))
                entry = next(known, None)
            if entry is not None:
                cache.gone[entry.locator] = None


def record_file_reports(state: EngineState) -> None:
    """Record what sites said of files, many with one event."""
    for cache in state.files.caches.values():
        if cache.arrived:
            arrived, cache.arrived = cache.arrived, []
            _write(state, cache, arrived, lambda files: file_payloads.FilesFetched(files=files))
            for each in arrived:
                _note_stale(state, cache, each)
        if cache.not_fetched:
            failed, cache.not_fetched = cache.not_fetched, []
            _write(state, cache, failed, lambda files: file_payloads.FetchesFailed(files=files))
        if cache.gone:
            gone, cache.gone = [*cache.gone], {}
            stale = [entry for each in gone if (entry := cache.entries.get(each)) is not None and entry.stale]
            _write(state, cache, gone, lambda locators: file_payloads.CachedFilesRemoved(locators=locators))
            wish_again(state, cache, stale)


def _write(
    state: EngineState, cache: SiteCache, parts: Sequence[Part], payload: Callable[[tuple[Part, ...]], payloads.Payload]
) -> None:
    for start in range(0, len(parts), FILES_MAX):
        state.log.write(payload(tuple(parts[start : start + FILES_MAX])), site=cache.name)


def _note_stale(state: EngineState, cache: SiteCache, arrived: FetchedFile) -> None:
    """Other sites that have another content under the same locator have an old one: the store has changed it."""
    for other in state.files.caches.values():
        entry = other.entries.get(arrived.locator) if other is not cache else None
        if (
            entry is not None
            and entry.state == FileState.PRESENT
            and entry.sha256 != arrived.sha256
            and not entry.stale
        ):
            stale = Retention(locator=arrived.locator, stale=True)
            state.log.write(file_payloads.RetentionSet(files=(stale,)), site=other.name)


# --- orders ---------------------------------------------------------------------------------------------------------


def order_fetches(state: EngineState) -> None:
    """Order the files that reserved packages lack, in the order of the reservations, and record new wishes."""
    for cache in state.files.caches.values():
        if cache.to_replace:
            _replace(state, cache)
    if state.files.to_hold:
        hold_without_files(state)
    for cache in list(state.files.caches.values()):
        site = state.sites.by_name.get(cache.name)
        if cache.wanted and site is not None and not site.removed:
            _order(state, site, cache)
        if cache.to_bring and site is not None and not site.removed:
            order_wished(state, cache, site.site.cache_bytes)
        if cache.to_retain:
            _retain(state, cache)


def _replace(state: EngineState, cache: SiteCache) -> None:
    """Fetch files anew that have another content than waiting packages require, unless others need them as they are."""
    looked_at, cache.to_replace = cache.to_replace, {}
    gone: list[tuple[CachedFile, RemovalCause]] = []
    for locator in looked_at:
        entry = cache.entries.get(locator)
        if entry is None or entry.state != FileState.PRESENT:
            continue
        brought = not is_output(locator) and entry.is_evictable
        if not brought or accepting_jobs(state, locator, entry.sha256) or _must_be_there(cache, locator):
            state.files.to_hold.update(dict.fromkeys(cache.waiting.get(locator, ()), locator))
        elif cache.waiting.get(locator):
            gone.append((entry, "stale"))
    remove(state, cache, gone)


def _must_be_there(cache: SiteCache, locator: str) -> bool:
    """Whether a package waits for a file that is not brought: it would not come again."""
    found = ((files_of(work.job), files_of(work.job).find(locator)) for work in cache.waiting.get(locator, ()))
    return any(file is not None and files.must_be_present(file) for files, file in found)


def _order(state: EngineState, site: SiteState, cache: SiteCache) -> None:
    """Order what is wanted, as far as there is space for it."""
    limit, unsized = site.site.cache_bytes, cache.unsized > 0
    if limit is not None:
        _admit(state, site, cache, limit)
    chosen: list[tuple[str, JobState, int, int | None]] = []
    for locator, (job, file) in cache.wanted.items():
        size_bytes = files_of(job).size_bytes(file)
        if limit is not None:
            # Of files whose size is not known, one is fetched at a time.
            if locator not in cache.claimed or (unsized and not size_bytes):
                continue
            unsized = unsized or not size_bytes
        chosen.append((locator, job, file, size_bytes))
    for start in range(0, len(chosen), FILES_MAX):
        number = state.log.next_number
        ordered = []
        for index, (locator, job, file, size_bytes) in enumerate(chosen[start : start + FILES_MAX]):
            files, key, failed = files_of(job), f"fetch.{number}.{index}", cache.entries.get(locator)
            wish = files.wish(file)
            if failed is not None:
                wish = max(wish, dict(failed.wishes).get(job.owner, 0))
            ordered.append(
                OrderedFetch(
                    locator=locator,
                    key=key,
                    # What came of it before can be continued.
                    name=failed.name if failed is not None else name_in_cache(locator, key),
                    size_bytes=size_bytes,
                    wish=WISH_NAMES[wish],
                    owner=job.owner,
                    software=files.is_software(file),
                )
            )
        state.log.write(file_payloads.FetchesOrdered(files=tuple(ordered)), site=site.name)
        state.log.effects += [
            FetchFile(
                site=site.name,
                key=each.key,
                locator=each.locator,
                name=each.name,
                size_bytes=each.size_bytes,
                sha256=required_sha256(state, each.locator),
            )
            for each in ordered
        ]


def _retain(state: EngineState, cache: SiteCache) -> None:
    """Record wishes that are new, or greater than before; those of files that are not ordered yet wait."""
    found = []
    for (locator, owner), wish in list(cache.to_retain.items()):
        entry = cache.entries.get(locator)
        if entry is None:
            if locator not in cache.wanted:
                del cache.to_retain[locator, owner]
            continue
        del cache.to_retain[locator, owner]
        if not covers(entry.wishes, owner, wish):
            found.append(Retention(locator=locator, wish=WISH_NAMES[wish], owner=owner))
    _write(state, cache, found, lambda files: file_payloads.RetentionSet(files=files))


def _admit(state: EngineState, site: SiteState, cache: SiteCache, limit: int) -> None:
    """Keep space for all missing files of each package in line, in the order of the reservations."""
    while cache.line:
        work = next(iter(cache.line))
        if not _claim(cache, work, limit):
            missing_bytes = cache.taken_bytes + cache.claimed_bytes + _unclaimed(cache, work)[1] - limit
            if not make_space(state, cache, missing_bytes):
                _start_another(state, site, cache, limit)
            break
    if cache.line and cache.blocked_since is None:
        cache.blocked_since = state.clock.now
    elif not cache.line:
        cache.blocked_since = None


def _unclaimed(cache: SiteCache, work: ActivePackage) -> tuple[list[tuple[str, int]], int]:
    """The missing files of a reserved package that have no space yet, and their size together."""
    files, site, found = files_of(work.job), work.bound, []
    assert site is not None
    for file in files.needed(work.number, site.site):
        locator = files.locator(file)
        entry = cache.entries.get(locator)
        comes = entry is not None and entry.state in (FileState.ORDERED, FileState.PRESENT)
        if not comes and locator not in cache.claimed:
            found.append((locator, files.size_bytes(file) or 1))
    return found, sum(size_bytes for _, size_bytes in found)


def _claim(cache: SiteCache, work: ActivePackage, limit: int) -> bool:
    """Keep space for all missing files of a package, if there is enough."""
    missing, size_bytes = _unclaimed(cache, work)
    if cache.taken_bytes + cache.claimed_bytes + size_bytes > limit:
        return False
    for locator, each in missing:
        cache.claim(locator, each)
    del cache.line[work]
    cache.admitted[work] = None
    return True


def _start_another(state: EngineState, site: SiteState, cache: SiteCache, limit: int) -> None:
    """The first in line has no space, because waiting packages need all that is there: see that one of them can start.

    Nothing is done while something is under way that frees space later.
    """
    if cache.admitted or cache.by_key or site.profile.live:
        return
    reserved = state.queues.at[site].reserved
    if any(not queue.job.work[numbers[0]].lacks for queue, numbers in reserved.items()):
        return
    if any(_claim(cache, work, limit) for work in list(cache.line)):  # the first that fits
        return
    for locator in islice(cache.entries, _LOOKED_AT_MAX):
        for job, file in needing_jobs(state, locator):
            for number in islice(files_of(job).plan.users.few(file), _LOOKED_AT_MAX):
                if job.status[number] == PackageStatus.READY and job.open and _has_all(cache, site, job, number):
                    _swap(state, site, job, number)
                    return
    _give_way(state, site, cache)


def _give_way(state: EngineState, site: SiteState, cache: SiteCache) -> None:
    """No package in line can have its files here: one goes to another site, or the first is held.

    One goes to where its files are, past those before it. The first is held if no space can come free anywhere: what is
    needed is never removed, so nobody but a person can go on.
    """
    line = list(islice(cache.line, _LOOKED_AT_MAX))
    for work in line:
        other = _site_with_files(state, site, work)
        if other is not None:
            move(state, work.job, work.number, PackageStatus.READY)
            reserve(state, queue_of(state, work.job, work.number), work.number, other, None)
            state.files.to_submit[work.job.work[work.number]] = None  # to its batch system, or to a pilot
            state.files.again = True
            return
    for work in line:
        others = [each for each in state.placement.open_sites(queue_at(work)) if each is not site]
        if any(work is line[0] or state.placement.takes_one_more(each, queue_at(work)) for each in others):
            _leave(state, site, work)
            return
    first = line[0]
    if why_no_space_comes(state, first.job, first.number):
        state.files.to_hold[first] = ""
    elif (other := other_site_with_space(state, site, first)) is not None:
        # It avoids that site, or was refused there: no reason to wait here for ever.
        state.placement.reopen_for(other, queue_at(first))
        _leave(state, site, first)


def _leave(state: EngineState, site: SiteState, work: ActivePackage) -> None:
    """A package gives up its reservation, and its class is reserved here no more for now."""
    state.placement.close(site, queue_at(work))
    move(state, work.job, work.number, PackageStatus.READY)
    state.files.again = True


def _site_with_files(state: EngineState, site: SiteState, work: ActivePackage) -> SiteState | None:
    """Another site that has room for a package and all its files."""
    queue = queue_at(work)
    for other in state.placement.open_sites(queue):
        cache = state.files.caches.get(other.name) if other is not site else None
        if (
            cache is not None
            and state.placement.takes_one_more(other, queue)
            and _has_all(cache, other, work.job, work.number)
        ):
            return other
    return None


def _has_all(cache: SiteCache, site: SiteState, job: JobState, number: int) -> bool:
    files = files_of(job)
    found = (cache.entries.get(files.locator(file)) for file in files.needed(number, site.site))
    return all(entry is not None and entry.state == FileState.PRESENT for entry in found)


def _swap(state: EngineState, site: SiteState, job: JobState, number: int) -> None:
    """Reserve a package that has all its files, in place of one that waits for space.

    The class of that one is closed there until a file has gone: if it has a higher rank, it would take the place back.
    """
    queue = queue_of(state, job, number)
    if not state.placement.able(site, queue):
        return
    reserved = state.queues.at[site].reserved
    allowed = may_start(state, queue)
    if not allowed or not state.placement.has_room(site, queue.shape):
        # At a limit of its owner or category, only one that counts against the same limits makes room for it.
        blocked = next(
            (
                each
                for each in reversed(reserved)
                if each.shape == queue.shape
                and (
                    allowed
                    or (
                        each.job is job
                        and job.open
                        and each.category == queue.category
                        and not job.work[reserved[each][-1]].attempts  # a silent attempt counts until it is lost
                    )
                )
            ),
            None,
        )
        if blocked is None and not allowed:
            return
        if blocked is not None:
            if blocked is not queue:
                state.placement.close(site, blocked)
            move(state, blocked.job, reserved[blocked][-1], PackageStatus.READY)
    reserve(state, queue, number, site, None)
    state.files.to_submit[job.work[number]] = None  # to its batch system, or to a pilot
    state.files.again = True


# --- failures -------------------------------------------------------------------------------------------------------


def retry_fetches(state: EngineState, name: str) -> None:
    """Order files again whose delay is over and that a reserved package still waits for."""
    cache = state.files.at(name)
    for locator, fault in cache.faults.items():
        entry = cache.entries.get(locator)
        failed = entry is not None and entry.state == FileState.FAILED and not fault.given_up
        if failed and fault.retry_at <= state.clock.now:
            want_again(state, cache, locator)
            if locator in cache.wished and locator not in cache.wanted:
                cache.to_bring[locator] = None
