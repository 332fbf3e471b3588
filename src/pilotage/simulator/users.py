"""A user who submits jobs and then interferes with them at the worst moments, as the box of faults says.

The worst moments are just after a lease was written, just before a grant, and just after an end. Whatever is held is
released in the end, by whoever it was held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pilotage.book.codec import Checked
from pilotage.model.events import Event, parse_dotted
from pilotage.model.exchange import Exchange
from pilotage.model.operations import (
    Accepted,
    AnyOperation,
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
from pilotage.service.core import Answer, Asked, Submit
from pilotage.simulator.clock import Schedule
from pilotage.simulator.faults import FaultBox
from pilotage.simulator.jobs import Definitions, JobSketch, Sketch, registration
from pilotage.simulator.randomness import Dice

_AFTER_LEASE = ("user_kills", "user_holds", "user_drops", "user_reschedules", "user_replicates")
_BEFORE_GRANT = ("user_kills", "user_holds", "user_drops", "user_reschedules", "user_restarts")
_MOMENTS: dict[str, tuple[str, ...]] = {
    "AttemptCreated": _AFTER_LEASE,
    "AttemptStarted": _AFTER_LEASE,
    "AttemptSuspected": ("user_replicates", "user_kills", "user_restarts"),
    "AttemptFinished": ("user_kills", "user_restarts", "user_drops"),
    "CommitGranted": ("user_restarts", "user_drops", "user_restores"),
    "CancelAccepted": ("user_restarts",),
    "Aborted": ("user_restarts", "user_drops"),
    "Dropped": ("user_restores",),
}


class UserHabits(Sketch, frozen=True, kw_only=True):
    """How the user is: quick or slow, and how often a whole job is meant."""

    think_seconds: float = 5.0  # at most so long until something is asked
    answer_seconds: float = 60.0  # how long an answer is waited for
    held_seconds: float = 300.0  # at most so long until what is held is released
    whole_job: float = 0.05


class User:
    """Asks for things, and remembers what has to be released."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        box: FaultBox,
        dice: Dice,
        habits: UserHabits,
        definitions: Definitions,
        ask: Callable[[Asked | Submit], None],
        answered: Callable[[AnyOperation, Accepted | Refused], None],
    ) -> None:
        """`ask` reaches the service if it is there; `answered` is told of every answer that came back."""
        self.refused: dict[str, Refused] = {}  # jobs that were not taken
        self.registered: dict[str, None] = {}
        self._schedule = schedule
        self._box = box
        self._random = dice.stream("user")
        self._habits = habits
        self._definitions = definitions
        self._ask = ask
        self._answered = answered
        self._token = 0
        self._waiting: dict[int, AnyOperation | JobSketch] = {}
        self._held: dict[tuple[str, str], None] = {}
        self._dropped: dict[tuple[str, int, int], None] = {}

    def submit_all(self, sketches: Iterable[JobSketch]) -> None:
        """Submit each job when its time comes, again and again until an answer came."""
        for sketch in sketches:
            self._schedule.after(sketch.submit_seconds, self._submit, sketch)

    @property
    def settled(self) -> bool:
        """Whether every job is in the book or was refused, and nothing is held."""
        known = len(self.registered) + sum(job not in self.registered for job in self.refused)
        return known == len(self._definitions.sketches) and not self._held

    def before_exchange(self, exchange: Exchange) -> None:
        """An agent's word is about to reach the service: the moment before a grant."""
        for event in exchange.events:
            if event.type == "AttemptFinished" and event.job is not None:
                for kind in _BEFORE_GRANT:
                    if self._box.strikes(kind):
                        self._interfere(kind, event, at_once=True)

    def noticed(self, events: Sequence[Checked]) -> None:
        """Something was written down."""
        for checked in events:
            event = checked.event
            self._remember(event)
            if event.package is None:
                continue
            for kind in _MOMENTS.get(event.type, ()):
                if (kind != "user_restores" or self._dropped) and self._box.strikes(kind):
                    self._interfere(kind, event, at_once=False)

    def hear(self, answer: Answer) -> None:
        """An answer came back."""
        asked = self._waiting.pop(answer.token, None)
        if asked is None:
            return
        if isinstance(asked, JobSketch):
            if isinstance(answer.outcome, Refused) and asked.job not in self.registered:
                self.refused[asked.job] = answer.outcome
            return
        self._answered(asked, answer.outcome)
        if isinstance(asked, Release) and isinstance(answer.outcome, Refused):
            self._held.pop((asked.job, asked.package), None)

    def _submit(self, sketch: JobSketch) -> None:
        if sketch.job in self.registered or sketch.job in self.refused:
            return
        token = self._next(sketch)
        plan = self._definitions.plan(sketch.job, ())
        self._ask(Submit(token=token, job=sketch.job, registered=registration(sketch), plan=plan))
        self._schedule.after(self._habits.answer_seconds, self._submit, sketch)
        if sketch.hold:
            self._hold_until_released(sketch.job, "")

    def _remember(self, event: Event) -> None:
        job = event.job or ""
        match event.type:
            case "JobRegistered":
                self.registered[job] = None
                self.refused.pop(job, None)
            case "Held":
                self._hold_until_released(job, event.package or "")
            case "Released":
                self._held.pop((job, event.package or ""), None)
            case "Dropped" | "Restored":
                place = parse_dotted(event.package or "")
                if place is not None and event.type == "Dropped":
                    self._dropped[job, place.stage, place.line] = None
                elif place is not None:
                    self._dropped.pop((job, place.stage, place.line), None)

    def _hold_until_released(self, job: str, package: str) -> None:
        if (job, package) not in self._held:
            self._held[job, package] = None
            seconds = self._random.uniform(1.0, self._habits.held_seconds)
            self._schedule.after(seconds, self._release, job, package)

    def _release(self, job: str, package: str) -> None:
        """Release it, and look again later whether that was heard."""
        if (job, package) in self._held:
            self._send(Release(job=job, package=package))
            self._schedule.after(self._habits.answer_seconds, self._release, job, package)

    def _interfere(self, kind: str, event: Event, *, at_once: bool) -> None:
        operation = self._operation(kind, job=event.job or "", package=event.package or "")
        if operation is None:
            return
        if at_once or self._random.random() < 0.5:
            self._send(operation)
        else:
            seconds = self._random.uniform(0.0, self._habits.think_seconds)
            self._schedule.after(seconds, self._send, operation)

    def _operation(self, kind: str, *, job: str, package: str) -> AnyOperation | None:
        whole = self._random.random() < self._habits.whole_job
        place = parse_dotted(package)
        match kind:
            case "user_kills":
                return Kill(job=job, package="" if whole else package, message="killed in a bad moment")
            case "user_holds":
                return Hold(job=job, package="" if whole else package)
            case "user_restarts":
                return Restart(job=job, package="" if whole else package)
            case "user_reschedules":
                return Reschedule(job=job, package=package)
            case "user_replicates":
                return Replicate(job=job, package=package)
            case "user_drops" if place is not None:
                return Drop(job=job, stage=place.stage, line=place.line)
            case "user_restores":
                lines = [(stage, line) for of, stage, line in self._dropped if of == job]
                if lines:
                    stage, line = self._random.choice(lines)
                    return Restore(job=job, stage=stage, line=line)
        return None

    def _send(self, operation: AnyOperation) -> None:
        self._ask(Asked(token=self._next(operation), operation=operation))

    def _next(self, asked: AnyOperation | JobSketch) -> int:
        self._token += 1
        self._waiting[self._token] = asked
        return self._token
