"""The attempts that an agent holds and the room it has for them: as many run as fit, the rest wait in order."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.resources import Capacity, Demand, Free, lacking
from pilotage.simulator.agents.attempt import Run
from pilotage.simulator.world.surroundings import AgentContext, Host

VANISHED_SECONDS = (10.0, 900.0)  # how long an input is out of reach


class SlotTable:
    """What runs in one agent; `on_time` is called when the time of an attempt has come that was not moved since it started."""

    __slots__ = (
        "_agent",
        "_host",
        "_on_time",
        "_site",
        "_speed",
        "_world",
        "capacity",
        "fitting",
        "free",
        "held",
        "waiting",
    )

    def __init__(
        self,
        world: AgentContext,
        host: Host,
        *,
        agent: str,
        site: str,
        capacity: Capacity,
        on_time: Callable[[Run], None],
    ) -> None:
        """Begin with an empty node."""
        self._world = world
        self._host = host
        self._agent = agent
        self._site = site
        self._speed = world.nature.speed(agent, site)
        self._on_time = on_time
        self.capacity = capacity
        self.fitting: Demand | None = None  # what was last found to fit into the whole node
        self.free = Free(capacity)
        self.held: dict[AttemptRef, Run] = {}  # in the order in which they came
        self.waiting: list[Run] = []

    def start_waiting(self) -> None:
        """Start what has room now, in order: a large one is not overtaken, or it would wait for ever."""
        waiting, free, world = self.waiting, self.free, self._world
        now, box, witness = world.schedule.now, world.box, world.witness
        while waiting:
            run = waiting[0]
            assignment = run.assignment
            demand = assignment.demand
            if not free.fits(demand):
                break
            free.take(demand)
            del waiting[0]
            fate = world.nature.fate(assignment.ref, self._site)
            limit_bytes = demand.memory_bytes or self.capacity.memory_bytes
            run.start(fate, now=now, speed=self._speed, memory_limit_bytes=limit_bytes)
            if witness is not None:
                witness.on_started(self._agent, assignment.ref, now)
            hole = self._host.black_hole()
            if hole:
                run.fall_into_hole(hole)
            elif assignment.inputs and not self._read_inputs(assignment):
                run.miss_input()
            elif not box.quiet and box.strikes("disk_full") and not run.find_no_space():
                box.missed("disk_full")
            world.schedule.post(run.ends_at, self._on_time, run)

    def never_fits(self, demand: Demand) -> bool:
        """Whether an attempt asks for more than the whole node has."""
        if lacking(demand, self.capacity):
            return True
        self.fitting = demand
        return False

    def remove(self, run: Run) -> None:
        """Let go of an attempt, wherever it stands, and give back what it took."""
        run.stopped = True
        del self.held[run.assignment.ref]
        if self._world.witness is not None:
            self._world.witness.on_ended(self._agent, run.assignment.ref, self._world.schedule.now)
        if run.started_at < 0.0:  # it never ran
            self.waiting.remove(run)
            return
        self.free.give_back(run.assignment.demand)

    def remove_all(self) -> None:
        """Let go of everything."""
        for run in list(self.held.values()):
            self.remove(run)

    def postpone(self, seconds: float) -> None:
        """Let everything that runs stand still for a time."""
        now = self._world.schedule.now
        for run in self.held.values():
            if run.running:
                run.postpone(now=now, seconds=seconds)

    def _read_inputs(self, assignment: Assignment) -> bool:
        world, ref = self._world, assignment.ref
        box, store = world.box, world.store
        there = True
        for source in assignment.inputs:
            read = AttemptRef(ref.job, source.package, source.attempt)
            if not box.quiet and box.strikes("input_vanishes"):
                seconds = box.between("input_vanishes", low=VANISHED_SECONDS[0], high=VANISHED_SECONDS[1])
                store.vanish(read, world.schedule.now + seconds)
            there = store.read(read, ref) and there
        return there
