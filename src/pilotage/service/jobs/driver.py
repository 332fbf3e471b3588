"""Drives the core in real time: one thread takes input, steps, writes the events, and only then lets the rest out.

Steps may run ahead of what is durable; replies, answers and effects wait until all events before them are. Callers get
a future. The thread ends only on a fault of its own; then it reports it and answers nothing more: the book is
consistent, and a new service resumes from it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import msgspec

from pilotage.book.fold.join import Receipt
from pilotage.book.rows.rows import StreamRow
from pilotage.engine.engine import Engine
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AgentMessage, AttemptRef, Exchange, ExchangeReply, LogText
from pilotage.model.exchange.operations import Accepted, AnyFileOperation, AnyOperation, Effect, Refused
from pilotage.model.exchange.reports import FileGone
from pilotage.ports import Clock, JournalUnavailable
from pilotage.service.core import Core
from pilotage.service.errors import NotRunning, OperationRefused, Superseded, answer, fail, for_many
from pilotage.service.jobs.agent_access import own_logs
from pilotage.service.journal.writer import Batch, Writer, WriterBusy
from pilotage.service.messages import Answer, Input, OperationRequest, Outbox, SiteOperationRequest, Submit
from pilotage.service.process import ThreadYielding

log = logging.getLogger(__name__)

Result = TypeVar("Result")

AHEAD_MAX = 2
"""Steps that may be on their way to disk at once: input that arrives meanwhile becomes one step, and one commit."""

_AGAIN_SECONDS = 1.0  # before a write that found the disk full is tried again


class StepHandler(Protocol):
    """Acts on durable steps. Every method is called in the driver's thread, in order."""

    def begin(self, driver: Driver) -> Core:
        """Make a core from the book, after finishing what an earlier service left half done."""
        ...

    def received_stream(self, pilot: str) -> StreamRow | None:
        """How far an agent's stream was received, from the book; for agents unknown to the core."""
        ...

    def ran(self, exchange: Exchange, ref: AttemptRef) -> bool:
        """Whether an agent ran an attempt, according to the book."""
        ...

    def written(self, outbox: Outbox, logs: Sequence[LogText]) -> None:
        """The events of a step are durable: publish files, store logs."""
        ...

    def reply(self, reply: ExchangeReply) -> bytes:
        """Encode a reply to an agent."""
        ...

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out effects; must not block."""
        ...

    def end(self) -> None:
        """The driver has ended."""
        ...


class _Stepped(msgspec.Struct):
    """A step on its way to disk; it is written when all earlier ones are durable."""

    outbox: Outbox
    logs: Sequence[LogText]
    receipt: Future[Receipt] | None = None  # once it was given to the writer


class Driver:
    """The thread, its queue, and the callers waiting for an answer."""

    def __init__(self, *, writer: Writer, clock: Clock, handler: StepHandler) -> None:
        self._writer = writer
        self._clock = clock
        self._handler = handler
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._change = threading.Condition()
        self._inbox: list[Input] = []
        self._spoke: dict[str, int] = {}  # by pilot: the index of its latest exchange in the input
        self._logs: dict[str, AgentMessage] = {}  # the same for exchanges that bring logs
        self._complaint = ""  # the last reported reason why the book could not be written
        self._questions: deque[tuple[Callable[[Engine], Any], Future[Any]]] = deque()
        self._agents: dict[str, tuple[int, Future[bytes]]] = {}  # waiting futures, by pilot
        self._askers: dict[int, Future[Accepted]] = {}  # by token
        self._token = 0
        self._ahead: deque[_Stepped] = deque()
        self._pending_effects: Future[None] | None = None  # of the step that the writer has, until it has taken effect
        self._again_at: float | None = None
        self._wake_at: float | None = 0.0
        self._wake_by = 0.0  # the same by a monotonic clock: the other may be set back by hours
        self._stopping = False
        self._over = False
        self._ready: Future[None] = Future()
        self.fault: BaseException | None = None
        self.yielding = ThreadYielding()  # of the thread

    # --- for callers in any thread ---

    def start(self) -> None:
        """Start from the book; returns when the core exists, or raises what prevented it."""
        self._thread.start()
        self._ready.result()

    @property
    def alive(self) -> bool:
        """Whether requests will be answered."""
        return self._thread.is_alive() and not self._stopping

    @property
    def broken(self) -> str:
        """The error that ended it; empty while it runs, and if it was stopped."""
        if isinstance(self.fault, PilotageError):
            return str(self.fault)
        return "" if self.fault is None else f"{type(self.fault).__name__}: {self.fault}"

    def stop(self) -> None:
        """Wait for pending writes, and end."""
        with self._change:
            self._stopping = True
            self._change.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def exchange(self, says: AgentMessage) -> Future[bytes]:
        """Process an agent's exchange; answered when everything the answer depends on is durable."""
        future: Future[bytes] = Future()
        exchange = says.exchange
        with self._change:
            if self._refuses(future):
                return future
            before = self._agents.get(exchange.pilot)
            is_old = before is not None and before[0] > exchange.sequence  # late, or repeated by another process
            if not is_old:
                self._agents[exchange.pilot] = (exchange.sequence, future)
            if says.damaged:  # before the end of the attempt that found them: the next one waits for another copy
                self._inbox += [FileGone(site=exchange.site, key=name) for name in says.damaged]
            self._put(exchange)
            if says.logs and not (is_old and exchange.pilot in self._logs):
                self._logs[exchange.pilot] = says
            self._change.notify()
        if before is not None:
            passed = future if is_old else before[1]
            fail(passed, Superseded("a later exchange of this agent has arrived", subject=exchange.pilot))
        return future

    def _put(self, exchange: Exchange) -> None:
        """Queue an exchange, in place of an earlier one not processed yet: an agent repeats what was not answered."""
        place = self._spoke.setdefault(exchange.pilot, len(self._inbox))
        if place == len(self._inbox):
            self._inbox.append(exchange)
        elif isinstance(before := self._inbox[place], Exchange) and before.sequence <= exchange.sequence:
            self._inbox[place] = exchange

    def operate(self, operation: AnyOperation, *, before: Sequence[Input] = ()) -> Future[Accepted]:
        """Request an operation; fails with `OperationRefused`. Input in `before` is processed in the same step."""
        return self._ask_core(lambda token: OperationRequest(token=token, operation=operation), before=before)

    def change_files(self, operation: AnyFileOperation) -> Future[Accepted]:
        """Pin, unpin or purge files in the cache of a site; fails with `OperationRefused`."""
        return self._ask_core(lambda token: SiteOperationRequest(token=token, operation=operation))

    def submit(self, make: Callable[[int], Submit]) -> Future[Accepted]:
        """Submit a job; fails with `OperationRefused`. The token goes into the message."""
        return self._ask_core(make)

    def tell(self, make: Callable[[int], Input]) -> Future[Accepted]:
        """Send any other message that has an answer; fails with `OperationRefused`. The token goes into the message."""
        return self._ask_core(make)

    def ask(self, question: Callable[[Engine], Result]) -> Future[Result]:
        """Run a query on the engine between two steps; it must not change anything."""
        future: Future[Result] = Future()
        with self._change:
            if not self._refuses(future):
                self._questions.append((question, future))
                self._change.notify()
        return future

    def receive(self, *messages: Input) -> None:
        """Queue reports of a site, or an expanded plan; messages given together are processed in one step."""
        with self._change:
            self._inbox += messages
            self._change.notify()

    def _ask_core(self, make: Callable[[int], Input], *, before: Sequence[Input] = ()) -> Future[Accepted]:
        future: Future[Accepted] = Future()
        with self._change:
            if self._refuses(future):
                return future
            self._token += 1
            self._askers[self._token] = future
            self._inbox += [*before, make(self._token)]  # of one step
            self._change.notify()
        return future

    def _refuses(self, future: Future[Any]) -> bool:
        if self._stopping or self._over:
            future.set_exception(self._not_running())
            return True
        return False

    def _not_running(self) -> NotRunning:
        """The error for a caller when the driver has stopped: the reason and the cure, if known."""
        if isinstance(self.fault, PilotageError):
            step = self.fault.next_step or "its log says more; start it again"
            return NotRunning(f"the service has stopped: {self.fault.what}", next_step=step)
        return NotRunning("the service is stopping", next_step="ask again when it is back")

    @property
    def pending_effects(self) -> Future[None] | None:
        """Completes when everything durable now has taken effect; None if it has. Call it after reading the book."""
        return self._pending_effects

    # --- the thread ---

    def on_its_way(self, job: str) -> bool:
        """Whether decisions about a job have not taken effect yet; only within a query."""
        return any(one.event.job == job for stepped in self._ahead for one in stepped.outbox.events)

    def _run(self) -> None:
        try:
            core = self._handler.begin(self)
        except BaseException as fault:  # noqa: BLE001 # raised in the thread that waits for the start
            self._over = True
            self._ready.set_exception(fault)
            return
        self._ready.set_result(None)
        try:
            while self._turn(core):
                pass
        except BaseException as fault:
            log.exception("the engine stops: its decisions are in the book, and a new service resumes from it")
            self.fault = fault
        finally:
            self._end()

    def _turn(self, core: Core) -> bool:
        """Wait for something to do, and do it; whether to go on."""
        with self._change:
            self._change.wait_for(self._has_work, timeout=self._patience())
            stopping = self._stopping
            questions, self._questions = self._questions, deque()
            may_step = len(self._ahead) < AHEAD_MAX and not stopping
            due = self._wake_at is not None and self._sleeps_for() <= 0.0
            inbox: list[Input] = []
            logs: dict[str, AgentMessage] = {}
            if may_step and (self._inbox or due):
                inbox, self._inbox = self._inbox, inbox
                logs, self._logs = self._logs, logs
                self._spoke.clear()
        self._release(core)
        for question, future in questions:
            answer(future, question, core.engine)
        if inbox or (may_step and due):
            self._step(core, inbox, list(logs.values()))
        return not stopping or bool(self._ahead)

    def _has_work(self) -> bool:
        if self._questions or (self._ahead and self._arrived(self._ahead[0])):
            return True
        if self._stopping:
            return not self._ahead
        return len(self._ahead) < AHEAD_MAX and bool(self._inbox)

    def _arrived(self, stepped: _Stepped) -> bool:
        """Whether a step needs attention: it is durable, or its write failed."""
        if self._again_at is not None:
            return False
        return not stepped.outbox.events or stepped.receipt is None or stepped.receipt.done()

    def _patience(self) -> float | None:
        """How long the thread may wait for input."""
        times = [] if self._again_at is None else [self._again_at - self._clock.now()]
        if self._wake_at is not None and len(self._ahead) < AHEAD_MAX:
            times.append(self._sleeps_for())
        return max(0.0, min(times)) if times else None

    def _sleeps_for(self) -> float:
        """Seconds until the core wants to be woken."""
        assert self._wake_at is not None
        return min(self._wake_at - self._clock.now(), self._wake_by - time.monotonic())

    def _step(self, core: Core, inbox: Sequence[Input], logs: Sequence[AgentMessage]) -> None:
        for message in inbox:
            if isinstance(message, Exchange) and not core.knows(message.pilot):
                row = self._handler.received_stream(message.pilot)
                if row is not None:
                    core.recall(row)
        kept = [text for says in logs for text in own_logs(core.engine, says, ran=self._handler.ran)]
        self.yielding.yield_thread()
        now, began = self._clock.now(), time.monotonic()
        outbox = core.step(inbox, now)
        self.yielding.yield_thread()
        self._wake_at = outbox.wake_at
        self._wake_by = began if outbox.wake_at is None else began + outbox.wake_at - now
        self._ahead.append(_Stepped(outbox=outbox, logs=kept))
        self._release(core)

    def _write(self, stepped: _Stepped) -> None:
        """Give the events of a step to the writer; try again later if it is busy."""
        outbox = stepped.outbox
        self._pending_effects = for_many()  # before anything of it can be read
        try:
            stepped.receipt = self._writer.submit(Batch(outbox.events, outbox.refused, outbox.skewed, own=True))
        except WriterBusy:
            self._effects_done()
            self._again_at = self._clock.now() + _AGAIN_SECONDS
        else:
            stepped.receipt.add_done_callback(self._wake)

    def _wake(self, _: object) -> None:
        with self._change:
            self._change.notify()

    def _release(self, core: Core) -> None:
        """Write the first step, and let durable ones take effect, one after another.

        A step is given to the writer only when the one before it is durable: a later decision must never be in the book
        without the ones it depends on. A write that found the disk full is tried again, and everything waits for it.
        """
        if self._again_at is not None and self._clock.now() >= self._again_at:
            self._again_at = None
        while self._ahead and self._again_at is None:
            stepped = self._ahead[0]
            if stepped.outbox.events:
                if stepped.receipt is None:
                    self._write(stepped)
                if stepped.receipt is None or not stepped.receipt.done():
                    return
                fault = stepped.receipt.exception()
                if isinstance(fault, JournalUnavailable) and not self._stopping:
                    if str(fault) != self._complaint:  # it is tried again every second, perhaps for days
                        self._complaint = str(fault)
                        log.warning("the book cannot be written: %s", fault)
                    stepped.receipt = None
                    self._effects_done()
                    self._again_at = self._clock.now() + _AGAIN_SECONDS
                    return
                if fault is not None:
                    raise fault
                if self._complaint:
                    log.info("the book can be written again")
                    self._complaint = ""
                core.written(stepped.receipt.result().position)
            self._ahead.popleft()
            self._let_out(stepped)
            self._effects_done()

    def _effects_done(self) -> None:
        """The step that the writer had has taken effect, or is not in the book."""
        pending_effects, self._pending_effects = self._pending_effects, None
        if pending_effects is not None:
            pending_effects.set_result(None)

    def _let_out(self, stepped: _Stepped) -> None:
        outbox = stepped.outbox
        if outbox.events or stepped.logs:
            self._handler.written(outbox, stepped.logs)
        for reply in outbox.replies:
            waiting = self._agents.get(reply.pilot)
            if waiting is None or waiting[0] != reply.sequence:
                continue  # the caller has gone: the agent's next exchange gets a full answer
            with self._change:
                if self._agents.get(reply.pilot) is waiting:
                    del self._agents[reply.pilot]
            answer(waiting[1], self._handler.reply, reply)
        for each in outbox.answers:
            self._tell(each)
        if outbox.effects:
            self._handler.carry_out(outbox.effects)

    def _tell(self, answer: Answer) -> None:
        future = self._askers.pop(answer.token, None)
        if future is None:
            return
        if isinstance(answer.outcome, Refused):
            fail(future, OperationRefused(answer.outcome))
        elif future.set_running_or_notify_cancel():
            future.set_result(answer.outcome)

    def _end(self) -> None:
        """Fail all waiting callers."""
        with self._change:
            self._over = True
            waiting = [future for _, future in self._agents.values()]
            waiting += [*self._askers.values(), *(future for _, future in self._questions)]  # type: ignore[list-item]
            self._agents.clear()
            self._askers.clear()
            self._questions.clear()
        self._effects_done()
        for future in waiting:
            fail(future, self._not_running())
        self._handler.end()


__all__ = ["Driver", "NotRunning", "OperationRefused", "StepHandler", "Superseded"]
