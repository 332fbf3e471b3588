"""Doubters are doubted: every planted bug must be told of by a checker, the sanity check or the comparison after a restart.

A bug is looked for from the seed on where it was found before, among the worlds that hold without it; without that hint
it must be found among the first 500.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

from pilotage.engine.consistency import InconsistentState
from pilotage.ports import JournalError
from pilotage.simulator.trials.definition import FILES_AFTER, STALLS_AFTER, make_world
from pilotage.simulator.trials.trial import Result, simulate
from tests.simulation import (
    ending_mutants,
    file_mutants,
    forecast_mutants,
    healing_mutants,
    latency_mutants,
    order_mutants,
    placement_mutants,
    provisioning_mutants,
    restart_mutants,
    trust_mutants,
)
from tests.simulation.mutants import MUTANTS, Mutant

RAISED = {f"raised {InconsistentState.__name__}": "sanity", f"raised {JournalError.__name__}": "journal"}
WINDOW = 25  # a change of the engine moves where a bug shows first
SEEDS_MAX = 500
WORLDS_THAT_HOLD = 200  # which another test shows
FILE_WORLDS_THAT_HOLD = 50  # likewise: every second one of the later worlds has stores and files
MUTANTS_MIN = 14
FILE_MUTANTS_MIN = 6
HEALING_MUTANTS_MIN = 8
STALLED_WORLDS_THAT_HOLD = 10  # likewise: inputs stall in them

for module in (
    ending_mutants,
    file_mutants,
    forecast_mutants,
    healing_mutants,
    latency_mutants,
    order_mutants,
    placement_mutants,
    provisioning_mutants,
    restart_mutants,
    trust_mutants,
):
    assert module.__doc__  # importing it puts its bugs on the list
every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=[each.name for each in MUTANTS])


def is_of_files(mutant: Mutant) -> bool:
    """Whether a bug shows only in worlds with stores."""
    return FILES_AFTER < mutant.first_seed < 2 * FILES_AFTER


def with_bug(mutant: Mutant, seed: int) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        return simulate(make_world(seed))


def teller(result: Result) -> str:
    checker = result.violation.checker if result.violation is not None else ""
    return RAISED.get(checker, checker)


def first_told(mutant: Mutant, seeds: Iterable[int]) -> Result | None:
    """The first world in which one tells whose business it is; what another stumbles over is nobody's merit."""
    return next((result for seed in seeds if teller(result := with_bug(mutant, seed)) in mutant.by), None)


def show(mutant: Mutant, result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: told by {teller(result)} at seed {result.seed}\n")


@every_mutant
def test_a_planted_bug_is_found_where_it_was_found_before(mutant: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    step = 2 if is_of_files(mutant) else 1
    result = first_told(mutant, range(mutant.first_seed, mutant.first_seed + WINDOW, step))
    assert result is not None, (
        "none of its checkers tells of it: look for it without the hint (the slow test), and note where it is found"
    )
    show(mutant, result, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@every_mutant
def test_a_planted_bug_is_found_without_a_hint(mutant: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = range(FILES_AFTER + 1, FILES_AFTER + 2 * SEEDS_MAX, 2) if is_of_files(mutant) else range(SEEDS_MAX)
    if mutant.first_seed > STALLS_AFTER:
        seeds = range(STALLS_AFTER + 1, STALLS_AFTER + SEEDS_MAX)
    result = first_told(mutant, seeds)
    assert result is not None
    show(mutant, result, capsys)
    assert simulate(make_world(result.seed)).violation is None, "the world fails without the bug, too"


def test_there_are_bugs_enough_and_their_worlds_hold_without_them() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
    of_files = [each for each in MUTANTS if is_of_files(each)]
    assert len(of_files) >= FILE_MUTANTS_MIN
    last = FILES_AFTER + 2 * FILE_WORLDS_THAT_HOLD - WINDOW
    assert all(each.first_seed % 2 and FILES_AFTER < each.first_seed <= last for each in of_files)
    of_healing = [each for each in MUTANTS if each.plant.__module__ == healing_mutants.__name__]
    assert len(of_healing) >= HEALING_MUTANTS_MIN
    stalled = [each for each in of_healing if each.first_seed > STALLS_AFTER]
    assert all(each.first_seed <= STALLS_AFTER + STALLED_WORLDS_THAT_HOLD for each in stalled)
    others = [each for each in MUTANTS if each not in of_files and each not in of_healing]
    assert all(1 <= each.first_seed <= WORLDS_THAT_HOLD - WINDOW for each in others)


def test_a_bug_is_gone_with_its_test() -> None:
    seed = MUTANTS[0].first_seed
    before = simulate(make_world(seed))
    assert before.violation is None
    for mutant in MUTANTS:
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
    assert simulate(make_world(seed)).event_hash == before.event_hash
