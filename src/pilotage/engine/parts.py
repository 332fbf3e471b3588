"""The parts of the engine's state: attempts, packages that are being worked on, pilots, and what is waiting for them.

Packages that nothing happens to have no object: they are a few bytes in the arrays of their job (`jobs.py`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pilotage.engine.queues import ReadyQueue
from pilotage.engine.restart import Failure, Verdict
from pilotage.model.demand import Capacity, Demand, slots_for
from pilotage.model.exchange import AttemptRef
from pilotage.model.site import Site

if TYPE_CHECKING:
    from pilotage.engine.jobs import JobState


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


class AttemptState:
    """One attempt that is not over as far as anybody knows."""

    __slots__ = (
        "counted",
        "created_at",
        "demand",
        "drop_revision",
        "epoch",
        "key",
        "leased",
        "lost",
        "lost_reason",
        "number",
        "pilot",
        "queued",
        "ref",
        "remaining_seconds",
        "shape",
        "site",
        "suspect",
    )

    def __init__(
        self, ref: AttemptRef, *, number: int, epoch: int, site: SiteState, demand: Demand, shape: int
    ) -> None:
        """An attempt at a site; `number` is its package's."""
        self.ref = ref
        self.number = number
        self.epoch = epoch
        self.site = site
        self.demand = demand
        self.shape = shape
        self.pilot = ""  # the name of the agent that holds its lease, and of the stream that may speak for it
        self.key = ""  # in bound mode, under which it was submitted
        self.counted = False  # it takes room at its site, and a slot of its pilot
        self.leased = False
        self.queued = False  # in bound mode, the batch system has it
        self.suspect = False
        self.lost = False
        self.lost_reason = ""
        self.drop_revision = 0
        self.remaining_seconds: float | None = None  # of its pilot's wall time when it was created
        self.created_at = 0.0

    @property
    def trusted(self) -> bool:
        """Whether it is believed to get somewhere."""
        return not self.suspect and not self.lost


class PackageWork:
    """A package that something has happened to and that is not over, or that is over and may still surprise."""

    __slots__ = (
        "attempts",
        "bound",
        "bound_at",
        "candidates",
        "delayed_until",
        "dropped",
        "failures",
        "held",
        "named",
        "number",
        "queue",
        "replicas",
        "replicated",
        "verdict",
    )

    def __init__(self, number: int) -> None:
        """Begin with nothing."""
        self.number = number
        self.named: tuple[str, tuple[int, int, int]] | None = None  # its place, as text and numbers, once asked for
        self.attempts: dict[int, AttemptState] = {}  # of the current epoch, not over
        self.failures: dict[int, Failure] = {}  # of the current epoch, by attempt
        self.candidates: list[int] = []  # attempts of the current epoch that succeeded and wait for a grant
        self.verdict: Verdict | None = None  # what follows from the failures, while there are any
        self.queue: QueueClass | None = None  # while it is ready or reserved, and not in the class of its template
        self.bound: SiteState | None = None
        self.bound_at = 0.0
        self.delayed_until = 0.0
        self.held = False
        self.dropped = 0  # the operation that dropped it
        self.replicas = 0  # further attempts that were asked for in this epoch
        self.replicated = 0  # those of them that were made

    @property
    def idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.durable or self.bound or self.delayed_until)

    @property
    def durable(self) -> bool:
        """Whether there is something that follows from events."""
        return bool(self.attempts or self.failures or self.candidates or self.held or self.dropped or self.replicas)


class Reservations:
    """How many reservations there are of one shape and level; the classes with that shape and level share it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0


class QueueClass:
    """Ready packages of a job that are alike to whoever looks for work: what they take, where they may run, their rank."""

    __slots__ = (
        "avoid",
        "category",
        "demand",
        "executor",
        "impossible",
        "index",
        "job",
        "level",
        "more_wall_than",
        "prefer",
        "priority",
        "queue",
        "ready",
        "reservations",
        "restarts",
        "run_seconds",
        "shape",
        "sites_looked_at",
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
        executor: str,
        category: str,
        avoid: tuple[str, ...],
        more_wall_than: float,
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
        self.executor = executor
        self.category = category
        self.avoid = avoid
        self.more_wall_than = more_wall_than
        self.prefer = prefer  # the site to be tried first
        self.queue = ReadyQueue()
        self.ready = 0  # how many in the queue still count
        self.reservations = Reservations()
        self.watched = False  # a timer looks at how long they wait
        self.sites_looked_at = 0
        self.impossible = False  # of so many sites none could ever run it
        self.unfit: set[int] = set()  # sites, by index, where it was reserved in vain

    @property
    def rank(self) -> tuple[int, int, int, float, int, int]:
        """Who goes first: the job's priority, the package's, restarts, the longest, and then whoever came first."""
        return (*self.level, -self.run_seconds, self.job.order, self.index)

    @property
    def ordinary(self) -> bool:
        """Whether every site with the capacity will do."""
        return not (self.executor or self.avoid or self.more_wall_than or self.unfit or self.demand.nodes > 1)


class PilotState:
    """An agent at a site, as long as it may speak."""

    __slots__ = (
        "assigned",
        "backlog",
        "capacity",
        "ends_at",
        "free",
        "gone",
        "heard_at",
        "leaving",
        "name",
        "owed",
        "request",
        "sequence",
        "shapes",
        "site",
        "suspect",
        "waiting",
    )

    def __init__(self, name: str, site: SiteState, *, request: str, heard_at: float) -> None:
        """A pilot that spoke."""
        self.name = name
        self.site = site
        self.request = request
        self.heard_at = heard_at
        self.capacity = Capacity(cores_hundredths=0)
        self.free = [0, 0, 0, 0]  # cores in hundredths, memory, gpus, scratch: below nothing where a backlog waits
        self.backlog = 0
        self.shapes: dict[Demand, int] = {}  # what it was given, by what it takes
        self.ends_at: float | None = None
        self.leaving = ""
        self.sequence = 0
        self.suspect = False
        self.gone = ""  # why its batch system does not know it any more, which a lease overrules
        self.waiting = False  # its exchange is open and it could take more
        self.assigned: dict[AttemptRef, AttemptState] = {}
        self.owed: dict[AttemptRef, int] = {}  # what it was given and has not told the end of → epoch; 0: not known

    def take(self, attempt: AttemptState) -> None:
        """Give it an attempt."""
        self.assigned[attempt.ref] = attempt
        self.owed[attempt.ref] = attempt.epoch
        self._use(attempt.demand, -1)

    def give_back(self, ref: AttemptRef) -> AttemptState | None:
        """Take an attempt off it."""
        attempt = self.assigned.pop(ref, None)
        if attempt is not None:
            self._use(attempt.demand, 1)
        return attempt

    def _use(self, demand: Demand, sign: int) -> None:
        count = self.shapes.get(demand, 0) - sign
        if count:
            self.shapes[demand] = count
        else:
            del self.shapes[demand]
        free = self.free
        free[0] += sign * demand.cores_hundredths
        if demand.memory_bytes or demand.gpus or demand.scratch_bytes:
            free[1] += sign * demand.memory_bytes
            free[2] += sign * demand.gpus
            free[3] += sign * demand.scratch_bytes

    def offers(self, capacity: Capacity) -> None:
        """Note what it has; what is left follows from what it was given."""
        self.capacity = capacity
        self.free = [capacity.cores_hundredths, capacity.memory_bytes, capacity.gpus, capacity.scratch_bytes]
        self.shapes.clear()
        for attempt in self.assigned.values():
            self._use(attempt.demand, -1)

    def in_backlog(self) -> int:
        """How many of the attempts it was given cannot run beside those before them."""
        if len(self.shapes) == 1:
            return max(0, len(self.assigned) - slots_for(next(iter(self.shapes)), self.capacity))
        cores, memory, gpus, scratch = (
            self.capacity.cores_hundredths,
            self.capacity.memory_bytes,
            self.capacity.gpus,
            self.capacity.scratch_bytes,
        )
        waiting = 0
        for attempt in self.assigned.values():
            demand = attempt.demand
            if (
                demand.cores_hundredths <= cores
                and demand.memory_bytes <= memory
                and demand.gpus <= gpus
                and demand.scratch_bytes <= scratch
            ):
                cores -= demand.cores_hundredths
                memory -= demand.memory_bytes
                gpus -= demand.gpus
                scratch -= demand.scratch_bytes
            else:
                waiting += 1
        return waiting

    def fits(self, demand: Demand) -> bool:
        """Whether an attempt fits beside what it runs."""
        free = self.free
        return (
            demand.cores_hundredths <= free[0]
            and demand.memory_bytes <= free[1]
            and demand.gpus <= free[2]
            and demand.scratch_bytes <= free[3]
        )


class SiteState:
    """A site: its pilots, what is reserved for it, and how much of it is used, by shape."""

    __slots__ = (
        "answers",
        "backlog",
        "by_request",
        "dead_starts",
        "expected",
        "index",
        "name",
        "pilots",
        "quiet_until",
        "requests",
        "reserved",
        "rooms",
        "site",
        "slots",
        "stuck",
        "unfit",
        "used",
        "waiting",
    )

    def __init__(self, site: Site, index: int) -> None:
        """A site that answers, as far as anybody knows."""
        self.site = site
        self.name = site.name
        self.index = index
        self.answers = True
        self.pilots: dict[str, PilotState] = {}
        self.by_request: dict[str, dict[str, PilotState]] = {}  # the same, by what they were asked for by
        self.requests: dict[str, PilotRequest] = {}
        self.waiting: dict[str, PilotState] = {}
        self.reserved: dict[QueueClass, deque[int]] = {}
        self.stuck: dict[QueueClass, None] = {}  # classes that wait for room here
        self.unfit: dict[QueueClass, None] = {}  # classes that were reserved here in vain
        self.backlog = 0  # how many attempts the live pilots let wait beyond what they run
        self.slots: dict[int, int] = {}  # shape → how many of it the live pilots hold at once
        self.used: dict[int, int] = {}  # shape → reservations and attempts under way
        self.rooms: dict[int, int] = {}  # shape → how many there may be, where it was asked since the slots changed
        self.expected = 0  # pilots that were asked for and have not spoken
        self.dead_starts = 0
        self.quiet_until = 0.0

    def add_pilot(self, pilot: PilotState) -> None:
        """A pilot speaks here."""
        self.pilots[pilot.name] = pilot
        self.by_request.setdefault(pilot.request, {})[pilot.name] = pilot

    def remove_pilot(self, pilot: PilotState) -> None:
        """It is gone."""
        self.waiting.pop(pilot.name, None)
        if self.pilots.pop(pilot.name, None) is not None:
            alike = self.by_request[pilot.request]
            del alike[pilot.name]
            if not alike:
                del self.by_request[pilot.request]

    @property
    def known(self) -> bool:
        """Whether anything there can be reached."""
        return self.answers or bool(self.pilots)


class PilotRequest:
    """A pilot that was asked for, until its batch system is done with it."""

    __slots__ = ("key", "native_id", "site", "spoke")

    def __init__(self, key: str, site: SiteState) -> None:
        """Asked for under a key."""
        self.key = key
        self.site = site
        self.native_id = ""
        self.spoke = False
