"""Virtual time: what is to happen, in order. Nothing waits; the clock jumps to whatever comes next.

Time is cut into short stretches. Only what happens in the present one is sorted; what comes later lies together with all
else of its stretch until then. So putting it there costs the same however much is still to happen.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, final

Action = Callable[..., object]

_push, _pop = heapq.heappush, heapq.heappop

_SWEEP_MIN = 1024  # fewer entries that were called off are not worth a sweep
_STRETCHES = 4.0  # in a second: shorter ones leave less to be sorted, longer ones are fewer


@final
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


_Entry = tuple[float, int, Any, Any]  # an action, or its handle, and the one argument, or a tuple of all
_Batch = tuple[float, int, Any, Any]  # an action, and what it is called with, one after the other


class Schedule:
    """The one clock of a simulation. Of two things at one time, the one that was scheduled first happens first."""

    __slots__ = (
        "_called_off",
        "_count",
        "_far",
        "_line",
        "_most",
        "_near",
        "_soon",
        "_stretch",
        "_stretches",
        "_sweep_at",
        "now",
    )

    def __init__(self, start: float = 0.0) -> None:
        """Begin at a time; nothing is to happen yet."""
        self.now = start
        self._stretch = int(start * _STRETCHES)
        self._near: list[_Entry] = []  # what lay in the present stretch when it began, the earliest last
        self._soon: list[_Entry] = []  # a heap: what has come to that since
        self._far: dict[int, list[_Entry]] = {}  # by stretch, in no order
        self._stretches: list[int] = []  # a heap of those
        self._line: deque[_Batch] = deque()  # what came in order, and need not be sorted
        self._count = 0
        self._called_off = 0
        self._sweep_at = _SWEEP_MIN  # when so many were called off
        self._most = 0  # so many things happen, and then it halts

    def at(self, time: float, action: Action, *arguments: object) -> Handle:
        """Let something happen at a time; what should have happened already happens now."""
        handle = Handle(self, action)
        self.post(time, handle, arguments)
        return handle

    def after(self, seconds: float, action: Action, *arguments: object) -> Handle:
        """Let something happen some time from now."""
        return self.at(self.now + seconds, action, *arguments)

    def post(self, time: float, action: Action | Handle, arguments: object = ()) -> None:
        """As `at`, for what nobody will call off: it costs half as much. The one argument, or a tuple of them."""
        self._count = count = self._count + 1
        at = time if time > self.now else self.now  # noqa: FURB136 # a call costs more
        stretch = int(at * _STRETCHES)
        if stretch <= self._stretch:
            _push(self._soon, (at, count, action, arguments))
        elif (entries := self._far.get(stretch)) is not None:
            entries.append((at, count, action, arguments))
        else:
            self._far[stretch] = [(at, count, action, arguments)]
            _push(self._stretches, stretch)

    def _nearest(self) -> list[_Entry]:
        """What is left of the present stretch with the earliest last, or else of the next one in which anything happens.

        Not of that where something that is lined up comes before: what that leads to would have to be sorted in.
        """
        near, soon, line, stretches = self._near, self._soon, self._line, self._stretches
        if soon:
            if not near or soon[0] < near[-1]:
                near.append(_pop(soon))  # as in `go_on`, where it costs no call
        elif not near and stretches and not (line and line[0][0] * _STRETCHES < stretches[0]):
            self._stretch = stretch = _pop(stretches)
            self._near = near = self._far.pop(stretch)
            near.sort(reverse=True)
        return near

    def line_up(self, time: float, action: Callable[[Any], object], argument: object) -> None:
        """As `post`, at a time that has not passed, for what happens after all that was lined up before: it is not sorted in.

        Of one action at one time, all that was lined up with nothing scheduled in between is one step.
        """
        line, count = self._line, self._count
        if line:
            last_time, last_count, last_action, arguments = line[-1]
            if last_count == count and last_time == time and (last_action is action or last_action == action):
                arguments.append(argument)
                return
            if time < last_time:
                self.post(time, action, (argument,))
                return
        self._count = count + 1
        line.append((time, count + 1, action, [argument]))

    def step(self) -> bool:
        """Let the earliest thing happen; False when there is nothing left."""
        return bool(self.go_on(most=1))

    def halt(self) -> None:
        """Let nothing more happen after what happens now, until it is told to go on."""
        self._most = 0

    def go_on(self, most: int = sys.maxsize) -> int:
        """Let things happen until one of them says `halt`, so many did, or nothing is left; how many did."""
        line, happened = self._line, 0
        self._most = most
        while happened < self._most:
            near, soon = self._near, self._soon
            if soon:
                if not near or soon[0] < near[-1]:
                    near.append(_pop(soon))
            elif not near and self._stretches:
                near = self._nearest()
            if line and (not near or line[0] < near[-1]):
                self.now, _, act, batch = line.popleft()
                for argument in batch:
                    act(argument)
            elif near:
                time, _, action, arguments = near.pop()
                if type(action) is Handle:
                    planned, action.action = action.action, None
                    if planned is None:
                        self._called_off -= 1
                        continue
                    action = planned
                self.now = time
                if type(arguments) is tuple:
                    action(*arguments)
                else:
                    action(arguments)
            else:
                break
            happened += 1
        return happened

    def run(self, *, until: float) -> None:
        """Let everything happen up to a time, and stand there."""
        while (time := self.next_time()) is not None and time <= until:
            self.step()
        self.now = max(self.now, until)

    def next_time(self) -> float | None:
        """When the earliest thing happens, or None."""
        while (near := self._nearest()) and _is_called_off(near[-1]):
            near.pop()
            self._called_off -= 1
        times = [near[-1][0]] if near else []
        if self._line:
            times.append(self._line[0][0])
        return min(times, default=None)

    @property
    def pending(self) -> int:
        """How many things are still to happen."""
        sorted_in = len(self._near) + len(self._soon) + sum(map(len, self._far.values()))
        return sorted_in - self._called_off + sum(len(arguments) for _, _, _, arguments in self._line)

    def call_off(self) -> None:
        """Count one entry that was called off, and sweep once most of them may be."""
        self._called_off += 1
        if self._called_off > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._near = [entry for entry in self._near if not _is_called_off(entry)]
        self._soon = [entry for entry in self._soon if not _is_called_off(entry)]
        heapq.heapify(self._soon)
        far = {stretch: [one for one in some if not _is_called_off(one)] for stretch, some in self._far.items()}
        self._far = {stretch: entries for stretch, entries in far.items() if entries}
        self._stretches = sorted(self._far)
        self._called_off = 0
        self._sweep_at = max(_SWEEP_MIN, self.pending)


def _is_called_off(entry: _Entry) -> bool:
    return isinstance(entry[2], Handle) and entry[2].action is None
