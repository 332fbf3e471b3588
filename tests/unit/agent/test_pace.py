"""How many attempts wait with a pilot, by how long those before them took."""

from __future__ import annotations

import pytest

from pilotage.agent.pilot.backlog import AHEAD_FACTOR, AHEAD_SECONDS, AttemptDurations


def paced(*seconds: float) -> AttemptDurations:
    pace = AttemptDurations()
    for each in seconds:
        pace.note(each)
    return pace


def test_of_what_nobody_knows_one_waits_for_each_slot() -> None:
    assert AttemptDurations().ahead(3) == 3
    forgotten = paced(0.001, 0.001)
    forgotten.forget()
    assert forgotten.ahead(3) == 3


def test_after_few_that_were_short_few_wait_and_after_many_as_much_as_is_done_soon() -> None:
    pace = AttemptDurations()
    waiting = []
    for _ in range(200):
        pace.note(0.001)
        waiting.append(pace.ahead(2))
    assert waiting[:3] == [AHEAD_FACTOR, 2 * AHEAD_FACTOR, 3 * AHEAD_FACTOR]
    assert waiting[-1] == pytest.approx(2 * AHEAD_SECONDS / 0.001, rel=0.01)
    assert waiting == sorted(waiting)


@pytest.mark.parametrize("seconds", [60.0, 1.1])
def test_what_takes_long_waits_elsewhere(seconds: float) -> None:
    assert paced(*[seconds] * 50).ahead(2) == 0


def test_the_latest_count_most() -> None:
    slow = paced(*[0.001] * 50, *[10.0] * 5)
    assert slow.ahead(2) == 0
    assert paced(*[10.0] * 50, *[0.0] * 60).ahead(2) > 100
