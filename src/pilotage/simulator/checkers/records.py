"""What the checkers remember: jobs, packages and attempts as the durable events and the physical world tell of them.

Nothing here is shared with what it doubts: neither the engine's view of a package nor the book's.
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
_REMEMBERED = 5000  # events of the whole book, of which a violation shows those that matter
_SHOWN = 20


class Violation(PilotageError):
    """A promise was broken: which checker says so, of what, and the last events about it."""

    def __init__(self, checker: str, message: str, *, subject: str, events: tuple[Checked, ...] = ()) -> None:
        """Keep the parts, so that a smaller world can be told to break the same promise."""
        super().__init__(message, subject=subject, next_step="replay the seed and look at the last events")
        self.checker = checker
        self.message = message
        self.events = events

    def __str__(self) -> str:
        """The promise, the object, and what became of it."""
        return f"[{self.checker}] {super().__str__()}"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkers are told of the engine's settings and of the sites."""

    attempts_max: int = 5  # counted failures of an epoch, unless a template says otherwise
    uncounted: tuple[str, ...] = (
        "credential-expired", "disk-full", "dropped", "input-checksum", "missing-input", "pilot-killed", "platform-failure", "preempted",
        "outrun", "rescheduled", "unheard",
    )  # fmt: skip
    # Fewer failures than this, of one reason alone, exhaust nothing.
    failures_min: Mapping[str, int] = msgspec.field(default_factory=lambda: {"application-error": 3})
    sites: tuple[Site, ...] = ()
    pilot_kills_max: int = 2
    lease_seconds: float = 0.0  # 0: not known, so nobody is suspected too early
    lost_after_leases: float = 0.0  # so many of them a pilot is silent before it is given up; 0: not known
    late_seconds: float = 0.0  # by so much at most the engine's time leaps where its clock was set
    replicas_max: int = 0  # attempts of a package that are under way or wanted at once; 0: not known
    queue_replicas_max: int = 0  # of them, so many because others were queued for long; 0: not known
    owner_running_max: int = 0  # packages of one owner that are reserved or run at once; 0: no quota
    unfit_seconds: float = 0.0  # how long something may be reserved where nothing can run it; 0: likewise
    collect_seconds: float = 0.0  # so long after it arrived, a message is heard at the latest


class Tape:
    """The last events, to be shown with a violation."""

    def __init__(self) -> None:
        """Begin empty."""
        self._events: deque[Checked] = deque(maxlen=_REMEMBERED)
        self.add = self._events.append

    def about(self, job: str | None, package: str | None) -> tuple[Checked, ...]:
        """The last events about a package and its job as a whole, or about a job; of nothing in particular, the last ones."""
        events = self._events
        found = (
            each
            for each in reversed(events)
            if job is None or (each.event.job == job and (package is None or each.event.package in (package, None)))
        )
        return tuple(islice(found, _SHOWN))[::-1]

    def of_stream(self, stream: str) -> tuple[Checked, ...]:
        """The last events that one agent told, or that were told of it."""
        found = (each for each in reversed(self._events) if stream in (each.event.stream, each.event.pilot))
        return tuple(islice(found, _SHOWN))[::-1]


class AttemptTrace:
    """One attempt: what was written down of it, and where it really is."""

    __slots__ = (
        "created",
        "doubted",
        "epoch",
        "failed_for",
        "finished",
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
        self.leased = self.suspected = self.lost = False
        self.doubted = False  # it was suspected or lost at some time
        self.stale = False  # an input was restored that it was created without
        self.staged = False
        self.finished = ""  # its exit code, once it is over
        self.reason = ""
        self.failed_for = ""  # what its agent said when it was over, whoever waited for it
        self.lost_position = 0
        self.lost_while_held = False
        self.remaining_seconds: float | None = None
        self.revision = 0
        self.memory_bytes: int | None = None
        self.wall_seconds: float | None = None
        self.holder = ""  # the pilot it really reached
        self.running = self.over = False  # really


class PackageTrace:
    """One package: the end of its epoch, its attempts, and what was asked of it."""

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
        """A package of which something was heard."""
        self.job = job
        self.place = place
        self.number = number
        self.template = template
        self.epoch = 1
        self.upstream = False  # it was given up because of a producer
        self.ended = ""  # its own end in this epoch: DONE, ABORTED, CANCELLED or CLEARED
        self.granted = 0  # the attempt that was granted in this epoch
        self.grants: list[tuple[int, int]] = []  # position and attempt, over all epochs
        self.attempts: dict[int, AttemptTrace] = {}
        self.last_attempt = 0
        self.held = False
        self.held_operation = -1
        self.held_position = 0
        self.drops: list[tuple[int, int, bool]] = []  # operation, position, whether it dropped or restored
        self.success = 0  # an attempt whose success waits for a grant
        self.counted = 0
        self.replicas = self.reschedules = 0  # how often somebody asked for one
        self.wanted = 0  # how many attempts may run beside the first in this epoch
        self.replicated = 0  # how many of them there were

    @property
    def state(self) -> str:
        """How it ended in this epoch, by itself or with its job; an empty text while it has not."""
        if self.ended:
            return self.ended
        if self.job.cancelled:
            return CANCELLED
        return ABORTED if self.job.aborted else ""

    @property
    def dropped(self) -> bool:
        """Whether it is left out now."""
        return max(self.drops)[2] if self.drops else False

    @property
    def kept_back(self) -> bool:
        """Whether it, or its job, is held."""
        return self.held or self.job.held

    @property
    def subject(self) -> str:
        """What to call it."""
        return f"{self.job.name}/{self.place}"

    def dropped_at(self, revision: int) -> bool:
        """Whether it was left out after an operation."""
        return max((each for each in self.drops if each[0] <= revision), default=(0, 0, False))[2]

    def is_live(self, attempt: AttemptTrace, ended_pilots: dict[str, None]) -> bool:
        """Whether an attempt still counts as running, by what was written down."""
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
    """One job: its plan, what was asked of it as a whole, and the packages of which something was heard."""

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
        """A job of which something was heard."""
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
        self.operations: set[int] = set()  # only asked, never walked

    def take_plan(self, plan: JobPlan) -> None:
        """Know the job's structure; a plan that grew replaces the one before."""
        self.plan = plan
        for late in plan.late:
            self.late[late.stage] = late
        if plan.hold and self.held_operation < 0:
            self.held, self.held_operation = True, 0

    def package(self, place: str) -> PackageTrace:
        """The package at a place, which is remembered from now on."""
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
        """What a package takes from or waits for: the number of each, and the kinds of the edge."""
        if self.plan is None:
            return
        for segment in self.plan.graph.segments:
            start, end = segment.predecessors.span(number)
            if start != end:
                yield from zip(
                    segment.predecessors.others[start:end].tolist(), segment.kinds[start:end].tolist(), strict=True
                )

    def name_of(self, number: int) -> str:
        """The place of a package, by its number."""
        return self.plan.place(number).dotted if self.plan is not None else f"#{number}"

    def _number(self, place: str) -> int | None:
        parsed = parse_dotted(place)
        if parsed is None or self.plan is None:
            return None
        return self.plan.number(parsed.stage, parsed.line, parsed.number)


class Record:
    """Everything that is remembered, in one place for all checkers."""

    __slots__ = ("decided", "ended_pilots", "jobs", "now", "position", "tape")

    def __init__(self) -> None:
        """Begin with an empty book."""
        self.position = 0
        self.decided: dict[int, float] = {}  # when each decision was made, by no clock that could be set
        self.now = 0.0  # when the latest events became durable, by no agent's clock
        self.jobs: dict[str, JobTrace] = {}
        self.ended_pilots: dict[str, None] = {}
        self.tape = Tape()

    def job(self, name: str) -> JobTrace:
        """A job by its id."""
        found = self.jobs.get(name)
        if found is None:
            found = self.jobs[name] = JobTrace(name)
        return found

    def time_of(self, event: Event) -> float:
        """When a decision was made; by its own word where nobody watched."""
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
