"""Virtual time: what is to happen, in order. Nothing waits; the clock jumps to whatever comes next."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

Action = Callable[..., object]

_push, _pop = heapq.heappush, heapq.heappop

_SWEEP_MIN = 1024  # fewer entries that were called off are not worth a sweep


class Handle:
    """One thing that is to happen, for whoever may want to call it off."""

    __slots__ = ("action", "schedule")

    def __init__(self, schedule: Schedule, action: Action) -> None:
        """Keep what is to be called."""
        self.schedule = schedule
        self.action: Action | None = action

    def cancel(self) -> None:
        """Let it not happen. Too late or a second time, this does nothing."""
        if self.action is not None:
            self.action = None
            self.schedule.call_off()


_Entry = tuple[float, int, Action | Handle, tuple[object, ...]]
_Batch = tuple[float, int, Any, Any]  # an action, and what it is called with, one after the other


class Schedule:
    """The one clock of a simulation. Of two things at one time, the one that was scheduled first happens first."""

    __slots__ = ("_called_off", "_count", "_heap", "_line", "now")

    def __init__(self, start: float = 0.0) -> None:
        """Begin at a time; nothing is to happen yet."""
        self.now = start
        self._heap: list[_Entry] = []
        self._line: deque[_Batch] = deque()  # what came in order, and need not be sorted
        self._count = 0
        self._called_off = 0

    def at(self, time: float, action: Action, *arguments: object) -> Handle:
        """Let something happen at a time; what should have happened already happens now."""
        handle = Handle(self, action)
        self._count = count = self._count + 1
        heapq.heappush(self._heap, (max(self.now, time), count, handle, arguments))
        return handle

    def after(self, seconds: float, action: Action, *arguments: object) -> Handle:
        """Let something happen some time from now."""
        return self.at(self.now + seconds, action, *arguments)

    def post(self, time: float, action: Action, *arguments: object) -> None:
        """As `at`, for what nobody will call off: it costs half as much."""
        self._count = count = self._count + 1
        at = time if time > self.now else self.now  # noqa: FURB136 # a call costs more
        _push(self._heap, (at, count, action, arguments))

    def line_up(self, time: float, action: Callable[[Any], object], argument: object) -> None:
        """As `post`, at a time that has not passed, for what happens after all that was lined up before: it is not sorted in.

        Of one action at one time, all that was lined up with nothing scheduled in between is one step.
        """
        line, count = self._line, self._count
        if line:
            last_time, last_count, last_action, arguments = line[-1]
            if last_count == count and last_time == time and last_action == action:
                arguments.append(argument)
                return
            if time < last_time:
                self.post(time, action, argument)
                return
        self._count = count + 1
        line.append((time, count + 1, action, [argument]))

    def step(self) -> bool:
        """Let the earliest thing happen; False when there is nothing left."""
        heap, line = self._heap, self._line
        while heap or line:
            if line and (not heap or line[0] < heap[0]):
                self.now, _, act, batch = line.popleft()
                for argument in batch:
                    act(argument)
                return True
            time, _, action, arguments = _pop(heap)
            if isinstance(action, Handle):
                planned, action.action = action.action, None
                if planned is None:
                    self._called_off -= 1
                    continue
                action = planned
            self.now = time
            action(*arguments)
            return True
        return False

    def run(self, *, until: float) -> None:
        """Let everything happen up to a time, and stand there."""
        while (time := self.next_time()) is not None and time <= until:
            self.step()
        self.now = max(self.now, until)

    def next_time(self) -> float | None:
        """When the earliest thing happens, or None."""
        while self._heap and _is_called_off(self._heap[0]):
            heapq.heappop(self._heap)
            self._called_off -= 1
        times = [entries[0][0] for entries in (self._heap, self._line) if entries]
        return min(times, default=None)

    @property
    def pending(self) -> int:
        """How many things are still to happen."""
        return len(self._heap) - self._called_off + sum(len(arguments) for _, _, _, arguments in self._line)

    def call_off(self) -> None:
        """Count one entry that was called off, and sweep once most of them are."""
        self._called_off += 1
        if self._called_off > _SWEEP_MIN and self._called_off * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not _is_called_off(entry)]
            heapq.heapify(self._heap)
            self._called_off = 0


def _is_called_off(entry: _Entry) -> bool:
    return isinstance(entry[2], Handle) and entry[2].action is None
