"""The latest few of a row of numbers and their sum, in whole numbers so that what left the window leaves no trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

WINDOW = 32
"""So many of the latest are looked at: enough for a rate, few enough to be written down with a site."""


def microseconds(seconds: float) -> int:
    """A time or a stretch of time as a whole number; sums of these come out even."""
    return round(seconds * 1e6)


class Window:
    """The latest numbers, oldest first."""

    __slots__ = ("_numbers", "total")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """Begin with some."""
        self._numbers: deque[int] = deque(numbers, maxlen=WINDOW)
        self.total = sum(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def push(self, number: int) -> int | None:
        """One more; what it displaced."""
        gone = self._numbers[0] if len(self._numbers) == WINDOW else None
        self._numbers.append(number)
        self.total += number - (gone or 0)
        return gone

    def numbers(self) -> tuple[int, ...]:
        """All of them, oldest first."""
        return tuple(self._numbers)
