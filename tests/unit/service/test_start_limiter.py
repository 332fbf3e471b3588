"""Turns among many: few begin at once, and those that take long hold up nobody who is known not to."""

from __future__ import annotations

from pilotage.service.sites.worker import StartLimiter


class Hall:
    """Turns under a clock that the test moves."""

    def __init__(self, most: int, hanging_max: int) -> None:
        self.now = 0.0
        self.limiter = StartLimiter(most, hanging_max=hanging_max, counted_seconds=1.0, clock=lambda: self.now)

    def taken(self, count: int, *, is_known: bool = False) -> list[int]:
        """How many of so many that ask get a turn."""
        found = [self.limiter.take(is_known=is_known) for _ in range(count)]
        return [each for each in found if each is not None]


def test_so_many_begin_at_once_and_more_when_one_is_over() -> None:
    hall = Hall(3, 100)
    first = hall.taken(5)
    assert len(first) == 3
    hall.limiter.give_back(first[1])
    assert len(hall.taken(5)) == 1
    assert hall.taken(1, is_known=True) == []


def test_what_takes_long_counts_for_a_moment_only() -> None:
    hall = Hall(3, 100)
    hall.taken(3)
    hall.now = 0.9
    assert hall.taken(3) == []
    hall.now = 1.0
    assert len(hall.taken(5)) == 3


def test_so_many_hang_at_once_of_those_that_may() -> None:
    hall = Hall(3, 6)
    begun = []
    for second in range(5):
        hall.now = float(second)
        begun += hall.taken(5)
    assert len(begun) == 9
    assert len(hall.taken(5, is_known=True)) == 3
    hall.now = 10.0
    assert hall.taken(1) == []
    for turn in begun[:4]:
        hall.limiter.give_back(turn)
    assert len(hall.taken(5)) == 1  # nine, with those of the three that are known
