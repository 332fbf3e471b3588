"""A service that works through many things lets whoever waits for its core go first, now and then.

Where packages run beside their service, the system may put one that begins behind it, to wait there until the clock ticks:
longer than a short package lasts. To give way in between costs as long as that one runs. Where somebody computes for long,
it costs more than it brings, and is left for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

AMONG = 8  # so many things are done one after the other
LONG_SECONDS = 0.002
WITHOUT_FACTOR = 20  # for so many times what was lost nobody is let go first: a twentieth is lost at most

Item = TypeVar("Item")


def _nobody() -> None:
    """Where the system has no such call, nobody is let go first."""


_yield: Callable[[], None] = getattr(os, "sched_yield", _nobody)


class Courtesy:
    """Gives way for one thread."""

    __slots__ = ("_again_at", "_clock", "_yield")

    def __init__(self, *, yields: Callable[[], None] = _yield, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with giving way."""
        self._yield = yields
        self._clock = clock
        self._again_at = -1.0  # until then it goes on

    def give_way(self) -> None:
        """Let others run, unless that lasted long lately."""
        began = self._clock()
        if began < self._again_at:
            return
        self._yield()
        now = self._clock()
        lasted_seconds = now - began
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds

    def among(self, items: Sequence[Item]) -> Iterator[Item]:
        """The items, giving way before the first few, the next few, and so on."""
        for first in range(0, len(items), AMONG):
            self.give_way()
            yield from items[first : first + AMONG]
