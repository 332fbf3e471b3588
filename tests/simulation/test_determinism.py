"""One seed fixes everything, whatever the order in which Python walks its sets."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from pilotage.simulator.trials.definition import World, make_world

PROGRAM = """
import sys
from pilotage.simulator.trials.trial import simulate
from pilotage.simulator.trials.definition import make_world
for seed in map(int, sys.argv[1:]):
    result = simulate(make_world(seed))
    print(seed, result.event_hash, result.events, sorted(result.fired.items()))
"""
SEEDS = ("3", "14", "159")


def told(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *SEEDS]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=240)
    return run.stdout


def test_the_same_seed_gives_the_same_events_in_another_process() -> None:
    first = told("0")
    assert len(first.splitlines()) == len(SEEDS)
    assert first == told("1")


def test_a_world_is_written_down_and_read_again() -> None:
    for seed in range(50):
        world = make_world(seed)
        assert msgspec.json.decode(msgspec.json.encode(world), type=World) == world


def test_another_seed_is_another_world() -> None:
    assert make_world(1) != make_world(2)
