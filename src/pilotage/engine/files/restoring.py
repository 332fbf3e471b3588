"""Restores the caches of sites from the rows of the book; what was ordered and not reported is requested again."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.book.fold.cached_files import read_cached_file
from pilotage.book.rows.rows import CachedFileRow
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.fold_files import note_fault
from pilotage.engine.state.caches import FILE_STATES, CachedFile, FileState, WishedFile, is_output
from pilotage.engine.transitions.file_needs import required_sha256
from pilotage.model.events.file_payloads import FailedFetch
from pilotage.model.exchange.operations import FetchFile, RemoveFile


def restore_files(state: EngineState, rows: Iterable[CachedFileRow]) -> None:
    """Restore the files of all caches, before any job; the one that was used first is the first to go."""
    found = [read_cached_file(row) for row in rows if row.state in FILE_STATES or row.state == "wished"]
    for each in sorted(found, key=lambda file: (file.used_at, file.locator)):
        cache = state.files.at(each.site)
        if each.state == "wished" or (is_output(each.locator) and each.state in ("ordered", "failed")):
            cache.wished[each.locator] = WishedFile(size_bytes=each.size_bytes, wishes=state.files.shared(each.wishes))
        if each.state == "wished":
            cache.to_bring[each.locator] = None
            continue
        entry = cache.entries[each.locator] = CachedFile(
            locator=each.locator,
            key=each.key,
            name=each.name,
            state=FILE_STATES.index(each.state),
            size_bytes=each.size_bytes,
            sha256=each.sha256,
            version=each.version,
            since=each.since,
            wishes=state.files.shared(each.wishes),
            pins=each.pins,
            software=each.software,
            stale=each.stale,
        )
        if entry.state in (FileState.ORDERED, FileState.REMOVING):
            cache.by_key[entry.key] = entry.locator
        if entry.state == FileState.ORDERED:
            cache.ordered_bytes += entry.size_bytes
            cache.unsized += not entry.size_bytes
        elif entry.state != FileState.FAILED:
            cache.used_bytes += entry.size_bytes
            cache.removing_bytes += entry.size_bytes if entry.state == FileState.REMOVING else 0
        if entry.state == FileState.PRESENT:
            cache.to_check[entry.locator] = None
        if each.failures:
            failed = FailedFetch(
                locator=each.locator, key=each.key, reason=each.reason, message=each.message, failures=each.failures
            )
            note_fault(state, cache, failed)


def fetch_again(state: EngineState) -> None:
    """Request every open fetch and removal again, under its key."""
    for cache in state.files.caches.values():
        site = state.sites.by_name.get(cache.name)
        if site is None or site.removed:
            continue
        for locator in cache.by_key.values():
            file = cache.entries[locator]
            if file.state == FileState.REMOVING:
                state.log.effects.append(RemoveFile(site=cache.name, key=file.key, name=file.name))
            else:
                size_bytes = file.size_bytes or None
                state.log.effects.append(
                    FetchFile(
                        site=cache.name,
                        key=file.key,
                        locator=file.locator,
                        name=file.name,
                        size_bytes=size_bytes,
                        sha256=required_sha256(state, locator),
                    )
                )
