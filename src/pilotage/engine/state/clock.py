"""The engine's time: a steady time for leases and delays, the wall clock for events, and the timers."""

from __future__ import annotations

import heapq

# One heap of timers, the earliest first; a timer that no longer matters is ignored when it is due.


class Due:
    """What a timer is about."""

    LEASE = 1  # a pilot, by its name
    RESTART = 2  # a package whose next attempt was delayed
    UNFIT = 3  # reservations of a site
    REQUEST = 4  # a submission without a report
    WAITING = 5  # the oldest ready package of a class
    SITE = 6  # a site that was paused after failed starts
    EXPANSION = 7  # a late stage whose expansion was requested
    PROVISION = 8  # whether to request pilots
    ACTING = 9  # a pilot that was given up and may still act
    CHOICE = 10  # classes without a site
    SITE_RECORD = 11  # the state of a site is to be recorded
    QUEUED = 12  # a batch job in the queue of a site
    REPLICA = 14  # a bound attempt that may be queued long enough for a replica
    PROBE = 13  # a probe pilot
    LATENCIES = 15  # the latencies of a site are to be recorded
    FORECAST = 16  # the end of a job is to be forecast
    FETCH = 17  # files that could not be brought to a site are tried again
    HEALING = 18  # the incidents of a job are to be looked for


class Timers:
    """A heap of (time, serial, due, name, number); the serial makes the order total."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        """Begin empty."""
        self._heap: list[tuple[float, int, int, str, int]] = []
        self._serial = 0

    def at(self, time: float, due: int, name: str, number: int = 0) -> None:
        """Set a timer."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, due, name, number))

    def pop(self, now: float) -> tuple[int, str, int] | None:
        """Remove and return the next due timer, if any."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[2:]

    @property
    def next_at(self) -> float | None:
        """When the next timer is due."""
        return self._heap[0][0] if self._heap else None


class EngineClock:
    """The two current times, and the timers."""

    __slots__ = ("now", "timers", "wall_time")

    def __init__(self, now: float) -> None:
        """Start at a time; the wall clock shows the same until it is set."""
        self.now = now
        self.wall_time = now
        self.timers = Timers()


# The time for leases and pauses: it follows the clock, but does not jump when the clock is set.
#
# A clock that is set back by a minute or by ten years must not undo a lease, nor stop time until it has caught up;
# one that is set forward must not end every lease at once. So the engine has a time of its own, equal to the clock's
# until the clock is set:
#
# - backward by any amount: the engine's time stands still for that one step and goes on from there;
# - forward: from one step to the next the engine's time advances at most `late_seconds` beyond the moment it had asked to
#   be woken at. If it was woken later, it was suspended or its clock was set, and no pilot must be given up for a time in
#   which the engine did not listen.
#
# Events carry the wall-clock time, since people and other programs read it. It does not go back by less than
# `late_seconds`, so that the usual small corrections do not show.


class SteadyTime:
    """The engine's time, and the time stamp of events, from the clock at each step."""

    __slots__ = ("_late_seconds", "_offset", "_wake_at", "_wake_clock", "clock", "now", "stamp")

    def __init__(self, now: float, *, late_seconds: float) -> None:
        """Start with the clock's own time."""
        self.now = self.stamp = self.clock = now
        self._late_seconds = late_seconds
        self._offset = 0.0  # engine time minus clock time
        # An engine that takes over has leases to watch: a clock that is set before its first step ends none of them.
        self._wake_at: float | None = now
        self._wake_clock = now  # the same in clock time, as reported

    def advance(self, clock: float) -> None:
        """Start a step with this clock time."""
        self.clock = clock
        now = clock + self._offset
        if self._wake_at is not None and clock >= self._wake_clock:
            now = max(now, self._wake_at)  # a rounded sum might miss it again and again
        if now < self.now:
            now = self.now
        elif self._wake_at is not None and now > (latest := max(self._wake_at, self.now) + self._late_seconds):
            now = latest
        if now != clock + self._offset:
            self._offset = now - clock
        self.now = now
        if not self.stamp - self._late_seconds <= clock < self.stamp:
            self.stamp = clock

    def wake_at(self, time: float | None) -> float | None:
        """The clock time at which the engine wants to be woken."""
        self._wake_at = time
        if time is None:
            return None
        self._wake_clock = time - self._offset
        return self._wake_clock
