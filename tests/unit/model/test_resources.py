"""Resources: every kind counts in every sum and comparison, and what is told of amounts stays as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.model.resources import (
    AMOUNT_UNKNOWN,
    KINDS,
    NAMES,
    Amounts,
    Capacity,
    Demand,
    Free,
    Kind,
    amounts,
    count_running,
    count_waiting,
    is_what_was_asked_for,
    lacking,
    shortage,
    slots_for,
)
from pilotage.model.sites.entry import SiteEntry, site_of, starts_others


def demand(**said: Any) -> Demand:
    return Demand(**{"cores_hundredths": 1, **said})


WHOLE = Capacity(**dict.fromkeys(NAMES, 1200))
THIRD = demand(**dict.fromkeys(NAMES, 400))
BARE = demand()


def more(of: Demand, kind: str, by: int) -> Demand:
    return msgspec.structs.replace(of, **{kind: getattr(of, kind) + by})


def test_every_kind_is_a_field_wherever_amounts_are_held() -> None:
    assert Amounts.__struct_fields__ == Capacity.__struct_fields__ == NAMES
    assert Demand.__struct_fields__[: len(NAMES)] == NAMES
    assert set(Free.__slots__) == set(NAMES)
    assert {kind.entry for kind in KINDS} <= set(SiteEntry.__struct_fields__)


def test_what_is_sent_and_stored_is_written_as_before() -> None:
    asked = Demand(cores_hundredths=50, memory_bytes=1, gpus=2, scratch_bytes=3, wall_seconds=4.0, nodes=5)
    assert msgspec.json.encode(asked) == (
        b'{"cores_hundredths":50,"memory_bytes":1,"gpus":2,"scratch_bytes":3,"wall_seconds":4.0,"nodes":5}'
    )
    capacity = Capacity(cores_hundredths=0, memory_bytes=1, gpus=2, scratch_bytes=3)
    assert msgspec.json.encode(capacity) == b'{"cores_hundredths":0,"memory_bytes":1,"gpus":2,"scratch_bytes":3}'
    assert msgspec.json.encode((Demand(), Capacity())) == b"[{},{}]"


@pytest.mark.parametrize("kind", NAMES)
def test_no_pilot_has_less_than_nothing_or_more_than_a_number_can_say(kind: str) -> None:
    for amount in (-1, AMOUNT_UNKNOWN + 1):
        with pytest.raises(msgspec.ValidationError, match=kind):
            msgspec.convert({kind: amount}, Capacity)


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_taken_of_a_kind_is_missing_until_it_is_given_back(kind: str) -> None:
    free, asked = Free(WHOLE), more(BARE, kind, 300)
    free.take(asked)
    assert amounts(free) == tuple(whole - taken for whole, taken in zip(amounts(WHOLE), amounts(asked), strict=True))
    free.give_back(asked)
    assert amounts(free) == amounts(WHOLE)


@pytest.mark.parametrize("kind", NAMES)
def test_one_unit_of_a_kind_too_many_does_not_fit(kind: str) -> None:
    all_of_it = demand(**dict.fromkeys(NAMES, 1200))
    assert Free(WHOLE).fits(all_of_it)
    assert slots_for(all_of_it, WHOLE) == 1
    assert lacking(all_of_it, WHOLE) == []
    too_much = more(all_of_it, kind, 1)
    assert not Free(WHOLE).fits(too_much)
    assert slots_for(too_much, WHOLE) == 0
    assert lacking(too_much, WHOLE) == [(kind, 1201, 1200)]


@pytest.mark.parametrize("kind", NAMES)
def test_the_scarcest_kind_says_how_many_fit(kind: str) -> None:
    assert slots_for(THIRD, WHOLE) == 3
    assert slots_for(more(THIRD, kind, 1), WHOLE) == 2
    demands = [more(THIRD, kind, 1), THIRD, THIRD, more(THIRD, kind, -1)]
    assert (count_waiting(demands, WHOLE), count_running(demands, WHOLE)) == (1, 2)


@pytest.mark.parametrize("kind", NAMES)
def test_only_what_takes_of_a_kind_is_in_the_way_of_what_lacks_it(kind: str) -> None:
    free = Free(WHOLE)
    large = demand(**{kind: 1201})
    assert not free.is_contended(THIRD, WHOLE)
    assert free.is_contended(demand(**{kind: 1}), large)
    assert free.is_contended(BARE, large) == (kind == "cores_hundredths")


@pytest.mark.parametrize("kind", NAMES)
def test_a_pilot_has_what_its_site_is_asked_for_or_what_its_site_does_not_say(kind: str) -> None:
    assert is_what_was_asked_for(WHOLE, WHOLE)
    assert is_what_was_asked_for(WHOLE, msgspec.structs.replace(WHOLE, **{kind: AMOUNT_UNKNOWN}))
    assert not is_what_was_asked_for(WHOLE, msgspec.structs.replace(WHOLE, **{kind: 1}))


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_kind_of_an_entry_is_a_capacity_of_its_site_and_changes_its_pilots(kind: Kind) -> None:
    bare = SiteEntry(name="a", kind="slurm")
    entry = msgspec.structs.replace(bare, **{kind.entry: 7})
    assert getattr(site_of(entry).capacity, kind.name) == (700 if kind.name == "cores_hundredths" else 7)
    assert starts_others(bare, entry)


def test_a_shortage_is_told_in_the_unit_of_its_kind() -> None:
    assert shortage("cores_hundredths", "a", 250, 100) == "it asks for 2.5 cores and a has 1"
    assert shortage("memory_bytes", "a", 2**31, 2**30) == "it asks for 2 GiB of memory and a has 1 GiB"
    assert shortage("gpus", "a", 2000, 1) == "it asks for 2,000 GPUs and a has 1"
    assert shortage("scratch_bytes", "a", 2**31, 2**30) == "it asks for 2 GiB of scratch space and a has 1 GiB"
