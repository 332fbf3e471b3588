"""Turns among many: so few begin something at a time that what it costs this computer is bounded.

What takes long costs next to nothing more here, it only waits for somebody else: it does not count for longer than a moment. So
those that hang hold up nobody of whom it is known that they do not; and of the others so many that files and processes suffice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

COUNTED_SECONDS = 1.0


class Turns:
    """So many turns at a time; any thread may ask for one. Nobody waits here: who gets none asks again."""

    def __init__(
        self,
        most: int,
        *,
        hanging_max: int,
        counted_seconds: float = COUNTED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take how many there are, how many more are given when these take long, and how long one counts."""
        self._most = most
        self._hanging_max = hanging_max
        self._counted_seconds = counted_seconds
        self._clock = clock
        self._guard = threading.Lock()
        self._taken: dict[int, float] = {}  # when each was, the latest last
        self._last = 0

    def take(self, *, is_known: bool) -> int | None:
        """A turn, to be given back; None where there is none now. One who `is_known` to take no time is not kept by many that do."""
        with self._guard:
            now, counted = self._clock(), 0
            for since in reversed(self._taken.values()):
                if since + self._counted_seconds <= now or counted >= self._most:
                    break
                counted += 1
            if counted >= self._most or (not is_known and len(self._taken) >= self._most + self._hanging_max):
                return None
            self._last += 1
            self._taken[self._last] = now
            return self._last

    def give_back(self, turn: int) -> None:
        """It is over."""
        with self._guard:
            del self._taken[turn]
