"""An independent observer: sees the durable events, the delivered messages and what really runs, and checks all promises.

Deliberately independent of the engine: nothing here knows how a decision is made, only which results are forbidden.
The simulator reports everything to an `Observer`; a broken promise raises a `Violation` at once or in one of the checks. The
promises, by the name in a violation:

| checker | promise |
|---|---|
| `waiting` | every package ends final or has a valid reason to wait; no reservation stays where no pilot could run it |
| `grants` | at most one grant in an epoch, of an attempt of that epoch that staged its outputs, and never beside a cancel |
| `reads` | no attempt starts before its producers are granted; none reads anything but their outputs, or anything dropped |
| `acknowledged` | everything acknowledged or accepted is durable, once, and unchanged |
| `epochs` | an epoch ends once; epochs and attempt numbers only grow; nothing is cleared before it is over |
| `rooms` | attempts in a pilot fit, also into its time; it gets no more than that and its backlog; sites and categories keep their limits |
| `nodes` | packages that name their nodes run on one of them |
| `leases` | an attempt is durable and leased before one pilot gets it; no two live attempts of a package unless requested, nor more than the limit; no pilot is suspected or given up within its lease, whatever the clock shows; a silent one is given up after its term, neither sooner nor later |
| `priorities` | of two packages with equal demands, a pilot gets the one of higher priority first |
| `creations` | no attempt for a package that has ended, is held, dropped, cleared or not accepted |
| `finals` | final packages begin after all others are over; after a status that ends a job, nothing else of it begins |
| `restores` | no package is restored after a consumer held a lease without it |
| `retries` | no attempt after as many counted failures as the cap, nor under the limit that one looped with, nor of a package that killed two pilots unless it was held; a package's own rules act in their order |
| `aborts` | no package is given up for a cause that its events do not show |
| `successes` | an undisputed success is granted |
| `forecasts` | the end of an open job is forecast at most once a minute, in order, within its bounds; a job that had a forecast has one outcome when it is over |
| `rogues` | forged events of agents are stored, and never believed |
| `states` | the book's final states are those of the events, in any order |
| `provisioning` | a forecast requests no more pilots than the work could use, as few as finish within the tolerance, none that would start after the work is done, and withdraws only queued ones that are not needed, the newest first, none of the last minutes |
| `fetches` | a file is brought to a site once, unless that failed, or it was removed, lost or changed |
| `arrivals` | an attempt begins only where all its files are, and has the version that the book knows |
| `space` | the files of a site and the ordered ones fit into its cache, as far as their sizes are known |
| `needs` | no file is removed where a reserved package or a live attempt needs it, and no deletable one while any package may still need it |
| `retention` | pinned files stay, and so do those that a job wants, as long as it wants; the stickiest wish counts |
| `leftovers` | no draft, no unknown file and no deletable file that nobody needs is left in a cache |
| `copies` | what is granted exists as often as it was asked for in stores, with the right checksum |
| `disposal` | outputs are disposed of once, and only if no package may still read them; then they go |
| `groups` | attempts that share a batch job are alike and no more than allowed; they begin there one after another, and none that was taken back |
| `stops` | an activity is stopped only after as many equal failures of several packages as the settings say, and none of a success since it was opened; nothing of it starts until it is opened again; it is stopped before far more fail |
| `healing` | a treatment follows from a decision that names it, and from its incident; a copy is wanted only after enough packages of the activity have finished, while none is queued, within the budget of waste, and never of a package with side effects; no attempt is given up for a better one that is not further; a file is copied from a cache that has it |
| `finishing` | once faults stop, everything finishes |

The simulation itself checks others, since it sees more of the service than its events:

| checker | promise |
|---|---|
| `restoring` | an engine that starts from the book equals one that saw every event |
| `explaining` | every package has an explanation at any time |
| `sites` | a site has one status, a hibernated one gets nothing, and scores stay within their bounds |
| `admission` | a job that some site can run is accepted |
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
from pilotage.simulator.checkers.endings import Ends, Explain, States, Stopped
from pilotage.simulator.checkers.files import Files
from pilotage.simulator.checkers.forecasts import Forecasts, Latencies
from pilotage.simulator.checkers.healing import Healed
from pilotage.simulator.checkers.inputs import Inputs
from pilotage.simulator.checkers.order import Order
from pilotage.simulator.checkers.pilots import Pilots
from pilotage.simulator.checkers.provisioning import Planned, Provisioning
from pilotage.simulator.checkers.records import Record, Rules, Violation
from pilotage.simulator.checkers.streams import ACKNOWLEDGED, Streams
from pilotage.simulator.checkers.times import Times

__all__ = ["Explain", "Observer", "Rules", "States", "Violation"]

_DEFAULT = Rules()


class Observer:
    """Everything that is reported while a world runs, and all checkers."""

    def __init__(self, rules: Rules = _DEFAULT) -> None:
        """Start with an empty book and an empty world."""
        self.crashes = 0
        self._record = Record()
        self._streams = Streams(self._record)
        inputs = self._inputs = Inputs(self._record)
        self._times = Times(self._record, rules)
        self._decisions = Decisions(self._record, inputs=inputs, times=self._times, rules=rules)
        self._order = Order(self._record, rules)
        self._forecasts = Forecasts(self._record, self._times)
        self._latencies = Latencies(self._record, rules)
        self.stopped = Stopped(self._record, rules)
        self._pilots = Pilots(self._record, inputs)
        self._provisioning = Provisioning(self._record, rules)
        self._ends = Ends(self._record, self._decisions)
        self.files = Files(self._record, rules)
        self._healed = Healed(self._record, rules)

    @property
    def plan_counts(self) -> dict[str, int]:
        """How many plans for pilots were checked, how many of them lowered the number, and how many pilots were withdrawn."""
        return dict(self._provisioning.counts)

    # --- the service ----------------------------------------------------------------------------------------------------

    def on_plan(self, job: str, plan: JobPlan) -> None:
        """The structure of a job, before the first event that needs it; a grown plan replaces the earlier one."""
        self._record.job(job).take_plan(plan)

    def on_written(self, events: Sequence[Checked], now: float) -> None:
        """Events are durable, in this order, after all earlier ones; a crash takes none of them back."""
        record, decisions, streams = self._record, self._decisions, self._streams
        provisioning = self._provisioning
        record.now = now
        for checked in events:
            record.position += 1
            record.tape.add(checked)
            streams.on_written(checked.event)
            self._healed.on_written(checked)
            decisions.on_written(checked)
            self._forecasts.on_written(checked)
            provisioning.on_written(checked)
            self._latencies.on_written(checked)
            self.stopped.on_written(checked)
            self.files.on_written(checked)
            if checked.event.site is not None:
                decisions.attempts.sites.on_event(checked.event.site, checked.data)
            if checked.event.source == "service":
                record.decided.pop(checked.event.n, None)

    def on_decided(
        self,
        events: Sequence[Checked],
        now: float,
        *,
        reserved: Mapping[tuple[str, str], str] | None = None,
        plans: Sequence[Planned] = (),
    ) -> None:
        """The service made decisions in one step; they are not durable yet, and a crash may lose them.

        `reserved` maps packages, by job and address, to the sites they were reserved for before the step; none: all for one.
        `plans` are the plans for pilots by forecast that were made in it.
        """
        self._order.on_decided(events, reserved)
        self._provisioning.on_decided(events, plans)
        decided = self._record.decided
        for checked in events:
            if checked.event.source == "service":
                decided[checked.event.n] = now

    def on_clock_set(self, *, since: float, due: float, now: float) -> None:
        """The clock of the service was set between its last step and the current one; `due`: when it wanted to wake."""
        self._healed.on_clock_set()
        self._times.on_clock_set(since=since, due=due, now=now)

    def on_exchange(self, exchange: Exchange, now: float) -> None:
        """An exchange reached the service while it ran."""
        self._times.on_exchange(exchange, now)

    def on_began(self, now: float) -> None:
        """The service has started, for the first time or again."""
        self._times.on_service_began(now)
        self._provisioning.on_began()

    def on_reserved(self, job: str, package: str, *, site: str, since: float, now: float) -> None:
        """The service reports that a package is reserved for a site."""
        since = max(since, self.files.arrived_at(job, package, site=site))  # what waits for a file needs no pilot yet
        found = self._times.check_reserved(self._record.job(job).package(package), site=site, since=since, now=now)
        if found is not None:
            raise found

    def on_crash(self, now: float) -> None:
        """The service lost everything that was not durable. Nothing reported here is taken back."""
        self.crashes += 1

    def on_submitted(self, job: str, outcome: Accepted | Refused, now: float) -> None:
        """The answer to a submission reached its user: an accepted job is durable by now."""
        trace = self._record.job(job)
        if isinstance(outcome, Accepted) and not trace.registered:
            raise self._record.broken_job(ACKNOWLEDGED, "the job was accepted, and is not durable", trace)

    def on_asked(self, operation: AnyOperation, now: float) -> None:
        """A user requests an operation; reported when it is sent, before any of its events."""
        if isinstance(operation, Replicate):
            self._record.job(operation.job).package(operation.package).replicas += 1
        elif isinstance(operation, Reschedule):
            self._record.job(operation.job).package(operation.package).reschedules += 1

    def on_answered(self, operation: AnyOperation, outcome: Accepted | Refused, now: float) -> None:
        """The answer reached the user: an accepted operation is durable by now."""
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

    # --- the agents -----------------------------------------------------------------------------------------------------

    def on_spooled(self, event: Event) -> None:
        """An agent put an event into its spool, to be sent until it is acknowledged."""
        self._streams.on_spooled(event)

    def on_forged(self, event: Event) -> None:
        """An agent put a forged event into its spool."""
        self._streams.on_forged(event)

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        """A reply reached an agent, and acknowledges its events up to `n`."""
        self._streams.on_acknowledged(pilot, n)

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str = "") -> None:
        """An agent really started at a site, on a node, or its capacity has changed."""
        self._pilots.on_pilot(pilot, site, capacity, backlog, node=node)

    def on_gone(self, pilot: str, now: float) -> None:
        """An agent really ended: it left, was killed, or died; none of its attempts runs."""
        self._pilots.on_gone(pilot)

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        """An assignment reached an agent; attempts cancelled by the same reply were reported as ended before."""
        self._pilots.on_assigned(pilot, assignment)

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt really occupies its room in an agent."""
        self._pilots.on_started(pilot, ref)
        self.files.on_started(ref)

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt really ended, or was dropped by its agent before it began."""
        self._pilots.on_ended(pilot, ref)

    def on_read(self, reader: AttemptRef, source: AttemptRef, now: float) -> None:
        """An attempt read the files that another one had staged."""
        self._inputs.on_read(reader, source)

    # --- checks now and then, and at the end ----------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Check the live state again; reports are checked as they arrive."""
        self._pilots.check()

    def check_states(self, states: States, refold: Callable[[], States] | None = None) -> None:
        """The book's final states are those of the events, and so are those of the shuffled events."""
        self._ends.check_states(states)
        if refold is not None:
            self._ends.check_refold(states, refold)

    def check_finished(self, states: States, *, stopped_at: float, horizon_seconds: float, now: float) -> bool:
        """Whether everything is final; it must be once the horizon after the last fault has passed."""
        return self._ends.check_finished(states, stopped_at=stopped_at, horizon_seconds=horizon_seconds, now=now)

    def finished(self, states: States, explain: Explain, refold: Callable[[], States] | None = None) -> None:
        """The run is over: every package is final or waits for a reason, no success was lost, and the book agrees."""
        self._pilots.check()
        self._ends.check_successes()
        self._ends.check_upstream()
        self.files.check_finished()
        self._forecasts.check_finished(states)
        self.check_states(states, refold)
        self._ends.check_waiting(states, explain)
