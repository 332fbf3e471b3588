"""Planted bugs in what goes where: room, time, and reservations that stand in the way."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pilotage.engine import placement, restore
from pilotage.engine import placement as openings
from pilotage.engine.decisions import attempts, pulling
from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection import filters
from pilotage.engine.selection.site_profile import Room, SiteProfile
from pilotage.engine.state import sites
from pilotage.engine.state.jobs import QueueClass
from pilotage.engine.state.sites import AttemptState, PilotState
from pilotage.engine.transitions import readiness
from pilotage.model.exchange.operations import SubmitAttempt
from pilotage.model.resources import Amounts, Free, slots_for
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=2, by="rooms")
def a_site_has_room_for_one_more(patch: Patch) -> None:
    """A site is given one attempt more than its room."""
    room = SiteProfile.room

    def larger(self: SiteProfile, shape: int, **about: Any) -> Room:
        found = room(self, shape, **about)
        return Room(found.limit + 1, found.rule)

    patch.setattr(SiteProfile, "room", larger)


@mutant(first_seed=97, by="rooms")
def a_pilot_is_given_what_it_has_no_time_for(patch: Patch) -> None:
    """Nobody asks how long a pilot will last."""
    graft(patch, placement.suffices, lambda seconds, pilot, queue: True)


@mutant(first_seed=15, by="waiting")
def a_reservation_is_never_given_back(patch: Patch) -> None:
    """What was reserved where no pilot can run it waits there for one that can."""
    graft(patch, readiness.release_unfit, lambda state, site: None)
    graft(patch, pulling._fetch, lambda state, site: None)


@mutant(first_seed=137, by="rooms")
def a_pilot_is_given_one_too_many(patch: Patch) -> None:
    """Off by one: the backlog takes one more than it says."""
    taken = placement.takes

    def takes(pilot: PilotState, queue: QueueClass, now: float) -> bool:
        if taken(pilot, queue, now):
            return True
        waits = pilot.in_backlog() <= pilot.backlog and slots_for(queue.demand, pilot.capacity) > 0
        return waits and not pilot.leaving and not pilot.suspect

    graft(patch, taken, takes)


@mutant(first_seed=134, by="rooms")
def memory_is_not_looked_at(patch: Patch) -> None:
    """A pilot with a free core takes whatever its memory is."""

    class Careless(Free):
        __slots__ = ()

        def fits(self, demand: Amounts) -> bool:
            return demand.cores_hundredths <= self.cores_hundredths

    patch.setattr(sites, "Free", Careless)


@mutant(first_seed=30, by="rooms")
def a_category_has_no_limit(patch: Patch) -> None:
    """More packages run than there are licences."""
    graft(patch, readiness.may_start, lambda state, queue: queue.job.open)


@mutant(first_seed=72, by="rooms")
def an_executor_is_a_wish(patch: Patch) -> None:
    """A package that is for one site runs at any."""
    patch.setitem(filters.FILTERS, "executor", lambda site, asked: "")


@mutant(first_seed=46, by="nodes")
def a_node_is_a_wish(patch: Patch) -> None:
    """A package that is for some nodes is given to a pilot on any."""
    graft(patch, openings._is_on, lambda pilot, names: True)


@mutant(first_seed=106, by="nodes")
def a_batch_job_is_not_told_its_nodes(patch: Patch) -> None:
    """What names its nodes has a batch job of its own, which may begin anywhere."""
    submit = attempts.submit

    def anywhere(state: EngineState, attempt: AttemptState) -> None:
        submit(state, attempt)
        effect = state.log.effects[-1]
        if isinstance(effect, SubmitAttempt):
            state.log.effects[-1] = replace(effect, demand=replace(effect.demand, node_restriction=()))

    graft(patch, submit, anywhere)


@mutant(first_seed=137, by="sites sanity")
def a_site_that_sleeps_keeps_what_is_reserved_there(patch: Patch) -> None:
    """What waits at a site that was put to sleep goes on waiting there."""
    graft(patch, readiness.release_site, lambda state, site: None)


@mutant(first_seed=137, by="sites sanity restoring")
def a_restart_forgets_who_sleeps(patch: Patch) -> None:
    """Every site is a candidate again after a crash."""
    graft(patch, restore._restore_site_records, lambda state, rows: None)
