"""The engine's time: a steady one for leases and delays, the wall clock for events, and the timers."""

from __future__ import annotations

import heapq

# What the engine looks at again when its time has come: one heap, oldest first; what no longer matters is ignored
# then.


class Due:
    """What a timer is about."""

    LEASE = 1  # a pilot, by its name
    RESTART = 2  # a package whose next attempt was delayed
    UNFIT = 3  # reservations of a site
    REQUEST = 4  # a submission that nothing was heard of
    WAITING = 5  # the oldest ready package of a class
    SITE = 6  # a site that was left alone after dead starts
    EXPANSION = 7  # a late stage whose expansion was asked for
    PROVISION = 8  # whether sites should be asked for pilots
    ACTING = 9  # a pilot that was given up, and may still act
    CHOICE = 10  # what found no site
    SITE_RECORD = 11  # how a site stands is to be written down
    QUEUED = 12  # what is in the queue of a site
    REPLICA = 14  # a bound attempt that may be queued for so long that another is made elsewhere
    PROBE = 13  # a pilot that was only to show that it comes


class Timers:
    """A heap of (time, serial, due, name, number); the serial makes the order total."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        """Begin empty."""
        self._heap: list[tuple[float, int, int, str, int]] = []
        self._serial = 0

    def at(self, time: float, due: int, name: str, number: int = 0) -> None:
        """Look again at a time."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, due, name, number))

    def pop(self, now: float) -> tuple[int, str, int] | None:
        """The next that is due, if any."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[2:]

    @property
    def next_at(self) -> float | None:
        """When something is due next."""
        return self._heap[0][0] if self._heap else None


class EngineClock:
    """The two times that were told last, and what is due when."""

    __slots__ = ("now", "timers", "wall_time")

    def __init__(self, now: float) -> None:
        """Begin at a time; the wall clock shows the same until it is told otherwise."""
        self.now = now
        self.wall_time = now
        self.timers = Timers()


# The time that leases and pauses are measured in: it goes on as the clock does, and does not jump when that is set.
#
# A clock that is set back by a minute or by ten years must not undo a lease, nor stop time until it has caught up;
# one that is set forward must not end every lease at once. So the engine has a time of its own, which is the
# clock's as long as nobody sets that:
#
# - set back by whatever: the engine's time stands still for that one step and goes on from there; - forward: from
# one step to the next the engine's time goes on at most `late_seconds` beyond the moment it had asked to be woken
# at. A core that was woken later than that was asleep, stopped, or its clock was set, and nobody is to be given up
# for the time in which nobody was listened to.
#
# Events are stamped by the clock itself, since people and other programs read it. Their times do not go back for
# less than `late_seconds`, so that the usual small corrections do not show.


class SteadyTime:
    """The engine's time, and what to stamp events with, from what the clock says at each step."""

    __slots__ = ("_late_seconds", "_offset", "_told_at", "_wake_at", "clock", "now", "stamp")

    def __init__(self, now: float, *, late_seconds: float) -> None:
        """Begin with the clock's own time."""
        self.now = self.stamp = self.clock = now
        self._late_seconds = late_seconds
        self._offset = 0.0  # the engine's time less the clock's
        self._wake_at: float | None = None
        self._told_at = 0.0  # the same by the clock, as it was told

    def go_on(self, clock: float) -> None:
        """A step begins, and the clock says this."""
        self.clock = clock
        now = clock + self._offset
        if self._wake_at is not None and clock >= self._told_at:
            now = max(now, self._wake_at)  # which a sum that is rounded may miss, again and again
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
        """When the clock will show a time of the engine, at which it wants to be woken."""
        self._wake_at = time
        if time is None:
            return None
        self._told_at = time - self._offset
        return self._told_at
