"""What the engine looks at again when its time has come: one heap, oldest first; what no longer matters is ignored then."""

from __future__ import annotations

import heapq


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
    STANDING = 11  # how a site stands is to be written down
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
