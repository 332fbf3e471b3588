"""The memory of the checkers: jobs, packages and attempts according to the durable events and the physical world.

Nothing here is shared with the code under test: neither the engine's view of a package nor the book's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from pilotage.book.codec import Checked
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.jobs.plan import JobPlan, LatePlan, Template
from pilotage.model.site import Site

DONE, ABORTED, CANCELLED, CLEARED = "DONE", "ABORTED", "CANCELLED", "CLEARED"
_REMEMBERED = 5000  # events of the whole book; a violation shows the relevant ones
_SHOWN = 20


class Violation(PilotageError):
    """A broken promise: the checker, the subject, and the last events about it."""

    def __init__(self, checker: str, message: str, *, subject: str, events: tuple[Checked, ...] = ()) -> None:
        """Keep the parts, so that a smaller world can be checked for the same violation."""
        super().__init__(message, subject=subject, next_step="replay the seed and look at the last events")
        self.checker = checker
        self.message = message
        self.events = events

    def __str__(self) -> str:
        """The promise, the subject, and the message."""
        return f"[{self.checker}] {super().__str__()}"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the engine and the sites that the checkers need."""

    attempts_max: int = 5  # counted failures of an epoch, unless a template sets another number
    is_healing_off: bool = False
    healed_after: int = 0  # successes of an activity before healing copies its packages; 0: unknown
    waste_max: float = 0.0  # the share of slot time that healing may waste; 0: unknown
    uncounted: tuple[str, ...] = (
        "credential-expired", "disk-full", "dropped", "input-checksum", "missing-input", "pilot-killed", "platform-failure", "preempted",
        "healed", "outrun", "regrouped", "rescheduled", "unheard",
    )  # fmt: skip
    # Fewer failures than this of one reason alone exhaust no budget.
    failures_min: Mapping[str, int] = msgspec.field(default_factory=lambda: {"application-error": 3})
    sites: tuple[Site, ...] = ()
    pilot_kills_max: int = 2
    failing_attempts_max: int = 0  # equal failures without a success that stop an activity; 0: none does
    lease_seconds: float = 0.0  # 0: unknown, so early suspicion is not checked
    lost_after_leases: float = 0.0  # leases of silence before a pilot is given up; 0: unknown
    late_seconds: float = 0.0  # largest leap of the engine's time when its clock is set
    replicas_max: int = 0  # active and wanted attempts of a package at once; 0: unknown
    queue_replicas_max: int = 0  # of them, because others were queued for long; 0: unknown
    owner_running_max: int = 0  # reserved and running packages of one owner; 0: no limit
    unfit_seconds: float = 0.0  # longest reservation where no pilot can run it; 0: likewise
    collect_seconds: float = 0.0  # a message is handled within this time after its arrival
    known_starts: Mapping[str, int] = {}  # pilots that started at each site before
    copies: Mapping[str, int] = {}  # by job: how many copies its stored outputs have
    group_packages_max: int = 0  # attempts that share a batch job; 0: unknown


class EventTail:
    """The last events, to be shown with a violation."""

    def __init__(self) -> None:
        """Begin empty."""
        self._events: deque[Checked] = deque(maxlen=_REMEMBERED)
        self.add = self._events.append

    def about(self, job: str | None, package: str | None) -> tuple[Checked, ...]:
        """The last events about a package and its job, or about a job; without either, the last events of all."""
        events = self._events
        found = (
            each
            for each in reversed(events)
            if job is None or (each.event.job == job and (package is None or each.event.package in (package, None)))
        )
        return tuple(islice(found, _SHOWN))[::-1]

    def of_stream(self, stream: str) -> tuple[Checked, ...]:
        """The last events of or about one agent."""
        found = (each for each in reversed(self._events) if stream in (each.event.stream, each.event.pilot))
        return tuple(islice(found, _SHOWN))[::-1]


class AttemptTrace:
    """One attempt: its recorded events, and its physical state."""

    __slots__ = (
        "applying",
        "created",
        "doubted",
        "early",
        "epoch",
        "failed_for",
        "finished",
        "group",
        "holder",
        "leased",
        "lost",
        "lost_position",
        "lost_while_held",
        "memory_bytes",
        "number",
        "over",
        "pilot",
        "reason",
        "remaining_seconds",
        "revision",
        "running",
        "site",
        "staged",
        "stale",
        "suspected",
        "wall_seconds",
    )

    def __init__(self, number: int, *, epoch: int, created: int) -> None:
        """Created by the event at a position."""
        self.number = number
        self.epoch = epoch
        self.created = created
        self.site = ""
        self.pilot: str | None = None
        self.group = ""  # the key of the batch job that it shares
        self.leased = self.suspected = self.lost = False
        self.doubted = False  # it was suspect or lost at some time
        self.stale = False  # a producer was restored that was dropped at its creation
        self.staged = False
        self.finished = ""  # its exit code, once it is over
        self.reason = ""
        self.failed_for = ""  # the reason that its agent reported, even if it was lost
        self.lost_position = 0
        self.lost_while_held = False
        self.remaining_seconds: float | None = None
        self.revision = 0
        self.memory_bytes: int | None = None
        self.wall_seconds: float | None = None
        self.holder = ""  # the pilot that really got it
        self.running = self.over = False  # physically
        self.applying = False  # its application was reported to run
        self.early: dict[str, int] = {}  # the attempts, by package, whose outputs it reads while they grow


class PackageTrace:
    """One package: the end of its epoch, its attempts, and the operations on it."""

    __slots__ = (
        "attempts",
        "counted",
        "drops",
        "ended",
        "epoch",
        "granted",
        "grants",
        "held",
        "held_operation",
        "held_position",
        "job",
        "last_attempt",
        "number",
        "place",
        "replicas",
        "replicated",
        "reschedules",
        "success",
        "template",
        "upstream",
        "wanted",
    )

    def __init__(self, job: JobTrace, place: str, *, number: int | None, template: Template | None) -> None:
        """A package that was mentioned in an event."""
        self.job = job
        self.place = place
        self.number = number
        self.template = template
        self.epoch = 1
        self.upstream = False  # it was aborted because of a producer
        self.ended = ""  # its own end in this epoch: DONE, ABORTED, CANCELLED or CLEARED
        self.granted = 0  # the granted attempt of this epoch
        self.grants: list[tuple[int, int]] = []  # position and attempt, over all epochs
        self.attempts: dict[int, AttemptTrace] = {}
        self.last_attempt = 0
        self.held = False
        self.held_operation = -1
        self.held_position = 0
        self.drops: list[tuple[int, int, bool]] = []  # operation, position, whether it dropped or restored
        self.success = 0  # a successful attempt that awaits a grant
        self.counted = 0
        self.replicas = self.reschedules = 0  # operations requested by users
        self.wanted = 0  # how many attempts may run beside the first in this epoch
        self.replicated = 0  # how many of them were created

    @property
    def state(self) -> str:
        """How it ended in this epoch, by itself or with its job; empty if it has not."""
        if self.ended:
            return self.ended
        if self.job.cancelled:
            return CANCELLED
        return ABORTED if self.job.aborted else ""

    @property
    def dropped(self) -> bool:
        """Whether it is dropped now."""
        return max(self.drops)[2] if self.drops else False

    @property
    def kept_back(self) -> bool:
        """Whether it, or its job, is held."""
        return self.held or self.job.held

    @property
    def subject(self) -> str:
        """Its name in messages."""
        return f"{self.job.name}/{self.place}"

    def dropped_at(self, revision: int) -> bool:
        """Whether it was dropped after an operation."""
        return max((each for each in self.drops if each[0] <= revision), default=(0, 0, False))[2]

    def is_live(self, attempt: AttemptTrace, ended_pilots: dict[str, None]) -> bool:
        """Whether an attempt still counts as running, by the recorded events."""
        return not (
            attempt.finished
            or attempt.suspected
            or attempt.lost
            or self.ended
            or attempt.epoch != self.epoch
            or attempt.created < self.job.cancelled_position
            or (attempt.pilot is not None and attempt.pilot in ended_pilots)
        )


class JobTrace:
    """One job: its plan, the operations on it, and its packages mentioned so far."""

    __slots__ = (
        "aborted",
        "accepted",
        "by_number",
        "cancelled",
        "cancelled_position",
        "cleared",
        "epoch",
        "expanded",
        "held",
        "held_operation",
        "late",
        "live_of_category",
        "name",
        "operations",
        "packages",
        "plan",
        "registered",
        "was_cancelled",
        "was_cleared",
        "was_restarted",
    )

    def __init__(self, name: str) -> None:
        """A job that was mentioned in an event."""
        self.name = name
        self.plan: JobPlan | None = None
        self.epoch = 1
        self.registered = self.accepted = False
        self.cancelled = self.aborted = self.cleared = False
        self.was_cancelled = self.was_restarted = self.was_cleared = False  # as a whole or in part, at some time
        self.cancelled_position = 0
        self.held = False
        self.held_operation = -1
        self.packages: dict[str, PackageTrace] = {}
        self.by_number: dict[int, PackageTrace] = {}
        self.late: dict[int, LatePlan] = {}
        self.expanded: dict[int, int] = {}  # stage → the epoch of its last expansion
        self.live_of_category: dict[str, dict[str, None]] = {}
        self.operations: set[int] = set()  # for look-ups only

    def take_plan(self, plan: JobPlan) -> None:
        """Set the job's structure; a grown plan replaces the earlier one."""
        self.plan = plan
        for late in plan.late:
            self.late[late.stage] = late
        if plan.hold and self.held_operation < 0:
            self.held, self.held_operation = True, 0

    def package(self, place: str) -> PackageTrace:
        """The package at an address, kept from now on."""
        found = self.packages.get(place)
        if found is None:
            number = self._number(place)
            plan = self.plan
            template = (
                plan.templates[int(plan.template_of[number])] if plan is not None and number is not None else None
            )
            found = self.packages[place] = PackageTrace(self, place, number=number, template=template)
            if number is not None:
                self.by_number[number] = found
        elif found.number is None and self.plan is not None and (number := self._number(place)) is not None:
            found.number = number
            found.template = self.plan.templates[int(self.plan.template_of[number])]
            self.by_number[number] = found
        return found

    def producers(self, number: int) -> Iterator[tuple[int, int]]:
        """The packages that a package reads from or waits for: numbers, and the kinds of the edges."""
        if self.plan is None:
            return
        for segment in self.plan.graph.segments:
            start, end = segment.predecessors.span(number)
            if start != end:
                yield from zip(
                    segment.predecessors.others[start:end].tolist(), segment.kinds[start:end].tolist(), strict=True
                )

    def name_of(self, number: int) -> str:
        """The address of a package, by its number."""
        return self.plan.place(number).dotted if self.plan is not None else f"#{number}"

    def _number(self, place: str) -> int | None:
        parsed = parse_dotted(place)
        if parsed is None or self.plan is None:
            return None
        return self.plan.number(parsed.stage, parsed.line, parsed.number)


class Record:
    """Everything that the checkers remember."""

    __slots__ = ("decided", "ended_pilots", "jobs", "now", "position", "tape")

    def __init__(self) -> None:
        """Start with an empty book."""
        self.position = 0
        self.decided: dict[int, float] = {}  # when each decision was made, in true time
        self.now = 0.0  # when the latest events became durable, in true time
        self.jobs: dict[str, JobTrace] = {}
        self.ended_pilots: dict[str, None] = {}
        self.tape = EventTail()

    def job(self, name: str) -> JobTrace:
        """A job by its id."""
        found = self.jobs.get(name)
        if found is None:
            found = self.jobs[name] = JobTrace(name)
        return found

    def time_of(self, event: Event) -> float:
        """When a decision was made; its own time stamp if it was not observed."""
        return self.decided.get(event.n, event.time)

    def attempt(self, job: str, place: str, number: int) -> AttemptTrace | None:
        """An attempt that was durably created, or None."""
        found = self.jobs.get(job)
        package = found.packages.get(place) if found is not None else None
        return package.attempts.get(number) if package is not None else None

    def broken(self, checker: str, message: str, package: PackageTrace) -> Violation:
        """A promise about a package was broken."""
        events = self.tape.about(package.job.name, package.place)
        return Violation(checker, message, subject=package.subject, events=events)

    def broken_job(self, checker: str, message: str, job: JobTrace) -> Violation:
        """A promise about a job was broken."""
        return Violation(checker, message, subject=job.name, events=self.tape.about(job.name, None))

    def broken_stream(self, checker: str, message: str, stream: str) -> Violation:
        """A promise about an agent was broken."""
        return Violation(checker, message, subject=stream, events=self.tape.of_stream(stream))
