"""Short packages share batch jobs in made-up worlds: everything holds, and checkers tell of planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bench.grain import AUTOMATIC, Cell, outcome_of
from pilotage.engine import restore
from pilotage.engine.decisions import binding, grouping, lost_pilots
from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds.on_attempts import new_attempt
from pilotage.engine.inbound import exchanges
from pilotage.engine.retry.policy import REGROUPED
from pilotage.engine.state.jobs import JobState, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, BatchGroup, PilotState, SiteState
from pilotage.model.jobs.plan import Template
from pilotage.simulator.trials.definition import GROUPS_AFTER, make_world
from pilotage.simulator.trials.trial import simulate
from tests.simulation.mutants import Patch, graft

WORLDS = 5


@pytest.mark.parametrize("seed", range(GROUPS_AFTER + 1, GROUPS_AFTER + WORLDS + 1))
def test_worlds_with_shared_batch_jobs_hold(seed: int) -> None:
    result = simulate(make_world(seed))
    assert result.violation is None, result.violation


def one_more_than_allowed(patch: Patch) -> None:
    """A batch job gets one package too many."""
    chosen = grouping.packages_each

    def packages_each(state: EngineState, queue: QueueClass, site: SiteState, number: int) -> int:
        size = chosen(state, queue, site, number)
        return size + 1 if size > 1 else size

    patch.setattr(binding, "packages_each", packages_each)


def what_runs_is_taken_back_too(patch: Patch) -> None:
    """With those that wait for their turn, the one that runs is taken back: it is started twice."""

    def take_back(state: EngineState, group: BatchGroup, *, message: str, decision: int = 0, **_: Any) -> None:
        for attempt in list(group.members):
            lost_pilots.mark_lost(state, attempt, reason=REGROUPED, message=message, decision=decision)

    graft(patch, lost_pilots.take_back, take_back)


def an_agent_gets_the_next_one_before_the_end_of_the_last(patch: Patch) -> None:
    """Every exchange of an agent begins one more attempt of its batch job."""

    def next_of(state: EngineState, pilot: PilotState, group: BatchGroup) -> AttemptState | None:
        return next(iter(group.waiting), None)

    graft(patch, exchanges._next_of, next_of)


def a_restart_forgets_what_is_shared(patch: Patch) -> None:
    """A restarted engine takes each attempt of a batch job for one with a batch job of its own."""

    def without(*about: Any) -> AttemptState:
        attempt = new_attempt(*about)
        attempt.group = ""
        return attempt

    patch.setattr(restore, "new_attempt", without)


def side_effects_are_overlooked(patch: Patch) -> None:
    """Packages with side effects share batch jobs."""

    def harmless(job: JobState, number: int) -> Template:
        return replace(template_of(job, number), side_effects=False)

    patch.setattr(grouping, "template_of", harmless)


@pytest.mark.parametrize(
    "plant, seed, checker",
    [
        (one_more_than_allowed, 10_001, "groups"),
        (what_runs_is_taken_back_too, 10_013, "groups"),
        (an_agent_gets_the_next_one_before_the_end_of_the_last, 10_001, "groups"),
        (a_restart_forgets_what_is_shared, 10_015, "restoring"),
        (side_effects_are_overlooked, 10_001, "groups"),
    ],
)
def test_a_planted_bug_is_told(plant: Callable[[Patch], None], seed: int, checker: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        result = simulate(make_world(seed))
    assert result.violation is not None
    assert result.violation.checker == checker, result.violation


@pytest.mark.parametrize("throttle, sizes", [("few", (105, 209)), ("usual", (12, 16, 105))])
def test_the_size_that_the_engine_chooses_is_within_ten_per_cent_of_the_best_fixed_one(
    throttle: str, sizes: tuple[int, ...]
) -> None:
    """A slice of `python -m bench.grain`: the sizes that are best there."""
    automatic = outcome_of(Cell("fixed", throttle, AUTOMATIC, seed=1))
    best = min(outcome_of(Cell("fixed", throttle, size, seed=1)).makespan_seconds for size in sizes)
    assert automatic.makespan_seconds <= 1.1 * best
