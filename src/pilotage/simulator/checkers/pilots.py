"""Checks pilots: their attempts really fit, and they get no more than they can run and queue.

An assignment reaches an agent only after the attempt and its lease are durable, and only one agent ever gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NoReturn

from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.resources import NAMES, Capacity, Demand, amounts, lacking
from pilotage.simulator.checkers.attempts import LEASES, ROOMS, demand_of
from pilotage.simulator.checkers.inputs import Inputs
from pilotage.simulator.checkers.records import AttemptTrace, PackageTrace, Record

NODES = "nodes"
_NOTHING = (0,) * len(NAMES)


class _Pilot:
    __slots__ = ("backlog", "capacity", "held", "name", "node", "running", "site", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.site = self.node = ""
        self.capacity = Capacity()
        self.backlog = 0
        self.held: dict[AttemptRef, Demand] = {}  # assigned and not over
        self.running: dict[AttemptRef, Demand] = {}
        self.used = list(_NOTHING)


class Pilots:
    """Every live agent, and its attempts."""

    def __init__(self, record: Record, inputs: Inputs) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._inputs = inputs
        self._pilots: dict[str, _Pilot] = {}

    def on_pilot(self, name: str, site: str, capacity: Capacity, backlog: int, *, node: str) -> None:
        """An agent started, or reports a new capacity."""
        pilot = self._pilots.get(name)
        if pilot is None:
            pilot = self._pilots[name] = _Pilot(name)
        pilot.site, pilot.capacity, pilot.backlog, pilot.node = site, capacity, backlog, node

    def on_gone(self, name: str) -> None:
        """An agent ended, with all its attempts."""
        pilot = self._pilots.pop(name, None)
        for ref in pilot.held if pilot is not None else ():
            attempt = self._record.attempt(ref.job, ref.package, ref.attempt)
            if attempt is not None:
                attempt.running, attempt.over = False, True

    def on_assigned(self, name: str, assignment: Assignment) -> None:
        """An assignment reached an agent; a repetition changes nothing."""
        ref = assignment.ref
        fail = self._failing(LEASES, name, ref)
        pilot = self._pilots.get(name)
        if pilot is None:
            fail("it was assigned, and the pilot never began")
        package, attempt = self._known(ref, name, step="assigned")
        if attempt.holder and attempt.holder != name:
            fail(f"it was assigned, and {attempt.holder} had it before")
        if not attempt.leased:
            fail("it was assigned, and no lease of it is durable")
        if attempt.pilot is not None and attempt.pilot != name:
            fail(f"it was assigned, and the book says {attempt.pilot}")
        if attempt.site != pilot.site:
            fail(f"it was assigned at {pilot.site}, and the book says {attempt.site}")
        if assignment.epoch != attempt.epoch:
            fail(f"it was assigned in epoch {assignment.epoch}, and is of epoch {attempt.epoch}")
        if attempt.over or ref in pilot.held:
            return
        attempt.holder = name
        self._inputs.on_assigned(package, attempt, assignment)
        self._check_room(pilot, package, attempt, assignment)

    def on_started(self, name: str, ref: AttemptRef) -> None:
        """An agent really runs an attempt."""
        fail = self._failing(LEASES, name, ref)
        pilot = self._pilots.get(name)
        demand = pilot.held.get(ref) if pilot is not None else None
        if pilot is None or demand is None:
            fail("it was started, and is not held")
        if ref in pilot.running:
            fail("it was started twice")
        package, attempt = self._known(ref, name, step="started")
        self._check_node(pilot, package, ref)
        attempt.running = True
        pilot.running[ref] = demand
        used = pilot.used
        if demand.nodes == 1:
            for index, amount in enumerate(amounts(demand)):
                used[index] += amount
        self._check_used(pilot)

    def on_ended(self, name: str, ref: AttemptRef) -> None:
        """An agent no longer holds an attempt: it is over, or was dropped before it began."""
        pilot = self._pilots.get(name)
        if pilot is None or pilot.held.pop(ref, None) is None:
            return
        demand = pilot.running.pop(ref, None)
        if demand is not None and demand.nodes == 1:
            for index, amount in enumerate(amounts(demand)):
                pilot.used[index] -= amount
        _, attempt = self._known(ref, name, step="ended")
        attempt.running, attempt.over = False, True

    def check(self) -> None:
        """Count the running attempts again, and check that they fit."""
        for pilot in self._pilots.values():
            running = [amounts(demand) for demand in pilot.running.values() if demand.nodes == 1]
            pilot.used = [sum(column) for column in zip(*running, strict=True)] if running else list(_NOTHING)
            self._check_used(pilot)

    def _check_used(self, pilot: _Pilot) -> None:
        for name, used, given in zip(NAMES, pilot.used, amounts(pilot.capacity), strict=True):
            if used > given:
                message = f"{len(pilot.running)} attempts run there and take {name} {used} of {given}"
                raise self._record.broken_stream(ROOMS, message, pilot.name)

    def _check_node(self, pilot: _Pilot, package: PackageTrace, ref: AttemptRef) -> None:
        """Check by the plan of its job, not by its assignment."""
        names = package.template.demand.node_restriction if package.template is not None else ()
        if names and not any(fnmatchcase(pilot.node, name) for name in names):
            where = pilot.node or "an unknown node"
            self._failing(NODES, pilot.name, ref)(f"it was started on {where}, and may run on {', '.join(names)} only")

    def _check_room(self, pilot: _Pilot, package: PackageTrace, attempt: AttemptTrace, assignment: Assignment) -> None:
        demand = assignment.demand
        fail = self._failing(ROOMS, pilot.name, assignment.ref)
        if package.template is not None and demand != (expected := demand_of(package.template, attempt)):
            fail(f"it was assigned with {demand}, and takes {expected}")
        pilot.held[assignment.ref] = demand
        if demand.nodes > 1:
            return
        if short := lacking(demand, pilot.capacity):
            name, asked, given = short[0]
            fail(f"it was assigned where it can never run: {name} {asked} of {given}")
        at_once = len(pilot.held) - pilot.backlog
        if at_once <= 0:
            return
        # For each resource alone, the smallest demands that must fit at once: never more than any choice of them.
        columns = zip(*(amounts(each) for each in pilot.held.values() if each.nodes == 1), strict=True)
        for name, column, given in zip(NAMES, columns, amounts(pilot.capacity), strict=True):
            if sum(sorted(column)[:at_once]) > given:
                fail(
                    f"it was assigned as number {len(pilot.held)} beside a backlog of {pilot.backlog}: "
                    f"{at_once} at once take more than {name} {given}"
                )

    def _known(self, ref: AttemptRef, pilot: str, *, step: str) -> tuple[PackageTrace, AttemptTrace]:
        attempt = self._record.attempt(ref.job, ref.package, ref.attempt)
        if attempt is None:
            self._failing(LEASES, pilot, ref)(f"it was {step} before its creation was durable")
        return self._record.job(ref.job).package(ref.package), attempt

    def _failing(self, checker: str, pilot: str, ref: AttemptRef) -> Callable[[str], NoReturn]:
        def fail(message: str) -> NoReturn:
            package = self._record.job(ref.job).package(ref.package)
            raise self._record.broken(checker, f"attempt {ref.attempt} at {pilot}: {message}", package)

        return fail
