"""A second opinion: watches the durable events, the messages that arrive and what really runs, and doubts them all.

Written apart from the engine on purpose: nothing here knows how a decision is made, only which ones may never stand.
The simulator tells an `Observer` everything while it runs; whatever breaks a promise raises a `Violation` at once or in
one of the checks. The promises, by the name that a violation carries:

| checker | promise |
|---|---|
| `waiting` | every package ends final or has a live reason to wait; nothing stays reserved where no pilot could run it |
| `grants` | at most one grant in an epoch, of an attempt of that epoch that staged its outputs, and never beside a cancel |
| `reads` | nobody starts before what it awaits was granted; nobody reads anything but that, or anything that was dropped |
| `acknowledged` | what was acknowledged or accepted is durable, once, as it was said |
| `epochs` | an epoch ends once; epochs and attempt numbers only grow; nothing is cleared before it is over |
| `rooms` | what runs in a pilot fits, also into its time; it is given what fits and its backlog; sites and categories hold what they may |
| `nodes` | what names its nodes runs on one of them |
| `leases` | an attempt is durable and leased before one pilot gets it; no two live attempts of a package unasked, nor more than may be at once; nobody is suspected or given up within a lease, whatever the clock says; who is silent is given up after its term, neither sooner nor later |
| `priorities` | of two packages that ask for the same, a pilot is given that of higher priority first |
| `creations` | no attempt for what has ended, is held, dropped, cleared or not accepted |
| `finals` | what runs last begins after all the others are over; after a status that ends a job nothing else of it begins |
| `restores` | nothing is restored after a consumer held a lease without it |
| `retries` | no attempt after as many counted failures as the cap, nor under the limit that one looped with, nor of what killed two pilots unless it was held; a package's own rules act in their order |
| `aborts` | nothing is given up for a cause that its events do not show |
| `successes` | a success that nobody disputed is granted |
| `rogues` | what is not an agent's to say is noted, and never believed |
| `states` | the book's final states are those of the events, in whatever order |
| `finishing` | once faults stop, everything finishes |

Others are looked after by whoever runs the world, who sees more of the service than its events:

| checker | promise |
|---|---|
| `restoring` | an engine that starts from the book is the one that saw every event |
| `explaining` | whatever package is asked about, there is something to say |
| `sites` | a site is in one set, nothing goes to one that hibernates, and scores stay within their bounds |
| `admission` | a job that some site can run is let in |
| `sleeping` | the core does not wake again and again for nothing |
| `raised ...` | nothing raises, and the engine never contradicts itself |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pilotage.book.codec import Checked
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Clear,
    Drop,
    Hold,
    Kill,
    Refused,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
)
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import Capacity
from pilotage.simulator.checkers.decisions import Decisions
from pilotage.simulator.checkers.endings import Ends, Explain, States
from pilotage.simulator.checkers.inputs import Inputs
from pilotage.simulator.checkers.order import Order
from pilotage.simulator.checkers.pilots import Pilots
from pilotage.simulator.checkers.records import Record, Rules, Violation
from pilotage.simulator.checkers.streams import ACKNOWLEDGED, Streams
from pilotage.simulator.checkers.times import Times

__all__ = ["Explain", "Observer", "Rules", "States", "Violation"]

_DEFAULT = Rules()


class Observer:
    """Everything that is told while a world runs, and every doubt about it."""

    def __init__(self, rules: Rules = _DEFAULT) -> None:
        """Begin with an empty book and an empty world."""
        self.crashes = 0
        self._record = Record()
        self._streams = Streams(self._record)
        inputs = self._inputs = Inputs(self._record)
        self._times = Times(self._record, rules)
        self._decisions = Decisions(self._record, inputs=inputs, times=self._times, rules=rules)
        self._order = Order(self._record, rules)
        self._pilots = Pilots(self._record, inputs)
        self._ends = Ends(self._record, self._decisions)

    # --- what the service does --------------------------------------------------------------------------------------

    def on_plan(self, job: str, plan: JobPlan) -> None:
        """The structure of a job, before the first event that needs it; a plan that grew replaces the one before."""
        self._record.job(job).take_plan(plan)

    def on_written(self, events: Sequence[Checked], now: float) -> None:
        """Events are durable, in this order, after all that were told before; a crash takes none of them back."""
        record, decisions, streams = self._record, self._decisions, self._streams
        record.now = now
        for checked in events:
            record.position += 1
            record.tape.add(checked)
            streams.on_written(checked.event)
            decisions.on_written(checked)
            if checked.event.site is not None:
                decisions.attempts.sites.on_event(checked.event.site, checked.data)
            if checked.event.source == "service":
                record.decided.pop(checked.event.n, None)

    def on_decided(
        self, events: Sequence[Checked], now: float, *, reserved: Mapping[tuple[str, str], str] | None = None
    ) -> None:
        """The service has decided something in one step, which is not durable yet and may be forgotten in a crash.

        `reserved` says which packages, by job and place, were reserved for which sites before the step; none: all for one.
        """
        self._order.on_decided(events, reserved)
        decided = self._record.decided
        for checked in events:
            if checked.event.source == "service":
                decided[checked.event.n] = now

    def on_clock_set(self, *, since: float, due: float, now: float) -> None:
        """The clock of the service was set between its last step and the one that it takes now; `due`: when it asked for it."""
        self._times.on_clock_set(since=since, due=due, now=now)

    def on_exchange(self, exchange: Exchange, now: float) -> None:
        """An exchange reached the service while it ran."""
        self._times.on_exchange(exchange, now)

    def on_began(self, now: float) -> None:
        """The service has started, for the first time or again."""
        self._times.on_service_began(now)

    def on_reserved(self, job: str, package: str, *, site: str, since: float, now: float) -> None:
        """The service says that a package is reserved for a site."""
        found = self._times.check_reserved(self._record.job(job).package(package), site=site, since=since, now=now)
        if found is not None:
            raise found

    def on_crash(self, now: float) -> None:
        """The service lost everything that was not durable. Nothing that was told here is taken back."""
        self.crashes += 1

    def on_submitted(self, job: str, outcome: Accepted | Refused, now: float) -> None:
        """An answer to a submission reached whoever submitted: a job that was accepted is durable by now."""
        trace = self._record.job(job)
        if isinstance(outcome, Accepted) and not trace.registered:
            raise self._record.broken_job(ACKNOWLEDGED, "the job was accepted, and is not durable", trace)

    def on_asked(self, operation: AnyOperation, now: float) -> None:
        """Somebody asks for something, whether it will be heard or not: told when it is sent, before any event of it."""
        if isinstance(operation, Replicate):
            self._record.job(operation.job).package(operation.package).replicas += 1
        elif isinstance(operation, Reschedule):
            self._record.job(operation.job).package(operation.package).reschedules += 1

    def on_answered(self, operation: AnyOperation, outcome: Accepted | Refused, now: float) -> None:
        """An answer reached whoever asked: what was accepted is durable by now."""
        job = self._record.job(operation.job)
        if isinstance(operation, Replicate | Reschedule):
            if isinstance(outcome, Refused):
                self._forget_asking(operation)
            return
        if isinstance(outcome, Accepted) and outcome.events and not self._is_durable(operation, outcome.operation):
            message = f"{type(operation).__name__} was accepted as operation {outcome.operation}, and is not durable"
            raise self._record.broken_job(ACKNOWLEDGED, message, job)

    def _forget_asking(self, operation: Replicate | Reschedule) -> None:
        package = self._record.job(operation.job).package(operation.package)
        if isinstance(operation, Replicate):
            package.replicas = max(0, package.replicas - 1)
        else:
            package.reschedules = max(0, package.reschedules - 1)

    def _is_durable(self, operation: AnyOperation, number: int) -> bool:
        job = self._record.job(operation.job)
        match operation:
            case Hold() | Release() | Drop() | Restore():
                return number in job.operations
            case Kill():
                return job.was_cancelled
            case Restart():
                return job.was_restarted
            case Clear():
                return job.was_cleared
            case _:
                return True

    # --- what agents do ---------------------------------------------------------------------------------------------

    def on_spooled(self, event: Event) -> None:
        """An agent noted an event in its spool, to be sent until it is acknowledged."""
        self._streams.on_spooled(event)

    def on_forged(self, event: Event) -> None:
        """An agent noted an event in its spool that it has no right to say."""
        self._streams.on_forged(event)

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        """A reply reached an agent, and says that events up to `n` need not be sent again."""
        self._streams.on_acknowledged(pilot, n)

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str = "") -> None:
        """An agent really began at a site, on a node, or what it can take has changed."""
        self._pilots.on_pilot(pilot, site, capacity, backlog, node=node)

    def on_gone(self, pilot: str, now: float) -> None:
        """An agent really is no more: it left, was killed, or died; nothing of it runs."""
        self._pilots.on_gone(pilot)

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        """An assignment reached an agent; what the same reply cancels was told as ended before."""
        self._pilots.on_assigned(pilot, assignment)

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt really takes its room in an agent."""
        self._pilots.on_started(pilot, ref)

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt really is over, or was forgotten by its agent before it began."""
        self._pilots.on_ended(pilot, ref)

    def on_read(self, reader: AttemptRef, source: AttemptRef, now: float) -> None:
        """An attempt took the files that another one had staged."""
        self._inputs.on_read(reader, source)

    # --- asked now and then, and at the end -------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look again at what is live; what is told is looked at as it is told."""
        self._pilots.check()

    def check_states(self, states: States, refold: Callable[[], States] | None = None) -> None:
        """The book's final states are those of the events, and so are those of the shuffled events."""
        self._ends.check_states(states)
        if refold is not None:
            self._ends.check_refold(states, refold)

    def check_finished(self, states: States, *, stopped_at: float, horizon_seconds: float, now: float) -> bool:
        """Whether everything is final; when the horizon after the last fault is over, it must be."""
        return self._ends.check_finished(states, stopped_at=stopped_at, horizon_seconds=horizon_seconds, now=now)

    def finished(self, states: States, explain: Explain, refold: Callable[[], States] | None = None) -> None:
        """The run is over: everything is final or waits for a reason, no success was forgotten, and the book agrees."""
        self._pilots.check()
        self._ends.check_successes()
        self._ends.check_upstream()
        self.check_states(states, refold)
        self._ends.check_waiting(states, explain)
