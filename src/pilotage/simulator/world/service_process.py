"""The service as a process in virtual time: collects messages, steps the production core, writes, and only then replies.

Steps may run ahead of durable data; replies, answers and effects wait until everything before them is durable. The process can
die at any point in between; then unsynced data is lost, and a new core starts from the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from pilotage.book.codec import Checked
from pilotage.book.fold.finals import FinalPackage
from pilotage.book.rows.rows import JobRow
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import ExchangeReply
from pilotage.model.exchange.operations import Effect, ExpandStage
from pilotage.ports import JournalFull
from pilotage.service.core import Core
from pilotage.service.messages import Answer, ExpandedPlan, Input, Outbox
from pilotage.service.process import PROCESS
from pilotage.simulator.world.clock import Handle, Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.jobs import Definitions, Growth, Sketch

_FULL_SECONDS = 1.0  # how soon a write to a full disk is retried
_GROWS_STEPS = 256  # steps between two checks whether the process has grown and wants larger pages
_IDLE_STEPS_MAX = 200  # steps without a message or progress of the clock: the core would never sleep


CLOCK_SET_SECONDS = 7200.0  # largest difference between the clock of the service and the time of the world


class Timing(Sketch, frozen=True, kw_only=True):
    """How long the service takes for its work."""

    collect_seconds: float = 0.01  # messages within this time are one step
    commit_seconds: float = 0.02
    restart_seconds: float = 5.0
    expand_seconds: float = 2.0
    full_seconds: float = 30.0  # how long a full disk stays full


class ServiceEnvironment(Protocol):
    """The environment of the service: it carries out effects, and observes."""

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect."""
        ...

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Answer agents."""
        ...

    def tell(self, answer: Answer) -> None:
        """Answer a user."""
        ...

    def written(self, events: Sequence[Checked]) -> None:
        """Events are durable."""
        ...

    def crashed(self) -> None:
        """The service died."""
        ...

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """A step was taken; nothing of it has been sent yet."""
        ...

    def clock_set(self, *, since: float, due: float) -> None:
        """The clock of the service was set between its last step and the current one; `due`: when it wanted to wake."""
        ...

    def start(self, now: float) -> Core:
        """A core from the book."""
        ...


class ServiceJournal(Protocol):
    """The journal as the process sees it: appended events are durable after the next sync."""

    full: bool

    def append(self, events: Sequence[Checked], now: float, *, skewed: Sequence[tuple[str, str]] = ()) -> None:
        """Write a batch."""
        ...

    def sync(self) -> int:
        """Make all appended events durable; returns the position of the last one."""
        ...

    def crash(self, *, torn: bool) -> int:
        """Lose unsynced events, or all but a prefix."""
        ...

    def events(self) -> Sequence[Checked]:
        """Every durable event, in order."""
        ...

    def job(self, job: str) -> JobRow | None:
        """A job."""
        ...

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """The finished packages of a job."""
        ...


class BusyLoop(Exception):
    """The core wakes again and again, and nothing happens."""


class ServiceProcess:
    """The process. Messages enter by `receive`; everything else happens on the schedule."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        injector: FaultInjector,
        journal: ServiceJournal,
        definitions: Definitions,
        timing: Timing,
        around: ServiceEnvironment,
    ) -> None:
        """Nothing runs before `start`."""
        self.core: Core | None = None
        self.steps = 0
        self.crashes: Counter[str] = Counter()  # by the point where it died
        self.unwritten: list[Checked] = []  # decisions of the last process that died, not known to be durable
        self.growth: dict[str, Growth] = {}  # by job, as this process knows it
        self._schedule = schedule
        self._injector = injector
        self._journal = journal
        self._definitions = definitions
        self._timing = timing
        self._around = around
        self._life = 0
        self._inbox: list[Input] = []
        self._step_due = False
        self._sync_due = False
        self._unsynced = False
        self._wake: Handle | None = None
        self._unreleased: list[Outbox] = []
        self._written = 0  # how many durable events were reported
        self._expanding: dict[str, list[int]] = {}
        self._revisions: dict[tuple[str, int], int] = {}  # by job and stage, as last requested
        self._idle = (0.0, 0)
        self._set_by = 0.0  # the service's clock minus the time of the world
        self._stepped_at = self._wakes_at = 0.0

    @property
    def clock(self) -> float:
        """The service's clock."""
        return self._schedule.now + self._set_by

    def start(self) -> None:
        """Start the process from the book."""
        self._life += 1
        self._inbox, self._unreleased, self._expanding = [], [], {}
        self._step_due = self._sync_due = False
        self.growth = durable_growth(self._journal.events())
        self._stepped_at = self._wakes_at = self._schedule.now
        self.core = self._around.start(self._schedule.now)
        self._tick(self._life)

    def receive(self, message: Input) -> None:
        """Receive a message; if the process is down, it is lost, and its sender will repeat it."""
        if self.core is None:
            return
        self._inbox.append(message)
        if not self._step_due:
            self._step_soon()

    def _step_soon(self) -> None:
        self._step_due = True
        self._schedule.after(self._timing.collect_seconds, self._step, self._life)

    def _tick(self, life: int) -> None:
        if life == self._life and self.core is not None and not self._step_due:
            self._step_due = True
            self._step(life)

    def _step(self, life: int) -> None:
        if life != self._life or self.core is None or self._dies("before the step"):
            return
        self._step_due = False
        inbox, self._inbox = self._inbox, []
        now = self._schedule.now
        self._watch_idleness(inbox, now)
        if not self._injector.quiet and self._injector.strikes("service_clock_set"):
            self._set_by = self._injector.between("service_clock_set", low=-CLOCK_SET_SECONDS, high=CLOCK_SET_SECONDS)
            self._around.clock_set(since=self._stepped_at, due=self._wakes_at)
        self._stepped_at = now
        clock = self.clock
        outbox = self.core.step(inbox, clock)
        self.steps += 1
        if not self.steps % _GROWS_STEPS:
            PROCESS.ask()
        self._around.stepped(self.core, outbox)
        if self._dies("before the append"):
            return
        if outbox.events:
            self._journal.append(outbox.events, clock, skewed=outbox.skewed)
            self._unsynced = True
            if self._dies("after the append"):
                return
        self._note_growth(inbox, outbox.events)
        self._unreleased.append(outbox)
        self._sleep_until(None if outbox.wake_at is None else outbox.wake_at - self._set_by, now)
        if outbox.events or self._sync_due:
            self._sync_soon()
        else:
            self._release(len(self._unreleased))

    def _watch_idleness(self, inbox: Sequence[Input], now: float) -> None:
        since, count = self._idle
        count = 0 if inbox or now > since + 0.5 else count + 1
        self._idle = (now if count == 0 else since, count)
        if count > _IDLE_STEPS_MAX:
            raise BusyLoop(f"{count} steps from {since} to {now} without a message")

    def _sleep_until(self, wake_at: float | None, now: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._wakes_at = now if wake_at is None else wake_at
        if wake_at is not None:
            self._wake = self._schedule.at(max(wake_at, now + 0.001), self._tick, self._life)

    def _sync_soon(self) -> None:
        if not self._sync_due:
            self._sync_due = True
            self._schedule.after(self._timing.commit_seconds, self._sync, self._life)

    def _sync(self, life: int) -> None:
        if life != self._life or self.core is None or self._dies("before the sync"):
            return
        self._sync_due = False
        if not self._journal.full and self._injector.strikes("journal_full"):
            self._journal.full = True
            self._schedule.after(self._timing.full_seconds, self._make_room)
        count = len(self._unreleased)
        try:
            position = self._journal.sync()
        except JournalFull:
            self._sync_due = True
            self._schedule.after(_FULL_SECONDS, self._sync, life)
            return
        self._unsynced = False
        self._tell_written()
        self.core.written(position)
        if not self._dies("before the release"):
            self._release(count)

    def _make_room(self) -> None:
        self._journal.full = False

    def _tell_written(self) -> None:
        events = self._journal.events()
        fresh = events[self._written :]
        self._written = len(events)
        if fresh:
            self._around.written(fresh)

    def _release(self, count: int) -> None:
        """Send and carry out everything that waited for the write; the process may die between any two of them."""
        life, deliver, quiet = self._life, self._around.deliver, self._injector.quiet
        outboxes, self._unreleased = self._unreleased[:count], self._unreleased[count:]
        for outbox in outboxes:
            if quiet:
                deliver(outbox.replies)
            else:
                for reply in outbox.replies:
                    deliver((reply,))
                    if self._dies("between releases"):
                        return
            for answer in outbox.answers:
                self._around.tell(answer)
            for effect in outbox.effects:
                if self._dies("between effects"):
                    return
                if isinstance(effect, ExpandStage):
                    self._expand(effect, life)
                else:
                    self._around.carry_out(effect)

    def _expand(self, effect: ExpandStage, life: int) -> None:
        """Expand the stages of a job one after the other: each builds on the plan of the one before."""
        self._revisions[effect.job, effect.stage] = effect.revision
        queue = self._expanding.setdefault(effect.job, [])
        if effect.stage not in queue:
            queue.append(effect.stage)
            if len(queue) == 1:
                self._schedule.after(self._timing.expand_seconds, self._grow, life, effect.job)

    def _grow(self, life: int, job: str) -> None:
        if life != self._life or self.core is None:
            return
        stage = self._expanding[job][0]
        growth = self.growth.get(job, ())
        plan = self._definitions.plan(job, growth)
        late = next((each for each in plan.late if each.stage == stage), None)
        if late is None or late.stages:
            self._grown(job, stage)
            return
        granted = self._outputs(job)
        producers = [dotted for number in late.packages if (dotted := plan.place(number).dotted) in granted]
        after, expanded = self._definitions.grow(job, growth, stage=stage, producers=producers)
        revision = self._revisions[job, stage]
        self.receive(ExpandedPlan(job=job, stage=stage, revision=revision, plan=after, expanded=expanded))

    def _outputs(self, job: str) -> dict[str, None]:
        """The packages of a job with outputs that are not dropped, by the book."""
        row = self._journal.job(job)
        finals = self._journal.finals(row) if row is not None else ()
        return {f"{one.stage}.{one.line}.{one.number}": None for one in finals if one.granted and not one.dropped}

    def _note_growth(self, inbox: Sequence[Input], events: Sequence[Checked]) -> None:
        """A stage is expanded when the core has written so; an expansion that it refused is forgotten."""
        if not self._expanding:
            return  # no expansion was requested
        grown = [message for message in inbox if isinstance(message, ExpandedPlan)]
        if not grown:
            return
        for checked in events:
            if type(checked.data) is payloads.StageExpanded and checked.event.job is not None:
                self.growth[checked.event.job] = (*self.growth.get(checked.event.job, ()), _grown_over(checked.data))
        for message in grown:
            self._grown(message.job, message.stage)

    def _grown(self, job: str, stage: int) -> None:
        queue = self._expanding.get(job, [])
        if stage in queue:
            queue.remove(stage)
            if queue:
                self._schedule.after(self._timing.expand_seconds, self._grow, self._life, job)

    def _dies(self, point: str) -> bool:
        if not self._injector.quiet and self._injector.strikes("service_crashed"):
            self._crash(point)
            return True
        return False

    def _crash(self, point: str) -> None:
        """Lose everything that is not durable, except a part of the tail that reached the disk."""
        self.crashes[point] += 1
        self._life += 1
        self.core = None
        self.unwritten = [one for outbox in self._unreleased for one in outbox.events]
        self._inbox, self._unreleased = [], []
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        torn = self._unsynced and self._injector.strikes("tail_torn")
        if not self._journal.crash(torn=torn) and torn:
            self._injector.had_no_effect("tail_torn")  # the disk was full, and nothing of the tail is on it
        self._unsynced = False
        self._around.crashed()
        self._tell_written()
        self._schedule.after(self._timing.restart_seconds, self.start)


def durable_growth(events: Sequence[Checked]) -> dict[str, Growth]:
    """The expanded late stages of each job, in order, by the durable events."""
    growth: dict[str, Growth] = {}
    for checked in events:
        if isinstance(checked.data, payloads.StageExpanded) and checked.event.job is not None:
            growth[checked.event.job] = (*growth.get(checked.event.job, ()), _grown_over(checked.data))
    return growth


def _grown_over(expanded: payloads.StageExpanded) -> tuple[int, str]:
    return expanded.stage, expanded.lists[f"stage-{expanded.stage}"]
