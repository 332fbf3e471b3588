"""A world that is stored reads back as it is, or not at all: nothing in a file is passed over or filled in unseen."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pilotage.model.errors import PilotageError
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.trials.definition import World, make_world
from pilotage.simulator.trials.shrink import ADDED_NAMES, read_world, smaller_worlds, stored
from pilotage.simulator.world.jobs import packages_of
from pilotage.simulator.world.randomness import Exponential

SEEDS = st.integers(min_value=0, max_value=2**32)
CHANCE = st.randoms(use_true_random=False)
INTRUDERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.5, 2**70, 1e308, 10**12, "", "\u2603", "site-1", "merge", "fixed"),
    *([], {}, [[]], [0], {"distribution": "fixed"}, {"distribution": "mixture", "weights": [], "parts": []}),
)


def read(told: Any) -> World:
    return read_world(json.dumps(told).encode(), name="world.json")


def complete(seed: int) -> Any:
    return json.loads(stored(make_world(seed)))


def places(value: Any, at: str = "$") -> list[tuple[Any, Any, str]]:
    """Everything within a value: what it stands in, its key or number there, and its place as faults name it."""
    found: list[tuple[Any, Any, str]] = []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        place = f"{at}.{key}" if isinstance(value, dict) else f"{at}[{key}]"
        found += [(value, key, place), *places(part, place)]
    return found


def read_or_refused(text: bytes) -> World | None:
    """None where it is refused; nothing else may be raised."""
    try:
        return read_world(text, name="world.json")
    except PilotageError:
        return None


def refusal(told: Any) -> str:
    with pytest.raises(PilotageError) as refused:
        read(told)
    assert str(refused.value).startswith("world.json: is not a world: ")
    return str(refused.value)


@given(SEEDS)
def test_a_stored_world_reads_back_equal_and_so_do_those_that_a_failure_shrinks_it_to(seed: int) -> None:
    world = make_world(seed)
    assert read_world(stored(world), name="") == world
    for smaller in random.Random(seed).sample(list(smaller_worlds(world)), 3):
        assert read_world(stored(smaller), name="") == smaller


@given(SEEDS, CHANCE)
def test_a_complete_file_that_leaves_something_out_is_refused_with_its_place(seed: int, chance: random.Random) -> None:
    told = complete(seed)
    may_be_left_out = {"complete", *ADDED_NAMES}
    fields = [each for each in places(told) if isinstance(each[0], dict) and each[1] not in may_be_left_out]
    within, key, place = chance.choice(fields)
    if place.rpartition(".")[0].endswith((".failures", ".limits")):
        return  # what is named there is no field: without it, it is another world
    del within[key]
    said = refusal(told)
    assert f"`{key}`" in said
    assert f"at `{place.rpartition('.')[0]}`" in said or place.count(".") == 1


@given(SEEDS, CHANCE)
def test_a_field_that_nobody_knows_is_refused_wherever_it_stands(seed: int, chance: random.Random) -> None:
    told = complete(seed)
    if chance.random() < 0.5:
        del told["complete"]
    objects = [told, *(within[key] for within, key, _ in places(told) if isinstance(within[key], dict))]
    known = [
        each for each in objects if set(each) & {"seed", "site", "job", "distribution", "doomed", "interval_seconds"}
    ]
    chance.choice(known)["weather"] = "fine"
    assert "weather" in refusal(told)


@given(SEEDS, CHANCE)
def test_whatever_stands_in_a_file_it_is_read_as_it_says_or_refused(seed: int, chance: random.Random) -> None:
    told = complete(seed)
    for _ in range(chance.choice((1, 1, 2, 5))):
        within, key, _ = chance.choice(places(told))
        within[key] = chance.choice(INTRUDERS)
    world = read_or_refused(json.dumps(told).encode())
    if world is not None:
        if told["complete"]:
            assert json.loads(stored(world)) == told
        checked_world = CheckedWorld(
            world, on_durable=lambda checked, now: None
        )  # all that stands in it can be put together
        assert all(checked_world.definitions.plan(job.job, ()).count == packages_of(job) for job in world.jobs)


@given(st.one_of(st.binary(max_size=50), SEEDS.map(lambda seed: stored(make_world(seed)))), CHANCE)
def test_whatever_the_bytes_of_a_file_are_it_is_read_or_refused(text: bytes, chance: random.Random) -> None:
    broken = bytearray(text)
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(broken) + 1)
        broken[at : at + chance.choice((0, 1, 100))] = chance.randbytes(chance.choice((0, 1, 3)))
    world = read_or_refused(bytes(broken))
    assert world is None or read_world(stored(world), name="") == world


@pytest.mark.parametrize(
    "text, said",
    [
        (b'{"seed": 1, "seed": 2, "sites": [], "jobs": []}', "`seed` appears twice"),
        (b"[" * 100_000, "is not a world"),
        (b'{"seed": 1, "sites": [{"site": {"name": "lyon"}}], "jobs": []}', "at `$.jobs`"),
        (b'{"seed": NaN}', "malformed"),
        (b'{"seed": 1e999}', "out of range"),
        (b'{"seed": "\\ud800"}', "is not a world"),
        (b'{"complete": "yes"}', "at `$.complete`"),
        (b"", "is not a world"),
    ],
)
def test_a_bad_file_is_refused_by_what_is_wrong_with_it(text: bytes, said: str) -> None:
    with pytest.raises(PilotageError) as refused:
        read_world(text, name="world.json")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "change, place",
    [
        ({"faults": {"message_lost": 1.5}}, "$.faults.message_lost"),
        ({"faults": {"mesage_lost": 0.5}}, "$.faults"),
        ({"faults_seconds": -1}, "$.faults_seconds"),
        ({"latency": {"distribution": "mixture", "weights": [1], "parts": []}}, "$.latency.weights"),
        ({"sites": [{"site": {"name": "lyon"}}] * 2}, "$.sites[1].site.name"),
        ({"timing": {"commit_seconds": "soon"}}, "$.timing.commit_seconds"),
    ],
)
def test_what_cannot_be_in_a_world_is_refused_with_its_place(change: dict[str, Any], place: str) -> None:
    job = {"job": "one", "templates": [{"activity": "sim"}], "stages": [{"lines": [{"templates": [0]}]}]}
    usual = {"seed": 1, "sites": [{"site": {"name": "lyon"}}], "jobs": [job]}
    assert read(usual).seed == 1
    assert f"at `{place}`" in refusal(usual | change)


@pytest.mark.parametrize(
    "stage, place",
    [
        ({"lines": []}, "lines"),
        ({"lines": [{"templates": [1]}]}, "lines[0].templates"),
        ({"lines": [{"templates": [0], "count": 0}]}, "lines[0].count"),
        ({"lines": [{"templates": [0]}], "joins": [{"stage": 1}]}, "joins[0].stage"),
        ({"lines": [{"templates": [0]}], "late": True}, "joins"),
        ({"lines": [{"templates": [0]}], "items": 0}, "items"),
    ],
)
def test_a_stage_that_cannot_be_laid_out_is_refused_with_its_place(stage: dict[str, Any], place: str) -> None:
    job = {"job": "one", "templates": [{"activity": "sim"}], "stages": [stage]}
    said = refusal({"seed": 1, "sites": [{"site": {"name": "lyon"}}], "jobs": [job]})
    assert f"at `$.jobs[0].stages[0].{place}`" in said


@given(SEEDS)
def test_a_world_stored_before_submissions_took_time_reads_as_it_was(seed: int) -> None:
    world = make_world(seed)
    assert not {"submission", "fault_bursts"} & set(complete(seed)["sites"][0])
    slow = replace(world.sites[0], submission=Exponential(5.0), fault_bursts=((60.0, 600.0, 0.6),))
    changed = replace(world, sites=(slow, *world.sites[1:]))
    assert read_world(stored(changed), name="") == changed


@pytest.mark.parametrize("burst", [[-1.0, 10.0, 0.5], [0.0, 10.0, 1.5]])
def test_a_burst_of_faults_that_cannot_be_is_refused(burst: list[float]) -> None:
    told = complete(1)
    told["sites"][0]["fault_bursts"] = [burst]
    assert "at `$.sites[0].fault_bursts`" in refusal(told)
