"""The unacknowledged events of an agent, in order and in its own clock."""

from __future__ import annotations

import struct

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.simulator.agents.attempt import ENDINGS, Run
from pilotage.simulator.world.agent_context import AgentContext

_encode = msgspec.json.Encoder().encode
# The data of an end: number, epoch and seen position of its event; when the attempt began and its phases and it ended; its
# memory, status and reason.
_end = struct.Struct("<QQQdddddqqB")
_number = struct.Struct("<Q")
_REASONS = (None, *ENDINGS)  # packed as a number
_REASON_NUMBERS = {reason: number for number, reason in enumerate(_REASONS)}


class Spool:
    """The events of one agent's stream, and the ends of attempts that it can still repeat."""

    __slots__ = (
        "_acknowledged",
        "_forged",
        "_n",
        "_node",
        "_node_text",
        "_stream",
        "_world",
        "ends",
        "events",
        "seen",
        "skew_seconds",
        "smuggled",
    )

    def __init__(self, world: AgentContext, stream: str, *, node: str) -> None:
        """Start a stream, on a node."""
        self._world = world
        self._stream = stream
        self._node = node
        self._node_text = _encode(node)
        self._n = 0
        self._acknowledged = 0
        self._forged: tuple[int, ...] = ()  # numbers of forged events, until they are acknowledged
        self.seen = 0  # the position of the book in the last reply
        self.skew_seconds = 0.0  # error of the agent's clock
        self.events: list[Event] = []  # not acknowledged yet
        # Data of each end, packed: an agent remembers many, and hardly ever repeats one.
        self.ends: dict[AttemptRef, bytes] = {}
        self.smuggled: tuple[Event, ...] = ()  # of other streams, sent once

    def add_event(self, payload: Payload) -> None:
        """Add an event about the agent itself."""
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

    def add_attempt_event(self, assignment: Assignment, payload: Payload, *, time: float) -> None:
        """Add an event about an attempt at a true time."""
        self._n += 1
        ref = assignment.ref
        self._add(
            Event(
                source="agent",
                stream=self._stream,
                n=self._n,
                type=type(payload).__name__,
                time=self.local(time),
                job=ref.job,
                package=ref.package,
                attempt=ref.attempt,
                epoch=assignment.epoch,
                seen=self.seen,
                data=msgspec.Raw(_encode(payload)),
            )
        )

    def add_end(self, run: Run, *, now: float) -> None:
        """Add the end of an attempt, which can be requested again."""
        self._n = n = self._n + 1
        seen = self.seen
        event = self._event(run, n, seen=seen, at=now)
        self.events.append(event)
        if self._world.witness is not None:
            self._world.witness.on_spooled(event)
        assignment = run.assignment
        self.ends[assignment.ref] = _end.pack(
            n,
            assignment.epoch,
            seen,
            run.started_at,
            run.inputs_at,
            run.application_at,
            run.outputs_at,
            now,
            run.memory_bytes,
            run.exit_status,
            _REASON_NUMBERS[run.reason],
        )

    def _event(self, run: Run, n: int, *, seen: int, at: float) -> Event:
        skew_seconds, assignment = self.skew_seconds, run.assignment
        ref = assignment.ref
        data = msgspec.Raw(
            run.encoded_end(now=at, skew_seconds=skew_seconds, node=self._node, node_text=self._node_text)
        )
        time = self.local(at) if skew_seconds else at
        return Event(
            "agent", self._stream, n, "AttemptFinished", time, ref.job, ref.package, ref.attempt, None, None,
            assignment.epoch, seen, 1, data,
        )  # fmt: skip

    def end_of(self, ref: AttemptRef) -> Event | None:
        """The event of an attempt's end, as it was; None if unknown."""
        end = self.ends.get(ref)
        if end is None:
            return None
        n, epoch, seen, *times, memory_bytes, exit_status, reason = _end.unpack(end)
        run = Run(Assignment(ref=ref, epoch=epoch))
        run.started_at, run.inputs_at, run.application_at, run.outputs_at, ended_at = times
        run.memory_bytes, run.exit_status, run.reason = memory_bytes, exit_status, _REASONS[reason]
        return self._event(run, n, seen=seen, at=ended_at)

    def repeat_end(self, ref: AttemptRef) -> bool:
        """Report the end of an attempt once more; False if unknown."""
        end = self.end_of(ref)
        if end is None:
            return False
        if all(event.n != end.n for event in self.events):
            self.events.insert(0, end)  # it was acknowledged, so it is older than all pending ones
        return True

    def acknowledge(self, n: int) -> None:
        """Remove acknowledged events, and all but the last of the ends among them."""
        world = self._world
        if n > self._acknowledged:
            self._acknowledged = n
            if world.witness is not None:
                world.witness.on_acknowledged(self._stream, n, world.schedule.now)
            while self._forged and self._forged[0] <= n:
                self._forged = self._forged[1:]
                world.injector.had_effect("agent_rogue")
        events, ends = self.events, self.ends
        if events and events[0].n <= n:
            self.events = [] if events[-1].n <= n else [event for event in events if event.n > n]
        while len(ends) > world.settings.remembered_max:
            oldest = next(iter(ends))
            if n < self._n and _number.unpack_from(ends[oldest])[0] > n:
                break
            del ends[oldest]

    def forge(self, event: Event) -> None:
        """Add a forged event as if it were the agent's own."""
        self._n += 1
        now = self.local(self._world.schedule.now)
        forged = msgspec.structs.replace(event, stream=self._stream, n=self._n, time=now, seen=self.seen)
        self.events.append(forged)
        self._forged += (self._n,)
        if self._world.witness is not None:
            self._world.witness.on_forged(forged)

    def take_all(self) -> tuple[Event, ...]:
        """The events of the next exchange."""
        smuggled, self.smuggled = self.smuggled, ()
        for _ in smuggled:
            self._world.injector.had_effect("agent_rogue")
        return (*self.events, *smuggled)

    def local(self, time: float) -> float:
        """A time in the agent's clock."""
        return max(0.0, time + self.skew_seconds) if self.skew_seconds else time

    def _add(self, event: Event) -> None:
        self.events.append(event)
        if self._world.witness is not None:
            self._world.witness.on_spooled(event)
