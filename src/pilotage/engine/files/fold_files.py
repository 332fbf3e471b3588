"""Folds of events about the caches of sites."""

from __future__ import annotations

from itertools import chain

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.caches import (
    WISH_NAMES,
    CachedFile,
    Fault,
    FileState,
    SiteCache,
    WishedFile,
    Wishes,
    is_output,
)
from pilotage.engine.state.clock import Due
from pilotage.engine.transitions.file_needs import claim_again, file_came, file_went, want_again
from pilotage.engine.transitions.site_observations import schedule_site_record
from pilotage.model.events import file_payloads
from pilotage.model.events.events import Event
from pilotage.model.events.file_payloads import FailedFetch, Retention

PERMANENT = frozenset({"not-in-store", "missing", "credential-expired", "access-denied", "input-checksum"})
"""Reasons that another try does not change: a person must act. They say nothing of the site."""
_DOUBLINGS_MAX = 60  # of a delay that reaches its cap long before


def on_fetches_ordered(state: EngineState, event: Event, data: file_payloads.FetchesOrdered) -> None:
    """Files are on their way to a site."""
    cache = state.files.at(event.site or "")
    for each in data.files:
        locator, size_bytes = each.locator, each.size_bytes or 0
        entry = cache.entries.get(locator)
        if entry is None:
            entry = cache.entries[locator] = CachedFile(locator=locator, key=each.key, name=each.name)
        else:
            _leave(cache, entry)
        entry.key, entry.name, entry.state, entry.size_bytes = each.key, each.name, FileState.ORDERED, size_bytes
        entry.since, entry.software, entry.source = event.time, each.software, each.source or ""
        if each.wish is not None:
            entry.wishes = state.files.with_wish(entry.wishes, each.owner, WISH_NAMES.index(each.wish))
        wished = cache.wished.get(locator)
        if wished is not None:
            entry.wishes = state.files.shared(_greatest(entry.wishes, wished.wishes))
        if is_output(locator):
            cache.wished[locator] = WishedFile(size_bytes=size_bytes, wishes=entry.wishes)
        cache.by_key[each.key] = locator
        cache.ordered_bytes += size_bytes
        cache.unsized += not size_bytes
        cache.wanted.pop(locator, None)
        cache.to_bring.pop(locator, None)
        cache.unclaim(locator)


def _greatest(*wishes: Wishes) -> dict[str, int]:
    """The greatest wish of each owner."""
    found: dict[str, int] = {}
    for owner, wish in chain(*wishes):
        found[owner] = max(wish, found.get(owner, 0))
    return found


def _leave(cache: SiteCache, entry: CachedFile) -> None:
    """Stop counting a file in its state."""
    if entry.state == FileState.ORDERED:
        cache.ordered_bytes -= entry.size_bytes
        cache.unsized -= not entry.size_bytes
        cache.by_key.pop(entry.key, None)
    elif entry.state != FileState.FAILED:
        cache.used_bytes -= entry.size_bytes
        cache.idle.pop(entry.locator, None)
        if entry.state == FileState.REMOVING:
            cache.removing_bytes -= entry.size_bytes
            cache.by_key.pop(entry.key, None)


def on_files_fetched(state: EngineState, event: Event, data: file_payloads.FilesFetched) -> None:
    """Files have arrived at a site: packages that waited for them may start."""
    cache = state.files.at(event.site or "")
    for each in data.files:
        entry = cache.entries.get(each.locator)
        if entry is None or entry.key != each.key or entry.state != FileState.ORDERED:
            continue
        _leave(cache, entry)
        cache.faults.pop(each.locator, None)
        entry.state, entry.size_bytes, entry.since = FileState.PRESENT, each.size_bytes, event.time
        entry.sha256, entry.version, entry.stale = each.sha256, each.version, False
        cache.used_bytes += each.size_bytes
        cache.to_check[each.locator] = None
        cache.wished.pop(each.locator, None)
        file_came(state, cache, each.locator)
    if data.files and (site := state.sites.by_name.get(cache.name)) is not None:
        state.selection.operations_completed(site.name, 1)  # one for all of them: a job may have a million small files
        schedule_site_record(state, site)


def on_fetches_failed(state: EngineState, event: Event, data: file_payloads.FetchesFailed) -> None:
    """Files could not be brought to a site: they are tried again later, or given up."""
    cache = state.files.at(event.site or "")
    blamed = False
    for each in data.files:
        entry = cache.entries.get(each.locator)
        if entry is None or entry.key != each.key or entry.state != FileState.ORDERED:
            continue
        _leave(cache, entry)
        entry.state, entry.since = FileState.FAILED, event.time
        claim_again(cache, each.locator, entry.size_bytes)
        note_fault(state, cache, each)
        blamed |= each.reason not in PERMANENT and not entry.source
        if state.healing.enabled:
            for job in {work.job for work in cache.waiting.get(each.locator, ())}:
                state.healing.input_failed(job)
    if blamed and (site := state.sites.by_name.get(cache.name)) is not None:
        state.selection.operation_failed(site.name)
        schedule_site_record(state, site)


def note_fault(state: EngineState, cache: SiteCache, failed: FailedFetch) -> None:
    """Record a failed fetch, and when to try again."""
    fault, settings = cache.faults.setdefault(failed.locator, Fault()), state.settings
    fault.failures, fault.reason, fault.message = failed.failures, failed.reason, failed.message
    entry = cache.entries.get(failed.locator)
    of_store = entry is None or not entry.source  # the failure of a copy says nothing of the file
    fault.given_up = (of_store and failed.reason in PERMANENT) or fault.failures >= settings.fetch_attempts_max
    if fault.given_up:
        for work in cache.waiting.get(failed.locator, ()):
            state.files.to_hold[work] = failed.locator
        return
    delay = settings.fetch_delay_seconds * 2.0 ** min(failed.failures - 1, _DOUBLINGS_MAX)
    fault.retry_at = state.clock.now + min(delay, settings.fetch_delay_seconds_max)
    state.clock.timers.at(fault.retry_at, Due.FETCH, cache.name)


def on_retention_set(state: EngineState, event: Event, data: file_payloads.RetentionSet) -> None:
    """A wish, a release, a pin: how long files are kept has changed."""
    cache = state.files.at(event.site or "")
    for each in data.files:
        entry = cache.entries.get(each.locator)
        if entry is None:
            _wish_for(state, cache, each)
            continue
        if each.released:
            entry.wishes = state.files.shared({owner: wish for owner, wish in entry.wishes if owner != each.owner})
        if each.wish is not None:
            entry.wishes = state.files.with_wish(entry.wishes, each.owner, WISH_NAMES.index(each.wish))
        if each.pinned is not None:
            pins = {*entry.pins, each.owner} if each.pinned else {*entry.pins} - {each.owner}
            entry.pins = tuple(sorted(pins))
        entry.stale |= each.stale
        cache.to_check[each.locator] = None


def _wish_for(state: EngineState, cache: SiteCache, said: Retention) -> None:
    """A wish, or its end, for a file that is not there."""
    known = cache.wished.get(said.locator) or WishedFile()
    wishes = known.wishes
    if said.released:
        wishes = state.files.shared({owner: wish for owner, wish in wishes if owner != said.owner})
    if said.wish is not None:
        wishes = state.files.with_wish(wishes, said.owner, WISH_NAMES.index(said.wish))
        cache.to_bring[said.locator] = None
    if wishes:
        size_bytes = said.size_bytes if said.size_bytes is not None else known.size_bytes
        cache.wished[said.locator] = WishedFile(size_bytes=size_bytes, wishes=wishes)
    else:
        cache.wished.pop(said.locator, None)


def on_removals_ordered(state: EngineState, event: Event, data: file_payloads.RemovalsOrdered) -> None:
    """Files are being removed; one that is needed meanwhile is fetched again when it is gone."""
    cache = state.files.at(event.site or "")
    for each in data.files:
        entry = cache.entries.get(each.locator)
        if entry is None:
            continue
        was_there = entry.state == FileState.PRESENT
        _leave(cache, entry)
        if not was_there:
            entry.size_bytes = 0
        entry.key, entry.state, entry.since = each.key, FileState.REMOVING, event.time
        cache.by_key[each.key] = each.locator
        cache.used_bytes += entry.size_bytes
        cache.removing_bytes += entry.size_bytes
        cache.faults.pop(each.locator, None)
        if was_there:
            file_went(state, cache, each.locator, entry.size_bytes)
            cache.wanted.pop(each.locator, None)


def on_cached_files_removed(state: EngineState, event: Event, data: file_payloads.CachedFilesRemoved) -> None:
    """Files are gone from a site."""
    cache = state.files.at(event.site or "")
    for locator in data.locators:
        entry = cache.entries.pop(locator, None)
        if entry is None:
            continue
        _leave(cache, entry)
        cache.faults.pop(locator, None)
        cache.wished.pop(locator, None)
        cache.to_check.pop(locator, None)
        if entry.state == FileState.PRESENT:
            file_went(state, cache, locator, entry.size_bytes)
        else:  # if it was lost before its arrival was recorded, its space is not kept for it any more
            claim_again(cache, locator, entry.size_bytes)
            want_again(state, cache, locator)
    if (site := state.sites.by_name.get(cache.name)) is not None and cache.blocked_since is not None:
        state.placement.reopen(site)  # there is space for classes that were closed for lack of it
        state.placement.offer(site)
