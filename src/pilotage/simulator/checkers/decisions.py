"""Checks decisions: replays the durable events with an independent small state machine for each package.

An epoch ends once, by a grant, a cancel or an abort. Attempts are created only for unfinished work, and an undisputed
success is granted. One function for each type of event, as everywhere in this program.
"""

from __future__ import annotations

from collections.abc import Callable

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.states import ExitCodeGasw
from pilotage.simulator.checkers.attempts import LEASES, RETRIES, Attempts
from pilotage.simulator.checkers.inputs import Inputs
from pilotage.simulator.checkers.records import (
    ABORTED,
    CANCELLED,
    CLEARED,
    DONE,
    AttemptTrace,
    JobTrace,
    PackageTrace,
    Record,
    Rules,
    Violation,
)
from pilotage.simulator.checkers.times import Times

# Checks the ends of jobs: final packages wait for all others, and an exit status in `abort_on` ends the job.
#
# A final package begins when every other package of its job has ended or was dropped. After an exit status that ends the
# job, nothing of it begins but final packages and packages that were restarted or restored since.

FINALS = "finals"


class Finals:
    """Knows which jobs were ended by a package, and when packages were reopened."""

    def __init__(self, record: Record) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._ended: dict[str, tuple[int, PackageTrace]] = {}  # by job: since which position, and by which package
        self._opened: dict[tuple[str, str], int] = {}  # by job and address: the position

    def on_created(self, package: PackageTrace, attempt: int) -> None:
        """Check a new attempt."""
        template, job = package.template, package.job
        if template is not None and template.final:
            self._check_last(job, package, attempt)
            return
        since, by = self._ended.get(job.name, (0, package))
        opened = self._opened.get((job.name, package.place), 0)
        if package.drops:
            opened = max(opened, max(package.drops)[1])
        if since > opened:
            message = f"attempt {attempt} was created after {by.place} had ended the job"
            raise self._record.broken(FINALS, message, package)

    def _check_last(self, job: JobTrace, package: PackageTrace, attempt: int) -> None:
        plan = job.plan
        for number in range(plan.count) if plan is not None else ():
            other = job.by_number.get(number)
            if plan is None or plan.templates[int(plan.template_of[number])].final:
                continue
            if other is None or not (other.state or other.dropped):
                message = f"attempt {attempt} of a final package was created before {job.name_of(number)} was over"
                raise self._record.broken(FINALS, message, package)

    def on_finished(self, package: PackageTrace, attempt: AttemptTrace, data: payloads.AttemptFinished) -> None:
        """An attempt failed; called before the trace is updated."""
        status = self._status(package)
        if not status or data.exit_status != status or attempt.finished or attempt.staged:
            return
        stopped = data.exit_code == ExitCodeGasw.EXECUTION_CANCELED and data.reason is None
        if not stopped and attempt.epoch == package.epoch and not package.state and not package.dropped:
            self._ended.setdefault(package.job.name, (self._record.position, package))

    def on_granted(self, package: PackageTrace) -> None:
        """An attempt was granted."""
        if self._status(package) == 0:
            self._ended[package.job.name] = (self._record.position, package)

    def on_opened(self, package: PackageTrace) -> None:
        """A new epoch of a package begins; if that package had ended the job, the job continues."""
        self._opened[package.job.name, package.place] = self._record.position
        ended = self._ended.get(package.job.name)
        if ended is not None and ended[1] is package:
            del self._ended[package.job.name]

    def _status(self, package: PackageTrace) -> int | None:
        template = package.template
        if template is None or template.abort_on is None or template.final:
            return None
        return template.abort_on.exit_code


GRANTS = "grants"
EPOCHS = "epochs"
ABORTS = "aborts"
UNHEARD = "unheard"  # the reason of a pilot that was silent for its whole term
SUCCESSES = "successes"


class Decisions:
    """The state machine over all packages."""

    def __init__(self, record: Record, *, inputs: Inputs, times: Times, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self.successes: dict[tuple[str, str], PackageTrace] = {}  # that await a grant
        self._record = record
        self._inputs = inputs
        self._times = times
        self._rules = rules
        self.attempts = Attempts(record, inputs=inputs, rules=rules)
        self._finals = Finals(record)
        self._handlers: dict[str, Callable[[Checked], None]] = {
            "JobRegistered": self._on_job_registered,
            "JobAccepted": self._on_job_accepted,
            "StageExpanded": self._on_stage_expanded,
            "Held": self._on_held,
            "Released": self._on_held,
            "Dropped": self._on_dropped,
            "Restored": self._on_dropped,
            "CancelAccepted": self._on_cancel_accepted,
            "Aborted": self._on_aborted,
            "Cleared": self._on_cleared,
            "Restarted": self._on_restarted,
            "Bound": self._on_bound,
            "ReplicaWanted": self._on_replica_wanted,
            "AttemptCreated": self._on_attempt_created,
            "CommitGranted": self._on_commit_granted,
            "AttemptQueued": self._on_attempt_event,
            "AttemptStarted": self._on_attempt_event,
            "AttemptSuspected": self._on_attempt_event,
            "AttemptRecovered": self._on_attempt_event,
            "AttemptLost": self._on_attempt_event,
            "PhaseEntered": self._on_attempt_event,
            "OutputsStaged": self._on_attempt_event,
            "AttemptFinished": self._on_attempt_event,
            "PilotEnded": self._on_pilot_ended,
        }

    def on_written(self, checked: Checked) -> None:
        """Check a durable event, after all earlier ones."""
        handler = self._handlers.get(checked.event.type)
        if handler is not None:
            handler(checked)

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _on_job_registered(self, checked: Checked) -> None:
        self._job(checked.event).registered = True

    def _on_job_accepted(self, checked: Checked) -> None:
        self._job(checked.event).accepted = True

    def _on_stage_expanded(self, checked: Checked) -> None:
        assert isinstance(checked.data, payloads.StageExpanded)
        self._inputs.on_expanded(self._job(checked.event), checked.data, epoch=checked.event.epoch)

    def _on_held(self, checked: Checked) -> None:
        data = checked.data
        assert isinstance(data, payloads.Held | payloads.Released)
        job = self._job(checked.event)
        job.operations.add(data.operation)
        what = job if checked.event.package is None else job.package(checked.event.package)
        if data.operation > what.held_operation:
            what.held_operation = data.operation
            what.held = isinstance(data, payloads.Held)
        if isinstance(what, PackageTrace) and what.held:
            what.held_position = self._record.position

    def _on_dropped(self, checked: Checked) -> None:
        data = checked.data
        assert isinstance(data, payloads.Dropped | payloads.Restored)
        package = self._package(checked.event)
        package.job.operations.add(data.operation)
        was = max(package.drops) if package.drops else None
        package.drops.append((data.operation, self._record.position, isinstance(data, payloads.Dropped)))
        if was is not None and was[2] and not package.dropped:
            self._inputs.on_restored(package, dropped_position=was[1])

    # --- ends -------------------------------------------------------------------------------------------------------

    def _on_cancel_accepted(self, checked: Checked) -> None:
        event = checked.event
        job = self._job(event)
        if event.package is None:
            self._end_job(job, event, job_state=CANCELLED)
            job.cancelled = job.was_cancelled = True
            job.cancelled_position = self._record.position
            return
        package = job.package(event.package)
        self._at_epoch(package, event)
        if package.granted:
            raise self._broken(
                GRANTS, f"cancelled in epoch {package.epoch}, in which attempt {package.granted} was granted", package
            )
        self._end(package, event, CANCELLED)
        job.was_cancelled = True

    def _on_aborted(self, checked: Checked) -> None:
        event, data = checked.event, checked.data
        assert isinstance(data, payloads.Aborted)
        job = self._job(event)
        if event.package is None:
            self._end_job(job, event, job_state=ABORTED)
            job.aborted = True
            return
        package = job.package(event.package)
        self._at_epoch(package, event)
        if package.success and not package.state:
            raise self._broken(
                SUCCESSES, f"given up ({data.cause}) although attempt {package.success} had succeeded", package
            )
        if not package.dropped:
            self._check_cause(package, data)
        self._end(package, event, ABORTED)
        package.upstream = data.cause == "upstream"

    def _check_cause(self, package: PackageTrace, data: payloads.Aborted) -> None:
        if data.cause == "upstream":
            job = package.job
            named = job.packages.get(data.upstream) if data.upstream is not None else None
            numbers = [number for number, _ in job.producers(package.number)] if package.number is not None else []
            producers = [named] if named is not None else [job.by_number.get(number) for number in numbers]
            if not any(each is not None and each.state in (ABORTED, CANCELLED) for each in producers):
                raise self._broken(
                    ABORTS, f"given up because of {data.upstream or 'a producer'}, which did not fail", package
                )
        elif self._is_premature(package, data):
            message = f"given up ({data.cause}), and the first of its own rules that applies has it tried again"
            raise self._broken(RETRIES, message, package)
        elif data.cause == "retries-exhausted" and (package.template is None or not package.template.retry.rules):
            # What failed after an early start does not count; it may yet be lost with its pilot.
            own = [each for each in package.attempts.values() if each.epoch == package.epoch]
            failed = [each.reason for each in own if each.reason and not (each.early and each.finished)]
            needed = min(
                self._rules.failures_min.get(failed[0], 1) if len(set(failed)) == 1 else 1,
                self.attempts.restarts.cap(package),
            )
            if len(failed) < needed:
                raise self._broken(
                    ABORTS, f"given up after {len(failed)} failures ({', '.join(failed)}); {needed} exhaust it", package
                )

    def _is_premature(self, package: PackageTrace, data: payloads.Aborted) -> bool:
        action = self.attempts.restarts.action_by_rules(package)
        return data.cause in ("retries-exhausted", "permanent-failure") and action in ("again", "elsewhere")

    def _on_cleared(self, checked: Checked) -> None:
        if checked.event.package is None:
            self._clear_job(self._job(checked.event), checked.event)
            return
        package = self._package(checked.event)
        if checked.event.epoch == package.epoch:
            package.ended = CLEARED

    def _clear_job(self, job: JobTrace, event: Event) -> None:
        """A job was cleared: none of its packages may be active or pending."""
        if event.epoch != job.epoch:
            raise self._broken_job(EPOCHS, f"cleared in epoch {event.epoch}, and the job is in {job.epoch}", job)
        job.cleared = job.was_cleared = True
        if job.cancelled or job.aborted or job.plan is None:
            return
        for number in range(job.plan.count):
            package = job.by_number.get(number)
            if package is None or not (package.state or package.dropped):
                message = f"cleared before {job.name_of(number)} was over"
                raise self._broken_job(EPOCHS, message, job)

    def _on_commit_granted(self, checked: Checked) -> None:
        event = checked.event
        package = self._package(event)
        attempt = self._attempt(package, event)
        if package.granted and event.epoch == package.epoch:
            raise self._broken(
                GRANTS,
                f"attempt {attempt.number} was granted, and {package.granted} was in epoch {package.epoch}",
                package,
            )
        if attempt.epoch != package.epoch or event.epoch != package.epoch:
            raise self._broken(
                GRANTS,
                f"attempt {attempt.number} of epoch {attempt.epoch} was granted for epoch {event.epoch}, "
                f"and the package is in epoch {package.epoch}",
                package,
            )
        if package.state == CANCELLED:
            raise self._broken(GRANTS, f"attempt {attempt.number} was granted in a cancelled epoch", package)
        if not attempt.staged:
            raise self._broken(GRANTS, f"attempt {attempt.number} was granted, and staged nothing", package)
        self.attempts.early.on_granted(package, attempt)
        self._end(package, event, DONE)
        package.granted = attempt.number
        package.grants.append((self._record.position, attempt.number))
        self._finals.on_granted(package)

    def _end(self, package: PackageTrace, event: Event, state: str) -> None:
        before = package.state
        # A job that is cancelled as a whole may still cancel each of its packages.
        if before and (package.ended or not before == state == CANCELLED):
            raise self._broken(EPOCHS, f"{event.type} in epoch {package.epoch}, which had ended as {before}", package)
        package.ended = state
        if package.success:
            package.success = 0
            self.successes.pop((package.job.name, package.place), None)

    def _end_job(self, job: JobTrace, event: Event, *, job_state: str) -> None:
        if event.epoch != job.epoch:
            raise self._broken_job(EPOCHS, f"{event.type} of epoch {event.epoch}, and the job is in {job.epoch}", job)
        if job.cancelled or job.aborted:
            raise self._broken_job(EPOCHS, f"{event.type} of a job that had ended: {job_state}", job)

    def _on_restarted(self, checked: Checked) -> None:
        event = checked.event
        job = self._job(event)
        job.was_restarted = True
        if event.package is None:
            if event.epoch <= job.epoch:
                raise self._broken_job(EPOCHS, f"restarted in epoch {event.epoch}, after epoch {job.epoch}", job)
            job.epoch = event.epoch
            job.cancelled = job.aborted = job.cleared = False
            return
        package = job.package(event.package)
        self._check_unread(package)
        data = checked.data
        assert isinstance(data, payloads.Restarted)
        if data.lost_input is not None:
            self.attempts.early.on_discarded(package, data.lost_input)
        elif data.cause == "remake":
            self._check_idle(package)
        if event.epoch <= package.epoch:
            raise self._broken(EPOCHS, f"restarted in epoch {event.epoch}, after epoch {package.epoch}", package)
        self._open(package, event.epoch)

    def _check_unread(self, package: PackageTrace) -> None:
        """The outputs of a package stay unchanged while an attempt reads them."""
        job = package.job
        if not package.granted or package.number is None or job.plan is None:
            return
        for number in job.plan.graph.successors(package.number).tolist():
            consumer = job.by_number.get(number)
            for each in consumer.attempts.values() if consumer is not None else ():
                live = consumer is not None and each.leased and consumer.is_live(each, self._record.ended_pilots)
                if live and not package.dropped_at(each.revision):
                    what = f"restarted while attempt {each.number} of {number} reads attempt {package.granted} of it"
                    raise self._broken(EPOCHS, what, package)

    def _check_idle(self, package: PackageTrace) -> None:
        """A package is restarted because of its input only if no wanted attempt reads that input."""
        for each in package.attempts.values():
            if each.leased and package.is_live(each, self._record.ended_pilots):
                what = f"restarted for an input that is made anew while its attempt {each.number} reads it"
                raise self._broken(EPOCHS, what, package)

    def _open(self, package: PackageTrace, epoch: int) -> None:
        package.epoch = epoch
        package.ended = ""
        package.upstream = False
        package.granted = package.counted = package.success = package.wanted = package.replicated = 0
        self.successes.pop((package.job.name, package.place), None)
        self._finals.on_opened(package)

    def _at_epoch(self, package: PackageTrace, event: Event) -> None:
        """A decision belongs to the current epoch of its package, or to one that its job has opened."""
        if package.epoch < event.epoch <= package.job.epoch:
            self._open(package, event.epoch)
        elif event.epoch != package.epoch:
            raise self._broken(EPOCHS, f"{event.type} of epoch {event.epoch}, after epoch {package.epoch}", package)

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _on_bound(self, checked: Checked) -> None:
        package = self._package(checked.event)
        if package.state:
            raise self._broken(EPOCHS, f"bound in epoch {package.epoch}, which had ended as {package.state}", package)

    def _on_replica_wanted(self, checked: Checked) -> None:
        data = checked.data
        assert isinstance(data, payloads.ReplicaWanted)
        package = self._package(checked.event)
        self._at_epoch(package, checked.event)
        package.replicas += data.cause in ("queue", "healing")
        if data.replicas > package.replicas:
            message = f"{data.replicas} replicas are wanted, and {package.replicas} were asked for"
            raise self._broken(LEASES, message, package)
        package.wanted = data.replicas
        self._check_replicas(package, queue=data.cause == "queue")

    def _check_replicas(self, package: PackageTrace, *, queue: bool) -> None:
        """Check the number of active and wanted attempts of a package, and of replicas for queued ones."""
        under_way = [
            each
            for each in package.attempts.values()
            if each.epoch == package.epoch and not (each.finished or each.lost or each.staged)
        ]
        count, most = len(under_way) + max(0, package.wanted - package.replicated), self._rules.replicas_max
        if most and count > most:
            message = f"{count} attempts are under way or wanted, and at most {most} may be"
            raise self._broken(LEASES, message, package)
        if queue and package.wanted > self._rules.queue_replicas_max > 0:
            message = (
                f"{package.wanted} replicas are wanted for what queues, of at most {self._rules.queue_replicas_max}"
            )
            raise self._broken(LEASES, message, package)

    def _on_attempt_created(self, checked: Checked) -> None:
        event, data = checked.event, checked.data
        assert isinstance(data, payloads.AttemptCreated)
        package = self._package(event)
        self._at_epoch(package, event)
        number = event.attempt or 0
        if number <= package.last_attempt:
            raise self._broken(EPOCHS, f"attempt {number} was created after attempt {package.last_attempt}", package)
        self._finals.on_created(package, number)
        self.attempts.on_created(package, number, data)
        self._times.on_created(
            package, package.attempts[number], remaining_seconds=data.remaining_seconds, at=self._record.time_of(event)
        )

    def _on_attempt_event(self, checked: Checked) -> None:
        event = checked.event
        package = self._package(event)
        attempt = self._attempt(package, event)
        if event.epoch != attempt.epoch:
            raise self._broken(
                EPOCHS, f"{event.type} of epoch {event.epoch}; attempt {attempt.number} is of {attempt.epoch}", package
            )
        if isinstance(checked.data, payloads.AttemptSuspected):
            self._times.on_suspected(package, attempt, self._record.time_of(event))
        elif isinstance(checked.data, payloads.AttemptLost):
            self._times.on_lost(package, attempt, reason=checked.data.reason)
        elif isinstance(checked.data, payloads.AttemptFinished):
            self._finals.on_finished(package, attempt, checked.data)
        if self.attempts.on_event(package, attempt, checked.data):
            self._note_success(package, attempt)

    def _note_success(self, package: PackageTrace, attempt: AttemptTrace) -> None:
        if attempt.epoch == package.epoch and not package.state and not package.dropped and not attempt.stale:
            package.success = attempt.number
            self.successes[package.job.name, package.place] = package

    def _on_pilot_ended(self, checked: Checked) -> None:
        event, data = checked.event, checked.data
        if event.pilot is not None and isinstance(data, payloads.PilotEnded):
            by_itself = event.source == "agent"
            at = self._record.now if by_itself else self._record.time_of(event)
            self._times.on_pilot_ended(event.pilot, by_itself=by_itself, unheard=data.reason == UNHEARD, at=at)
            self._record.ended_pilots[event.pilot] = None

    # --- finding ----------------------------------------------------------------------------------------------------

    def _job(self, event: Event) -> JobTrace:
        assert event.job is not None
        return self._record.job(event.job)

    def _package(self, event: Event) -> PackageTrace:
        assert event.package is not None
        return self._job(event).package(event.package)

    def _attempt(self, package: PackageTrace, event: Event) -> AttemptTrace:
        found = package.attempts.get(event.attempt or 0)
        if found is None:
            raise self._broken(EPOCHS, f"{event.type} of attempt {event.attempt}, which was never created", package)
        return found

    def _broken(self, checker: str, message: str, package: PackageTrace) -> Violation:
        return self._record.broken(checker, message, package)

    def _broken_job(self, checker: str, message: str, job: JobTrace) -> Violation:
        return self._record.broken_job(checker, message, job)
