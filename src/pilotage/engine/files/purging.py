"""Operations of people on the caches of sites: pin, unpin and purge files, or be refused by name."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.eviction import remove
from pilotage.engine.files.queries import needed_by
from pilotage.engine.state.caches import CachedFile, FileState, SiteCache
from pilotage.engine.transitions.file_needs import needing_jobs
from pilotage.model.errors import did_you_mean
from pilotage.model.events import file_payloads
from pilotage.model.events.file_payloads import Retention
from pilotage.model.exchange.operations import (
    Accepted,
    PinFiles,
    PurgedFile,
    PurgeFiles,
    Refused,
    RefusedCode,
    UnpinFiles,
)
from pilotage.model.jobs.file_plan import Wish


def operate_files(state: EngineState, operation: PinFiles | UnpinFiles | PurgeFiles) -> Accepted | Refused:
    """Carry out an operation on the cache of a site; a refused one changes nothing."""
    first, cache = state.log.next_number, state.files.at(operation.site)
    for locator in operation.locators:
        if locator not in cache.entries:
            hint = did_you_mean(locator, cache.entries) or f"see what is there: pilotage files list --site {cache.name}"
            message = f"the cache of {cache.name} has no file {locator!r}"
            return Refused(code="unknown-file", message=message, subject=locator, next_step=hint)
    match operation:
        case PinFiles() | UnpinFiles():
            pinned = isinstance(operation, PinFiles)
            files = tuple(Retention(locator=each, pinned=pinned, owner=operation.by) for each in operation.locators)
            state.log.write(file_payloads.RetentionSet(files=files), site=cache.name)
        case PurgeFiles():
            return _purge(state, cache, operation)
    return Accepted(operation=first, events=state.log.next_number - first)


def _purge(state: EngineState, cache: SiteCache, operation: PurgeFiles) -> Accepted | Refused:
    first = state.log.next_number
    named = [cache.entries[each] for each in operation.locators]
    if operation.dry_run or not named:
        asked = named or [each for each in cache.entries.values() if each.software or not operation.software]
        listed = [(each, keeps(state, each, named=bool(named))) for each in asked]
    else:
        listed = [(each, "") for each in named]
        for each in named:
            if refused := _refusal(state, cache, each):
                return refused
    told = tuple(PurgedFile(locator=each.locator, size_bytes=each.size_bytes, kept=why) for each, why in listed)
    if not operation.dry_run:
        remove(state, cache, [(each, "purged") for each, why in listed if not why])
    return Accepted(operation=first, events=state.log.next_number - first, purged=told)


def _refusal(state: EngineState, cache: SiteCache, file: CachedFile) -> Refused | None:
    why = keeps(state, file, named=True)
    if not why:
        return None
    code: RefusedCode = "file-needed"
    hint = "wait for them, or kill their job"
    if file.pins and not needing_jobs(state, file.locator):
        code, hint = "file-pinned", f"pilotage files unpin --site {cache.name} {file.locator}"
    message = f"{file.locator} stays in the cache of {cache.name}: {why}"
    return Refused(code=code, message=message, subject=file.locator, next_step=hint)


def keeps(state: EngineState, file: CachedFile, *, named: bool) -> str:
    """Why a purge keeps a file; empty if it goes. One that is not named stays, too, if a job wants to keep it."""
    if file.state in (FileState.ORDERED, FileState.REMOVING):
        return "it is on its way" if file.state == FileState.ORDERED else "it is being removed already"
    if needing := needed_by(state, file.locator):
        jobs = (f"{job} ({count} package{'' if count == 1 else 's'})" for job, count in needing[:3])
        return f"needed by {', '.join(jobs)}"
    if file.pins:
        return f"pinned by {', '.join(file.pins)}"
    if not named and file.wish >= Wish.RETAIN_INDEFINITELY and not file.stale:
        return f"retained indefinitely for {', '.join(owner for owner, _ in file.wishes)}"
    return ""
