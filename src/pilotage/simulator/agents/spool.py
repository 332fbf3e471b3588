"""What an agent has to tell: its events in order, by its own clock, until they are acknowledged."""

from __future__ import annotations

import struct

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.simulator.agents.attempt import ENDINGS, Run
from pilotage.simulator.world.surroundings import AgentContext

_encode = msgspec.json.Encoder().encode
# What an end follows from: the number, epoch and position seen of the event that tells it; when the attempt began, its phases
# and itself ended; its memory, status and reason.
_end = struct.Struct("<QQQddddqqB")
_number = struct.Struct("<Q")
_REASONS = (None, *ENDINGS)  # as a number, in what is packed
_REASON_NUMBERS = {reason: number for number, reason in enumerate(_REASONS)}


class Spool:
    """The events of one agent's stream, and the ends of attempts that it can still answer for."""

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
        """Begin a stream, on a node."""
        self._world = world
        self._stream = stream
        self._node = node
        self._node_text = _encode(node)
        self._n = 0
        self._acknowledged = 0
        self._forged: tuple[int, ...] = ()  # the numbers of events that should not have been said, until they are heard
        self.seen = 0  # the position of the book that the last reply told
        self.skew_seconds = 0.0  # how far the clock here is off
        self.events: list[Event] = []  # not acknowledged yet
        # What the end of each follows from, as short as it goes: an agent remembers many, and hardly ever tells one again.
        self.ends: dict[AttemptRef, bytes] = {}
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

    def tell_end(self, run: Run, *, now: float) -> None:
        """Put the end of an attempt into the spool, which it can be asked for again."""
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
        said = msgspec.Raw(run.told(now=at, skew_seconds=skew_seconds, node=self._node, node_text=self._node_text))
        time = self.local(at) if skew_seconds else at
        return Event(
            "agent", self._stream, n, "AttemptFinished", time, ref.job, ref.package, ref.attempt, None, None,
            assignment.epoch, seen, 1, said,
        )  # fmt: skip

    def end_of(self, ref: AttemptRef) -> Event | None:
        """The event that told the end of an attempt, as it was; None where nothing is known of it."""
        end = self.ends.get(ref)
        if end is None:
            return None
        n, epoch, seen, *times, memory_bytes, exit_status, reason = _end.unpack(end)
        run = Run(Assignment(ref=ref, epoch=epoch))
        run.started_at, run.application_at, run.outputs_at, ended_at = times
        run.memory_bytes, run.exit_status, run.reason = memory_bytes, exit_status, _REASONS[reason]
        return self._event(run, n, seen=seen, at=ended_at)

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
        events, ends = self.events, self.ends
        if events and events[0].n <= n:
            self.events = [] if events[-1].n <= n else [event for event in events if event.n > n]
        while len(ends) > world.settings.remembered_max:
            oldest = next(iter(ends))
            if n < self._n and _number.unpack_from(ends[oldest])[0] > n:
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
