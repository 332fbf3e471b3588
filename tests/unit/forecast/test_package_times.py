"""When packages are expected to start and to end."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from pilotage.forecast.package_times import ExpectedTimes, expected_times


def times(
    left: list[float], *, paths: list[float] | None = None, slots: int = 1, first: float = 0.0, running: int = 0
) -> ExpectedTimes:
    seconds = np.array(left)
    return expected_times(
        left_seconds=seconds,
        path_ends_seconds=seconds if paths is None else np.array(paths),
        slots=slots,
        first_slot_seconds=first,
        running=(np.arange(len(left)) < running).astype(np.float64),
    )


def test_equal_packages_come_in_waves() -> None:
    found = times([10.0] * 5, slots=2)
    assert found.starts_seconds.tolist() == [0.0, 0.0, 10.0, 10.0, 20.0]
    assert found.ends_seconds.tolist() == [10.0, 10.0, 20.0, 20.0, 30.0]


def test_a_package_waits_for_the_chain_before_it() -> None:
    found = times([10.0, 20.0, 5.0], paths=[10.0, 30.0, 35.0], slots=10)
    assert found.starts_seconds.tolist() == [0.0, 10.0, 30.0]


def test_what_runs_has_started_and_what_is_over_has_ended() -> None:
    found = times([4.0, 0.0, 10.0], slots=1, running=1)
    assert found.starts_seconds.tolist() == [0.0, 0.0, 4.0]
    assert found.ends_seconds.tolist() == [4.0, 0.0, 14.0]


def test_nothing_starts_before_the_first_slot() -> None:
    assert times([10.0, 10.0], slots=2, first=60.0).starts_seconds.tolist() == [60.0, 60.0]


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_it_is_near_a_simulated_queue_for_packages_that_differ(slots: int) -> None:
    drawn = np.random.default_rng(7)
    left = drawn.uniform(50.0, 150.0, 200)
    found = expected_times(
        left_seconds=left, path_ends_seconds=left, slots=slots, first_slot_seconds=0.0, running=np.zeros(200)
    )
    free = [0.0] * slots
    truth = []
    for seconds in left:
        at = heapq.heappop(free)
        truth.append(at)
        heapq.heappush(free, at + seconds)
    assert np.abs(found.starts_seconds - truth).mean() <= 0.05 * max(truth) + 1e-9
