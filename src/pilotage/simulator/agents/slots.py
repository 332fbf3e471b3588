"""The attempts of an agent and its room: as many run as fit, the rest wait in order."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.resources import Capacity, Demand, Free, lacking
from pilotage.simulator.agents.attempt import Run
from pilotage.simulator.world.agent_context import AgentContext, Host

VANISHED_SECONDS = (10.0, 900.0)  # how long an input is unreachable


class SlotTable:
    """The attempts of one agent; `on_time` is called when an attempt reaches its next time, unless it was moved since."""

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
        """Start with an empty node."""
        self._world = world
        self._host = host
        self._agent = agent
        self._site = site
        self._speed = world.behaviour.speed(agent, site)
        self._on_time = on_time
        self.capacity = capacity
        self.fitting: Demand | None = None  # the last demand found to fit into the whole node
        self.free = Free(capacity)
        self.held: dict[AttemptRef, Run] = {}  # in order of arrival
        self.waiting: list[Run] = []

    def start_waiting(self) -> None:
        """Start what has room now, in order: a large attempt is not overtaken, or it would wait for ever."""
        waiting, free, world = self.waiting, self.free, self._world
        now, injector, witness = world.schedule.now, world.injector, world.witness
        while waiting:
            run = waiting[0]
            assignment = run.assignment
            demand = assignment.demand
            if not free.fits(demand):
                break
            free.take(demand)
            del waiting[0]
            outcome = world.behaviour.outcome(assignment.ref, self._site)
            limit_bytes = demand.memory_bytes or self.capacity.memory_bytes
            run.start(outcome, now=now, speed=self._speed, memory_limit_bytes=limit_bytes)
            if witness is not None:
                witness.on_started(self._agent, assignment.ref, now)
            hole = self._host.black_hole()
            if hole:
                run.fail_in_black_hole(hole)
            elif assignment.inputs and not self._read_inputs(assignment):
                run.miss_input()
            elif not injector.quiet and injector.strikes("disk_full") and not run.find_no_space():
                injector.had_no_effect("disk_full")
            world.schedule.post(run.ends_at, self._on_time, run)

    def never_fits(self, demand: Demand) -> bool:
        """Whether an attempt needs more than the whole node."""
        if lacking(demand, self.capacity):
            return True
        self.fitting = demand
        return False

    def remove(self, run: Run) -> None:
        """Remove an attempt in any state, and free its resources."""
        run.stopped = True
        del self.held[run.assignment.ref]
        if self._world.witness is not None:
            self._world.witness.on_ended(self._agent, run.assignment.ref, self._world.schedule.now)
        if run.started_at < 0.0:  # it never ran
            self.waiting.remove(run)
            return
        self.free.give_back(run.assignment.demand)

    def remove_all(self) -> None:
        """Remove all attempts."""
        for run in list(self.held.values()):
            self.remove(run)

    def postpone(self, seconds: float) -> None:
        """Pause everything that runs."""
        now = self._world.schedule.now
        for run in self.held.values():
            if run.running:
                run.postpone(now=now, seconds=seconds)

    def _read_inputs(self, assignment: Assignment) -> bool:
        world, ref = self._world, assignment.ref
        injector, store = world.injector, world.store
        there = True
        for source in assignment.inputs:
            read = AttemptRef(ref.job, source.package, source.attempt)
            if not injector.quiet and injector.strikes("input_vanishes"):
                seconds = injector.between("input_vanishes", low=VANISHED_SECONDS[0], high=VANISHED_SECONDS[1])
                store.vanish(read, world.schedule.now + seconds)
            there = store.read(read, ref) and there
        return there
