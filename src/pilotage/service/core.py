"""The core of the service: takes input and returns what to write, answer and do, in one synchronous step.

It uses no thread, socket or file, so the real service and the simulator drive the same function. The driver makes the
events of a step durable before anything else of that step goes out: replies, answers, effects. A step lost with its
process had no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.rows.rows import StreamRow
from pilotage.book.rows.streams import ReceivedNumbers
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.decisions.job_lifecycle import retire_job
from pilotage.engine.engine import Engine
from pilotage.engine.files.storing import on_outputs_copied
from pilotage.engine.inbound.admission import admit, over_quota
from pilotage.engine.inbound.batch_reports import on_report
from pilotage.engine.inbound.exchanges import may_report, on_exchange, unwanted
from pilotage.engine.inbound.operations import operate
from pilotage.engine.inbound.site_operations import change_sites, operate_site, stop_requesting_pilots
from pilotage.engine.restore import Snapshot, restore, restore_job
from pilotage.engine.state.clock import SteadyTime
from pilotage.engine.state.job_queries import is_over
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import AttemptState
from pilotage.model.events import payloads
from pilotage.model.events.events import COUNTER_MAX, JUMP_MAX, Event
from pilotage.model.events.file_payloads import OutputsDisposed
from pilotage.model.exchange.exchange import (
    SEQUENCE_JUMP_MAX,
    Assignment,
    AttemptRef,
    Exchange,
    ExchangeReply,
    InputSource,
)
from pilotage.model.exchange.operations import Accepted, Refused
from pilotage.model.exchange.reports import AnyReport, OutputsCopied
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.model.states import ADOPTED, ExitCodeGasw
from pilotage.model.texts import clipped
from pilotage.service.messages import (
    AdoptedPackage,
    Answer,
    ExpandedPlan,
    ExpansionFailed,
    Input,
    JobSealed,
    OperationRequest,
    Outbox,
    Reload,
    SiteOperationRequest,
    SitesChanged,
    Stopping,
    Submit,
)

ENDED_MAX = 10_000
"""How many ended agents to remember; the events of earlier ones are certain to be in the book."""
LATE_INTERVALS = 2
"""A core woken later than by this many intervals slept, or its clock was set: the time beyond them does not count."""


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
"""Events about an attempt that only the agent which holds it may send."""
_OF_AGENTS = frozenset(
    {payloads.PilotStarted, payloads.PilotEnded, payloads.NodeDescribed, payloads.Tagged, payloads.Noted}
)
"""Other events that an agent may send, about itself and what it observes."""
_FINISHED = payloads.AttemptFinished


class Core:
    """An engine, the clients waiting for its answers, and how far each agent's stream was received."""

    def __init__(self, engine: Engine, *, codec: Codec | None = None, streams: Sequence[StreamRow] = ()) -> None:
        """Take an engine, new or restored, and how far each agent's stream was received."""
        self.engine = engine
        self._codec = codec if codec is not None else Codec()
        self._heard: dict[str, ReceivedNumbers] = {}
        self._ended: dict[str, ReceivedNumbers] = {}  # of ended agents, the latest
        for row in streams:
            self.recall(row)
        self._waiting: dict[str, Exchange] = {}  # open exchanges that have no answer yet
        self._strange: dict[str, str] = {}  # agents dismissed for what they sent, and why
        self._polls: deque[tuple[float, str, int]] = deque()  # until when, in order
        self._time = SteadyTime(
            engine.state.clock.now, late_seconds=LATE_INTERVALS * engine.state.settings.interval_seconds
        )

    def knows(self, pilot: str) -> bool:
        """Whether the core knows an agent's stream; if not, the driver reads the book and calls `recall`.

        Agents that ended long ago are forgotten, and one of them may repeat old events.
        """
        return pilot in self._heard or pilot in self._ended

    def recall(self, row: StreamRow) -> None:
        """How far an agent's stream was received, according to the book."""
        pilot, heard = self.engine.state.pilots.by_name.get(row.stream), ReceivedNumbers(row)
        if pilot is not None:
            self._heard[row.stream] = pilot.heard = heard
        else:
            self._ended[row.stream] = heard
        self._forget_ended()

    def _forget_ended(self) -> None:
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def written(self, position: int) -> None:
        """The book has reached a position: later decisions have seen it."""
        self.engine.state.log.book_position = max(self.engine.state.log.book_position, position)

    def step(self, inbox: Sequence[Input], now: float) -> Outbox:
        """Process input, decide, and return the consequences; an empty inbox only lets time pass."""
        engine = self.engine
        self._time.advance(now)
        engine.state.clock.now, engine.state.clock.wall_time = self._time.now, self._time.stamp
        outbox = Outbox()
        exchanges: dict[str, Exchange] = {}
        for item in inbox:
            if not isinstance(item, Exchange):
                self._take_in(item, outbox)
            elif self._hear(item, outbox):
                exchanges[item.pilot] = item
            if engine.state.log.unsent:
                outbox.events += engine.take_decided()
        outbox.events += engine.decide(engine.state.clock.now)
        self._reply(exchanges, outbox)
        self._see_off(exchanges)
        outbox.effects = engine.take_effects()
        outbox.wake_at = self._time.wake_at(self._wake_at())
        return outbox

    def _take_in(self, item: Input, outbox: Outbox) -> None:
        """Process input that does not come from an agent."""
        engine = self.engine
        match item:
            case OperationRequest():
                outbox.answers.append(Answer(token=item.token, outcome=operate(engine.state, item.operation)))
            case SiteOperationRequest() | Stopping():
                outcome = (
                    stop_requesting_pilots(engine.state)
                    if isinstance(item, Stopping)
                    else operate_site(engine.state, item.operation)
                )
                outbox.answers.append(Answer(token=item.token, outcome=outcome))
            case SitesChanged():
                change_sites(engine.state, item.sites, rewritten=item.rewritten, renewed=item.renewed)
            case Submit():
                outbox.answers.append(Answer(token=item.token, outcome=self._submit(item)))
            case ExpandedPlan():
                self._grow(item)
            case ExpansionFailed():
                self._give_up(item)
            case Reload():
                if item.job.row.job not in engine.state.jobs.by_id:
                    restore_job(engine.state, item.job, gone=item.gone)
            case JobSealed():
                if (job := engine.state.jobs.by_id.get(item.job)) is not None and is_over(job):
                    retire_job(engine.state, job)
            case Exchange():
                raise TypeError(f"an exchange of {item.pilot} must go to _hear")
            case _:
                self._take_report(item)

    def _take_report(self, item: AnyReport | OutputsCopied) -> None:
        if isinstance(item, OutputsCopied):
            on_outputs_copied(self.engine.state, item)
        else:
            on_report(self.engine.state, item)

    # --- agents ---

    def _hear(self, exchange: Exchange, outbox: Outbox) -> bool:
        """Process an agent's exchange; whether it still needs an answer."""
        engine, name = self.engine, exchange.pilot
        pilot = engine.state.pilots.by_name.get(name)
        if pilot is None or (heard := pilot.heard) is None:
            heard = self._heard_of(name)
            if pilot is not None:
                pilot.heard = heard
        if exchange.events:
            clock, most = self._time.clock, engine.state.settings.skew_seconds
            if not -most <= exchange.time - clock <= most and exchange.is_skewed(
                received=clock, tolerance_seconds=most
            ):
                outbox.skewed.append(("agent", name))
            for event in exchange.events:
                n = event.n
                if n > JUMP_MAX and n > heard.reach:
                    self._strange[name] = f"its event numbers jump to {n}, far beyond the last"
                    break
                if event.source == "agent" and event.stream == name and 1 <= n <= COUNTER_MAX and heard.add(n):
                    held = None if pilot is None else pilot.holds(event)
                    self._take(event, held, exchange, outbox)
                    if held is None:
                        pilot = engine.state.pilots.by_name.get(name)  # it may have announced its start or its end
        if pilot is not None:
            step = exchange.sequence - pilot.sequence
            if step <= 0:
                return False
            if step > SEQUENCE_JUMP_MAX and exchange.is_beyond(pilot.sequence):
                self._strange[name] = f"its exchange numbers jump to {exchange.sequence}, far beyond the last"
            else:
                on_exchange(engine.state, pilot, exchange)
        self._waiting.pop(name, None)
        return True

    def _heard_of(self, name: str) -> ReceivedNumbers:
        """A new record of how far an agent's stream was received."""
        heard = self._heard.get(name)
        if heard is None:
            heard = self._ended.pop(name, None) or ReceivedNumbers(StreamRow(stream_id=0, source="agent", stream=name))
            self._heard[name] = heard
        return heard

    def _take(self, event: Event, held: AttemptState | None, exchange: Exchange, outbox: Outbox) -> None:
        """Process one event of an agent; `held` is its attempt, if the agent holds that.

        An event that cannot be decoded, or that this agent may not send, is replaced by a note. Left out, it would be a
        gap in the stream, and the agent would resend everything after it for ever.
        """
        engine, pilot = self.engine, exchange.pilot
        one = self._codec.check(event) if held is None else self._codec.check_own(event, held.address)
        if isinstance(one, Refusal):
            outbox.refused.append(one)
            one = self._note(event, pilot, f"refused: {one.message}")
        elif held is not None and type(one.data) is _FINISHED:  # which the agent may send
            outbox.events.append(one)
            engine.apply_to(held.number, one)
            return
        elif type(one.data) in _OF_ATTEMPTS:
            number = may_report(engine.state, pilot, one, site=exchange.site)
            if number is not None:
                outbox.events.append(one)
                engine.apply_to(number, one)
                return
            subject = f"{event.type} of {event.job} {event.package} {event.attempt}, epoch {event.epoch}"
            one = self._note(event, pilot, f"ignored: {subject}")
        elif type(one.data) not in _OF_AGENTS or event.pilot not in (None, pilot):
            one = self._note(event, pilot, f"ignored: {event.type}")
        if isinstance(one, Checked):
            outbox.events.append(one)
            engine.apply(one)

    def _note(self, event: Event, pilot: str, text: str) -> Checked | Refusal:
        data = msgspec.Raw(msgspec.json.encode(payloads.Noted(text=clipped(text, 1000))))
        return self._codec.check(
            Event(
                source="agent",
                stream=pilot,
                n=event.n,
                type="Noted",
                time=self.engine.state.clock.wall_time,
                pilot=pilot,
                data=data,
            )
        )

    def _see_off(self, spoke: Collection[str]) -> None:
        """Remember only the latest of the agents that are not live pilots."""
        engine = self.engine
        departed, engine.state.pilots.ended = engine.state.pilots.ended, []
        for name in (*departed, *spoke):
            if name not in engine.state.pilots.by_name and (heard := self._heard.pop(name, None)) is not None:
                self._ended[name] = heard
                self._forget_ended()

    def _reply(self, exchanges: dict[str, Exchange], outbox: Outbox) -> None:
        """Answer each exchange that has something to answer; the others stay open for at most one interval."""
        engine, waiting, polls = self.engine, self._waiting, self._polls
        until = engine.state.clock.now + engine.state.settings.interval_seconds
        for name, exchange in exchanges.items():
            if not self._answer(exchange, outbox, patient=True):
                waiting[name] = exchange
                polls.append((until, name, exchange.sequence))
        notified, engine.state.pilots.to_notify = engine.state.pilots.to_notify, {}
        for name in notified:
            if (asking := waiting.get(name)) is not None and self._answer(asking, outbox, patient=True):
                del waiting[name]
        while polls and polls[0][0] <= engine.state.clock.now:
            _, name, sequence = polls.popleft()
            if name in waiting and waiting[name].sequence == sequence:
                self._answer(waiting.pop(name), outbox, patient=False)

    def _answer(self, exchange: Exchange, outbox: Outbox, *, patient: bool) -> bool:
        """Answer an open exchange, a `patient` one only if there is something to say; whether it was answered."""
        engine, name = self.engine, exchange.pilot
        pilot = engine.state.pilots.by_name.get(name)
        leave = "" if pilot is not None else "no live pilot has this name"
        assignments: list[Assignment] = []
        cancelled: tuple[AttemptRef, ...] = ()
        heard = None
        if pilot is not None:
            assigned, heard = pilot.assigned, pilot.heard
            held = set(exchange.held) if exchange.held else ()
            for ref, attempt in assigned.items():
                if ref not in held:
                    assignments.append(self._assignment(attempt))
            if held:
                cancelled = tuple(unwanted(pilot, exchange))
            if pilot.draining and not assigned:
                leave = pilot.draining
            if exchange.serves is not None and not assigned:
                leave = "its attempt is over, or another agent has it"
        leave = self._strange.pop(name, leave) if self._strange else leave
        if patient and not (assignments or cancelled or leave or exchange.leaving or exchange.events):
            return False
        if pilot is not None:
            pilot.waiting = False
            pilot.site.waiting.pop(name, None)
        acknowledged = (heard or self._heard[name]).watermark
        reply = ExchangeReply(
            name, exchange.sequence, engine.state.log.book_position, self._time.clock, acknowledged, tuple(assignments), cancelled,
            engine.state.settings.interval_seconds, leave,
        )  # fmt: skip
        outbox.replies.append(reply)
        return True

    def _assignment(self, attempt: AttemptState) -> Assignment:
        """What an agent needs to run an attempt: its inputs are granted attempts, as of the drops its plan has seen."""
        job = self.engine.state.jobs.by_id[attempt.ref.job]
        inputs = []
        for producer in job.producers(attempt.number):
            granted, work = job.granted[producer], job.work.get(producer)
            dropped = work is not None and 0 < work.dropped <= attempt.drop_revision
            if granted and not dropped:
                inputs.append(InputSource(job.dotted(producer), granted))
        early: tuple[InputSource, ...] = ()
        if job.starts_early:
            ties = job.work[attempt.number].ties.get(attempt.ref.attempt, ())
            early = tuple(InputSource(job.dotted(other), tried) for other, tried in ties if not job.granted[other])
        group = attempt.site.groups.get(attempt.group)
        following = len(group.waiting) if group is not None else 0
        return Assignment(
            attempt.ref, attempt.epoch, attempt.demand, tuple(inputs), attempt.drop_revision, early, following
        )

    def _wake_at(self) -> float | None:
        times = [self._polls[0][0]] if self._polls else []
        if (at := self.engine.state.clock.timers.next_at) is not None:
            times.append(at)
        return min(times, default=None)

    # --- jobs ---

    def _submit(self, item: Submit) -> Accepted | Refused:
        engine = self.engine
        refused = admit(engine.state, item.job, item.plan, owner=item.registered.owner, taken=item.taken)
        if refused is not None:
            return refused
        if fault := self._unreadable(item.registered, item.job):
            return Refused(code="malformed", message=f"{item.job} cannot be registered: {fault}", subject=item.job)
        first = engine.state.log.next_number
        engine.bring_plan(item.job, item.plan)
        engine.state.log.write(item.registered, name=item.job)
        job = engine.state.jobs.by_id[item.job]
        engine.state.log.write(payloads.JobAccepted(), job=job)
        if item.plan.hold:
            engine.state.log.write(
                payloads.Held(operation=engine.state.log.next_number, message="its document says hold"), job=job
            )
        self._leave_out(job, item.left_out)
        for each in item.adopted:
            self._adopt(job, each)
        return Accepted(operation=first, events=engine.state.log.next_number - first)

    def _leave_out(self, job: JobState, numbers: Sequence[int]) -> None:
        """Drop the packages that no target needs."""
        dropped = payloads.Dropped(operation=self.engine.state.log.next_number)
        for number in numbers:
            self.engine.state.log.write(dropped, job=job, number=number, epoch=job.epoch_of(number))

    def _adopt(self, job: JobState, adopted: AdoptedPackage) -> None:
        """Grant an earlier result as an attempt of its own: every result belongs to an attempt."""
        made = payloads.AttemptFinished(
            exit_code=ExitCodeGasw.SUCCESS, exit_message=adopted.message, manifest=adopted.manifest
        )
        for data in (payloads.AttemptCreated(site=ADOPTED), made, payloads.CommitGranted()):
            self.engine.state.log.write(data, job=job, number=adopted.package, attempt=1)
        if adopted.disposed:
            epoch = job.epoch_of(adopted.package)
            self.engine.state.log.write(OutputsDisposed(), job=job, number=adopted.package, attempt=1, epoch=epoch)

    def _unreadable(self, data: payloads.JobRegistered | payloads.StageExpanded, job: str) -> str:
        """Why the book would refuse this payload; empty if it would not."""
        try:
            text = msgspec.Raw(msgspec.json.encode(data))
        except UnicodeEncodeError as fault:
            return clipped(str(fault), 1000)
        name, engine = type(data).__name__, self.engine
        event = Event(
            source="service",
            stream=ENGINE_STREAM,
            n=engine.state.log.next_number,
            type=name,
            time=engine.state.clock.wall_time,
            job=job,
            data=text,
        )
        found = self._codec.check(event)
        return found.message if isinstance(found, Refusal) else ""

    def _grow(self, item: ExpandedPlan) -> None:
        engine = self.engine
        job = engine.state.jobs.by_id.get(item.job)
        late = job.late.get(item.stage) if job is not None else None
        if job is None or late is None or job.cancelled or job.aborted or job.ended_by:
            return  # it was expanded before, or is no longer wanted
        if item.expanded.stage != item.stage or item.plan.count < job.count:
            return  # not an answer to the present request
        if late.pending or late.revision != item.revision:
            return  # a producer was restarted, restored or dropped meanwhile: the stage is requested again
        if fault := next(filter(None, (self._unreadable(each, item.job) for each in (item.expanded, *item.along))), ""):
            message = clipped(f"stage {item.stage} cannot be expanded: {fault}")
            engine.state.log.write(
                payloads.Aborted(cause="permanent-failure", message=message), job=job, epoch=job.epoch
            )
            return
        if over_quota(engine.state, job.owner, item.plan.count - job.count):
            message = f"stage {item.stage} brings it to {item.plan.count} packages, more than its owner may have"
            engine.state.log.write(payloads.Aborted(cause="quota", message=message), job=job, epoch=job.epoch)
            return
        engine.bring_plan(item.job, item.plan)
        for payload in (item.expanded, *item.along):
            engine.state.log.write(payload, job=job, epoch=job.epoch)
        self._leave_out(job, item.left_out)
        for each in item.adopted:
            self._adopt(job, each)

    def _give_up(self, item: ExpansionFailed) -> None:
        engine = self.engine
        job = engine.state.jobs.by_id.get(item.job)
        late = job.late.get(item.stage) if job is not None else None
        if job is None or late is None or late.revision != item.revision or job.cancelled or job.aborted:
            return
        message = clipped(f"stage {item.stage} cannot be expanded: {item.message}", 1000)
        engine.state.log.write(payloads.Aborted(cause="permanent-failure", message=message), job=job, epoch=job.epoch)


def start_core(
    snapshot: Snapshot,
    *,
    sites: Sequence[Site],
    settings: EngineSettings,
    now: float,
    codec: Codec | None = None,
    streams: Sequence[StreamRow] = (),
) -> Core:
    """A core restored from the book; `streams` are those of agents that may still send, at least of the live ones."""
    engine = restore(snapshot, sites=sites, settings=settings, now=now)
    return Core(engine, codec=codec, streams=streams)
