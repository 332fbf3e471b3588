"""The engine's time: a steady one for leases and delays, the wall clock for events, and the timers."""

from __future__ import annotations

from pilotage.engine.timers import Timers


class EngineClock:
    """The two times that were told last, and what is due when."""

    __slots__ = ("now", "timers", "wall_time")

    def __init__(self, now: float) -> None:
        """Begin at a time; the wall clock shows the same until it is told otherwise."""
        self.now = now
        self.wall_time = now
        self.timers = Timers()
