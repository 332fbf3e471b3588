"""Worlds in which lines are dropped with their files: what counts no longer is read by nobody, and made anew when restored."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from pilotage.engine.inbound import operations
from pilotage.model.exchange.operations import Drop
from pilotage.simulator.trials.definition import World, make_world
from pilotage.simulator.trials.trial import Result, simulate
from pilotage.simulator.world import users

SEEDS = range(1, 13)


def world(seed: int) -> World:
    """The world of a seed, whose user drops and restores often."""
    made = make_world(seed)
    faults = msgspec.structs.replace(made.faults, user_drops=0.05, user_restores=0.5)
    return msgspec.structs.replace(made, faults=faults)


def run(seed: int) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "Drop", partial(Drop, remove_files=True))
        return simulate(world(seed))


def test_whatever_strikes_everything_holds() -> None:
    results = [run(seed) for seed in SEEDS]
    assert [(result.seed, result.violation) for result in results if result.violation is not None] == []
    assert sum(result.fired["user_drops"] for result in results) > len(SEEDS)


def test_removing_what_somebody_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "readers", lambda *_: iter(()))
    violations = (run(seed).violation for seed in SEEDS)
    found = next(each for each in violations if each is not None)
    assert found.checker in ("reads", "epochs")
