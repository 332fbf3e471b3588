"""Outputs that are to stay in the cache of the site where they were made: wished for with their grant, and brought there.

A wish for a file that is not there brings it, as soon as there is space. So a cache that is full loses no wish, and none is
lost in a restart either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.eviction import FILES_MAX, make_space
from pilotage.engine.state.caches import WISH_NAMES, CachedFile, FileState, SiteCache, covers, is_output, name_in_cache
from pilotage.engine.state.jobs import JobState
from pilotage.model.events import file_payloads
from pilotage.model.events.file_payloads import OrderedFetch, Retention
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.jobs.file_plan import RetainedOutput


def retain_outputs(state: EngineState, job: JobState, number: int, attempt: int, *, made_at: Mapping[int, str]) -> None:
    """An attempt was granted: those of its outputs that are to be kept where it ran are wished for there."""
    site = state.sites.by_name.get(made_at.get(attempt, ""))
    if site is None or site.removed:
        return
    retained = state.output_keeper.retained(AttemptRef(job.id, job.dotted(number), attempt))
    cache = state.files.at(site.name) if retained else None
    files = [wish for each in retained if cache is not None for wish in _wishes(cache, each, job)]
    for start in range(0, len(files), FILES_MAX):
        state.log.write(file_payloads.RetentionSet(files=tuple(files[start : start + FILES_MAX])), site=site.name)


def _wishes(cache: SiteCache, output: RetainedOutput, job: JobState) -> Iterable[Retention]:
    """What is to be said of an output: that it is wished for, and that what is there of an earlier epoch is another file."""
    entry = cache.entries.get(output.locator)
    other = entry is not None and entry.state == FileState.PRESENT and entry.sha256 != output.sha256
    if entry is None or other or not covers(entry.wishes, job.owner, output.wish):
        yield Retention(
            locator=output.locator,
            size_bytes=output.size_bytes if entry is None else None,
            wish=WISH_NAMES[output.wish],
            stale=other,
            owner=job.owner,
            job=job.id,
        )


def wish_again(state: EngineState, cache: SiteCache, gone: Iterable[CachedFile]) -> None:
    """Stale outputs of jobs are gone: the newer ones are wished for in their place."""
    files = [
        Retention(locator=each.locator, size_bytes=each.size_bytes, wish=WISH_NAMES[wish], owner=owner)
        for each in gone
        for owner, wish in each.wishes
        if is_output(each.locator) and each.stale and wish
    ]
    for start in range(0, len(files), FILES_MAX):
        state.log.write(file_payloads.RetentionSet(files=tuple(files[start : start + FILES_MAX])), site=cache.name)


def order_wished(state: EngineState, cache: SiteCache, limit: int | None) -> None:
    """Order the outputs that are wished for, as far as there is space for them."""
    chosen: list[tuple[str, int]] = []
    taken = cache.taken_bytes + cache.claimed_bytes
    for locator in list(cache.to_bring):
        wished, entry = cache.wished.get(locator), cache.entries.get(locator)
        size_bytes = max(1, wished.size_bytes) if wished is not None else 0
        is_there = entry is not None and entry.state != FileState.FAILED
        if wished is None or wished.wish < 0 or is_there or (limit is not None and size_bytes > limit):
            del cache.to_bring[locator]
            continue
        if limit is not None and taken + size_bytes > limit:
            make_space(state, cache, taken + size_bytes - limit)
            break  # they come in their order
        taken += size_bytes
        chosen.append((locator, wished.wish))
        if len(chosen) == FILES_MAX:
            break
    if chosen:
        _order(state, cache, chosen)


def _order(state: EngineState, cache: SiteCache, chosen: list[tuple[str, int]]) -> None:
    number, ordered = state.log.next_number, []
    for index, (locator, wish) in enumerate(chosen):
        key, failed, wished = f"fetch.{number}.{index}", cache.entries.get(locator), cache.wished[locator]
        owner = next((owner for owner, each in wished.wishes if each == wish), "")
        name = failed.name if failed is not None else name_in_cache(locator, key)
        size_bytes = wished.size_bytes or None
        ordered.append(
            OrderedFetch(locator=locator, key=key, name=name, size_bytes=size_bytes, wish=WISH_NAMES[wish], owner=owner)
        )
    state.log.write(file_payloads.FetchesOrdered(files=tuple(ordered)), site=cache.name)
    state.log.effects += [
        FetchFile(site=cache.name, key=each.key, locator=each.locator, name=each.name, size_bytes=each.size_bytes)
        for each in ordered
    ]
