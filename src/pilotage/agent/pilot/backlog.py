"""The attempts of a pilot and the resources of its node: as many run as fit, the others wait in order.

The caller holds the lock of the pilot.
"""

from __future__ import annotations

from collections import deque
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pilotage.agent.resources import Resources, fits, give_back, resources_of, take


def ref_of(ref: dict[str, Any]) -> tuple[str, str, int]:
    """The key of a reference in a message."""
    return ref["job"], ref["package"], ref["attempt"]


class HeldAttempt:
    """An attempt assigned to this pilot whose end is not reported yet."""

    __slots__ = (
        "assignment",
        "logs_sent",
        "phase",
        "ref",
        "ref_text",
        "reported_phase",
        "resources",
        "running",
        "slot",
        "stopping",
        "token",
        "work",
    )

    def __init__(self, assignment: dict[str, Any], work: dict[str, Any] | None, token: str = "") -> None:
        """Take an assignment; `work` tells how to run it, `token` is for its commands."""
        ref = assignment["ref"]
        self.assignment = assignment
        self.work = work
        self.token = token
        self.ref = ref_of(ref)
        job, package, attempt = self.ref
        # Sent with every exchange: formatted by hand, in a fifth of the time.
        self.ref_text = f'{{"job":{_quoted(job)},"package":{_quoted(package)},"attempt":{attempt:d}}}'.encode()
        self.resources = resources_of(assignment.get("demand") or {})
        self.running = False
        self.slot: Any = None  # the slot that runs it
        self.stopping: str | None = None  # why it is being stopped; empty if the service cancelled it
        self.phase: tuple[str, float] | None = None  # its current phase, and since when
        self.reported_phase: tuple[str, float] | None = None  # the last phase reported on its own
        self.logs_sent = 0  # size of the logs sent so far

    def enter(self, phase: str, at: float) -> None:
        """Enter a phase, at a wall-clock time."""
        self.phase = (phase, at)


class SlotTable:
    """The attempts of a pilot, in order of arrival, and the free resources of its node."""

    __slots__ = ("_free", "capacity", "held", "running", "waiting")

    def __init__(self, capacity: Resources) -> None:
        self.capacity = capacity
        self._free = capacity
        self.held: dict[tuple[str, str, int], HeldAttempt] = {}
        self.waiting: deque[HeldAttempt] = deque()
        self.running = 0

    def accept(self, held: HeldAttempt) -> None:
        """Queue an attempt, which runs when those before it leave enough resources."""
        self.held[held.ref] = held
        self.waiting.append(held)

    def never_fits(self, resources: Resources) -> bool:
        """Tell whether an attempt asks for more than the whole node has."""
        return not fits(resources, self.capacity)

    def has_capacity(self, backlog: int) -> bool:
        """Tell whether one more attempt could run, or wait in the backlog."""
        return len(self.waiting) < backlog or (not self.waiting and self._free.cores_hundredths > 0)

    def take(self) -> HeldAttempt | None:
        """Start the first waiting attempt if it fits; others do not overtake it, or a large one would wait for ever."""
        waiting = self.waiting
        if not waiting:
            return None
        resources = waiting[0].resources
        if not fits(resources, self._free):
            return None
        self._free = take(self._free, resources)
        self.running += 1
        held = waiting.popleft()
        held.running = True
        return held

    def put_back(self, held: HeldAttempt) -> None:
        """Put an attempt that could not start at the head of the queue."""
        self._give_back(held.resources)
        held.running = False
        self.waiting.appendleft(held)

    def follow(self, held: HeldAttempt) -> HeldAttempt | None:
        """Remove a finished attempt, and start the first waiting one if it fits then."""
        waiting = self.waiting
        if not waiting or waiting[0].resources != held.resources:
            self.remove(held)
            return self.take()
        del self.held[held.ref]  # the next one takes over its resources: no need to count
        following = waiting.popleft()
        following.running = True
        return following

    @property
    def may_begin(self) -> bool:
        """Tell whether the first waiting attempt may fit: its cores are free."""
        waiting = self.waiting
        return bool(waiting) and waiting[0].resources.cores_hundredths <= self._free.cores_hundredths

    def remove(self, held: HeldAttempt) -> None:
        """Remove an attempt, running or waiting, and free its resources."""
        del self.held[held.ref]
        if not held.running:
            self.waiting.remove(held)
            return
        self._give_back(held.resources)

    def _give_back(self, resources: Resources) -> None:
        self._free = give_back(self._free, resources)
        self.running -= 1


# Average duration of recent attempts, and from it the size of the backlog: not more than other pilots could run sooner.

AHEAD_SECONDS = 0.5  # the backlog holds as much work as the slots do in this time
AHEAD_FACTOR = 8  # at most so many waiting attempts per finished one, while few are finished
_LATEST_PART = 0.2  # weight of the latest attempt in the average
_SECONDS_MIN = 1e-4


class AttemptDurations:
    """Average duration of a pilot's attempts; the caller holds the pilot's lock."""

    __slots__ = ("_known", "_seconds")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the average: the next attempts may be different."""
        self._seconds = 0.0
        self._known = 0  # number of finished attempts

    def note(self, seconds: float) -> None:
        """Add the duration of a finished attempt."""
        self._seconds = seconds if not self._known else self._seconds + _LATEST_PART * (seconds - self._seconds)
        self._known += 1

    def ahead(self, slots: int) -> int:
        """How many attempts may wait for so many slots; before the first is finished, one per slot."""
        if not self._known:
            return slots
        return min(int(slots * AHEAD_SECONDS / max(self._seconds, _SECONDS_MIN)), AHEAD_FACTOR * self._known)
