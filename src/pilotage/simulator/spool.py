"""What an agent has to tell: its events in order, by its own clock, until they are acknowledged."""

from __future__ import annotations

import struct
from collections.abc import Collection

import msgspec

from pilotage.model.events import Event
from pilotage.model.exchange import Assignment, AttemptRef
from pilotage.model.payloads import AttemptFinished, Payload
from pilotage.simulator.surroundings import Surroundings

_encode = msgspec.json.Encoder().encode
_head = struct.Struct("<QQQd")  # number, epoch, position seen and time of an event
_number = struct.Struct("<Q")


class Spool:
    """The events of one agent's stream, and the ends of attempts that it can still answer for."""

    __slots__ = (
        "_acknowledged",
        "_ends",
        "_forged",
        "_n",
        "_stream",
        "_world",
        "events",
        "seen",
        "skew_seconds",
        "smuggled",
    )

    def __init__(self, world: Surroundings, stream: str) -> None:
        """Begin a stream."""
        self._world = world
        self._stream = stream
        self._n = 0
        self._acknowledged = 0
        self._forged: tuple[int, ...] = ()  # the numbers of events that should not have been said, until they are heard
        self.seen = 0  # the position of the book that the last reply told
        self.skew_seconds = 0.0  # how far the clock here is off
        self.events: list[Event] = []  # not acknowledged yet
        # What each attempt ended with, as short as it goes: an agent remembers many, and hardly ever tells one again.
        self._ends: dict[AttemptRef, bytes] = {}
        self.smuggled: tuple[Event, ...] = ()  # of other streams, which go out once

    def tell(self, payload: Payload) -> None:
        """Put an event about the agent itself into the spool."""
        self._n += 1
        self._add(
            Event(
                source="agent",
                stream=self._stream,
                n=self._n,
                type=type(payload).__name__,
                time=self.local(self._world.schedule.now),
                pilot=self._stream,
                seen=self.seen,
                data=msgspec.Raw(_encode(payload)),
            )
        )

    def tell_of(self, assignment: Assignment, payload: Payload, *, time: float) -> None:
        """Put an event about an attempt into the spool, which happened at a time of the true clock."""
        at = self.local(time) if self.skew_seconds else time
        self._tell_of(assignment.ref, assignment.epoch, payload, _encode(payload), time=at)

    def tell_end(self, assignment: Assignment, payload: AttemptFinished, *, time: float) -> None:
        """The same of the end of an attempt, which it can be asked for again."""
        text = _encode(payload)
        at = self.local(time) if self.skew_seconds else time
        ref, epoch = assignment.ref, assignment.epoch
        self._tell_of(ref, epoch, payload, text, time=at)
        self._ends[ref] = _head.pack(self._n, epoch, self.seen, at) + text

    def _tell_of(self, ref: AttemptRef, epoch: int, payload: Payload, text: bytes, *, time: float) -> None:
        self._n += 1
        self._add(
            Event(
                source="agent",
                stream=self._stream,
                n=self._n,
                type=type(payload).__name__,
                time=time,
                job=ref.job,
                package=ref.package,
                attempt=ref.attempt,
                epoch=epoch,
                seen=self.seen,
                data=msgspec.Raw(text),
            )
        )

    @property
    def ended(self) -> Collection[AttemptRef]:
        """The attempts whose end it can tell again, in the order in which they ended."""
        return self._ends.keys()

    def end_of(self, ref: AttemptRef) -> Event | None:
        """The event that told the end of an attempt, as it was; None where nothing is known of it."""
        end = self._ends.get(ref)
        if end is None:
            return None
        n, epoch, seen, time = _head.unpack_from(end)
        return Event(
            source="agent",
            stream=self._stream,
            n=n,
            type=AttemptFinished.__name__,
            time=time,
            job=ref.job,
            package=ref.package,
            attempt=ref.attempt,
            epoch=epoch,
            seen=seen,
            data=msgspec.Raw(end[_head.size :]),
        )

    def tell_again(self, ref: AttemptRef) -> bool:
        """Tell the end of an attempt once more; False where nothing is known of it."""
        end = self.end_of(ref)
        if end is None:
            return False
        if all(event.n != end.n for event in self.events):
            self.events.insert(0, end)  # it was acknowledged, so it is older than all that were not
        return True

    def acknowledge(self, n: int) -> None:
        """Forget what need not be sent again, and all but the last of the ends among it."""
        world = self._world
        if n > self._acknowledged:
            self._acknowledged = n
            if world.witness is not None:
                world.witness.on_acknowledged(self._stream, n, world.schedule.now)
            while self._forged and self._forged[0] <= n:
                self._forged = self._forged[1:]
                world.box.took("agent_rogue")
        events = self.events
        if events and events[0].n <= n:
            self.events = [] if events[-1].n <= n else [event for event in events if event.n > n]
        ends = self._ends
        while len(ends) > world.settings.remembered_max:
            oldest = next(iter(ends))
            if _number.unpack_from(ends[oldest])[0] > n:
                break
            del ends[oldest]

    def forge(self, event: Event) -> None:
        """Put an event that is not this agent's to say into the spool, as if it were."""
        self._n += 1
        now = self.local(self._world.schedule.now)
        forged = msgspec.structs.replace(event, stream=self._stream, n=self._n, time=now, seen=self.seen)
        self.events.append(forged)
        self._forged += (self._n,)
        if self._world.witness is not None:
            self._world.witness.on_forged(forged)

    def take_all(self) -> tuple[Event, ...]:
        """What the next exchange says."""
        smuggled, self.smuggled = self.smuggled, ()
        for _ in smuggled:
            self._world.box.took("agent_rogue")
        return (*self.events, *smuggled)

    def local(self, time: float) -> float:
        """A time by the clock of the agent."""
        return max(0.0, time + self.skew_seconds) if self.skew_seconds else time

    def _add(self, event: Event) -> None:
        self.events.append(event)
        if self._world.witness is not None:
            self._world.witness.on_spooled(event)
