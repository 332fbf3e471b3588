"""Removes cached files: deletable ones with their last need, others when space is needed, the least recently used first.

A file that a package which may still run needs is never removed, nor one that is pinned or retained indefinitely.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.caches import CachedFile, FileState, SiteCache, covers
from pilotage.engine.state.jobs import JobState
from pilotage.engine.transitions.file_needs import files_of, is_needed
from pilotage.model.events import file_payloads
from pilotage.model.events.file_payloads import OrderedRemoval, RemovalCause, Retention
from pilotage.model.exchange.operations import RemoveFile

FILES_MAX = 10_000
"""Files in one event."""


def remove_unneeded(state: EngineState) -> None:
    """Remove files that nobody needs or wants any more; note the others as the first to go when space is needed."""
    for cache in list(state.files.caches.values()):
        if not cache.to_check or not _is_managed(state, cache):
            continue
        checked, cache.to_check = cache.to_check, {}
        gone: list[tuple[CachedFile, RemovalCause]] = []
        for locator in checked:
            entry = cache.entries.get(locator)
            if entry is None or entry.state != FileState.PRESENT:
                continue
            if is_needed(state, locator):
                cache.idle.pop(locator, None)
            elif entry.is_disposable:
                gone.append((entry, "stale" if entry.stale else "deletable"))
            else:
                cache.idle[locator] = None
                cache.idle.move_to_end(locator)
        remove(state, cache, gone)


def _is_managed(state: EngineState, cache: SiteCache) -> bool:
    site = state.sites.by_name.get(cache.name)
    return site is not None and not site.removed


def make_space(state: EngineState, cache: SiteCache, missing_bytes: int) -> bool:
    """Remove files without a need until so many bytes will be free; whether any are being removed."""
    gone: list[tuple[CachedFile, RemovalCause]] = []
    left = missing_bytes - cache.removing_bytes
    for locator in [*cache.idle] if left > 0 else ():
        entry = cache.entries.get(locator)
        if entry is None or entry.state != FileState.PRESENT or is_needed(state, locator):
            del cache.idle[locator]  # noted again when its last need is gone
        elif entry.is_evictable:
            gone.append((entry, "stale" if entry.stale else "space"))
            left -= entry.size_bytes
            if left <= 0:
                break
    remove(state, cache, gone)
    return bool(cache.removing_bytes or gone)


def release_inputs(state: EngineState, job: JobState, number: int) -> None:
    """A package that releases some of its inputs is done: the wishes of its owner for them no longer hold, at any site."""
    locators = files_of(job).released_by(number) if job.files is not None else []
    if job.plan.releases is not None:
        locators += job.plan.releases(number)
    for cache in state.files.caches.values() if locators else ():
        files = [
            Retention(locator=each, released=True, owner=job.owner, job=job.id)
            for each in locators
            if (entry := cache.entries.get(each)) is not None and covers(entry.wishes, job.owner, 0)
        ]
        for start in range(0, len(files), FILES_MAX):
            part = tuple(files[start : start + FILES_MAX])
            state.log.write(file_payloads.RetentionSet(files=part), site=cache.name)


def remove(state: EngineState, cache: SiteCache, files: Sequence[tuple[CachedFile, RemovalCause]]) -> None:
    """Order the removal of files."""
    for start in range(0, len(files), FILES_MAX):
        number = state.log.next_number
        part = [(f"remove.{number}.{at}", *each) for at, each in enumerate(files[start : start + FILES_MAX])]
        ordered = tuple(OrderedRemoval(locator=file.locator, key=key, cause=cause) for key, file, cause in part)
        state.log.write(file_payloads.RemovalsOrdered(files=ordered), site=cache.name)
        state.log.effects += [RemoveFile(site=cache.name, key=key, name=file.name) for key, file, _ in part]
