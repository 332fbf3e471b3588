"""More planted bugs: those that only a doubt about the course of things tells of, not the comparison after a restart."""

from __future__ import annotations

from pilotage.engine import operations, settling
from pilotage.engine.openings import Openings
from pilotage.engine.parts import SiteState
from pilotage.simulator.scene import Scene
from tests.simulation.mutants import Patch, a_late_success_is_forgotten, graft, mutant


@mutant(first_seed=1, by="creations successes")
def a_late_success_is_forgotten_and_nobody_compares(patch: Patch) -> None:
    """The success of an attempt that nobody waited for any more goes unheard."""
    patch.setattr(Scene, "_compare", lambda *_: None)
    a_late_success_is_forgotten(patch)


@mutant(first_seed=15, by="epochs")
def what_is_read_may_be_voided(patch: Patch) -> None:
    """A restart by hand is accepted while a consumer reads what the package made."""
    graft(patch, operations._unread, lambda job, number, dotted: None)


@mutant(first_seed=90, by="aborts")
def what_begins_anew_leaves_its_consumers_given_up(patch: Patch) -> None:
    """Packages that were given up because of a producer stay so when it begins anew."""
    graft(patch, settling.revive_consumers, lambda engine: engine.revived.clear())


@mutant(first_seed=1, by="rooms")
def a_site_has_room_for_one_more(patch: Patch) -> None:
    """A site is given one attempt more than its room."""
    room = Openings.room

    def larger(self: Openings, site: SiteState, shape: int) -> int:
        return room(self, site, shape) + 1

    patch.setattr(Openings, "room", larger)
