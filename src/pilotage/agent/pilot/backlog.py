"""The attempts that a pilot holds and the room it has for them: as many run as fit, the rest wait in order.

Whoever calls holds the lock of the pilot.
"""

from __future__ import annotations

from collections import deque
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pilotage.agent.resources import Room, fits, give_back, room_of, take


def ref_of(said: dict[str, Any]) -> tuple[str, str, int]:
    """Which attempt a reference in a message means."""
    return said["job"], said["package"], said["attempt"]


class Held:
    """An attempt that this pilot was given and of which it has not told the end."""

    __slots__ = (
        "assignment",
        "logs_told",
        "phase",
        "ref",
        "ref_text",
        "room",
        "running",
        "slot",
        "stopping",
        "token",
        "told",
        "work",
    )

    def __init__(self, assignment: dict[str, Any], work: dict[str, Any] | None, token: str = "") -> None:
        """Hold what was assigned; `work` says how it is run, where the service told, `token` is for what it runs."""
        said = assignment["ref"]
        self.assignment = assignment
        self.work = work
        self.token = token
        self.ref = ref_of(said)
        job, package, attempt = self.ref
        # Said with every exchange: put together by hand, in a fifth of the time.
        self.ref_text = f'{{"job":{_quoted(job)},"package":{_quoted(package)},"attempt":{attempt:d}}}'.encode()
        self.room = room_of(assignment.get("demand") or {})
        self.running = False
        self.slot: Any = None  # who runs it
        self.stopping: str | None = None  # why it is being ended: a reason, or nothing where the service wanted it so
        self.phase: tuple[str, float] | None = None  # which one it is in, and since when
        self.told: tuple[str, float] | None = None  # the last phase that was told of by itself
        self.logs_told = 0  # the size of the logs that were sent while it runs

    def enter(self, phase: str, at: float) -> None:
        """It enters a phase, at a time of the clock on the wall."""
        self.phase = (phase, at)


class Bench:
    """What a pilot holds, in the order in which it came, and what is left of its node."""

    __slots__ = ("_free", "capacity", "held", "running", "waiting")

    def __init__(self, capacity: Room) -> None:
        """Begin with an empty node."""
        self.capacity = capacity
        self._free = capacity
        self.held: dict[tuple[str, str, int], Held] = {}
        self.waiting: deque[Held] = deque()
        self.running = 0

    def accept(self, held: Held) -> None:
        """Hold an attempt, which runs as soon as those before it leave room."""
        self.held[held.ref] = held
        self.waiting.append(held)

    def never_fits(self, room: Room) -> bool:
        """Whether an attempt asks for more than the whole node has."""
        return not fits(room, self.capacity)

    def has_room(self, backlog: int) -> bool:
        """Whether one more attempt would run, or be let wait."""
        return len(self.waiting) < backlog or (not self.waiting and self._free.cores_hundredths > 0)

    def take(self) -> Held | None:
        """Let the first that waits begin, if there is room: a large one is not overtaken, or it would wait for ever."""
        waiting = self.waiting
        if not waiting:
            return None
        room = waiting[0].room
        if not fits(room, self._free):
            return None
        self._free = take(self._free, room)
        self.running += 1
        held = waiting.popleft()
        held.running = True
        return held

    def put_back(self, held: Held) -> None:
        """Let an attempt that could not begin wait again, before all others."""
        self._give_back(held.room)
        held.running = False
        self.waiting.appendleft(held)

    def follow(self, held: Held) -> Held | None:
        """Let go of an attempt that is over, and let the first that waits begin if there is room then."""
        waiting = self.waiting
        if not waiting or waiting[0].room != held.room:
            self.remove(held)
            return self.take()
        del self.held[held.ref]  # it takes what the other gives back: neither is counted
        following = waiting.popleft()
        following.running = True
        return following

    @property
    def may_begin(self) -> bool:
        """Whether it is worth while to ask for the first that waits: its cores are free."""
        waiting = self.waiting
        return bool(waiting) and waiting[0].room.cores_hundredths <= self._free.cores_hundredths

    def remove(self, held: Held) -> None:
        """Let go of an attempt, wherever it stands, and give back what it took."""
        del self.held[held.ref]
        if not held.running:
            self.waiting.remove(held)
            return
        self._give_back(held.room)

    def _give_back(self, room: Room) -> None:
        self._free = give_back(self._free, room)
        self.running -= 1


# How long attempts took lately, and so how many had better wait here for the slots: none of which a slot elsewhere
# could do.

AHEAD_SECONDS = 0.5  # as much work waits here as the slots do in this time: a long attempt had better wait elsewhere
AHEAD_FACTOR = 8  # of few that are over little is known, and few come sooner: so many for each of them wait at most
_LATEST_PART = 0.2  # of the figure is what the latest one took
_SECONDS_MIN = 1e-4


class Pace:
    """What is known of the attempts of a pilot; guarded by whoever shares it."""

    __slots__ = ("_known", "_seconds")

    def __init__(self) -> None:
        """Begin with none."""
        self.forget()

    def forget(self) -> None:
        """What comes next may be something else."""
        self._seconds = 0.0
        self._known = 0  # how many are over

    def note(self, seconds: float) -> None:
        """One more is over, after so long."""
        self._seconds = seconds if not self._known else self._seconds + _LATEST_PART * (seconds - self._seconds)
        self._known += 1

    def ahead(self, slots: int) -> int:
        """How many attempts may wait for so many slots; where none is over yet, as many as there are slots."""
        if not self._known:
            return slots
        return min(int(slots * AHEAD_SECONDS / max(self._seconds, _SECONDS_MIN)), AHEAD_FACTOR * self._known)
