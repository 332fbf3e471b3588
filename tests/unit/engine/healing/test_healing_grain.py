"""How many short packages share a batch job."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.healing.grain import FINE_DEGREE, QUEUES_MAX, Grain, group_size, moved, too_coarse, too_fine


def _grain(
    *,
    run: float = 2.0,
    queue: float = 30.0,
    unfinished: int = 10_000,
    slots: float = 48.0,
    now: float | None = None,
    running: int = 48,
) -> Grain:
    return Grain(run, queue, unfinished, slots, slots if now is None else now, running)


def test_the_degree_of_a_fine_grain_is_one_minus_run_time_by_queue_time() -> None:
    assert too_fine(2.0, 30.0) == pytest.approx(1.0 - 2.0 / 30.0)
    assert too_fine(30.0, 30.0) == 0.0
    assert too_fine(60.0, 30.0) == 0.0
    assert too_fine(1.0, 0.0) == 0.0


def test_packages_that_take_as_long_as_the_queue_are_not_grouped() -> None:
    assert group_size(_grain(run=30.0), most=100) == 1
    assert group_size(_grain(run=25.0), most=100) == 1  # degree 0.17


def test_each_slot_gets_an_equal_share() -> None:
    assert group_size(_grain(), most=100_000) == math.ceil(10_000 / 48)


def test_the_setting_caps_a_group_and_one_means_never() -> None:
    assert group_size(_grain(), most=50) == 50
    assert group_size(_grain(), most=1) == 1


def test_a_group_does_not_outlast_twenty_waits() -> None:
    assert group_size(_grain(unfinished=1_000_000, slots=1.0), most=100_000) == QUEUES_MAX * 15


def test_few_packages_are_spread_over_all_slots() -> None:
    assert group_size(_grain(unfinished=40), most=100) == 1
    assert group_size(_grain(unfinished=96), most=100) == 2


def test_with_more_batch_jobs_than_slots_a_group_is_as_long_as_the_queue() -> None:
    assert group_size(_grain(slots=450.0), most=1000) == 15
    assert group_size(_grain(slots=450.0, running=400), most=1000) == 23
    assert group_size(_grain(slots=450.0, unfinished=1_000), most=1000) == 3


def test_before_the_expected_slots_are_there_a_group_fills_half_of_its_time() -> None:
    assert group_size(_grain(unfinished=2_000, slots=600.0, now=6.0), most=100) == 15
    assert group_size(_grain(unfinished=30, slots=600.0, now=6.0), most=100) == 5


def test_the_sum_of_wall_times_fits_into_the_limit_of_the_site() -> None:
    assert group_size(_grain(), most=1_000, wall_seconds=60.0, longest_seconds=3_600.0) == 60
    assert group_size(_grain(), most=1_000, wall_seconds=60.0, longest_seconds=30.0) == 1
    assert group_size(_grain(), most=1_000, longest_seconds=100.0) == 50


@given(
    run=st.floats(0.001, 1e5),
    queue=st.floats(0.0, 1e5),
    unfinished=st.integers(0, 10**7),
    slots=st.floats(0.0, 1e5),
    now=st.floats(0.0, 1e5),
    most=st.integers(1, 1000),
)
def test_a_size_is_between_one_and_the_cap(
    run: float, queue: float, unfinished: int, slots: float, now: float, most: int
) -> None:
    size = group_size(_grain(run=run, queue=queue, unfinished=unfinished, slots=slots, now=now), most=most)
    assert 1 <= size <= most
    if too_fine(run, queue) < FINE_DEGREE:
        assert size == 1


def test_the_degree_of_a_coarse_grain_is_the_share_of_time_that_an_idle_slot_could_use() -> None:
    assert too_coarse(120.0, 30.0) == pytest.approx(0.75)
    assert too_coarse(20.0, 30.0) == 0.0
    assert too_coarse(0.0, 0.0) == 0.0


def test_so_many_leave_a_group_that_it_ends_together_with_the_new_ones() -> None:
    going = moved(100, run_seconds=2.0, queue_seconds=30.0, slots=1)
    assert going == 42  # 30 s in the queue and 84 s there, 116 s here
    assert moved(100, run_seconds=2.0, queue_seconds=30.0, slots=4) == 68
    assert moved(10, run_seconds=2.0, queue_seconds=30.0, slots=4) == 0
    assert moved(100, run_seconds=2.0, queue_seconds=30.0, slots=0) == 0


@given(
    waiting=st.integers(0, 1000),
    run=st.floats(0.001, 1e4),
    queue=st.floats(0.0, 1e5),
    slots=st.integers(0, 1000),
)
def test_whoever_leaves_does_not_end_later_than_without_leaving(
    waiting: int, run: float, queue: float, slots: int
) -> None:
    going = moved(waiting, run_seconds=run, queue_seconds=queue, slots=slots)
    assert 0 <= going <= waiting
    if going:
        assert queue + run * going / slots <= run * waiting * (1 + 1e-9)
