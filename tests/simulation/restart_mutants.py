"""Planted bugs in what begins anew: by hand, after a failure, or because of somebody else."""

from __future__ import annotations

import msgspec

from pilotage.engine.decisions import completion
from pilotage.engine.engine_state import EngineState
from pilotage.engine.inbound import operations
from pilotage.engine.retry import rules
from pilotage.engine.retry.policy import Verdict
from pilotage.engine.state.jobs import ActivePackage, JobState
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=135, by="epochs")
def what_is_read_may_be_voided(patch: Patch) -> None:
    """A restart by hand is accepted while a consumer reads what the package made."""
    graft(patch, operations._refuse_if_being_read, lambda job, number, dotted: None)


@mutant(first_seed=62, by="aborts")
def what_begins_anew_leaves_its_consumers_given_up(patch: Patch) -> None:
    """Packages that were given up because of a producer stay so when it begins anew."""
    graft(patch, completion.revive_consumers, lambda state: state.pending.to_revive.clear())


@mutant(first_seed=44, by="retries")
def what_looped_is_tried_under_the_same_limit(patch: Patch) -> None:
    """Looping is taken for the fault of the place."""
    patch.setitem(rules._BY_NAME, "looping", rules.RULES["platform-failure"])


@mutant(first_seed=44, by="retries")
def what_kills_its_pilots_is_not_parked(patch: Patch) -> None:
    """A package under which pilots die is given the next one."""
    carried = completion._carry_out

    def carry_out(state: EngineState, job: JobState, work: ActivePackage, answer: Verdict) -> None:
        carried(state, job, work, msgspec.structs.replace(answer, action=answer.action.replace("park", "restart")))

    graft(patch, carried, carry_out)
