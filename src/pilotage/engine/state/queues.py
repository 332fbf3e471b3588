"""Ready packages by queue class, reservations by site, and the shapes of demands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from pilotage.engine.state.jobs import QueueClass, Reservations
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.engine.state.tables import JobTable, PilotTable, SiteTable
from pilotage.model.resources import Demand

SHAPES_MIN = 256
"""Number of shapes kept without cleaning up; later twice as many as are in use."""

Level = TypeVar("Level", int, tuple[int, int, int])


class SiteQueues:
    """The queue classes at one site."""

    __slots__ = ("reserved", "unfit", "waiting")

    def __init__(self) -> None:
        """Start empty."""
        self.reserved: dict[QueueClass, deque[int]] = {}  # → the packages
        self.waiting: dict[QueueClass, None] = {}  # waiting for room here
        self.unfit: dict[QueueClass, None] = {}  # their reservations failed here


class ReadyQueues:
    """Queue classes with packages to place, and reservations that no pilot has pulled yet."""

    __slots__ = ("at", "just_submitted", "may_bind", "ready", "reserved_counts", "sites_to_serve", "waiting")

    def __init__(self) -> None:
        """Start empty."""
        self.ready: dict[QueueClass, None] = {}
        self.waiting: dict[QueueClass, None] = {}  # no site has room for them
        self.at: dict[SiteState, SiteQueues] = {}
        self.reserved_counts: dict[tuple[int, int], Reservations] = {}  # by shape and priority of the job
        self.may_bind = False  # something changed since the last binding
        self.sites_to_serve: dict[SiteState, None] = {}  # a new reservation may meet a free slot
        self.just_submitted: list[AttemptState] = []  # bound attempts, to be watched for replicas

    def retry(self, queue: QueueClass) -> None:
        """Look again for a site for a class that waits."""
        del self.waiting[queue]
        if queue.job.open:
            self.ready[queue] = None


class ShapeTable:
    """Numbers demands: packages with equal demands have one shape. Unused shapes are removed now and then.

    Every site counts the room for each shape, and jobs arrive for months, each with its own demands.
    """

    __slots__ = (
        "_jobs",
        "_limit",
        "_next",
        "_pilots",
        "_queues",
        "_sites",
        "by_demand",
        "by_number",
        "last_found",
        "on_new",
    )

    def __init__(self, *, jobs: JobTable, sites: SiteTable, pilots: PilotTable, queues: ReadyQueues) -> None:
        """Start without a shape; the tables tell which are in use."""
        self.by_demand: dict[Demand, int] = {}
        self.by_number: dict[int, Demand] = {}
        self.on_new: Callable[[int, Demand], None] | None = None  # called for every new shape
        # Usually the demand is that of the last call, and a look-up hashes all its fields.
        self.last_found: tuple[Demand | None, int] = (None, 0)
        self._next, self._limit = 0, SHAPES_MIN
        self._jobs, self._sites, self._pilots, self._queues = jobs, sites, pilots, queues

    def number_of(self, demand: Demand) -> int:
        """The shape of a demand."""
        latest, shape = self.last_found
        if demand is latest:
            return shape
        found = self.by_demand.get(demand)
        if found is None:
            found = self._add(demand)
        self.last_found = demand, found
        return found

    def _add(self, demand: Demand) -> int:
        if len(self.by_number) >= self._limit:
            self._forget_unused()
            self._limit = max(SHAPES_MIN, 2 * len(self.by_number))
        shape = self.by_demand[demand] = self._next
        self._next += 1
        self.by_number[shape] = demand
        if self.on_new is not None:
            self.on_new(shape, demand)
        return shape

    def _forget_unused(self) -> None:
        """Remove the shapes that no class and no attempt uses."""
        jobs = self._jobs.by_id.values()
        used = {queue.shape for job in jobs for queue in job.classes.values()}
        used.update(attempt.shape for job in jobs for _, attempt in job.attempts())
        gone = self.by_number.keys() - used
        for shape in gone:
            del self.by_demand[self.by_number.pop(shape)]
        for site in self._sites.by_name.values():
            for counted in (site.slots, site.used, site.profile.rooms):
                for shape in gone:
                    counted.pop(shape, None)
        for pilot in self._pilots.by_name.values():
            pilot.barred -= gone
        kept = {key: each for key, each in self._queues.reserved_counts.items() if key[0] not in gone}
        self._queues.reserved_counts = kept


def any_reserved(counts: Mapping[tuple[int, int], Reservations]) -> bool:
    """Whether anything is reserved."""
    for reserved in counts.values():  # noqa: SIM110 # a generator costs more than there are levels
        if reserved.count:
            return True
    return False


def any_below(counts: Mapping[tuple[int, Level], Reservations], shape: int, level: Level) -> bool:
    """Whether anything of a shape is reserved below a level."""
    for (alike, below), reserved in counts.items():  # noqa: SIM110 # a generator costs more than there are levels
        if reserved.count and alike == shape and below > level:
            return True
    return False
