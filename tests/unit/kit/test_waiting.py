"""Waiting in tests."""

from __future__ import annotations

import itertools

import pytest

from tests.kit import waiting


class Clock:
    """Time that goes by only when somebody waits, or looks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    monkeypatch.setattr(waiting, "_PAUSE", made)
    return made


def test_what_comes_soon_is_seen_at_once(clock: Clock) -> None:
    looks = itertools.count()
    waiting.wait_until(lambda: next(looks) == 3, lambda: "not so", seconds=10.0)
    assert clock.pauses == [waiting.PAUSE_SECONDS_MIN] * 3


def test_what_takes_long_is_looked_at_less_often_and_seen_soon_enough(clock: Clock) -> None:
    waiting.wait_until(lambda: clock.now >= 4.0, lambda: "not so", seconds=10.0)
    assert 4.0 <= clock.now <= 4.0 * 1.06
    assert len(clock.pauses) < 80
    assert clock.pauses == sorted(clock.pauses)


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_a_dear_look_takes_a_small_part_of_the_time(clock: Clock, seconds: float) -> None:
    looks = itertools.count()

    def look() -> bool:
        clock.now += seconds
        return next(looks) == 10

    waiting.wait_until(look, lambda: "not so", seconds=20.0)
    assert sum(clock.pauses) >= 4 * 10 * seconds * 0.99
    assert max(clock.pauses) <= waiting.DEAR_SECONDS_MAX


def test_what_does_not_come_fails_with_its_reason(clock: Clock) -> None:
    with pytest.raises(AssertionError, match="it never came"):
        waiting.wait_until(lambda: False, lambda: "it never came", seconds=10.0)
    assert max(clock.pauses) == waiting.PAUSE_SECONDS_MAX
