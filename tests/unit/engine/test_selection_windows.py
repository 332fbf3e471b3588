"""The parts that selection is made of: windows, queue times, scores; and the queue of what is ready."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest

from pilotage.engine.selection.rolling import (
    WINDOW,
    QueueTimes,
    Window,
    median,
    median_seconds,
    microseconds,
    quantile,
)
from pilotage.engine.selection.scores import GRADES, Score, graded, submission_delta, tscore
from pilotage.engine.state.clock import SteadyTime, Timers
from pilotage.engine.state.fifo import ReadyQueue
from pilotage.model.exchange.reports import Trouble
from pilotage.model.settings.engine import SelectionSettings

_DEFAULTS = SelectionSettings()


def _settings(**changed: float) -> SelectionSettings:
    return msgspec.convert(changed, SelectionSettings)


def test_a_window_has_the_latest_and_their_sum() -> None:
    window = Window([5, 7])
    assert (len(window), window.total, window.numbers()) == (2, 12, (5, 7))
    displaced = [window.push(number) for number in range(100, 100 + WINDOW)]
    assert displaced == [None] * (WINDOW - 2) + [5, 7]
    assert window.numbers() == tuple(range(100, 100 + WINDOW))
    assert (len(window), window.total) == (WINDOW, sum(range(100, 100 + WINDOW)))
    assert window.push(0) == 100
    assert window.total == sum(window.numbers())


def test_seconds_are_counted_in_whole_microseconds() -> None:
    assert [microseconds(seconds) for seconds in (0.0, 1.5, 0.0000006)] == [0, 1_500_000, 1]


@pytest.mark.parametrize(
    "share, value", [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.76, 4.0), (1.0, 4.0)]
)
def test_a_quantile_is_one_of_the_observed(share: float, value: float) -> None:
    assert quantile([3.0, 1.0, 4.0, 2.0], share) == value


@pytest.mark.parametrize(
    "values, middle", [([3.0], 3.0), ([4.0, 1.0], 2.5), ([9.0, 1.0, 2.0], 2.0), ([1, 2, 3, 8], 2.5)]
)
def test_a_median_is_in_the_middle(values: list[float], middle: float) -> None:
    assert median(values) == middle
    assert median_seconds(Window(microseconds(each) for each in values)) == middle


def test_a_site_of_which_nothing_is_known_has_no_median() -> None:
    assert median_seconds(Window()) is None


def test_queue_times_follow_the_latest_waits_of_all_sites() -> None:
    settings = _settings(queue_time_first_seconds=70.0, queue_time_samples_min=3, queue_time_margin_seconds=10.0)
    times, one, other = QueueTimes(settings), Window(), Window()
    assert (times.average_seconds, times.throttle_seconds) == (None, 70.0)
    times.observe(one, 2.0)
    times.observe(other, 4.0)
    assert (times.average_seconds, times.throttle_seconds) == (3.0, 70.0)
    times.observe(other, -5.0)  # a clock that runs backwards
    assert (times.average_seconds, times.throttle_seconds) == (2.0, 12.0)
    for _ in range(WINDOW):
        times.observe(one, 8.0)
    assert times.average_seconds == (8.0 * WINDOW + 4.0) / (WINDOW + 2)
    times.remove(other)
    assert times.average_seconds == 8.0
    times.add(other)
    assert times.average_seconds == (8.0 * WINDOW + 4.0) / (WINDOW + 2)


def test_queue_times_begin_with_what_was_observed_before() -> None:
    settings = _settings(queue_time_quantile=0.5, queue_time_samples_min=1)
    assert QueueTimes(settings, [1.0, 2.0, 30.0]).throttle_seconds == 2.0


def test_a_grade_is_given_from_the_score_that_its_tscore_is_nearest_to() -> None:
    for score in (-1e9, -3.0, -0.5, 0.0, 0.1, 2.0, 50.0, 1e9):
        made = Score(_DEFAULTS, score)
        bounded = min(_DEFAULTS.score_ceiling, max(_DEFAULTS.score_floor, score))
        assert (made.earned, made.value) == (bounded, bounded)
        assert made.tscore == pytest.approx(tscore(bounded, _DEFAULTS))
        assert made.grade == round(GRADES * math.log(made.tscore))
        assert made.grade_with(score) == made.grade
        assert graded(made.grade) == pytest.approx(made.tscore, rel=1 / GRADES)
    assert tscore(0.0, _DEFAULTS) == 1.0
    assert tscore(1e12, _DEFAULTS) == pytest.approx(_DEFAULTS.score_high_cap ** (_DEFAULTS.tscore_b / 2), rel=1e-6)


def test_a_grade_that_is_known_is_looked_up_again_where_it_may_have_changed() -> None:
    score = Score(_DEFAULTS, 0.0)
    grades = []
    for _ in range(200):
        score.succeeded()
        grades.append(score.grade)
        assert score.grade == Score(_DEFAULTS, score.earned).grade
    assert grades == sorted(grades)
    for _ in range(200):
        score.failed()
        assert score.grade == Score(_DEFAULTS, score.earned).grade
    score.began("transfer")
    for _ in range(50):
        score.succeeded()
        assert score.grade == score.grade_with(score.earned)


def test_the_load_of_what_is_under_way_is_returned_with_its_end() -> None:
    loads = {
        "submission": _DEFAULTS.job_submission_load,
        "transfer": _DEFAULTS.transfer_load,
        "file-operation": _DEFAULTS.file_operation_load,
    }
    score = Score(_DEFAULTS, 5.0)
    score.began("submission")
    score.began("transfer")
    score.began("transfer")
    score.began("file-operation")
    assert score.load == pytest.approx(loads["submission"] + 2 * loads["transfer"] + loads["file-operation"])
    assert score.value == pytest.approx(5.0 + score.load)
    assert [score.underway(each) for each in ("submission", "transfer", "file-operation")] == [1, 2, 1]
    score.dropped("transfer")
    score.recount("file-operation", 0)
    score.recount("submission", -3)
    assert score.earned == 5.0
    assert score.load == pytest.approx(loads["transfer"])
    score.ended("transfer")
    assert (score.earned, score.load) == (5.0 + _DEFAULTS.success, 0.0)
    score.ended("transfer")
    assert score.underway("transfer") == 0
    score.reset(3.0)
    assert (score.earned, score.grade) == (3.0, Score(_DEFAULTS, 3.0).grade)


@pytest.mark.parametrize(
    "trouble, more",
    [
        ("failed", 0.0),
        ("connection-refused", _DEFAULTS.connection_refused),
        ("connection-timed-out", _DEFAULTS.connection_timed_out),
    ],
)
def test_what_did_not_end_well_costs_by_its_trouble(trouble: Trouble, more: float) -> None:
    score = Score(_DEFAULTS, _DEFAULTS.score_ceiling)
    score.ended("submission", trouble)
    assert score.earned == pytest.approx(_DEFAULTS.score_ceiling + _DEFAULTS.failure + more)


def test_a_score_stays_between_floor_and_ceiling() -> None:
    score = Score(_DEFAULTS, _DEFAULTS.score_ceiling)
    score.succeeded()
    assert score.earned == _DEFAULTS.score_ceiling
    score.reset(_DEFAULTS.score_floor)
    score.failed()
    score.outqueued()
    assert score.earned == _DEFAULTS.score_floor
    score.reset(0.0)
    score.outqueued()
    assert score.earned == _DEFAULTS.queue_time_factor
    score.reset(0.0)
    score.submitted(3.0)
    assert score.earned == pytest.approx(submission_delta(3.0, _DEFAULTS))
    assert submission_delta(_DEFAULTS.submission_seconds_base, _DEFAULTS) == pytest.approx(0.0)
    factor = _DEFAULTS.submission_factor
    assert submission_delta(_DEFAULTS.submission_seconds_base + 2.0, _DEFAULTS) == pytest.approx(2.0 * factor)


def test_what_is_ready_is_taken_in_its_order() -> None:
    queue = ReadyQueue()
    assert (bool(queue), queue.size, list(queue)) == (False, 0, [])
    queue.extend([], 0.0)
    assert not queue
    queue.push(3, 1.0)
    queue.push(1, 1.0)
    queue.extend([7, 8], 2.0)
    queue.push(9, 2.0)
    queue.push(2, 3.0)
    assert (queue.size, list(queue)) == (6, [3, 1, 7, 8, 9, 2])
    taken = []
    while queue:
        first, since = queue.first()
        taken.append((queue.pop(), since))
        assert taken[-1][0] == first
        assert queue.size == 6 - len(taken)
    assert taken == [(3, 1.0), (1, 1.0), (7, 2.0), (8, 2.0), (9, 2.0), (2, 3.0)]
    queue.push(4, 3.0)
    assert (list(queue), queue.first(), queue.size) == ([4], (4, 3.0), 1)


def test_what_no_longer_counts_is_let_go_of_and_the_rest_stays_in_its_order() -> None:
    queue = ReadyQueue()
    queue.extend([5, 1, 2, 1], 1.0)
    queue.push(3, 2.0)
    queue.push(2, 2.0)
    assert queue.pop() == 5
    queue.keep(lambda number: number != 3)
    assert (list(queue), queue.size, queue.first()) == ([1, 2], 2, (1, 1.0))
    queue.push(6, 1.0)
    queue.keep(lambda _: False)
    assert (bool(queue), queue.size) == (False, 0)
    queue.push(6, 1.0)
    queue.clear()
    assert (bool(queue), queue.size, list(queue)) == (False, 0, [])
    queue.push(8, 1.0)
    assert (list(queue), queue.size) == ([8], 1)


def test_timers_are_due_by_their_time_and_then_by_their_order() -> None:
    timers = Timers()
    assert (timers.next_at, timers.pop(99.0)) == (None, None)
    timers.at(5.0, 1, "late")
    timers.at(2.0, 3, "first", 7)
    timers.at(2.0, 2, "second")
    assert (timers.next_at, timers.pop(1.9)) == (2.0, None)
    assert [timers.pop(2.0) for _ in range(3)] == [(3, "first", 7), (2, "second", 0), None]
    assert timers.next_at == 5.0


def test_the_time_of_the_engine_goes_on_as_its_clock_does_and_does_not_jump() -> None:
    time = SteadyTime(100.0, late_seconds=10.0)
    assert time.wake_at(None) is None
    time.advance(150.0)
    assert (time.now, time.clock, time.stamp) == (150.0, 150.0, 150.0)
    assert time.wake_at(160.0) == 160.0
    time.advance(170.0)
    assert time.now == 170.0, "not later than it may be"
    assert time.wake_at(180.0) == 180.0
    time.advance(1_000_000.0)
    assert (time.now, time.stamp) == (190.0, 1_000_000.0), "the clock was set forward"
    assert time.wake_at(200.0) == 1_000_010.0
    time.advance(1_000_010.0)
    assert time.now == 200.0
    time.advance(50.0)
    assert (time.now, time.stamp) == (200.0, 50.0), "the clock was set back"
    time.advance(51.0)
    assert time.now == 201.0
    time.advance(45.0)
    assert (time.now, time.stamp) == (201.0, 51.0), "less than a little back does not show"
    time.advance(41.0)
    assert time.stamp == 51.0
    time.advance(40.9)
    assert time.stamp == 40.9


def test_an_engine_that_was_not_woken_in_time_goes_on_from_the_later_of_both() -> None:
    time = SteadyTime(100.0, late_seconds=10.0)
    time.wake_at(50.0)
    time.advance(200.0)
    assert time.now == 110.0
    moments = []
    for clock in (200.1, 200.2, 200.3):
        asked = time.wake_at(time.now + 0.1)
        assert asked is not None
        time.advance(max(asked, clock))
        moments.append(time.now)
    assert all(later > earlier for earlier, later in pairwise(moments))
