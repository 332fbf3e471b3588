"""A user who submits jobs and interferes with them at the worst moments, as the fault injector decides.

The worst moments are just after a lease was written, just before a grant, and just after an end. Everything held is released
in the end. Requests and answers may get lost, come late, or twice. Now and then the user writes a far too long message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from pilotage.book.codec import Checked
from pilotage.engine.files.holding import NO_SPACE_LEFT
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.events.file_payloads import FilesFetched
from pilotage.model.events.healing_payloads import ActivityStopped
from pilotage.model.events.payloads import Held
from pilotage.model.exchange.exchange import Exchange
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Clear,
    Drop,
    Hold,
    Kill,
    PinFiles,
    PurgeFiles,
    Refused,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
    UnpinFiles,
)
from pilotage.service.messages import Answer, OperationRequest, SiteOperationRequest, Submit
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.jobs import Definitions, JobSketch, Sketch, registration
from pilotage.simulator.world.randomness import Dice

CLEARED_SECONDS = (0.0, 1800.0)  # how long after the end of a package its job is cleared
RAMBLE_CHARACTERS = (1_000.0, 60_000.0)
FileOperation = PinFiles | UnpinFiles | PurgeFiles
PINNED_SECONDS = (60.0, 3600.0)
LOOK_SECONDS = 120.0  # how often the user looks what may be purged
LOOKS_MAX = 20
_IMPATIENT = 0.3  # share of requests for replicas that ask for several
_REPLICAS_AT_ONCE = 4  # more than the limit
_KEEPER = "emmy"  # who pins files
_RAMBLE = "and another thing, 0 € or \u20020 £: "  # of more bytes than characters

_AFTER_LEASE = ("user_kills", "user_holds", "user_drops", "user_reschedules", "user_replicates")
_BEFORE_GRANT = ("user_kills", "user_holds", "user_drops", "user_reschedules", "user_restarts")
_MOMENTS: dict[str, tuple[str, ...]] = {
    "AttemptCreated": _AFTER_LEASE,
    "AttemptStarted": _AFTER_LEASE,
    "AttemptSuspected": ("user_replicates", "user_kills", "user_restarts"),
    "AttemptFinished": ("user_kills", "user_restarts", "user_drops"),
    "CommitGranted": ("user_restarts", "user_drops", "user_restores", "user_clears"),
    "CancelAccepted": ("user_restarts", "user_clears"),
    "Aborted": ("user_restarts", "user_drops", "user_clears"),
    "Dropped": ("user_restores",),
}


class UserHabits(Sketch, frozen=True, kw_only=True):
    """The behaviour of the user: how fast, and how often on a whole job."""

    think_seconds: float = 5.0  # longest time until a request
    answer_seconds: float = 60.0  # how long to wait for an answer
    held_seconds: float = 300.0  # longest time until a release
    whole_job: float = 0.05


class Ask(Protocol):
    """The way to the service."""

    def __call__(self, message: OperationRequest | SiteOperationRequest | Submit, *, at_once: bool) -> None:
        """Send a message; `at_once`, as if it had been on its way until now."""
        ...


class Answered(Protocol):
    """Called for every answer that arrives."""

    def on_submitted(self, job: str, outcome: Accepted | Refused, now: float) -> None:
        """The answer to a submission."""
        ...

    def on_answered(self, operation: AnyOperation, outcome: Accepted | Refused, now: float) -> None:
        """The answer to any other request."""
        ...


_MENDED_MAX = 2  # a person gives up opening an activity that is stopped again and again


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A request without an answer so far, and the faults it came from."""

    asked: AnyOperation | FileOperation | JobSketch
    kinds: tuple[str, ...] = ()
    hold: int = 0  # of a release: which hold it ends


class User:
    """Sends requests, and remembers what must be released."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        injector: FaultInjector,
        dice: Dice,
        habits: UserHabits,
        definitions: Definitions,
        ask: Ask,
        answered: Answered,
    ) -> None:
        """`ask` reaches the service if nothing goes wrong; `answered` is called for every answer that arrives."""
        self.refused: dict[str, Refused] = {}  # rejected jobs
        self.registered: dict[str, None] = {}
        self._schedule = schedule
        self._injector = injector
        self._random = dice.stream("user")
        self._impatience = dice.stream("user/impatience")
        self._habits = habits
        self._definitions = definitions
        self._ask = ask
        self._answered = answered
        self._token = 0
        self._waiting: dict[int, _Waiting] = {}
        self._held: dict[tuple[str, str], int] = {}  # by job and package: the number of the hold
        self._crowded: dict[tuple[str, str], None] = {}  # those held because no space can come free
        self._holds = 0
        self._dropped: dict[tuple[str, int, int], None] = {}
        self._pinned: dict[tuple[str, str], None] = {}  # by site and locator
        self._purging: dict[str, int] = {}  # by site: how many files the user still wants to see gone
        self._mended: dict[tuple[str, str], int] = {}  # by job and activity: how often it was stopped
        self._ended: dict[str, str] = {}  # by job: the package that ended last

    def submit_all(self, sketches: Iterable[JobSketch]) -> None:
        """Submit each job at its time, repeatedly until an answer arrives."""
        for sketch in sketches:
            self._schedule.after(sketch.submit_seconds, self._submit, sketch)

    @property
    def settled(self) -> bool:
        """Whether every job is in the book or rejected, and nothing is held."""
        known = len(self.registered) + sum(job not in self.registered for job in self.refused)
        return known == len(self._definitions.sketches) and not self._held

    def before_exchange(self, exchange: Exchange) -> None:
        """An exchange is about to reach the service: the moment before a grant."""
        for event in exchange.events:
            if event.type == "AttemptFinished" and event.job is not None:
                for kind in _BEFORE_GRANT:
                    if self._injector.strikes(kind):
                        self._interfere(kind, event, at_once=True)

    def on_written(self, events: Sequence[Checked]) -> None:
        """Events were written."""
        for checked in events:
            event = checked.event
            self._remember(checked)
            if isinstance(checked.data, FilesFetched) and event.site is not None:
                self._think_of_files(event.site, checked.data)
            if event.type == "Cleared" and self._injector.strikes("user_revives"):
                self._interfere("user_revives", event, at_once=False)
            if isinstance(checked.data, ActivityStopped) and event.job is not None:
                self._mend(event.job, checked.data.activity)
            if event.package is None:
                continue
            for kind in _MOMENTS.get(event.type, ()):
                if (kind != "user_restores" or self._dropped) and self._injector.strikes(kind):
                    self._interfere(kind, event, at_once=False)

    def _mend(self, job: str, activity: str) -> None:
        """Open a stopped activity again after a while, a few times."""
        count = self._mended[job, activity] = self._mended.get((job, activity), 0) + 1
        if count <= _MENDED_MAX:
            waiting = _Waiting(asked=Restart(job=job, activity=activity, message="mended"))
            self._schedule.after(self._habits.think_seconds * count, self._send, waiting)

    def receive_answer(self, answer: Answer) -> None:
        """An answer arrived."""
        waiting, outcome = self._waiting.pop(answer.token, None), answer.outcome
        if waiting is None:
            return
        asked = waiting.asked
        if isinstance(asked, JobSketch):
            self._answered.on_submitted(asked.job, outcome, self._schedule.now)
            if isinstance(outcome, Refused) and asked.job not in self.registered:
                self.refused[asked.job] = outcome
            return
        if isinstance(asked, UnpinFiles):
            self._pinned.pop((asked.site, asked.locators[0]), None)
        if not isinstance(asked, FileOperation):
            self._answered.on_answered(asked, outcome, self._schedule.now)
        if isinstance(asked, Kill) and waiting.hold and self._held.get((asked.job, asked.package)) == waiting.hold:
            del self._held[asked.job, asked.package]
        if isinstance(asked, PurgeFiles) and isinstance(outcome, Accepted):
            self._on_purge(asked, outcome)
        if isinstance(outcome, Accepted):
            for kind in waiting.kinds if outcome.events else ():
                self._injector.had_effect(kind)
        elif isinstance(asked, Release) and self._held.get((asked.job, asked.package)) == waiting.hold:
            del self._held[asked.job, asked.package]

    def _submit(self, sketch: JobSketch) -> None:
        if sketch.job in self.registered or sketch.job in self.refused:
            return
        token = self._next(_Waiting(asked=sketch))
        plan = self._definitions.plan(sketch.job, ())
        self._ask(Submit(token=token, job=sketch.job, registered=registration(sketch), plan=plan), at_once=False)
        self._schedule.after(self._habits.answer_seconds, self._submit, sketch)
        if sketch.hold:
            self._hold_until_released(sketch.job, "")

    def _remember(self, checked: Checked) -> None:
        event = checked.event
        job = event.job or ""
        match event.type:
            case "JobRegistered":
                self.registered[job] = None
                self.refused.pop(job, None)
            case "Held":
                if isinstance(checked.data, Held) and NO_SPACE_LEFT in checked.data.message:
                    self._crowded[job, event.package or ""] = None
                self._hold_until_released(job, event.package or "")
            case "Released":
                self._held.pop((job, event.package or ""), None)
            case "CommitGranted" | "Aborted" if event.package is not None:
                self._ended[job] = event.package
            case "Dropped" | "Restored":
                place = parse_dotted(event.package or "")
                if place is not None and event.type == "Dropped":
                    self._dropped[job, place.stage, place.line] = None
                elif place is not None:
                    self._dropped.pop((job, place.stage, place.line), None)

    def _hold_until_released(self, job: str, package: str) -> None:
        known = (job, package) in self._held
        self._holds += 1
        self._held[job, package] = self._holds
        if not known:
            seconds = self._random.uniform(1.0, self._habits.held_seconds)
            self._schedule.after(seconds, self._release, job, package)

    def _release(self, job: str, package: str) -> None:
        """Release a hold, and check later whether that was accepted; kill what can never have its files, as its hold says."""
        if (job, package) in self._held:
            crowded = (job, package) in self._crowded
            asked = Kill(job=job, package=package) if crowded else Release(job=job, package=package)
            self._send(_Waiting(asked=asked, hold=self._held[job, package]))
            self._schedule.after(self._habits.answer_seconds, self._release, job, package)

    def _interfere(self, kind: str, event: Event, *, at_once: bool) -> None:
        self._injector.had_no_effect(kind)  # until it is accepted
        operation = self._operation(kind, job=event.job or "", package=event.package or "")
        if operation is None:
            return
        kinds: tuple[str, ...] = (kind,)
        if isinstance(operation, Kill | Hold | Restart) and self._injector.strikes("user_rambles"):
            self._injector.had_no_effect("user_rambles")
            length = int(self._injector.between("user_rambles", low=RAMBLE_CHARACTERS[0], high=RAMBLE_CHARACTERS[1]))
            operation = msgspec.structs.replace(operation, message=_RAMBLE * (length // len(_RAMBLE)))
            kinds = (kind, "user_rambles")
        waiting = _Waiting(asked=operation, kinds=kinds)
        if isinstance(operation, Replicate) and self._impatience.random() < _IMPATIENT:
            for turn in range(_REPLICAS_AT_ONCE):
                self._schedule.after(turn * self._impatience.random(), self._send, waiting)
        if isinstance(operation, Clear):
            seconds = self._injector.between("user_clears", low=CLEARED_SECONDS[0], high=CLEARED_SECONDS[1])
            self._schedule.after(seconds, self._send, waiting)
        elif at_once or self._random.random() < 0.5:
            self._send(waiting, at_once=at_once)
        else:
            seconds = self._random.uniform(0.0, self._habits.think_seconds)
            self._schedule.after(seconds, self._send, waiting)

    def _think_of_files(self, site: str, fetched: FilesFetched) -> None:
        """Pin a file that has arrived, and unpin it later, or purge it."""
        for file in fetched.files:
            locators = (file.locator,)
            if self._injector.strikes("user_pins"):
                self._injector.had_no_effect("user_pins")  # until it is accepted
                self._send_for_files("user_pins", PinFiles(site=site, locators=locators, by=_KEEPER))
                seconds = self._injector.between("user_pins", low=PINNED_SECONDS[0], high=PINNED_SECONDS[1])
                unpin = UnpinFiles(site=site, locators=locators, by=_KEEPER)
                self._pinned[site, file.locator] = None
                self._schedule.after(seconds, self._unpin, unpin)
            if self._injector.strikes("user_purges"):
                self._injector.had_no_effect("user_purges")  # until it is accepted
                seconds = self._injector.between("user_purges", low=0.0, high=PINNED_SECONDS[1])
                self._purging[site] = self._purging.get(site, 0) + 1
                self._schedule.after(seconds, self._send_for_files, "", PurgeFiles(site=site, locators=locators))
                self._schedule.after(seconds + LOOK_SECONDS, self._look_what_may_go, site, LOOKS_MAX)

    def _look_what_may_go(self, site: str, looks: int) -> None:
        """List the files at a site until something was purged there: the first purge is refused if its file is needed."""
        if looks and self._purging[site]:
            self._send_for_files("", PurgeFiles(site=site, dry_run=True))
            self._schedule.after(LOOK_SECONDS, self._look_what_may_go, site, looks - 1)

    def _on_purge(self, asked: PurgeFiles, outcome: Accepted) -> None:
        """A list of the files at a site came, of which one that nobody needs is purged; or a file is being purged."""
        if asked.dry_run:
            free = [each.locator for each in outcome.purged if not each.kept]
            if free and self._purging[asked.site]:
                self._send_for_files("", PurgeFiles(site=asked.site, locators=(free[0],)))
        elif outcome.events and self._purging[asked.site]:
            self._purging[asked.site] -= 1
            self._injector.had_effect("user_purges")

    def _unpin(self, operation: UnpinFiles) -> None:
        """Unpin a file, and ask again until there is an answer: a pin that stays takes space from others for ever."""
        [locator] = operation.locators
        if (operation.site, locator) in self._pinned:
            self._send_for_files("", operation)
            self._schedule.after(self._habits.answer_seconds, self._unpin, operation)

    def _send_for_files(self, kind: str, operation: FileOperation) -> None:
        token = self._next(_Waiting(asked=operation, kinds=(kind,) if kind else ()))
        self._ask(SiteOperationRequest(token=token, operation=operation), at_once=False)

    def _operation(self, kind: str, *, job: str, package: str) -> AnyOperation | None:
        whole = self._random.random() < self._habits.whole_job
        place = parse_dotted(package)
        match kind:
            case "user_kills":
                return Kill(job=job, package="" if whole else package, message="killed in a bad moment")
            case "user_holds":
                return Hold(job=job, package="" if whole else package)
            case "user_clears":
                return Clear(job=job)
            case "user_revives":
                return Restart(job=job, package="" if whole else self._ended.get(job, ""))
            case "user_restarts":
                return Restart(job=job, package="" if whole else package)
            case "user_reschedules":
                return Reschedule(job=job, package=package)
            case "user_replicates":
                return Replicate(job=job, package=package)
            case "user_drops" if place is not None:
                return Drop(job=job, stage=place.stage, line=place.line, force=True)
            case "user_restores":
                lines = [(stage, line) for of, stage, line in self._dropped if of == job]
                if lines:
                    stage, line = self._random.choice(lines)
                    return Restore(job=job, stage=stage, line=line)
        return None

    def _send(self, waiting: _Waiting, *, at_once: bool = False) -> None:
        assert not isinstance(waiting.asked, JobSketch | FileOperation)
        self._ask(OperationRequest(token=self._next(waiting), operation=waiting.asked), at_once=at_once)

    def _next(self, waiting: _Waiting) -> int:
        self._token += 1
        self._waiting[self._token] = waiting
        return self._token
