"""The core of the service: what comes in, and what must be written, answered and done, in one synchronous step.

No thread, no socket, no file: the real service and the simulator drive the same function. Whoever drives it makes the
events of a step durable before anything else of that step leaves: replies, answers, effects. A step that is lost with
its process was never heard of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.rows import StreamRow
from pilotage.book.streams import Heard
from pilotage.engine.admission import admit, over_quota
from pilotage.engine.engine import Engine
from pilotage.engine.on_pilots import hear, may_say, on_report, unwanted
from pilotage.engine.operations import operate
from pilotage.engine.parts import AttemptState
from pilotage.engine.restore import Snapshot, restore
from pilotage.engine.settings import EngineSettings
from pilotage.model import payloads
from pilotage.model.effects import Effect
from pilotage.model.events import Event
from pilotage.model.exchange import Assignment, AttemptRef, Exchange, ExchangeReply, InputSource
from pilotage.model.operations import (
    Accepted,
    AnyOperation,
    AnyReport,
    Refused,
)
from pilotage.model.plan import JobPlan
from pilotage.model.site import Site


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An operation somebody asked for; the token finds who waits for the answer."""

    token: int
    operation: AnyOperation


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """A job on its way in, with its plan."""

    token: int
    job: str
    registered: payloads.JobRegistered
    plan: JobPlan


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ExpandStage`: the plan with the stage in it."""

    job: str
    stage: int
    revision: int  # as it was asked for
    plan: JobPlan
    expanded: payloads.StageExpanded


_OF_ATTEMPTS = frozenset(
    {
        payloads.AttemptQueued,
        payloads.AttemptStarted,
        payloads.AttemptSuspected,
        payloads.PhaseEntered,
        payloads.OutputsStaged,
        payloads.AttemptFinished,
    }
)
"""What only the agent that has an attempt may say of it."""
_OF_AGENTS = frozenset(
    {payloads.PilotStarted, payloads.PilotEnded, payloads.NodeDescribed, payloads.Tagged, payloads.Noted}
)
"""What else an agent may say, of itself and of what it sees."""

Input = Exchange | Asked | Submit | Grown | AnyReport


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an operation or a submission."""

    token: int
    outcome: Accepted | Refused


class Outbox(msgspec.Struct, kw_only=True):
    """What a step asks for: first the events, durably; then everything else, in any order."""

    events: list[Checked] = []
    replies: list[ExchangeReply] = []
    answers: list[Answer] = []
    effects: list[Effect] = []
    refused: list[Refusal] = []  # events of agents that could not be read
    wake_at: float | None = None


class Core:
    """An engine, who waits for an answer from it, and what was heard of every agent."""

    def __init__(self, engine: Engine, *, codec: Codec | None = None, streams: Sequence[StreamRow] = ()) -> None:
        """Take an engine, new or restored, and how far each agent's stream was heard."""
        self.engine = engine
        self._codec = codec if codec is not None else Codec()
        self._heard: dict[str, Heard] = {row.stream: Heard(row) for row in streams}
        self._waiting: dict[str, Exchange] = {}  # open exchanges that there is nothing to say to yet
        self._polls: deque[tuple[float, str, int]] = deque()  # until when, in order

    def written(self, position: int) -> None:
        """The book stands at a position: decisions from now on have seen it."""
        self.engine.position = max(self.engine.position, position)

    def step(self, inbox: Sequence[Input], now: float) -> Outbox:
        """Take in what came, decide, and say what follows; an empty inbox lets time pass."""
        engine = self.engine
        engine.now = max(now, engine.now)  # a clock that is set back must not undo a lease
        outbox = Outbox()
        exchanges: dict[str, Exchange] = {}
        hear = self._hear
        for item in inbox:
            match item:
                case Exchange():
                    if hear(item, outbox):
                        exchanges[item.pilot] = item
                case Asked():
                    outbox.answers.append(Answer(token=item.token, outcome=operate(engine, item.operation)))
                case Submit():
                    outbox.answers.append(Answer(token=item.token, outcome=self._submit(item)))
                case Grown():
                    self._grow(item)
                case _:
                    on_report(engine, item)
            outbox.events += engine.take_decided()
        outbox.events += engine.decide(engine.now)
        self._reply(exchanges, outbox)
        outbox.effects = engine.take_effects()
        outbox.wake_at = self._wake_at()
        return outbox

    # --- agents ---

    def _hear(self, exchange: Exchange, outbox: Outbox) -> bool:
        """Take in what an agent says; whether an answer to it is still waited for."""
        engine, name = self.engine, exchange.pilot
        heard = self._heard.get(name)
        if heard is None:
            heard = self._heard[name] = Heard(StreamRow(stream_id=0, source="agent", stream=name))
        if exchange.events:
            for event in exchange.events:
                if event.source != "agent" or event.stream != name or event.n < 1 or not heard.add(event.n):
                    continue
                self._take(event, name, outbox)
        pilot = engine.pilots.get(name)
        if pilot is not None and exchange.sequence <= pilot.sequence:
            return False
        hear(engine, exchange)
        self._waiting.pop(name, None)
        return True

    def _take(self, event: Event, pilot: str, outbox: Outbox) -> None:
        """Take in one event of an agent. What cannot be read, or is not its to say, leaves a note in its place.

        Left out, it would be a hole in the stream, and everything behind it would be sent again for ever.
        """
        one = self._codec.check(event)
        if isinstance(one, Refusal):
            outbox.refused.append(one)
            one = self._note(event, pilot, f"refused: {one.message}")
        elif type(one.data) in _OF_ATTEMPTS:
            number = may_say(self.engine, pilot, one)
            if number is not None:
                outbox.events.append(one)
                self.engine.apply_to(number, one)
                return
            said = f"{event.type} of {event.job} {event.package} {event.attempt}, epoch {event.epoch}"
            one = self._note(event, pilot, f"not heard: {said}")
        elif type(one.data) not in _OF_AGENTS or event.pilot not in (None, pilot):
            one = self._note(event, pilot, f"not heard: {event.type}")
        if isinstance(one, Checked):
            outbox.events.append(one)
            self.engine.apply(one)

    def _note(self, event: Event, pilot: str, text: str) -> Checked | Refusal:
        data = msgspec.Raw(msgspec.json.encode(payloads.Noted(text=text[:1000])))
        return self._codec.check(
            Event(source="agent", stream=pilot, n=event.n, type="Noted", time=self.engine.now, pilot=pilot, data=data)
        )

    def _reply(self, exchanges: dict[str, Exchange], outbox: Outbox) -> None:
        """Answer every exchange there is something to say to; the others stay open until one interval has passed."""
        engine = self.engine
        self._waiting.update(exchanges)
        for name in exchanges:
            self._answer(name, outbox, patient=True)
        told, engine.told = engine.told, {}
        for name in told:
            if name in self._waiting:
                self._answer(name, outbox, patient=True)
        while self._polls and self._polls[0][0] <= engine.now:
            _, name, sequence = self._polls.popleft()
            exchange = self._waiting.get(name)
            if exchange is not None and exchange.sequence == sequence:
                self._answer(name, outbox, patient=False)
        until = engine.now + engine.settings.interval_seconds
        self._polls.extend((until, name, each.sequence) for name, each in exchanges.items() if name in self._waiting)

    def _answer(self, name: str, outbox: Outbox, *, patient: bool) -> None:
        """Answer an open exchange; who is patient is answered only if there is something to say."""
        engine, exchange = self.engine, self._waiting[name]
        pilot = engine.pilots.get(name)
        leave = "" if pilot is not None else "no live pilot has this name"
        assignments: list[Assignment] = []
        cancelled: list[AttemptRef] = []
        if pilot is not None:
            if exchange.held:
                held = set(exchange.held)
                assignments = [self._assignment(attempt) for ref, attempt in pilot.assigned.items() if ref not in held]
                cancelled = unwanted(pilot, exchange)
            elif pilot.assigned:
                assignments = [self._assignment(attempt) for attempt in pilot.assigned.values()]
            if exchange.serves is not None and exchange.serves not in pilot.assigned:
                leave = "the attempt it serves is over, or another agent has it"
        if patient and not (assignments or cancelled or leave or exchange.leaving or exchange.events):
            return
        del self._waiting[name]
        if pilot is not None:
            pilot.waiting = False
            pilot.site.waiting.pop(name, None)
        outbox.replies.append(
            ExchangeReply(
                pilot=name,
                sequence=exchange.sequence,
                position=engine.position,
                acknowledged=self._heard[name].watermark,
                assignments=tuple(assignments),
                cancelled=tuple(cancelled),
                interval_seconds=engine.settings.interval_seconds,
                lease_seconds=engine.settings.lease_seconds,
                leave=leave,
            )
        )

    def _assignment(self, attempt: AttemptState) -> Assignment:
        """What an agent must know to run an attempt: its inputs come from granted attempts, as it saw what was dropped."""
        job = self.engine.jobs[attempt.ref.job]
        inputs = []
        for producer in job.producers(attempt.number):
            work = job.work.get(producer)
            dropped = work is not None and 0 < work.dropped <= attempt.drop_revision
            if job.granted[producer] and not dropped:
                inputs.append(InputSource(job.dotted(producer), job.granted[producer]))
        return Assignment(
            ref=attempt.ref,
            epoch=attempt.epoch,
            demand=attempt.demand,
            inputs=tuple(inputs),
            drop_revision=attempt.drop_revision,
        )

    def _wake_at(self) -> float | None:
        times = [self._polls[0][0]] if self._polls else []
        if (at := self.engine.timers.next_at) is not None:
            times.append(at)
        return min(times, default=None)

    # --- jobs ---

    def _submit(self, item: Submit) -> Accepted | Refused:
        engine = self.engine
        refused = admit(engine, item.job, item.plan, owner=item.registered.owner)
        if refused is not None:
            return refused
        first = engine.next_n
        engine.bring_plan(item.job, item.plan)
        engine.write(item.registered, name=item.job)
        job = engine.jobs[item.job]
        engine.write(payloads.JobAccepted(), job=job)
        if item.plan.hold:
            engine.write(payloads.Held(operation=engine.next_n, message="its document says hold"), job=job)
        return Accepted(operation=first, events=engine.next_n - first)

    def _grow(self, item: Grown) -> None:
        engine = self.engine
        job = engine.jobs.get(item.job)
        late = job.late.get(item.stage) if job is not None else None
        if job is None or late is None or job.cancelled or job.aborted:
            return  # it was laid out before, or nobody wants it any more
        if item.expanded.stage != item.stage or item.plan.count < job.count:
            return  # it is no answer to what was asked
        if late.pending or late.revision != item.revision:
            return  # a producer began anew, was restored or dropped meanwhile: it is asked for again
        if over_quota(engine, job.owner, item.plan.count - job.count):
            message = f"with stage {item.stage} it has {item.plan.count} packages, more than its owner may have"
            engine.write(payloads.Aborted(cause="quota", message=message), job=job, epoch=job.epoch)
            return
        engine.bring_plan(item.job, item.plan)
        engine.write(item.expanded, job=job, epoch=job.epoch)


def start_core(
    snapshot: Snapshot,
    *,
    sites: Sequence[Site],
    settings: EngineSettings,
    now: float,
    codec: Codec | None = None,
    streams: Sequence[StreamRow] = (),
) -> Core:
    """A core that goes on from what the book holds; `streams` are those of the agents."""
    engine = restore(snapshot, sites=sites, settings=settings, now=now)
    return Core(engine, codec=codec, streams=streams)
