"""Planted bugs in how files come to sites, how long they stay there, and what becomes of outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from pilotage.book.rows.rows import CachedFileRow
from pilotage.engine.decisions import pulling
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files import disposal, fold_files, prefetch, purging, restoring, storing
from pilotage.engine.state.caches import CachedFile, FileState, SiteCache, name_in_cache
from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions import file_needs
from pilotage.model.events import file_payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import FetchFile, StoreOutputs
from pilotage.model.jobs.file_plan import Wish
from tests.simulation.mutants import Patch, graft, mutant

# --- how files come ---------------------------------------------------------------------------------------------------


@mutant(first_seed=1003, by="fetches")
def a_file_on_its_way_is_ordered_again(patch: Patch) -> None:
    """Each package that needs a file has it fetched, though it is coming already."""
    needed = file_needs.need_files

    def need_files(state: EngineState, work: ActivePackage, site: SiteState, reserved: deque[int]) -> None:
        needed(state, work, site, reserved)
        files, cache = file_needs.files_of(work.job), state.files.at(site.name)
        for file in files.of(work.number):
            entry = cache.entries.get(files.locator(file))
            if entry is not None and entry.state == FileState.ORDERED:
                cache.wanted[entry.locator] = work.job, file

    graft(patch, needed, need_files)


@mutant(first_seed=1003, by="arrivals")
def a_package_starts_without_its_files(patch: Patch) -> None:
    """Nobody looks whether the files of a reserved package have arrived."""
    graft(patch, pulling.lacks_files, lambda *_: False)


@mutant(first_seed=1015, by="space")
def files_on_their_way_take_no_space(patch: Patch) -> None:
    """Only what has arrived is counted against the limit of a cache."""
    patch.setattr(SiteCache, "taken_bytes", property(lambda cache: cache.used_bytes))


@mutant(first_seed=1013, by="leftovers")
def a_fetch_goes_on_under_another_name(patch: Patch) -> None:
    """After a restart of the service an open fetch gets a new name: the draft that it began stays."""
    requested = restoring.fetch_again

    def fetch_again(state: EngineState) -> None:
        before = len(state.log.effects)
        requested(state)
        state.log.effects[before:] = [
            msgspec.structs.replace(each, name=name_in_cache(each.locator, f"{each.key} again"))
            if isinstance(each, FetchFile)
            else each
            for each in state.log.effects[before:]
        ]

    graft(patch, requested, fetch_again)


# --- how long they stay -----------------------------------------------------------------------------------------------


@mutant(first_seed=1003, by="needs")
def files_go_while_packages_wait_for_their_turn(patch: Patch) -> None:
    """Nobody asks whether a package that may still run needs a file: restarts and replicas neither."""
    graft(patch, file_needs.is_needed, lambda *_: False)


@mutant(first_seed=1003, by="needs")
def the_files_of_a_package_are_free_when_it_starts(patch: Patch) -> None:
    """Only packages that have not been tried count as need: a restart finds its files gone."""
    counted = file_needs.needing_jobs

    def needing_jobs(state: EngineState, locator: str) -> list[tuple[JobState, int]]:
        return [
            (job, file)
            for job, file in counted(state, locator)
            if any(
                not job.last_attempt[number] and not job.is_final(number)
                for number in file_needs.files_of(job).plan.users.few(file)
            )
        ]

    graft(patch, counted, needing_jobs)


@mutant(first_seed=1015, by="needs")
def a_purge_asks_nobody(patch: Patch) -> None:
    """A person may remove what packages need."""
    graft(patch, purging.keeps, lambda *_, **__: "")


@mutant(first_seed=1011, by="retention")
def pins_hold_nothing(patch: Patch) -> None:
    """A pinned file goes like any other."""
    patch.setattr(CachedFile, "is_disposable", property(lambda file: file.stale or not file.wish))
    patch.setattr(CachedFile, "is_evictable", property(lambda file: file.stale or file.wish < Wish.RETAIN_INDEFINITELY))


@mutant(first_seed=1009, by="retention")
def what_is_retained_indefinitely_goes_for_space(patch: Patch) -> None:
    """A full cache takes whatever was not needed for the longest time."""
    patch.setattr(CachedFile, "is_evictable", property(lambda file: not file.pins))


@mutant(first_seed=1017, by="retention restoring")
def a_release_ends_the_wishes_of_others(patch: Patch) -> None:
    """What one owner releases, nobody wants any more."""
    folded = fold_files.on_retention_set

    def on_retention_set(state: EngineState, event: Event, data: file_payloads.RetentionSet) -> None:
        folded(state, event, data)
        cache = state.files.at(event.site or "")
        for each in data.files:
            entry = cache.entries.get(each.locator)
            if each.released and entry is not None:
                entry.wishes = ()

    graft(patch, folded, on_retention_set)


@mutant(first_seed=1029, by="leftovers")
def what_a_store_has_changed_stays(patch: Patch) -> None:
    """A cached file that its store has replaced is kept like a good one."""
    graft(patch, prefetch._note_stale, lambda *_: None)


@mutant(first_seed=1001, by="restoring retention")
def a_restart_of_the_service_forgets_pins_and_wishes(patch: Patch) -> None:
    """What the book says of retention is not read."""
    restored = restoring.restore_files

    def restore_files(state: EngineState, rows: Iterable[CachedFileRow]) -> None:
        restored(state, rows)
        for cache in state.files.caches.values():
            for entry in cache.entries.values():
                entry.pins, entry.wishes = (), ()

    graft(patch, restored, restore_files)


# --- outputs ----------------------------------------------------------------------------------------------------------


@mutant(first_seed=1003, by="copies")
def a_package_is_granted_before_its_copies_are_verified(patch: Patch) -> None:
    """The copies are requested, and nobody waits for them."""

    def await_copies(state: EngineState, job: JobState, work: ActivePackage, attempt: int) -> bool:
        state.log.effects.append(StoreOutputs(ref=AttemptRef(job.id, job.dotted(work.number), attempt)))
        return False

    graft(patch, storing.await_copies, await_copies)


@mutant(first_seed=1003, by="copies")
def one_copy_is_enough(patch: Patch) -> None:
    """A copy that failed counts as stored if another one is there."""
    folded = storing.on_outputs_stored

    def on_outputs_stored(
        state: EngineState, job: JobState, number: int, event: Event, data: file_payloads.OutputsStored
    ) -> None:
        folded(state, job, number, event, msgspec.structs.replace(data, failed=() if data.copies else data.failed))

    graft(patch, folded, on_outputs_stored)


@mutant(first_seed=1005, by="disposal")
def outputs_go_after_their_first_consumer(patch: Patch) -> None:
    """One reader is done: the others find nothing."""
    asked = disposal._is_of_no_use

    def is_of_no_use(job: JobState, number: int) -> bool:
        satisfied, consumers = job.satisfied, job.consumers(number)
        if not any(satisfied[each] for each in consumers):
            return asked(job, number)
        open_ones = [each for each in consumers if not satisfied[each]]
        for each in open_ones:
            satisfied[each] = 1
        try:
            return asked(job, number)
        finally:
            for each in open_ones:
                satisfied[each] = 0

    graft(patch, asked, is_of_no_use)


@mutant(first_seed=1073, by="disposal")
def what_was_disposed_of_is_not_made_again(patch: Patch) -> None:
    """A package that starts again reads outputs that are gone."""
    graft(patch, disposal.remake_disposed, lambda state: state.files.to_remake.clear())
