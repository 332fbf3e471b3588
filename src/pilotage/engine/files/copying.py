"""Copies between caches: a file that its store does not give comes from the cache of another site that has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from pilotage.engine.engine_state import EngineState
from pilotage.engine.healing.job_health import store_of
from pilotage.engine.state.caches import CachedFile, FileState, SiteCache, is_output
from pilotage.engine.state.jobs import JobState
from pilotage.engine.transitions.file_needs import required_sha256
from pilotage.model.events import file_payloads
from pilotage.model.events.file_payloads import OrderedFetch
from pilotage.model.exchange.operations import CachedCopy, FetchFile

_FAULTS_MAX = 200  # failed files of a site that are looked at
_WAITING_MAX = 200  # packages of a file


class CopyElsewhere(NamedTuple):
    """A file that packages of a site wait for, and the cache of another site that has it; None if no other has it."""

    site: str
    locator: str
    source: str | None


def copies_elsewhere(state: EngineState, job: JobState, store: str) -> Iterator[CopyElsewhere]:
    """The files that packages of a job wait for and that a store did not give, each with a site that has it."""
    for cache in state.files.caches.values():
        site = state.sites.by_name.get(cache.name)
        if site is None or site.removed:
            continue
        for locator in islice(cache.faults, _FAULTS_MAX):
            waiting = islice(cache.waiting.get(locator, ()), _WAITING_MAX)
            if store_of(locator) != store or not any(work.job is job for work in waiting):
                continue
            entry = cache.entries.get(locator)
            if entry is None or entry.state != FileState.FAILED or is_output(locator):
                continue
            found = _source(state, cache, locator)
            if _lacks_space(state, cache, locator, found[1].size_bytes if found is not None else 0):
                continue
            yield CopyElsewhere(cache.name, locator, found[0].name if found is not None else None)


def order_copy(state: EngineState, copy: CopyElsewhere, *, decision: int) -> None:
    """Bring a file from the cache of another site, if that still has it and it is still wanted."""
    cache = state.files.at(copy.site)
    entry, found = cache.entries.get(copy.locator), _source(state, cache, copy.locator)
    if entry is None or entry.state != FileState.FAILED or found is None:
        return
    source, there = found
    key = f"fetch.{state.log.next_number}.0"
    ordered = OrderedFetch(
        locator=copy.locator,
        key=key,
        name=entry.name,
        size_bytes=there.size_bytes,
        software=entry.software,
        source=source.name,
        decision=decision,
    )
    state.log.write(file_payloads.FetchesOrdered(files=(ordered,)), site=cache.name)
    state.log.effects.append(
        FetchFile(
            site=cache.name,
            key=key,
            locator=copy.locator,
            name=entry.name,
            size_bytes=there.size_bytes,
            sha256=there.sha256,
            copy=CachedCopy(site=source.name, name=there.name, sha256=there.sha256, version=there.version),
        )
    )


def _source(state: EngineState, cache: SiteCache, locator: str) -> tuple[SiteCache, CachedFile] | None:
    """The first other cache with a file that is verified, and not known to be outdated."""
    required = required_sha256(state, locator)
    for other in state.files.caches.values():
        entry = other.entries.get(locator) if other is not cache else None
        if entry is None or entry.state != FileState.PRESENT or entry.stale or required not in ("", entry.sha256):
            continue
        return other, entry
    return None


def _lacks_space(state: EngineState, cache: SiteCache, locator: str, size_bytes: int) -> bool:
    """Whether the cache is limited and has kept no space for the file, or less than it takes: its size was not known."""
    limit = state.sites.by_name[cache.name].site.cache_bytes
    if limit is None:
        return False
    kept = cache.claimed.get(locator)
    if kept is None or cache.unsized:
        return True
    return cache.taken_bytes + cache.claimed_bytes - kept + size_bytes > limit
