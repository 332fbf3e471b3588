"""Checks that every package ends or states what it waits for, that no success is lost, and that the book agrees.

These checks visit every package, so they run at the end of a run or now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import ActivityReopened, ActivityStopped
from pilotage.model.states import FINAL_NAMES, ExitCodeGasw
from pilotage.simulator.checkers.decisions import SUCCESSES, Decisions
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

WAITING = "waiting"
STATES = "states"
FINISHING = "finishing"

States = Mapping[tuple[str, str], str]
"""The state of each package, by job id and package address."""
Explain = Callable[[str, str], Sequence[str]]
"""Why a package of a job waits: the codes of the reasons."""


class Ends:
    """Checks how everything ended, or why it has not."""

    def __init__(self, record: Record, decisions: Decisions) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._decisions = decisions

    def check_upstream(self) -> None:
        """A package aborted because of a producer still has a failed producer."""
        for job, number, place in self._places():
            package = job.by_number.get(number)
            if package is None or not package.upstream or package.ended != ABORTED or package.dropped:
                continue
            if job.cancelled or job.aborted or job.plan is None:
                continue
            if job.plan.late_waits.get(int(job.plan.template_of[number])):
                continue
            awaited = (job.by_number.get(other) for other, _ in job.producers(number))
            if not any(
                each is not None and not each.dropped and each.state in (ABORTED, CANCELLED) for each in awaited
            ):
                raise self._broken(
                    "aborts", "is given up because of a producer, and none of them failed any more", job, place
                )

    def check_waiting(self, states: States, explain: Explain) -> None:
        """Every package is final, dropped, or has a valid reason to wait."""
        for job, number, place in self._places():
            if states.get((job.name, place)) in FINAL_NAMES:
                continue
            package = job.by_number.get(number)
            if package is not None and package.dropped:
                continue
            if not explain(job.name, place):
                raise self._broken(WAITING, f"is {states.get((job.name, place))}, and nothing says why", job, place)
            if package is not None and (package.kept_back or any(map(_is_open, package.attempts.values()))):
                continue
            for other, _ in job.producers(number):
                producer = job.by_number.get(other)
                if producer is not None and not producer.dropped and producer.ended == ABORTED:
                    raise self._broken(WAITING, f"waits for {producer.place}, which was given up", job, place)

    def check_successes(self) -> None:
        """Every undisputed success was granted."""
        for package in self._decisions.successes.values():
            if not package.state and not package.dropped:
                raise self._record.broken(
                    SUCCESSES, f"attempt {package.success} succeeded, and was not granted", package
                )

    def check_states(self, states: States, *, whose: str = "the book") -> None:
        """The final states of all packages are those of the events."""
        for (name, place), state in states.items():
            job = self._record.jobs.get(name)
            package = job.packages.get(place) if job is not None else None
            if job is None or package is None:
                own = (CANCELLED if job.cancelled else ABORTED if job.aborted else "") if job is not None else ""
            else:
                own = package.state
                if not package.ended and own and any(not a.finished or a.staged for a in package.attempts.values()):
                    continue  # its job has ended, but its running packages have not yet
            if own != (state if state in (DONE, CANCELLED, ABORTED, CLEARED) else ""):
                raise self._broken(
                    STATES,
                    f"is {state} in {whose}, and {own or 'not final'} by its events",
                    job or JobTrace(name),
                    place,
                )
        for job in self._record.jobs.values():
            for package in job.packages.values():
                if package.ended and (job.name, package.place) not in states:
                    raise self._broken(STATES, f"is {package.ended}, and not in {whose}", job, package.place)

    def check_refold(self, states: States, refold: Callable[[], States]) -> None:
        """The same events in another order give the same states."""
        again = refold()
        for key in sorted({*states, *again}):
            if states.get(key) != again.get(key):
                message = f"is {states.get(key)}, and {again.get(key)} from the same events in another order"
                raise self._broken(STATES, message, self._record.job(key[0]), key[1])
        self.check_states(again, whose="the book in another order")

    def check_finished(self, states: States, *, stopped_at: float, horizon_seconds: float, now: float) -> bool:
        """Whether everything is final; it must be once the horizon after the last fault has passed.

        A held package may wait, since only a person releases it, and so may every package that waits for it.
        """
        for job, number, place in self._places():
            if states.get((job.name, place)) in FINAL_NAMES or self._may_wait(job, number, states):
                continue
            return self._late(f"is {states.get((job.name, place))}", job, place, stopped_at, horizon_seconds, now)
        for job in self._record.jobs.values():
            if job.cancelled or job.aborted or job.held or not job.registered:
                continue
            for stage, late in job.late.items():
                waits = any(
                    not self._is_over(job, number, states) or self._failed(job, number, states)
                    for number in late.packages
                ) or any(other not in job.expanded for other in late.stages)
                if stage not in job.expanded and not waits:
                    return self._late("is not expanded", job, f"stage {stage}", stopped_at, horizon_seconds, now)
        return True

    def _may_wait(self, job: JobTrace, number: int, states: States) -> bool:
        package = job.by_number.get(number)
        if job.held or (package is not None and (package.held or package.dropped)):
            return True
        plan = job.plan
        if self._runs_later(job, number, states):
            return True
        if plan is not None and any(
            self._may_grow(job, stage, states) for stage in plan.late_waits.get(int(plan.template_of[number]), ())
        ):
            return True
        return any(not self._is_over(job, other, states) for other, _ in job.producers(number))

    def _runs_later(self, job: JobTrace, number: int, states: States) -> bool:
        """Whether a package is final and others are not over or not expanded yet."""
        plan = job.plan
        if plan is None or not plan.templates[int(plan.template_of[number])].final:
            return False
        others = (each for each in range(plan.count) if not plan.templates[int(plan.template_of[each])].final)
        if any(not self._is_over(job, each, states) for each in others):
            return True
        return any(stage not in job.expanded and not self._is_hopeless(job, stage, states) for stage in job.late)

    def _is_hopeless(self, job: JobTrace, stage: int, states: States) -> bool:
        """Whether a late stage cannot be expanded any more."""
        late = job.late.get(stage)
        if late is None or stage in job.expanded:
            return False
        return any(self._failed(job, each, states) for each in late.packages) or any(
            self._is_hopeless(job, other, states) for other in late.stages
        )

    def _may_grow(self, job: JobTrace, stage: int, states: States) -> bool:
        """Whether a late stage still waits for unfinished packages."""
        late = job.late.get(stage)
        if stage in job.expanded or late is None:
            return False
        return any(not self._is_over(job, number, states) for number in late.packages) or any(
            self._may_grow(job, other, states) for other in late.stages
        )

    def _is_over(self, job: JobTrace, number: int, states: States) -> bool:
        package = job.by_number.get(number)
        if package is not None and package.dropped:
            return True
        return states.get((job.name, job.name_of(number))) in FINAL_NAMES

    def _failed(self, job: JobTrace, number: int, states: States) -> bool:
        package = job.by_number.get(number)
        if package is not None and package.dropped:
            return False
        return states.get((job.name, job.name_of(number))) in (ABORTED, CANCELLED)

    def _late(
        self, what: str, job: JobTrace, place: str, stopped_at: float, horizon_seconds: float, now: float
    ) -> bool:
        if now < stopped_at + horizon_seconds:
            return False
        message = f"{what} {now - stopped_at:.0f} seconds after the last fault; expected within {horizon_seconds:.0f}"
        raise self._broken(FINISHING, message, job, place)

    def _places(self) -> Iterator[tuple[JobTrace, int, str]]:
        for job in self._record.jobs.values():
            if job.plan is not None and job.registered:
                for layout in job.plan.layouts.values():
                    for number in range(layout.first, layout.first + layout.count):
                        yield job, number, layout.id(number).dotted

    def _broken(self, checker: str, message: str, job: JobTrace, place: str) -> Violation:
        events = self._record.tape.about(job.name, place)
        return Violation(checker, message, subject=f"{job.name}/{place}", events=events)


def _is_open(attempt: AttemptTrace) -> bool:
    return not attempt.finished and not attempt.lost


# Activities that are stopped: only if they cannot succeed, in time, and nothing of them starts until they are opened again.

STOPS = "stops"
_OF_APPLICATION = frozenset(
    ("application-error", "command-not-found", "failure-pattern", "missing-output", "segmentation-fault", "signal")
)
_PACKAGES_MIN = 5  # that must have failed alike
_FACTOR = 5  # so many times the bound may fail at one site, or beside others that got further


class _Activity:
    """An activity of a job since it was opened."""

    __slots__ = ("failed", "most_live", "stopped", "succeeded")

    def __init__(self) -> None:
        self.stopped = False
        self.succeeded = ""  # the package
        self.failed: dict[
            tuple[str, int | None], list[str]
        ] = {}  # by reason and exit status: the packages, one for each attempt
        self.most_live = 0  # attempts at once


class Stopped:
    """The activities of every job."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._bound = rules.failing_attempts_max
        self._known: dict[tuple[str, str], _Activity] = {}
        self._live: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self.counts = {"stopped": 0, "reopened": 0}

    def on_written(self, checked: Checked) -> None:
        """An event is durable, and recorded by the others."""
        event, data = checked.event, checked.data
        if isinstance(data, ActivityStopped | ActivityReopened):
            job = self._record.job(event.job or "")
            if isinstance(data, ActivityStopped):
                self._on_stopped(job, data)
            else:
                self._on_reopened(job, data)
        elif event.package is not None and event.job is not None:
            job = self._record.job(event.job)
            package = job.package(event.package)
            if package.template is not None:
                self._on_package(checked, package, job, package.template.activity)

    def _of(self, job: JobTrace, activity: str) -> _Activity:
        return self._known.setdefault((job.name, activity), _Activity())

    def _on_package(self, checked: Checked, package: PackageTrace, job: JobTrace, activity: str) -> None:
        event, data = checked.event, checked.data
        known, live = self._of(job, activity), self._live.setdefault((job.name, activity), set())
        ref = (package.place, event.attempt or 0)
        if isinstance(data, payloads.AttemptCreated):
            if known.stopped:
                message = f"attempt {event.attempt} was created, and the activity {activity} is stopped"
                raise self._record.broken(STOPS, message, package)
            self._check_in_time(job, activity, known, package)
            live.add(ref)
            known.most_live = max(known.most_live, len(live))
        elif isinstance(data, payloads.CommitGranted):
            known.succeeded = package.place
        elif isinstance(data, payloads.AttemptFinished | payloads.OutputsStaged):
            live.discard(ref)
            if package.success and package.success == event.attempt:
                known.succeeded = package.place
            elif isinstance(data, payloads.AttemptFinished):
                self._count(checked, data, package, known)
        elif isinstance(data, payloads.AttemptLost):
            live.discard(ref)
        elif isinstance(data, payloads.Aborted) and data.cause == "activity-stopped" and not known.stopped:
            raise self._record.broken(STOPS, f"aborted since {activity} was stopped, and it is not", package)

    def _count(self, checked: Checked, data: payloads.AttemptFinished, package: PackageTrace, known: _Activity) -> None:
        """Count a failure of an attempt that still counted."""
        event = checked.event
        attempt = package.attempts.get(event.attempt or 0)
        if attempt is None or package.state or attempt.epoch != package.epoch or attempt.early:
            return
        if event.source != "agent" or event.stream != attempt.pilot or data.exit_code == ExitCodeGasw.SUCCESS:
            return
        if data.reason in _OF_APPLICATION:
            known.failed.setdefault((data.reason, data.exit_status), []).append(package.place)

    def _check_in_time(self, job: JobTrace, activity: str, known: _Activity, package: PackageTrace) -> None:
        """So many equal failures without a success stop an activity: no attempt begins after that."""
        if not self._bound or known.succeeded:
            return
        for (reason, _), places in known.failed.items():
            allowed = self._bound * (_FACTOR + known.most_live)
            if len(places) > allowed and len(set(places)) >= _PACKAGES_MIN:
                message = (
                    f"an attempt begins after {len(places)} attempts of {activity} failed alike ({reason}) and none succeeded;"
                    f" at most {known.most_live} were live at once"
                )
                raise self._record.broken(STOPS, message, package)

    def _on_stopped(self, job: JobTrace, data: ActivityStopped) -> None:
        known = self._of(job, data.activity)
        if known.stopped:
            raise self._record.broken_job(STOPS, f"{data.activity} is stopped again", job)
        if known.succeeded:
            message = f"{data.activity} is stopped, and {known.succeeded} of it has succeeded since it was opened"
            raise self._record.broken_job(STOPS, message, job)
        most = max(known.failed.values(), key=len, default=[])
        if len(most) < self._bound or len(set(most)) < _PACKAGES_MIN:
            message = f"{data.activity} is stopped after {len(most)} equal failures of {len(set(most))} packages"
            raise self._record.broken_job(STOPS, message, job)
        known.stopped = True
        self.counts["stopped"] += 1

    def _on_reopened(self, job: JobTrace, data: ActivityReopened) -> None:
        if not self._of(job, data.activity).stopped:
            raise self._record.broken_job(STOPS, f"{data.activity} is opened again, and was not stopped", job)
        self._known[job.name, data.activity] = _Activity()
        self.counts["reopened"] += 1
