"""Slots take turns at the many short things between two commands: one of them at a time, where that keeps nobody.

Whoever calls the system lets the other threads of the interpreter go on, and waits for them when the call returns. Two slots
that link, stage and remove at the same time so wake each other up at every call, which takes longer than the calls do. So a
turn lasts from the end of one command to the beginning of the next, whichever attempts they are of: that is one wait for both.

A turn is a courtesy and protects nothing. Who waits in vain goes on without it; and where the calls themselves last, as on
a busy disk or over a network, slots had better do them side by side.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

PATIENCE_SECONDS = 0.05
LONG_SECONDS = 0.005  # more than ten times what a turn takes where files are near
WITHOUT_FACTOR = 20  # for so many times what was lost a slot goes without: a twentieth is lost at most


class Turn:
    """The turn of one slot, which its thread takes and gives; all slots of a pilot share the lock."""

    __slots__ = ("_again_at", "_clock", "_has_it", "_lock", "_taken_at")

    def __init__(self, lock: threading.Lock, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without it."""
        self._lock = lock
        self._clock = clock
        self._has_it = False
        self._taken_at = 0.0
        self._again_at = -1.0  # until then it goes without

    def take(self) -> None:
        """Wait for the turn, but not long; who has it keeps it."""
        if self._has_it or self._clock() < self._again_at:
            return
        self._has_it = self._lock.acquire(timeout=PATIENCE_SECONDS)
        self._taken_at = self._clock()
        if not self._has_it:
            self._again_at = self._taken_at + WITHOUT_FACTOR * PATIENCE_SECONDS

    def give(self) -> bool:
        """Let others have it, before anything that may last; whether this slot had it."""
        if not self._has_it:
            return False
        self._has_it = False
        self._lock.release()
        now = self._clock()
        lasted_seconds = now - self._taken_at
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds
        return True
