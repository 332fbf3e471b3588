"""One job in the engine: a few bytes for each package in arrays, and an object for each active package."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.book.rows.forecasts import JobForecast
from pilotage.engine.retry.policy import Failure, Verdict
from pilotage.engine.selection.candidates import CandidateSet, How, SelectionSnapshot
from pilotage.engine.selection.filters import Requirements
from pilotage.engine.state.activities import Activities
from pilotage.engine.state.fifo import ReadyQueue
from pilotage.engine.state.job_files import JobFiles
from pilotage.engine.state.run_times import RunTimes
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.model.jobs.graph import EdgeKind, Segment
from pilotage.model.jobs.layout import StageLayout
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.model.resources import Demand
from pilotage.model.texts import changes_often

Address = tuple[int, int, int]

# Plain numbers: flags of an enumeration are slow to combine.
_AWAITED = int(EdgeKind.AWAITED)
_BRINGS_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class PackageStatus:
    """Status of a package in the engine; finer than the states of the book, and final from DONE on. Plain numbers, for speed."""

    BLOCKED = 0  # waits for its inputs
    READY = 1  # in the queue of its class
    DELAYED = 2  # its next attempt is delayed
    RESERVED = 3  # bound to a site
    LIVE = 4  # an attempt is believed to be active
    HELD = 5
    DROPPED = 6
    DONE = 7
    ABORTED = 8
    CANCELLED = 9
    UPSTREAM = 10  # aborted because a producer was


_NAMES = "blocked ready delayed reserved live held dropped done aborted cancelled upstream"
STATUS_NAMES = tuple(_NAMES.split())
"""Names of the statuses, by number."""
FINAL = PackageStatus.DONE
_MADE = (PackageStatus.DONE, PackageStatus.ABORTED)


_NO_ATTEMPTS: Mapping[int, AttemptState] = MappingProxyType({})
_NOWHERE: Mapping[int, str] = MappingProxyType({})
_NO_FAILURES: Mapping[int, Failure] = MappingProxyType({})
Ties = tuple[tuple[int, int], ...]
"""Attempts that another one depends on: pairs of package and attempt number."""
_NO_TIES: Mapping[int, Ties] = MappingProxyType({})


@changes_often
class ActivePackage(msgspec.Struct, eq=False):
    """A package with reservations, attempts or failures that is not over, or that may still change after its end."""

    job: JobState
    number: int
    bound: SiteState | None = None
    bound_as: QueueClass | None = None  # the class in which it was bound
    bound_at: float = 0.0
    choice: SelectionSnapshot | None = None  # the state of the sites when it was last bound
    named: tuple[str, tuple[int, int, int]] | None = None  # its address, as text and numbers, cached
    # The current epoch. Most packages that wait for a slot have no history, and share the empty values.
    attempts: Mapping[int, AttemptState] = _NO_ATTEMPTS  # not over
    failures: Mapping[int, Failure] = _NO_FAILURES  # by attempt
    candidates: tuple[int, ...] = ()  # successful attempts that await a grant
    verdict: Verdict | None = None  # the verdict on the failures, if any
    queue: QueueClass | None = None  # while it is ready or reserved, if not the class of its template
    delayed_until: float = 0.0
    held: bool = False
    refused: str = ""  # why its result is not granted now; it is held meanwhile
    dropped: int = 0  # the operation that dropped it
    replicas: int = 0  # further attempts requested in this epoch
    replicated: int = 0  # how many of them were created
    races: bool = False  # some of them because it was queued for long: the first to start cancels the others
    early: SiteState | None = None  # where it may start now, beside the running attempts that make its inputs
    early_failed: bool = False  # an attempt that had started early failed: it waits for complete inputs
    ties: Mapping[int, Ties] = _NO_TIES  # by attempt that started early: the attempts whose outputs it reads
    lacks: int = 0  # while it is reserved: files that are not at its site yet
    storing: int = 0  # the candidate whose outputs are being copied to stores
    stored: int = 0  # the candidate whose outputs are all there
    made_at: Mapping[int, str] = _NOWHERE  # candidates whose outputs may be kept there → the site where they ran
    heals: bool = False  # some of the further attempts were requested by healing

    def add(self, number: int, attempt: AttemptState) -> None:
        """Add an active attempt."""
        self.attempts = {**self.attempts, number: attempt} if self.attempts else {number: attempt}

    def remove(self, number: int) -> None:
        """Remove an attempt that is over."""
        attempts = self.attempts
        if len(attempts) == 1 and number in attempts:
            self.attempts = _NO_ATTEMPTS
        else:
            self.attempts = {each: attempt for each, attempt in attempts.items() if each != number}

    def fail(self, number: int, failure: Failure) -> None:
        """Add a failure."""
        self.failures = {**self.failures, number: failure}

    def forget(self) -> None:
        """Clear everything of this epoch."""
        self.attempts, self.failures, self.candidates = _NO_ATTEMPTS, _NO_FAILURES, ()
        self.made_at = _NOWHERE
        self.ties, self.early_failed = _NO_TIES, False

    def tie(self, number: int, ties: Ties) -> None:
        """An attempt depends on others; on none: not any more."""
        others = {each: known for each, known in self.ties.items() if each != number}
        self.ties = {**others, number: ties} if ties else others or _NO_TIES

    @property
    def idle(self) -> bool:
        """Whether it has no content."""
        return not (self.bound or self.delayed_until or self.early or self.durable)

    @property
    def durable(self) -> bool:
        """Whether it has content that follows from events."""
        return bool(
            self.attempts or self.failures or self.candidates or self.held or self.dropped or self.replicas
            or self.early_failed
        )  # fmt: skip


class Reservations:
    """The number of reservations of one shape and level, shared by all classes with the same shape and level."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        """Start without reservations."""
        self.count = 0


class QueueClass:
    """Ready packages of a job that are interchangeable for scheduling: same resources, sites and rank."""

    __slots__ = (
        "activity",
        "avoid",
        "category",
        "demand",
        "index",
        "job",
        "kind",
        "level",
        "more_wall_than",
        "narrow",
        "pool",
        "prefer",
        "priority",
        "queue",
        "ready",
        "requirements",
        "reservations",
        "restarts",
        "run_seconds",
        "shape",
        "shared_reservations",
        "snapshots",
        "unfit",
        "watched",
    )

    def __init__(
        self,
        job: JobState,
        *,
        index: int,
        demand: Demand,
        shape: int,
        priority: int,
        run_seconds: float,
        kind: int,
        requirements: Requirements,
        activity: str,
        category: str,
        avoid: tuple[str, ...],
        prefer: str,
        restarts: bool,
    ) -> None:
        """Packages that differ in any of these belong to different classes."""
        self.job = job
        self.index = index
        self.demand = demand
        self.shape = shape
        self.priority = priority
        self.restarts = restarts  # packages that were tried before
        # A class of a lower level can preempt reservations of a higher one.
        self.level = (-job.plan.priority, -priority, 0 if restarts else 1)
        self.run_seconds = run_seconds
        self.kind = kind  # the template of its first package
        self.requirements = requirements  # what it requires of a site
        plain = Requirements(demand=demand, owner=requirements.owner, run_seconds=requirements.run_seconds)
        # Some sites do not suit it.
        self.narrow = requirements != plain or demand.nodes > 1 or bool(demand.node_restriction)
        self.activity = activity  # of one of its packages
        self.snapshots: dict[How, SelectionSnapshot] = {}  # recent snapshots of the sites, from bindings of this class
        self.pool: CandidateSet | None = None  # the candidate sites, once needed
        self.category = category
        self.avoid = avoid
        self.more_wall_than = requirements.more_wall_than
        self.prefer = prefer  # the site to try first
        self.queue = ReadyQueue()
        self.ready = 0  # valid entries in the queue
        self.reservations = Reservations()
        self.shared_reservations = Reservations()  # within its job
        self.watched = False  # a timer checks their waiting time
        self.unfit: set[int] = set()  # indices of sites where its reservations failed

    @property
    def rank_in_job(self) -> tuple[int, int, float, int]:
        """Order of the classes of a job: priority, restarts, the longest, then the oldest."""
        _, priority, restarts = self.level
        return (priority, restarts, -self.run_seconds, self.index)

    @property
    def ordinary(self) -> bool:
        """Whether it accepts every site that fits its requirements."""
        return not (self.narrow or self.avoid or self.unfit)


class LateStageState:
    """A late stage, with the packages whose outputs it will be expanded from."""

    __slots__ = ("asked_at", "members", "pending", "revision", "stage", "stages")

    def __init__(self, stage: int, *, members: NDArray[np.int32], stages: tuple[int, ...]) -> None:
        """`stages` are the late stages that must be expanded before it."""
        self.stage = stage
        self.members = members
        self.stages = stages
        self.pending = 0  # producers neither granted nor dropped
        self.revision = 0  # increases with every change of its producers
        self.asked_at: float | None = None  # when its expansion was last requested

    def holds(self, number: int) -> bool:
        """Whether a package is one of its producers."""
        at = int(np.searchsorted(self.members, number))
        return at < len(self.members) and int(self.members[at]) == number


class JobState:
    """The engine's state of a job."""

    __slots__ = (
        "_firsts",
        "_layouts",
        "_named",
        "aborted",
        "accepted",
        "acting",
        "activities",
        "busy",
        "cancelled",
        "classes",
        "cleared",
        "cleared_packages",
        "counts",
        "disposed",
        "drop_revision",
        "ended_by",
        "ending",
        "epoch",
        "epochs",
        "failed_producers",
        "failures_max",
        "feeds_late",
        "files",
        "finals",
        "finals_left",
        "finals_made",
        "forecast",
        "forecast_at",
        "forecast_due",
        "given_up",
        "granted",
        "held",
        "held_since",
        "held_why",
        "id",
        "kinds",
        "last_attempt",
        "late",
        "order",
        "owner",
        "plan",
        "ready_since",
        "released_at",
        "reservations",
        "retains",
        "run_times",
        "running_in",
        "satisfied",
        "since",
        "special",
        "starts_early",
        "status",
        "stopped_packages",
        "stores",
        "template_classes",
        "waits",
        "watched",
        "work",
    )

    def __init__(self, job: str, *, owner: str, plan: JobPlan, order: int, since: float) -> None:
        """Create a job; every package is blocked until `engine.transitions.readiness.lay_out` has run."""
        self.id = job
        self.owner = owner
        self.order = order
        self.since = since  # arrival in engine time, shifted by the time it was held
        self.epoch = 1
        self.accepted = False
        self.held = False
        self.held_since = since
        self.held_why = ""  # the reason given with the hold
        self.released_at = 0.0  # waiting times do not start before this
        self.ready_since: dict[int, float] = {}  # packages that returned to a queue, if waiting time is limited
        self.cancelled = False
        self.aborted = False
        self.cleared = False
        self.cleared_packages: set[int] = set()  # packages that were cleared one by one
        self.drop_revision = 0
        self.status = bytearray()
        self.satisfied = bytearray()  # by package: granted or dropped, so that consumers need not wait
        self.feeds_late = bytearray()
        self.disposed = bytearray()  # by package: its deletable outputs were removed; empty: no template has any
        self.stores = False  # some outputs are copied to stores before they are granted
        self.retains = False  # some outputs may be kept in the caches of sites
        self.files: JobFiles | None = None  # that its packages need at their sites
        self.busy = bytearray()  # counted against the limits of category and owner
        self.waits: array[int] = array("i")
        self.last_attempt: array[int] = array("i")
        self.granted: array[int] = array("i")
        self.counts = [0] * len(STATUS_NAMES)
        self.epochs: dict[int, int] = {}  # packages beyond their first epoch
        self.work: dict[int, ActivePackage] = {}
        self.classes: dict[object, QueueClass] = {}
        # By template: the class of its untried packages, and of those that were tried.
        self.template_classes: tuple[list[QueueClass | None], list[QueueClass | None]] = ([], [])
        self.reservations: dict[tuple[int, tuple[int, int, int]], Reservations] = {}  # by shape and level
        self.run_times = RunTimes()  # of its packages, by template
        self.run_times.expect(plan.earlier_run_times)
        self.forecast: JobForecast | None = None  # the last one, until the job is over
        self.forecast_at = 0.0  # when it was made, in engine time
        self.forecast_due = 0.0  # the time of the timer for the next one; 0: none is set
        self.late: dict[int, LateStageState] = {}
        self.acting: dict[int, int] = {}  # packages with side effects → attempts that may still act
        self.given_up: dict[int, int] = {}  # late stages whose waiting packages were aborted, and the package to blame
        self.failed_producers: set[int] = set()  # failed packages that a late stage depends on
        self.running_in: dict[str, int] = {}  # category → packages that are reserved or live
        self.activities = Activities()
        self.stopped_packages: set[int] = set()  # aborted since their activity was stopped
        self.failures_max = plan.failures_max
        self.special = False  # it has final packages, or packages that may end it
        self.starts_early = False  # some packages may start before their inputs are complete
        self.watched = False  # either of these: each of its events may have consequences for other packages
        self.finals: tuple[int, ...] = ()  # final packages
        self.finals_left = 0  # of these, not over
        self.finals_made = 0  # of these, done or aborted
        self.ending = False  # all but the final packages are over
        self.ended_by: dict[int, None] = {}  # packages that ended the job by their exit status
        self.plan = plan
        self._named: tuple[int, tuple[str, Address]] = (-1, ("", (0, 0, 0)))  # the package named last
        self._firsts: list[int] = []
        self._layouts: list[StageLayout] = []
        self.take_plan(plan)

    def take_plan(self, plan: JobPlan) -> None:
        """Replace the plan by one with more packages; the new ones are blocked, and nothing waits for them yet."""
        new = plan.count - len(self.status)
        self.plan = plan
        self.kinds = plan.template_of.data  # the template number of each package; a view gives plain numbers
        self.status.extend(bytes(new))
        self.satisfied.extend(bytes(new))
        self.feeds_late.extend(bytes(new))
        self.busy.extend(bytes(new))
        zeros = bytes(4 * new)
        for numbers in (self.waits, self.last_attempt, self.granted):
            numbers.frombytes(zeros)
        self.counts[PackageStatus.BLOCKED] += new
        for known in self.template_classes:
            known.extend([None] * (len(plan.templates) - len(known)))
        aborting = any(each.abort_on is not None for each in plan.templates)
        self.finals = _finals(plan)
        self.finals_left = sum(self.status[number] < PackageStatus.DROPPED for number in self.finals)
        self.special = bool(self.finals) or aborting
        self.retains = any(each.retains_outputs for each in plan.templates)
        self.starts_early = any(segment.edges and not segment.common & _AWAITED for segment in plan.graph.segments)
        self.watched = self.special or self.starts_early
        self.stores = any(each.stores_outputs for each in plan.templates)
        if any(each.disposes_outputs for each in plan.templates):
            self.disposed.extend(bytes(plan.count - len(self.disposed)))
        if plan.files is not None:
            self.files = JobFiles(plan.files, np.frombuffer(bytes(self.status), np.uint8) < PackageStatus.DROPPED)
        self._layouts = sorted((each for each in plan.layouts.values() if each.count), key=lambda each: each.first)
        self._firsts = [each.first for each in self._layouts]

    @property
    def count(self) -> int:
        """How many packages are known."""
        return len(self.status)

    @property
    def open(self) -> bool:
        """Whether new attempts may be created."""
        return self.accepted and not (self.held or self.cancelled or self.aborted)

    @property
    def unfinished(self) -> int:
        """How many packages are not final; in a finished job, only those with active attempts."""
        return sum(self.counts[: PackageStatus.DROPPED])

    @property
    def others(self) -> int:
        """How many packages are not over, without the final ones."""
        return self.unfinished - self.finals_left

    def count_final(self, before: int, after: int) -> None:
        """Count a status change of a final package."""
        self.finals_left += (after < PackageStatus.DROPPED) - (before < PackageStatus.DROPPED)
        self.finals_made += (after in _MADE) - (before in _MADE)

    def dotted(self, number: int) -> str:
        """The address of a package as in events: stage.line.n."""
        return self._layouts[bisect_right(self._firsts, number) - 1].named(number)[0]

    def named(self, number: int) -> tuple[str, Address]:
        """The address of a package, as in events and as plain numbers."""
        work = self.work.get(number)
        if work is not None:
            if work.named is None:
                work.named = self._layouts[bisect_right(self._firsts, number) - 1].named(number)
            return work.named
        known, named = self._named
        if known != number:  # often a package is named several times in a row
            named = self._layouts[bisect_right(self._firsts, number) - 1].named(number)
            self._named = (number, named)
        return named

    def number(self, address: Address) -> int | None:
        """The number of the package at an address."""
        stage, line, number = address
        layout = self.plan.layouts.get(stage)
        return layout.number_at(line=line, number=number) if layout is not None else None

    def epoch_of(self, number: int) -> int:
        """The current epoch of a package."""
        return self.epochs.get(number, 1) if self.epochs else 1

    def work_of(self, number: int) -> ActivePackage:
        """The active record of a package, created if needed."""
        work = self.work.get(number)
        if work is None:
            work = self.work[number] = ActivePackage(self, number)
        return work

    def forget_idle(self, number: int) -> None:
        """Remove the active record of a package if it has no content."""
        work = self.work.get(number)
        if work is not None and not work.attempts and not work.candidates and work.idle:
            del self.work[number]

    def note_cause(self, number: int, cause: str | None) -> None:
        """Record the cause of an abort, which other packages depend on."""
        if cause == "activity-stopped":
            self.stopped_packages.add(number)
        elif cause == "abort-on":
            self.ended_by[number] = None

    def is_final(self, number: int) -> bool:
        """Whether a package is over in its epoch."""
        return self.status[number] >= FINAL

    def is_dead(self, number: int) -> bool:
        """Whether a package will not be done in this epoch, though others wait for it."""
        return self.status[number] > PackageStatus.DONE and not self.satisfied[number]

    def awaiting(self, number: int) -> Iterable[int]:
        """The packages that wait for this one; some may start while it runs, but none is done before it."""
        found: Iterable[int] = ()
        for segment in self.plan.graph.segments:
            others = segment.successors.few(number)
            if others:
                found = (*found, *others) if found else others
        return found

    def early_consumers(self, number: int) -> list[int]:
        """The packages that may start while this one runs."""
        found: list[int] = []
        for segment in self.plan.graph.segments:
            if segment.common & _AWAITED:
                continue
            found += [other for other in segment.successors.few(number) if not _awaited(segment, other, number)]
        return found

    def early_producers(self, number: int) -> list[int]:
        """The packages beside which this one may start."""
        found: list[int] = []
        for segment in self.plan.graph.segments:
            if segment.common & _AWAITED:
                continue
            start, end = segment.predecessors.span(number)
            found += [
                segment.predecessors.numbers[at] for at in range(start, end) if not segment.kind_numbers[at] & _AWAITED
            ]
        return found

    def consumers(self, number: int) -> list[int]:
        """The packages that read this one's outputs, or wait for it."""
        found: list[int] = self.plan.graph.successors(number).tolist()
        return found

    def awaited(self, number: int) -> Iterator[int]:
        """The packages that must be done before this one is."""
        for segment in self.plan.graph.segments:
            yield from segment.predecessors.few(number)

    def producers(self, number: int) -> list[int]:
        """The packages whose outputs this one reads."""
        found: list[int] = []
        for segment in self.plan.graph.segments:
            if segment.common & _BRINGS_FILES:
                found += segment.predecessors.few(number)
                continue
            start, end = segment.predecessors.span(number)
            for at in range(start, end):
                if segment.kind_numbers[at] & _BRINGS_FILES:
                    found.append(segment.predecessors.numbers[at])
        return found

    def attempts(self) -> Iterator[tuple[int, AttemptState]]:
        """Every active attempt, with its package."""
        for number, work in self.work.items():
            for attempt in work.attempts.values():
                yield number, attempt


def template_of(job: JobState, number: int) -> Template:
    """The template of a package."""
    return job.plan.templates[job.kinds[number]]


def _finals(plan: JobPlan) -> tuple[int, ...]:
    """The final packages."""
    kinds = [number for number, template in enumerate(plan.templates) if template.final]
    return tuple(np.flatnonzero(np.isin(plan.template_of, kinds)).tolist()) if kinds else ()


def _awaited(segment: Segment, consumer: int, producer: int) -> bool:
    """Whether the edge between two packages must be waited for."""
    rows = segment.predecessors
    start, end = rows.span(consumer)
    at = start if end - start == 1 else bisect_left(rows.numbers, producer, start, end)
    return bool(segment.kind_numbers[at] & _AWAITED)
