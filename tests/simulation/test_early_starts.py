"""Worlds whose packages may start before their inputs are complete: whatever strikes, only what was read in full counts.

Here are also the planted bugs of early starts, since only these worlds show them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.engine.state.sites import AttemptState
from pilotage.engine.transitions import early_start
from pilotage.model.events import payloads
from pilotage.simulator.checkers.early import EarlyStarts
from pilotage.simulator.checkers.records import AttemptTrace, PackageTrace
from pilotage.simulator.trials.definition import EARLY_AFTER, make_world
from pilotage.simulator.trials.trial import Result, simulate
from tests.simulation.mutants import Patch, graft
from tests.simulation.test_worlds import held

SEEDS = (EARLY_AFTER + 2,)


def run(seed: int, patch: Patch) -> tuple[Result, Counter[str]]:
    """Run a world, and count what its checkers saw of early starts."""
    seen: Counter[str] = Counter()
    created, granted, discarded = EarlyStarts.on_created, EarlyStarts.on_granted, EarlyStarts.on_discarded

    def on_created(
        self: EarlyStarts, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptCreated
    ) -> None:
        seen["started"] += bool(data.early)
        created(self, package, attempt, data)

    def on_granted(self: EarlyStarts, package: PackageTrace, attempt: AttemptTrace) -> None:
        seen["granted"] += bool(attempt.early)
        granted(self, package, attempt)

    def on_discarded(self: EarlyStarts, package: PackageTrace, lost: payloads.EarlyInput) -> None:
        seen["discarded"] += 1
        discarded(self, package, lost)

    patch.setattr(EarlyStarts, "on_created", on_created)
    patch.setattr(EarlyStarts, "on_granted", on_granted)
    patch.setattr(EarlyStarts, "on_discarded", on_discarded)
    return simulate(make_world(seed)), seen


@pytest.mark.timeout(900)
def test_packages_start_early_and_are_granted_and_everything_holds(tell: Callable[[str], None]) -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            result, seen = run(seed, patch)
        held(result, again=f"--seed {seed}")
        total += seen
    tell(f"early starts in {len(SEEDS)} worlds: {dict(total)}")
    assert min(total["started"], total["granted"]) >= 3


def grants_before_what_it_has_read_is_granted(patch: Patch) -> None:
    def grantable(job: JobState, work: ActivePackage) -> tuple[int, ...]:
        return work.candidates

    graft(patch, early_start.grantable, grantable)


def starts_beside_attempts_whose_applications_need_not_run(patch: Patch) -> None:
    def running(job: JobState, number: int) -> AttemptState | None:
        work = job.work.get(number)
        live = [each for each in work.attempts.values() if not each.lost] if work is not None else []
        return live[0] if live else None

    graft(patch, early_start._running, running)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "plant",
    [
        grants_before_what_it_has_read_is_granted,
        starts_beside_attempts_whose_applications_need_not_run,
    ],
)
def test_a_planted_bug_of_early_starts_is_told(plant: Callable[[Patch], None], tell: Callable[[str], None]) -> None:
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            result = simulate(make_world(seed))
        if result.violation is not None and result.violation.checker == "early":
            tell(f"{plant.__name__}: told at seed {seed}: {result.violation.message}")
            return
    pytest.fail("no checker tells of it")
