"""One job in the engine: a few bytes for each package in arrays, and an object for each that is being worked on."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.engine.retry.policy import Failure, Verdict
from pilotage.engine.selection.candidates import CandidateSet, How, SelectionSnapshot
from pilotage.engine.selection.filters import Asked
from pilotage.engine.state.fifo import ReadyQueue
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.model.jobs.graph import EdgeKind, Segment
from pilotage.model.jobs.layout import StageLayout
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.model.resources import Demand
from pilotage.model.texts import changes_often

Place = tuple[int, int, int]

# As plain numbers: flags of an enumeration are slow to join.
_AWAITED = int(EdgeKind.AWAITED)
_BRINGS_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class PackageStatus:
    """Where the engine has a package; finer than the states of the book, and final from DONE on. Plain numbers, for speed."""

    BLOCKED = 0  # waits for its inputs
    READY = 1  # in the queue of its class
    DELAYED = 2  # its next attempt waits for its time
    RESERVED = 3  # bound to a site
    LIVE = 4  # an attempt of it is believed to be under way
    HELD = 5
    DROPPED = 6
    DONE = 7
    ABORTED = 8
    CANCELLED = 9
    UPSTREAM = 10  # given up because a producer was


_NAMES = "blocked ready delayed reserved live held dropped done aborted cancelled upstream"
STATUS_NAMES = tuple(_NAMES.split())
"""What each status is called, by its number."""
FINAL = PackageStatus.DONE
_MADE = (PackageStatus.DONE, PackageStatus.ABORTED)


_NO_ATTEMPTS: Mapping[int, AttemptState] = MappingProxyType({})
_NO_FAILURES: Mapping[int, Failure] = MappingProxyType({})


@changes_often
class ActivePackage(msgspec.Struct, eq=False):
    """A package that something has happened to and that is not over, or that is over and may still surprise."""

    job: JobState
    number: int
    bound: SiteState | None = None
    bound_as: QueueClass | None = None  # the class that it was bound in
    bound_at: float = 0.0
    choice: SelectionSnapshot | None = None  # how the sites stood when it was last bound to one
    named: tuple[str, tuple[int, int, int]] | None = None  # its place, as text and numbers, once asked for
    # What happened in the current epoch. Most packages that wait for a slot have nothing of it, and share that.
    attempts: Mapping[int, AttemptState] = _NO_ATTEMPTS  # not over
    failures: Mapping[int, Failure] = _NO_FAILURES  # by attempt
    candidates: tuple[int, ...] = ()  # attempts that succeeded and wait for a grant
    verdict: Verdict | None = None  # what follows from the failures, while there are any
    queue: QueueClass | None = None  # while it is ready or reserved, and not in the class of its template
    delayed_until: float = 0.0
    held: bool = False
    refused: str = ""  # why what it made is not granted now; then it is held, too
    dropped: int = 0  # the operation that dropped it
    replicas: int = 0  # further attempts that were asked for in this epoch
    replicated: int = 0  # those of them that were made
    races: bool = False  # some of them because it was queued for long: the first to start ends the others

    def add(self, number: int, attempt: AttemptState) -> None:
        """One more attempt is under way."""
        self.attempts = {**self.attempts, number: attempt} if self.attempts else {number: attempt}

    def remove(self, number: int) -> None:
        """An attempt is over."""
        attempts = self.attempts
        if len(attempts) == 1 and number in attempts:
            self.attempts = _NO_ATTEMPTS
        else:
            self.attempts = {each: attempt for each, attempt in attempts.items() if each != number}

    def fail(self, number: int, failure: Failure) -> None:
        """An attempt has failed."""
        self.failures = {**self.failures, number: failure}

    def forget(self) -> None:
        """Nothing of this epoch counts any more."""
        self.attempts, self.failures, self.candidates = _NO_ATTEMPTS, _NO_FAILURES, ()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.bound or self.delayed_until or self.durable)

    @property
    def durable(self) -> bool:
        """Whether there is something that follows from events."""
        return bool(self.attempts or self.failures or self.candidates or self.held or self.dropped or self.replicas)


class Reservations:
    """How many reservations there are of one shape and level; the classes that are alike in that share it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0


class QueueClass:
    """Ready packages of a job that are alike to whoever looks for work: what they take, where they may run, their rank."""

    __slots__ = (
        "activity",
        "asked",
        "avoid",
        "category",
        "demand",
        "index",
        "job",
        "kin",
        "kind",
        "level",
        "more_wall_than",
        "narrow",
        "notes",
        "pool",
        "prefer",
        "priority",
        "queue",
        "ready",
        "reservations",
        "restarts",
        "run_seconds",
        "shape",
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
        asked: Asked,
        activity: str,
        category: str,
        avoid: tuple[str, ...],
        prefer: str,
        restarts: bool,
    ) -> None:
        """Packages that differ in any of these are in different classes."""
        self.job = job
        self.index = index
        self.demand = demand
        self.shape = shape
        self.priority = priority
        self.restarts = restarts  # of packages that were tried before
        # A lower level displaces reservations of a higher one.
        self.level = (-job.plan.priority, -priority, 0 if restarts else 1)
        self.run_seconds = run_seconds
        self.kind = kind  # the template of the first of them
        self.asked = asked  # of a site
        plain = Asked(demand=demand, owner=asked.owner, run_seconds=asked.run_seconds)
        # Not every site will do.
        self.narrow = asked != plain or demand.nodes > 1 or bool(demand.node_restriction)
        self.activity = activity  # of one of them
        self.notes: dict[How, SelectionSnapshot] = {}  # how the sites stood when one of them was bound, not long ago
        self.pool: CandidateSet | None = None  # the sites for what is asked, once somebody asked
        self.category = category
        self.avoid = avoid
        self.more_wall_than = asked.more_wall_than
        self.prefer = prefer  # the site to be tried first
        self.queue = ReadyQueue()
        self.ready = 0  # how many in the queue still count
        self.reservations = Reservations()
        self.kin = Reservations()  # those of its job alone
        self.watched = False  # a timer looks at how long they wait
        self.unfit: set[int] = set()  # sites, by index, where it was reserved in vain

    @property
    def rank_in_job(self) -> tuple[int, int, float, int]:
        """Who goes first among the classes of a job: by priority, restarts, the longest, and then whoever came first."""
        _, priority, restarts = self.level
        return (priority, restarts, -self.run_seconds, self.index)

    @property
    def ordinary(self) -> bool:
        """Whether every site that could do what is asked will do."""
        return not (self.narrow or self.avoid or self.unfit)


class LateState:
    """A late stage: the packages whose outputs it will be laid out over."""

    __slots__ = ("asked_at", "members", "pending", "revision", "stage", "stages")

    def __init__(self, stage: int, *, members: NDArray[np.int32], stages: tuple[int, ...]) -> None:
        """`stages` are the late stages that must be laid out before it."""
        self.stage = stage
        self.members = members
        self.stages = stages
        self.pending = 0  # producers that are neither granted nor dropped
        self.revision = 0  # counts what became of its producers
        self.asked_at: float | None = None  # when its expansion was last asked for

    def holds(self, number: int) -> bool:
        """Whether a package is one of its producers."""
        at = int(np.searchsorted(self.members, number))
        return at < len(self.members) and int(self.members[at]) == number


class JobState:
    """What the engine knows of a job."""

    __slots__ = (
        "_firsts",
        "_layouts",
        "_named",
        "aborted",
        "accepted",
        "acting",
        "busy",
        "cancelled",
        "classes",
        "cleared",
        "cleared_packages",
        "counts",
        "dead_feeders",
        "drop_revision",
        "enders",
        "ending",
        "epoch",
        "epochs",
        "failed_alike",
        "failed_for_good",
        "failures_max",
        "feeds_late",
        "finals",
        "finals_left",
        "finals_made",
        "floods",
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
        "running_in",
        "satisfied",
        "since",
        "special",
        "status",
        "template_classes",
        "took",
        "waits",
        "work",
    )

    def __init__(self, job: str, *, owner: str, plan: JobPlan, order: int, since: float) -> None:
        """Lay a job out; every package is blocked until `engine.readiness.lay_out` has looked."""
        self.id = job
        self.owner = owner
        self.order = order
        self.since = since  # when it came, in the time of the engine; later by as long as it was held
        self.epoch = 1
        self.accepted = False
        self.held = False
        self.held_since = since
        self.held_why = ""  # as whoever held it has said
        self.released_at = 0.0  # nobody has waited since before then
        self.ready_since: dict[int, float] = {}  # packages that came back to a queue, where waiting is limited
        self.cancelled = False
        self.aborted = False
        self.cleared = False
        self.cleared_packages: set[int] = set()  # those that were cleared by themselves
        self.drop_revision = 0
        self.status = bytearray()
        self.satisfied = bytearray()  # by package: granted or dropped, so that nobody waits for it
        self.feeds_late = bytearray()
        self.busy = bytearray()  # counted against the limits of its category and its owner
        self.waits: array[int] = array("i")
        self.last_attempt: array[int] = array("i")
        self.granted: array[int] = array("i")
        self.counts = [0] * len(STATUS_NAMES)
        self.epochs: dict[int, int] = {}  # packages beyond their first epoch
        self.work: dict[int, ActivePackage] = {}
        self.classes: dict[object, QueueClass] = {}
        # By template: the class of its packages that were never tried, and of those that were.
        self.template_classes: tuple[list[QueueClass | None], list[QueueClass | None]] = ([], [])
        self.reservations: dict[tuple[int, tuple[int, int, int]], Reservations] = {}  # by shape and level
        self.took: dict[int, list[float]] = {}  # by template: how many were done, and how many seconds that took
        self.late: dict[int, LateState] = {}
        self.acting: dict[int, int] = {}  # packages with side effects → attempts that may still act
        self.given_up: dict[int, int] = {}  # late stages whose waiting packages were given up, and whom for
        self.dead_feeders: set[int] = set()  # dead packages that a late stage is made of
        self.running_in: dict[str, int] = {}  # category → packages that are reserved or live
        self.failed_alike: dict[str, int] = {}  # activity → packages given up as permanent failures
        self.failures_max = plan.failures_max
        # By activity and signature of the last failure: packages given up since this engine knows the job.
        self.floods: dict[tuple[str, str], int] = {}
        self.failed_for_good: set[int] = set()  # those packages
        self.special = False  # it has packages that run last, or that may end it
        self.finals: tuple[int, ...] = ()  # packages that run last
        self.finals_left = 0  # those of them that are not over
        self.finals_made = 0  # those of them that are done or given up
        self.ending = False  # everything but them is over
        self.enders: dict[int, None] = {}  # packages that ended the job by how they ended, and stand so
        self.plan = plan
        self._named: tuple[int, tuple[str, Place]] = (-1, ("", (0, 0, 0)))  # the package that was named last
        self._firsts: list[int] = []
        self._layouts: list[StageLayout] = []
        self.take_plan(plan)

    def take_plan(self, plan: JobPlan) -> None:
        """Take a plan with more packages than the one before; the new ones are blocked, nothing waits for them yet."""
        new = plan.count - len(self.status)
        self.plan = plan
        self.kinds = plan.template_of.data  # by package, the number of its template; a view gives plain numbers
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
        """How many packages are not final; of a job that is over as a whole, those with attempts under way only."""
        return sum(self.counts[: PackageStatus.DROPPED])

    @property
    def others(self) -> int:
        """How many packages are not over, without those that run last."""
        return self.unfinished - self.finals_left

    def count_final(self, before: int, after: int) -> None:
        """A package that runs last changes its status."""
        self.finals_left += (after < PackageStatus.DROPPED) - (before < PackageStatus.DROPPED)
        self.finals_made += (after in _MADE) - (before in _MADE)

    def dotted(self, number: int) -> str:
        """The place of a package as events have it."""
        return self._layouts[bisect_right(self._firsts, number) - 1].named(number)[0]

    def named(self, number: int) -> tuple[str, Place]:
        """The place of a package as events have it, and as plain numbers."""
        work = self.work.get(number)
        if work is not None:
            if work.named is None:
                work.named = self._layouts[bisect_right(self._firsts, number) - 1].named(number)
            return work.named
        known, named = self._named
        if known != number:  # often one is named several times in a row
            named = self._layouts[bisect_right(self._firsts, number) - 1].named(number)
            self._named = (number, named)
        return named

    def number(self, place: Place) -> int | None:
        """The number of the package at a place."""
        stage, line, number = place
        layout = self.plan.layouts.get(stage)
        return layout.number_at(line=line, number=number) if layout is not None else None

    def epoch_of(self, number: int) -> int:
        """The epoch a package is in."""
        return self.epochs.get(number, 1) if self.epochs else 1

    def work_of(self, number: int) -> ActivePackage:
        """The work on a package, begun if need be."""
        work = self.work.get(number)
        if work is None:
            work = self.work[number] = ActivePackage(self, number)
        return work

    def forget_idle(self, number: int) -> None:
        """Let go of the work on a package if there is nothing to remember."""
        work = self.work.get(number)
        if work is not None and not work.attempts and not work.candidates and work.idle:
            del self.work[number]

    def note_cause(self, number: int, cause: str | None) -> None:
        """A package was given up for a cause, which some others depend on."""
        if cause == "permanent-failure":
            self.count_for_good(number, 1)
        elif cause == "abort-on":
            self.enders[number] = None

    def count_for_good(self, number: int, sign: int) -> None:
        """A package was given up as a permanent failure (1), or begins anew (-1)."""
        if sign > 0:
            self.failed_for_good.add(number)
        else:
            self.failed_for_good.discard(number)
        activity = self.plan.templates[self.kinds[number]].activity
        self.failed_alike[activity] = self.failed_alike.get(activity, 0) + sign
        if not self.failed_alike[activity]:
            del self.failed_alike[activity]

    def is_final(self, number: int) -> bool:
        """Whether a package is over in its epoch."""
        return self.status[number] >= FINAL

    def is_dead(self, number: int) -> bool:
        """Whether a package will make nothing in this epoch, and is waited for all the same."""
        return self.status[number] > PackageStatus.DONE and not self.satisfied[number]

    def awaiting(self, number: int) -> Iterable[int]:
        """The packages that must not start before one is there."""
        found: Iterable[int] = ()
        for segment in self.plan.graph.segments:
            others = segment.successors.few(number)
            if not others:
                continue
            if not segment.common & _AWAITED:
                others = [other for other in others if _awaited(segment, other, number)]
            found = (*found, *others) if found else others
        return found

    def consumers(self, number: int) -> list[int]:
        """The packages that take what one makes, or wait for it."""
        found: list[int] = self.plan.graph.successors(number).tolist()
        return found

    def awaited(self, number: int) -> Iterator[int]:
        """The packages that one must not start before."""
        for segment in self.plan.graph.segments:
            start, end = segment.predecessors.span(number)
            for at in range(start, end):
                if segment.kind_numbers[at] & _AWAITED:
                    yield segment.predecessors.numbers[at]

    def producers(self, number: int) -> list[int]:
        """The packages whose files one takes."""
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
        """Every attempt that is not over, with its package."""
        for number, work in self.work.items():
            for attempt in work.attempts.values():
                yield number, attempt


def template_of(job: JobState, number: int) -> Template:
    """The template of a package."""
    return job.plan.templates[job.kinds[number]]


def _finals(plan: JobPlan) -> tuple[int, ...]:
    """The packages that run last."""
    kinds = [number for number, template in enumerate(plan.templates) if template.final]
    return tuple(np.flatnonzero(np.isin(plan.template_of, kinds)).tolist()) if kinds else ()


def _awaited(segment: Segment, consumer: int, producer: int) -> bool:
    """Whether the edge between two packages is one that must be waited for."""
    rows = segment.predecessors
    start, end = rows.span(consumer)
    at = start if end - start == 1 else bisect_left(rows.numbers, producer, start, end)
    return bool(segment.kind_numbers[at] & _AWAITED)
