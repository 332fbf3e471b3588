"""A failing world is made smaller as long as it fails, and what is said of it is enough to see it again."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.simulator.trials.definition import World, make_world, packages_of_world
from pilotage.simulator.trials.shrink import shrink, smaller_worlds
from pilotage.simulator.trials.trial import Result, ViolationFound, failure_lines, line_of


def result(world: World, *, violation: ViolationFound | None = None) -> Result:
    return Result(
        seed=world.seed,
        event_hash="0" * 64,
        fired={"message_lost": 3},
        tried={"message_lost": 4},
        crash_points={"before the sync": 2},
        events=10,
        packages=5,
        steps=7,
        virtual_seconds=100.0,
        violation=violation,
        last_events=("1 at 0.000: engine 1: JobRegistered job-1",),
    )


def test_every_smaller_world_is_another_one() -> None:
    world = make_world(7)
    smaller = list(smaller_worlds(world))
    assert smaller
    assert world not in smaller
    assert max(map(packages_of_world, smaller)) <= packages_of_world(world)


def test_what_the_failure_does_not_need_is_left_out() -> None:
    world = make_world(7)
    kept = next(kind for kind, value in msgspec.to_builtins(world.faults).items() if value)

    def fails(candidate: World) -> bool:
        return getattr(candidate.faults, kept) > 0 and packages_of_world(candidate) >= 3

    smallest = shrink(world, fails, runs_max=5000)
    assert [kind for kind, value in msgspec.to_builtins(smallest.faults).items() if value] == [kept]
    assert 3 <= packages_of_world(smallest) <= 6
    assert (len(smallest.jobs), len(smallest.sites)) == (1, 1)


def test_shrinking_ends_after_so_many_runs() -> None:
    runs: list[World] = []

    def fails(candidate: World) -> bool:
        runs.append(candidate)
        return True

    shrink(make_world(7), fails, runs_max=5)
    assert len(runs) == 5


def test_a_world_that_nothing_smaller_fails_like_stays_as_it_is() -> None:
    world = make_world(7)
    assert shrink(world, lambda candidate: candidate == world) == world


def test_a_failure_is_told_with_seed_probabilities_world_and_last_events() -> None:
    world = make_world(7)
    found = ViolationFound(checker="grants", message="granted twice", subject="job-1/1.1.1", at=12.5)
    told = "\n".join(
        failure_lines(world, result(world, violation=found), shrunk=world, shrunk_result=result(world, violation=found))
    )
    for part in ("seed 7", "VIOLATION grants", "granted twice", "job-1/1.1.1", "JobRegistered job-1", "--seed 7"):
        assert part in told
    for kind, value in msgspec.to_builtins(world.faults).items():
        assert f"  {kind} {value:g}" in told or not value
    [text] = [line for line in told.splitlines() if line.startswith("{")]
    assert msgspec.json.decode(text, type=World) == world


def test_a_run_that_held_is_one_line() -> None:
    assert line_of(result(make_world(7))).startswith("seed 7: ok, 5 packages, 10 events, 7 steps, 2 crashes")


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_is_the_same_world(seed: int) -> None:
    assert make_world(seed) == make_world(seed)
