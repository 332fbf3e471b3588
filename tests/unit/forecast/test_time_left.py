"""When a job will be over: against list scheduling package by package, and what a person can work out on paper."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from random import Random
from statistics import median

import numpy as np
import pytest

from pilotage.forecast.conditioning import NO_DRIFT, USUAL_DRIFT, Drift, possible_days
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.time_left import (
    NOTHING_RUNS,
    BoundSlots,
    FreeSlots,
    QueuedSlots,
    RunningSlots,
    RunsAt,
    TimeLeft,
    WorkGroup,
    some_running,
    time_left,
)

NOTHING = np.zeros(0)


def free(*after_seconds: float, speed: float = 1.0) -> FreeSlots:
    return FreeSlots(np.array(after_seconds), np.ones(len(after_seconds)), np.full(len(after_seconds), speed))


def bag(packages: float, seconds: float = 60.0, *, spread: float = 0.0, mean_sd: float = 0.0) -> WorkGroup:
    return WorkGroup(packages, seconds, spread, mean_sd, seconds)


def queued(
    *waited_seconds: float, latencies: Sequence[float], drift: Drift = NO_DRIFT, cost: float = 0.0
) -> QueuedSlots:
    today = possible_days(empirical_latency(latencies), drift=drift)
    return QueuedSlots(today, np.array(waited_seconds), np.ones(len(waited_seconds)), 1.0, cost)


def left(
    *groups: WorkGroup,
    running: RunningSlots = NOTHING_RUNS,
    slots: FreeSlots | None = None,
    sites: Sequence[QueuedSlots] = (),
) -> TimeLeft:
    found = time_left(groups, running=running, free=slots or free(), queued=sites)
    assert found is not None
    assert found.low_seconds <= found.median_seconds <= found.high_seconds
    return found


def scheduled(packages: int, slots: Sequence[float], *, spread: float, random: Random) -> float:
    """The end where each package goes to the slot that is free first."""
    sigma = math.sqrt(math.log1p(spread**2))
    ready, end = list(slots), 0.0
    heapq.heapify(ready)
    for _ in range(packages):
        over = heapq.heappop(ready) + 60.0 * random.lognormvariate(-0.5 * sigma**2, sigma)
        end = max(end, over)
        heapq.heappush(ready, over)
    return end


@pytest.mark.parametrize("packages, seconds", [(1, 60.0), (4, 60.0), (8, 120.0), (9, 180.0), (4_000_001, 60_000_060.0)])
def test_equal_packages_run_in_waves_on_free_slots(packages: int, seconds: float) -> None:
    assert left(bag(packages), slots=free(0.0, 0.0, 0.0, 0.0)).median_seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("packages, slots", [(9, 4), (100, 7), (300, 100), (1000, 60)])
def test_it_is_as_list_scheduling_package_by_package(packages: int, slots: int, spread: float) -> None:
    random = Random(packages)
    ready = [random.uniform(0.0, 100.0) for _ in range(slots)]
    real = median(scheduled(packages, ready, spread=spread, random=random) for _ in range(60))
    assert left(bag(packages, spread=spread), slots=free(*ready)).median_seconds == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("late_seconds", [0.0, 1_000.0, 1e6])
@pytest.mark.parametrize("packages, slots", [(200, 10), (1500, 60)])
def test_many_waves_are_as_list_scheduling_too(packages: int, slots: int, late_seconds: float) -> None:
    random = Random(slots)
    ready = [random.uniform(0.0, 100.0) + late_seconds * (slot % 3 == 0) for slot in range(slots)]
    real = median(scheduled(packages, ready, spread=0.4, random=random) for _ in range(40))
    found = left(bag(packages, spread=0.4), slots=free(*ready))
    assert found.median_seconds == pytest.approx(real, rel=0.05)


def test_the_slots_after_many_waves_are_free_for_the_next_packages() -> None:
    first, merge = bag(100, spread=0.4), WorkGroup(1, 60.0, 0.0, 0.0, 60.0, after=(0,))
    following = WorkGroup(30, 60.0, 0.0, 0.0, 60.0, after=(0,))
    slots = free(*[0.0] * 10)
    alone = left(first, slots=slots).median_seconds
    assert left(first, following, slots=slots).median_seconds - alone == pytest.approx(180.0, rel=0.1)
    merged = left(first, merge, following._replace(after=(1,)), slots=slots).median_seconds
    assert merged - alone == pytest.approx(240.0, rel=0.1)


def test_packages_that_run_before_many_others_are_as_slots_with_their_rest() -> None:
    waiting = bag(400, spread=0.3)
    running = some_running({RunsAt(0, 1.0): [10.0, 30.0, 50.0, 70.0], RunsAt(0, 2.0): [20.0]})
    real = median(scheduled(400, [50.0, 33.0, 20.0, 13.0], spread=0.3, random=Random(seed)) for seed in range(40))
    found = left(waiting, running=running).median_seconds
    assert found == pytest.approx(real * 4.0 / 6.0, rel=0.05)


def test_a_stage_waits_for_the_running_packages_of_another_however_much_is_behind_them() -> None:
    following = WorkGroup(100, 10.0, 0.0, 0.0, 10.0, after=(0,))
    found = left(bag(0), following, running=some_running({RunsAt(0, 1.0): [10.0]}), slots=free(0.0))
    assert found.median_seconds == pytest.approx(50.0 + 500.0, rel=0.02)


def test_the_interval_holds_nine_runs_of_ten() -> None:
    random, ready = Random(1), [0.0] * 5
    found = left(bag(12, spread=0.5), slots=free(*ready))
    real = [scheduled(12, ready, spread=0.5, random=random) for _ in range(400)]
    assert 0.8 <= sum(found.low_seconds <= each <= found.high_seconds for each in real) / len(real) <= 1.0


def test_a_fast_host_does_more() -> None:
    slow, fast = left(bag(8), slots=free(0.0, 0.0)), left(bag(8), slots=free(0.0, 0.0, speed=2.0))
    assert fast.median_seconds == pytest.approx(slow.median_seconds / 2.0, rel=0.01)


def test_running_packages_end_first_and_their_slots_go_on() -> None:
    running = some_running({RunsAt(0, 1.0): [20.0, 20.0]})
    assert left(bag(0), running=running).median_seconds == pytest.approx(40.0, rel=0.02)
    assert left(bag(2), running=running).median_seconds == pytest.approx(100.0, rel=0.02)


def test_a_package_that_runs_longer_than_expected_is_not_over_at_once() -> None:
    group = bag(0, spread=0.3)
    long = left(group, running=some_running({RunsAt(0, 1.0): [150.0]}))
    assert 1.0 < long.median_seconds < 100.0


def test_something_holds_up_a_package_that_runs_ten_times_longer_than_all_others() -> None:
    found = left(bag(0, spread=0.1), running=some_running({RunsAt(0, 1.0): [10_000.0]}))
    assert found.median_seconds > 1000.0


def test_a_stage_that_waits_for_all_of_another_begins_when_that_is_over() -> None:
    merge = WorkGroup(1, 30.0, 0.0, 0.0, 30.0, after=(0,))
    assert left(bag(9), merge, slots=free(*[0.0] * 4)).median_seconds == pytest.approx(180.0 + 30.0, rel=0.01)


def test_lines_are_worked_on_together_and_the_last_one_takes_its_whole_path() -> None:
    following = WorkGroup(4, 60.0, 0.0, 0.0, 60.0, follows=(0,))
    assert left(bag(4), following, slots=free(*[0.0] * 4)).median_seconds == pytest.approx(120.0, rel=0.01)
    assert left(bag(4), following, slots=free(*[0.0] * 100)).median_seconds == pytest.approx(120.0, rel=0.01)
    assert left(bag(4), following, slots=free(0.0)).median_seconds == pytest.approx(480.0, rel=0.01)


def test_queued_pilots_help_once_they_start_and_have_paid_their_start() -> None:
    alone = left(bag(20), slots=free(0.0)).median_seconds
    helped = left(bag(20), slots=free(0.0), sites=[queued(0.0, latencies=[300.0])]).median_seconds
    assert alone == pytest.approx(1200.0, rel=0.01)
    assert helped == pytest.approx(780.0, rel=0.01)  # 300 s alone, 15 packages left for two
    late = left(bag(20), slots=free(0.0), sites=[queued(0.0, latencies=[300.0], cost=240.0)]).median_seconds
    assert late == pytest.approx(900.0, rel=0.01)


def test_a_pilot_that_has_waited_starts_sooner() -> None:
    fresh = left(bag(4), sites=[queued(0.0, latencies=[600.0])])
    waited = left(bag(4), sites=[queued(500.0, latencies=[600.0])])
    assert fresh.median_seconds - waited.median_seconds == pytest.approx(500.0, rel=0.02)


def test_uncertain_queues_and_run_times_widen_the_interval() -> None:
    sure = left(bag(8), sites=[queued(0.0, 0.0, latencies=[600.0])])
    days = left(bag(8), sites=[queued(0.0, 0.0, latencies=[600.0], drift=USUAL_DRIFT)])
    unsure = left(bag(8, mean_sd=0.5), sites=[queued(0.0, 0.0, latencies=[600.0])])
    for wider in (days, unsure):
        assert wider.high_seconds - wider.low_seconds > 2.0 * (sure.high_seconds - sure.low_seconds)


def bound(*waited_seconds: float, size: float = 1.0) -> BoundSlots:
    """Room at a bound site whose queue takes 300 s."""
    today = possible_days(empirical_latency([300.0]), drift=NO_DRIFT)
    return BoundSlots(today, np.array(waited_seconds), np.full(len(waited_seconds), size), 1.0)


def test_every_package_waits_in_the_queue_of_a_bound_site() -> None:
    def end(*groups: WorkGroup, room: BoundSlots, running: RunningSlots = NOTHING_RUNS) -> float:
        found = time_left(groups, running=running, free=free(), queued=[], bound=[room])
        assert found is not None
        return found.median_seconds

    assert end(bag(1), room=bound(0.0)) == pytest.approx(360.0, rel=0.01)
    assert end(bag(8), room=bound(0.0, 0.0, size=2.0)) == pytest.approx(720.0, rel=0.01)
    assert end(bag(8), room=bound(*[100.0] * 4)) == pytest.approx(620.0, rel=0.01)
    assert end(bag(400, spread=0.4), room=bound(*[0.0] * 4)) == pytest.approx(36_000.0, rel=0.03)
    running = some_running({RunsAt(0, 1.0, bound=0): [20.0]})
    assert end(bag(1), room=bound(0.0), running=running) == pytest.approx(360.0, rel=0.01)
    assert end(bag(2), room=bound(0.0), running=running) == pytest.approx(40.0 + 360.0, rel=0.01)
    assert end(bag(1), WorkGroup(1, 60.0, 0.0, 0.0, 60.0, after=(0,)), room=bound(0.0)) == pytest.approx(
        720.0, rel=0.01
    )


def test_a_pilot_that_never_starts_is_missed_and_requested_again() -> None:
    faulty = empirical_latency([100.0, math.inf])
    site = QueuedSlots(possible_days(faulty, drift=NO_DRIFT), np.zeros(1), np.ones(1), 1.0, 0.0)
    assert math.isfinite(left(bag(1), sites=[site]).high_seconds)


def test_without_a_slot_nothing_can_be_said() -> None:
    assert time_left([bag(1)], running=NOTHING_RUNS, free=free(), queued=[]) is None


def test_the_same_question_has_the_same_answer() -> None:
    asked = bag(33, spread=0.4, mean_sd=0.2)
    assert left(asked, slots=free(0.0, 5.0)) == left(asked, slots=free(0.0, 5.0))


def test_many_running_packages_count_like_each_of_them() -> None:
    random = Random(3)
    elapsed = [random.uniform(0.0, 60.0) for _ in range(500)]
    group = bag(2000, spread=0.3)
    many = left(group, running=some_running({RunsAt(0, 1.0): elapsed}))
    real = median(
        scheduled(2000, [max(0.0, 60.0 - each) for each in elapsed], spread=0.3, random=random) for _ in range(20)
    )
    assert many.median_seconds == pytest.approx(real, rel=0.1)
    kinds = some_running({RunsAt(0, 1.0): [1.0] * 20, RunsAt(0, 2.0): [1.0] * 20, RunsAt(1, 2.0): [1.0] * 2})
    assert kinds.sizes.sum() == 42.0
    assert [float(size) for group, size in zip(kinds.groups, kinds.sizes, strict=True) if group == 1] == [2.0]
    assert float(kinds.sizes[kinds.speeds == 2.0].sum()) == 22.0
