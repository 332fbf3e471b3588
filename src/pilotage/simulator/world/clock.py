"""Virtual time: a schedule of future actions, in order. Nothing waits; the clock jumps to the next action.

Time is cut into short intervals. Only the actions of the current interval are sorted; later ones are kept unsorted per
interval. So adding an action costs the same however many are pending.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, final

Action = Callable[..., object]

_push, _pop = heapq.heappush, heapq.heappop

_SWEEP_MIN = 1024  # fewer cancelled entries are not worth a sweep
_STRETCHES = 4.0  # per second: shorter intervals leave less to sort, longer ones are fewer


@final
class Handle:
    """One scheduled action that can be cancelled."""

    __slots__ = ("action", "schedule")

    def __init__(self, schedule: Schedule, action: Action) -> None:
        """Keep the action to call."""
        self.schedule = schedule
        self.action: Action | None = action

    def cancel(self) -> None:
        """Cancel it. Too late or a second time, this does nothing."""
        if self.action is not None:
            self.action = None
            self.schedule.call_off()


_Entry = tuple[float, int, Any, Any]  # an action or its handle, and its one argument or a tuple of all
_Batch = tuple[float, int, Any, Any]  # an action, and its arguments, one call after the other


class Schedule:
    """The one clock of a simulation. Of two actions at one time, the one scheduled first comes first."""

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
        """Start at a time with nothing scheduled."""
        self.now = start
        self._stretch = int(start * _STRETCHES)
        self._near: list[_Entry] = []  # actions of the current interval when it began, the earliest last
        self._soon: list[_Entry] = []  # a heap: actions added to it since
        self._far: dict[int, list[_Entry]] = {}  # by interval, unsorted
        self._stretches: list[int] = []  # a heap of these
        self._line: deque[_Batch] = deque()  # actions added in order, which need not be sorted
        self._count = 0
        self._called_off = 0
        self._sweep_at = _SWEEP_MIN  # number of cancelled entries for the next sweep
        self._most = 0  # stop after this many actions

    def at(self, time: float, action: Action, *arguments: object) -> Handle:
        """Schedule an action at a time; one in the past happens now."""
        handle = Handle(self, action)
        self.post(time, handle, arguments)
        return handle

    def after(self, seconds: float, action: Action, *arguments: object) -> Handle:
        """Schedule an action some time from now."""
        return self.at(self.now + seconds, action, *arguments)

    def post(self, time: float, action: Action | Handle, arguments: object = ()) -> None:
        """As `at`, for an action that is never cancelled, at half the cost. `arguments` is the one argument, or a tuple of them."""
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
        """The rest of the current interval with the earliest last, or else the next interval with actions.

        Not the next interval if an ordered action comes before it: its consequences would have to be sorted in.
        """
        near, soon, line, stretches = self._near, self._soon, self._line, self._stretches
        if soon:
            if not near or soon[0] < near[-1]:
                near.append(_pop(soon))  # as in `advance`, which inlines it
        elif not near and stretches and not (line and line[0][0] * _STRETCHES < stretches[0]):
            self._stretch = stretch = _pop(stretches)
            self._near = near = self._far.pop(stretch)
            near.sort(reverse=True)
        return near

    def post_in_order(self, time: float, action: Callable[[Any], object], argument: object) -> None:
        """As `post`, at a time that has not passed, after all actions added this way before: it need not be sorted.

        All calls of one action at one time with nothing scheduled in between are one step.
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
        """Run the earliest action; False if there is none."""
        return bool(self.advance(most=1))

    def halt(self) -> None:
        """Stop after the current action, until resumed."""
        self._most = 0

    def advance(self, most: int = sys.maxsize) -> int:
        """Run actions until one calls `halt`, `most` have run, or none is left; returns how many ran."""
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
        """Run everything up to a time, and stop there."""
        while (time := self.next_time()) is not None and time <= until:
            self.step()
        self.now = max(self.now, until)

    def next_time(self) -> float | None:
        """The time of the earliest action, or None."""
        while (near := self._nearest()) and _is_called_off(near[-1]):
            near.pop()
            self._called_off -= 1
        times = [near[-1][0]] if near else []
        if self._line:
            times.append(self._line[0][0])
        return min(times, default=None)

    @property
    def pending(self) -> int:
        """How many actions are pending."""
        sorted_in = len(self._near) + len(self._soon) + sum(map(len, self._far.values()))
        return sorted_in - self._called_off + sum(len(arguments) for _, _, _, arguments in self._line)

    def call_off(self) -> None:
        """Count a cancelled entry, and sweep once most entries may be."""
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
