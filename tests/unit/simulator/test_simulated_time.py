"""The virtual clock, the dice and the box of faults."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.simulator.world.clock import Handle, Schedule
from pilotage.simulator.world.faults import KINDS, FaultInjector, Faults
from pilotage.simulator.world.randomness import (
    AnyDistribution,
    Dice,
    Exponential,
    Fixed,
    Keyed,
    LogNormal,
    Mixture,
    Uniform,
    number_of,
)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_things_happen_by_time_and_then_in_the_order_of_scheduling(entries: list[tuple[int, bool]]) -> None:
    schedule = Schedule()
    happened: list[int] = []
    handles: list[Handle] = []
    for number, (time, called_off) in enumerate(entries):
        handle = schedule.at(float(time), happened.append, number)
        if called_off:
            handles.append(handle)
    for handle in handles:
        handle.cancel()
        handle.cancel()
    expected = [number for number, (_, called_off) in enumerate(entries) if not called_off]
    assert schedule.pending == len(expected)
    while schedule.step():
        pass
    assert happened == sorted(expected, key=lambda number: (entries[number][0], number))
    assert schedule.pending == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["heap", "line", "called off"])), max_size=40))
def test_what_is_lined_up_happens_in_the_same_order_as_what_is_sorted_in(entries: list[tuple[int, str]]) -> None:
    schedule = Schedule()
    happened: list[int] = []
    for number, (time, way) in enumerate(entries):
        if way == "line":
            schedule.post_in_order(float(time), happened.append, number)
        elif way == "heap":
            schedule.post(float(time), happened.append, number)
        else:
            schedule.at(float(time), happened.append, number).cancel()
    expected = [number for number, (_, way) in enumerate(entries) if way != "called off"]
    expected.sort(key=lambda number: (entries[number][0], number))
    assert schedule.pending == len(expected)
    assert schedule.next_time() == (entries[expected[0]][0] if expected else None)
    while schedule.step():
        pass
    assert happened == expected


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3, 7.0, 300.0]), st.sampled_from(["heap", "line", "off"])))
)
def test_what_is_scheduled_while_things_happen_takes_its_place_among_what_is_to_come(
    steps: list[tuple[float, str]],
) -> None:
    schedule, left = Schedule(1e6), list(steps)
    happened: list[tuple[float, int]] = []
    expected: list[tuple[float, int]] = []

    def happen(number: int) -> None:
        happened.append((schedule.now, number))
        for _ in range(2):  # each leads to two more
            if left:
                seconds, way = left.pop()
                put(schedule.now + seconds, way)

    def put(time: float, way: str) -> None:
        number = len(expected)
        if way == "off":
            schedule.at(time, happen, number).cancel()
            return
        expected.append((time, number))
        (schedule.post_in_order if way == "line" else schedule.post)(time, happen, number)

    put(1e6, "heap")
    while (due := schedule.next_time()) is not None:
        assert schedule.step()
        assert schedule.now == due
    assert happened == sorted(expected)
    assert (schedule.pending, schedule.step()) == (0, False)


def test_what_is_lined_up_with_nothing_in_between_is_one_step() -> None:
    schedule = Schedule()
    seen: list[int] = []
    for number in range(3):
        schedule.post_in_order(1.0, seen.append, number)
    schedule.post_in_order(2.0, seen.append, 3)
    schedule.step()
    assert (seen, schedule.now, schedule.pending) == ([0, 1, 2], 1.0, 1)


def test_time_stands_where_the_last_thing_happened() -> None:
    schedule = Schedule(10.0)
    seen: list[float] = []
    schedule.after(5.0, lambda: seen.append(schedule.now))
    schedule.after(50.0, seen.append, 0.0).cancel()
    assert schedule.step()
    assert not schedule.step()
    assert (seen, schedule.now) == ([15.0], 15.0)


def test_what_should_have_happened_already_happens_now() -> None:
    schedule = Schedule(10.0)
    schedule.at(3.0, lambda: None)
    schedule.step()
    assert schedule.now == 10.0


def test_a_run_stops_at_its_time_and_not_before() -> None:
    schedule = Schedule()
    seen: list[int] = []
    schedule.at(1.0, seen.append, 1)
    schedule.at(0.5, seen.append, 9).cancel()
    schedule.post(2.0, seen.append, 2)
    schedule.at(3.0, seen.append, 3)
    schedule.run(until=2.5)
    assert (seen, schedule.now, schedule.next_time()) == ([1, 2], 2.5, 3.0)


def test_what_happened_cannot_be_called_off_and_does_not_count() -> None:
    schedule = Schedule()
    handle = schedule.at(1.0, lambda: None)
    schedule.at(2.0, lambda: None)
    schedule.step()
    handle.cancel()
    assert schedule.pending == 1


def test_entries_that_were_called_off_do_not_pile_up() -> None:
    schedule = Schedule()
    seen: list[int] = []
    for number in range(20_000):
        schedule.at(1e9 - number, seen.append, number).cancel()
    schedule.at(5.0, seen.append, -1)
    assert schedule.pending == 1
    assert len(schedule._near) + sum(map(len, schedule._far.values())) < 3000
    schedule.run(until=2e9)
    assert seen == [-1]


def test_one_seed_gives_one_stream_for_each_name() -> None:
    first, again, other = Dice(3), Dice(3), Dice(4)
    expected = [first.stream("a").random() for _ in range(5)]
    again.stream("b").random()  # one more draw elsewhere changes nothing here
    assert [again.stream("a").random() for _ in range(5)] == expected
    assert [other.stream("a").random() for _ in range(5)] != expected
    assert first.stream("a") is first.stream("a")


def test_numbers_from_a_text_are_the_same_everywhere() -> None:
    numbers = Keyed("job/1.1.1")
    drawn = [numbers.random() for _ in range(20)]
    again = Keyed("job/1.1.1")
    assert [again.random() for _ in range(20)] == drawn
    assert drawn[0] == pytest.approx(0x91507C5BB9DC1894 / 2**64)  # the last word that b2sum prints for job/1.1.1/0
    assert len(set(drawn)) == 20
    assert all(0.0 <= number < 1.0 for number in drawn)
    assert number_of("job/1.1.1") == drawn[0]


DISTRIBUTIONS: list[tuple[AnyDistribution, float]] = [
    (Fixed(3.0), 3.0),
    (Uniform(low=1.0, high=3.0), 2.0),
    (Exponential(10.0), 10.0 * 0.6931),
    (LogNormal(median=5.0, sigma=1.0), 5.0),
    (Mixture(weights=(3.0, 1.0), parts=(Fixed(1.0), Fixed(100.0))), 1.0),
]


@pytest.mark.parametrize("distribution, median", DISTRIBUTIONS)
def test_a_distribution_has_its_median(distribution: AnyDistribution, median: float) -> None:
    numbers = Keyed("five")
    drawn = [distribution.draw(numbers) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(median, rel=0.1)
    assert min(drawn) >= 0.0


def test_a_mixture_takes_each_part_by_its_weight() -> None:
    numbers = Dice(1).stream("x")
    mixture = Mixture(weights=(3.0, 1.0), parts=(Fixed(1.0), Fixed(100.0)))
    drawn = [mixture.draw(numbers) for _ in range(4000)]
    assert 900 < drawn.count(100.0) < 1100


@pytest.mark.parametrize("distribution, median", DISTRIBUTIONS)
def test_a_distribution_can_be_written_down(distribution: AnyDistribution, median: float) -> None:
    text = msgspec.json.encode(distribution)
    assert msgspec.json.decode(text, type=AnyDistribution) == distribution


def test_a_fault_strikes_as_often_as_it_is_probable_and_is_counted() -> None:
    injector = FaultInjector(Faults(message_lost=0.25), Dice(1))
    struck = sum(injector.strikes("message_lost") for _ in range(4000))
    assert 900 < struck < 1100
    assert injector.fired["message_lost"] == struck
    assert not any(injector.strikes(kind) for kind in KINDS if kind != "message_lost")


def test_each_kind_of_fault_has_a_stream_of_its_own() -> None:
    faults = Faults(message_lost=0.5, disk_full=0.5)
    alone, mixed = FaultInjector(faults, Dice(1)), FaultInjector(faults, Dice(1))
    expected = [alone.strikes("message_lost") for _ in range(50)]
    found = []
    for _ in range(50):
        mixed.strikes("disk_full")
        mixed.between("message_lost", low=0.0, high=1.0)
        found.append(mixed.strikes("message_lost"))
    assert found == expected


def test_once_stopped_nothing_strikes() -> None:
    injector = FaultInjector(Faults(**dict.fromkeys(KINDS, 1.0)), Dice(1))
    before = (injector.quiet, all(injector.strikes(kind) for kind in KINDS))
    injector.stop()
    assert (*before, injector.quiet) == (False, True, True)
    assert not any(injector.strikes(kind) for kind in KINDS)


def test_what_nothing_came_of_was_tried_and_did_not_fire() -> None:
    injector = FaultInjector(Faults(site_down=1.0), Dice(42))
    assert injector.strikes("site_down")
    assert injector.strikes("site_down")
    injector.had_no_effect("site_down")
    assert (injector.tried["site_down"], injector.fired["site_down"]) == (2, 1)
    injector.had_effect("site_down")
    assert (injector.tried["site_down"], injector.fired["site_down"]) == (2, 2)
