"""The parts of the engine's state: attempts, packages that are being worked on, pilots, and what is waiting for them.

Packages that nothing happens to have no object: they are a few bytes in the arrays of their job (`jobs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from pilotage.engine.queues import ReadyQueue
from pilotage.engine.restart import Failure, Verdict
from pilotage.engine.selection.filters import Asked
from pilotage.engine.selection.pools import Pool
from pilotage.engine.selection.scores import Operation
from pilotage.model.changing import changes_often
from pilotage.model.demand import Demand
from pilotage.model.exchange import AttemptRef

if TYPE_CHECKING:
    from pilotage.engine.choices import ChoiceNote, How
    from pilotage.engine.jobs import JobState
    from pilotage.engine.places import SiteState


class Standing:
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
STANDINGS = tuple(_NAMES.split())
"""What each standing is called, by its number."""
FINAL = Standing.DONE


@changes_often
class AttemptState(msgspec.Struct, eq=False):
    """One attempt that is not over as far as anybody knows."""

    ref: AttemptRef
    number: int  # of its package
    place: tuple[int, int, int]  # likewise
    epoch: int
    site: SiteState
    demand: Demand
    shape: int
    created_at: float
    began_at: float  # when it got its lease
    activity: str = ""  # only told where the choice of sites asks
    pilot: str = ""  # the name of the agent that holds its lease, and of the stream that may speak for it
    key: str = ""  # in bound mode, under which it was submitted
    leased: bool = False
    drop_revision: int = 0
    remaining_seconds: float | None = None  # of its pilot's wall time when it was created
    counted: bool = False  # it takes room at its site, and a slot of its pilot
    queued: bool = False  # in bound mode, the batch system has it
    suspect: bool = False
    told: bool = False  # its agent said how it ended
    lost: bool = False
    lost_reason: str = ""
    submitting: bool = False  # it is counted as a submission under way
    choice: ChoiceNote | None = None  # how the sites stood when it was given to its own
    operation: Operation | None = None  # a long phase of it is counted as this
    operations_scored: int = 0  # of its long phases, by now

    @property
    def trusted(self) -> bool:
        """Whether it is believed to get somewhere."""
        return not self.suspect and not self.lost


_NO_ATTEMPTS: Mapping[int, AttemptState] = MappingProxyType({})
_NO_FAILURES: Mapping[int, Failure] = MappingProxyType({})


@changes_often
class PackageWork(msgspec.Struct, eq=False):
    """A package that something has happened to and that is not over, or that is over and may still surprise."""

    job: JobState
    number: int
    bound: SiteState | None = None
    bound_as: QueueClass | None = None  # the class that it was bound in
    bound_at: float = 0.0
    choice: ChoiceNote | None = None  # how the sites stood when it was last bound to one
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
        self.notes: dict[How, ChoiceNote] = {}  # how the sites stood when one of them was bound, not long ago
        self.pool: Pool | None = None  # the sites for what is asked, once somebody asked
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
