"""Assembles a simulated world: clock, faults, network, the service process, the batch systems and the agents.

Both kinds of simulation use it, and so do the benchmarks. The differences are passed in: the journal, the network, the sites
and their failures, the behaviour of packages, and the observers. The owner decides which messages reach the service, and when
the run is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef, Exchange, ExchangeReply
from pilotage.model.exchange.operations import (
    CancelSubmitted,
    Effect,
    FetchFile,
    RemoveFile,
    StoreOutputs,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import AnyReport
from pilotage.model.site import Site
from pilotage.simulator.world.agent_context import AgentContext, AgentSettings, Host, OnRead, Store, Witness
from pilotage.simulator.world.batch_system import BatchSystem, Process
from pilotage.simulator.world.behaviour import Behaviour
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.jobs import Definitions
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import Dice, Distribution, Keyed
from pilotage.simulator.world.service_process import ServiceEnvironment, ServiceJournal, ServiceProcess, Timing
from pilotage.simulator.world.transfers import FilesSetup, FileWitness, Transfers
from pilotage.simulator.world.transfers import Report as FileReport

START = 1_000_000.0  # the clock of an agent may be hours behind, and no time is before 1970
_DEAD_START_SECONDS = 1.0
_HOUR = 3600.0


class SiteSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A site to simulate: the site as the engine knows it, its queue, and its failures."""

    site: Site
    queue: Distribution
    submission: Distribution | None = None  # the time to accept a batch job, one after the other; None: all at once
    stuck_probability: float = 0.0  # of a batch job that never leaves the queue
    running_max: int = 1_000_000
    poll_seconds: float = 30.0  # between two listings of its batch system
    nodes: tuple[str, ...] = ()  # empty: each batch job has a node of its own
    outages: tuple[tuple[float, float], ...] = ()  # when each begins, and its length, in seconds
    outage_every: Distribution | None = None  # time between further outages; None: no further ones
    outage_lasts: Distribution | None = None
    black_holes: tuple[tuple[float, float], ...] = ()
    black_hole_reason: str = ""
    pilot_failure_probability: float = 0.0
    fault_bursts: tuple[tuple[float, float, float], ...] = ()  # begin, length, and probability instead of the usual one
    node_failures_per_hour: float = 0.0
    bytes_per_second: float = 0.0  # of one file that is brought there; 0: no limit


class WorldWitness(Witness, Protocol):
    """Observes agents and the ends of their processes."""

    def on_gone(self, pilot: str, now: float) -> None:
        """The process of an agent has ended."""
        ...


class SimulatedAgent(Protocol):
    """An agent as its batch system sees it."""

    def kill(self, reason: str = "ended") -> None:
        """End it at once."""
        ...


class AgentFleet(Protocol):
    """Starts agents, and delivers replies to the live ones."""

    def start(
        self, name: str, host: Host, *, request: str, site: Site, serves: AttemptRef | None = None, node: str = ""
    ) -> SimulatedAgent:
        """Start an agent."""
        ...

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Send replies to agents."""
        ...


class OnLaunched(Protocol):
    """Called for each batch job that leaves its queue."""

    def __call__(self, site: str, *, queued_seconds: float, now: float) -> None:
        """A batch job left the queue of a site."""
        ...


class SimulatedWorld:
    """The connected parts of one simulated world; nothing happens before `begin`."""

    def __init__(
        self,
        sites: Sequence[SiteSetup],
        *,
        schedule: Schedule,
        dice: Dice,
        faults: Faults | None,
        service: ServiceEnvironment,
        journal: ServiceJournal,
        definitions: Definitions,
        timing: Timing,
        latency: Distribution,
        as_json: bool,
        behaviour: Behaviour,
        fleet: Callable[[AgentContext], AgentFleet],
        agents: AgentSettings,
        witness: WorldWitness | None,
        on_read: OnRead | None = None,
        on_launched: OnLaunched | None = None,
        uplink: Callable[[Exchange], None] | None = None,
        report: Callable[[AnyReport], None] | None = None,
        files: FilesSetup = FilesSetup(),  # noqa: B008 # frozen
        manifest: Callable[[AttemptRef], Sequence[OutputFile]] = lambda _: (),
        file_witness: FileWitness | None = None,
        file_report: Callable[[FileReport], None] | None = None,
    ) -> None:
        """Connect everything; without `faults`, none strikes. Exchanges and reports go to the service unless given another target.

        With `as_json`, the network carries messages as text, and so as copies. `witness` is optional.
        """
        self.schedule = schedule
        self.dice = dice
        self.injector = injector = FaultInjector(faults or Faults(), dice)
        if faults is None:
            injector.stop()
        self.driver = ServiceProcess(
            schedule=schedule,
            injector=injector,
            journal=journal,
            definitions=definitions,
            timing=timing,
            around=service,
        )
        self.network = Network(schedule, injector, dice, latency, plain=not as_json)
        self._setups = {setup.site.name: setup for setup in sites}
        self.batch_systems: Mapping[str, BatchSystem] = {
            setup.site.name: BatchSystem(
                setup.site,
                schedule=schedule,
                injector=injector,
                dice=dice,
                queue=setup.queue,
                report=report or self.driver.receive,
                submission=setup.submission,
                stuck_probability=setup.stuck_probability,
                running_max=setup.running_max,
                poll_seconds=setup.poll_seconds,
                nodes=setup.nodes,
            )
            for setup in sites
        }
        self.transfers = Transfers(
            files,
            rates={setup.site.name: setup.bytes_per_second for setup in sites},
            schedule=schedule,
            injector=injector,
            manifest=manifest,
            report=file_report or self.driver.receive,
            witness=file_witness,
        )
        self.outputs = Store(schedule, on_read=on_read, remembers=False)
        self._fleet = fleet(
            AgentContext(
                schedule=schedule,
                network=self.network,
                store=self.outputs,
                injector=injector,
                behaviour=behaviour,
                uplink=uplink or self.driver.receive,
                settings=agents,
                witness=witness,
            )
        )
        self._witness = witness
        self._on_launched = on_launched
        self._submitted_at: dict[str, float] = {}

    def begin(self) -> None:
        """Start the service, poll the batch systems from now on, and plan the failures of sites."""
        self.driver.start()
        for name, setup in self._setups.items():
            batch = self.batch_systems[name]
            batch.begin()
            for begins_seconds, lasts_seconds in setup.outages:
                self.schedule.after(begins_seconds, batch.go_down, lasts_seconds)
            for begins_seconds, lasts_seconds in setup.black_holes:
                self.schedule.after(begins_seconds, batch.become_black_hole, lasts_seconds, setup.black_hole_reason)
            if setup.outage_every is not None and setup.outage_lasts is not None:
                self._plan_outage(batch, every=setup.outage_every, lasts=setup.outage_lasts)

    def _plan_outage(self, batch: BatchSystem, *, every: Distribution, lasts: Distribution) -> None:
        numbers = self.dice.stream(f"outages/{batch.site.name}")
        up_seconds = max(1.0, every.draw(numbers))
        lasts_seconds = lasts.draw(numbers)
        self.schedule.after(up_seconds, batch.go_down, lasts_seconds)
        self.schedule.after(up_seconds + lasts_seconds, partial(self._plan_outage, batch, every=every, lasts=lasts))

    def carry_out(self, effect: Effect) -> None:
        """Submit or cancel a batch job for the service, or transfer files."""
        match effect:
            case FetchFile() | RemoveFile() | StoreOutputs():
                self.transfers.carry_out(effect)
            case SubmitPilot(site=site, key=key):
                self._submit(site, key, serves=None, node_restriction=())
            case SubmitAttempt(site=site, key=key, ref=ref, demand=demand):
                self._submit(site, key, serves=ref, node_restriction=demand.node_restriction)
            case CancelSubmitted(site=site, key=key):
                self.batch_systems[site].cancel(key)

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Send replies to the live agents."""
        self._fleet.deliver(replies)

    def _submit(self, site: str, key: str, *, serves: AttemptRef | None, node_restriction: Sequence[str]) -> None:
        if self._on_launched is not None:
            self._submitted_at.setdefault(key, self.schedule.now)
        launch = partial(self._launch, site=site, key=key, serves=serves, node_restriction=node_restriction)
        self.batch_systems[site].submit(key, launch)

    def _launch(
        self, name: str, *, site: str, key: str, serves: AttemptRef | None, node_restriction: Sequence[str]
    ) -> Process:
        """Start an agent on a node; it may end at once, and its node may fail, with the probabilities of the site."""
        batch, setup, now = self.batch_systems[site], self._setups[site], self.schedule.now
        if self._on_launched is not None:
            self._on_launched(site, queued_seconds=now - self._submitted_at.get(key, now), now=now)
        numbers = Keyed(f"{self.dice.seed}/pilot/{name}")
        if numbers.random() < pilot_failure_probability(setup, now - START):
            self.schedule.after(_DEAD_START_SECONDS, batch.ended, name, "failed")
            return _EndedAtOnce()
        host = _NodeHost(batch, self._witness, self.schedule)
        node = batch.node_for(node_restriction)
        agent = self._fleet.start(name, host, request=key, site=batch.site, serves=serves, node=node)
        if setup.node_failures_per_hour > 0.0:
            lasts_seconds = -math.log(1.0 - numbers.random()) * _HOUR / setup.node_failures_per_hour
            self.schedule.after(lasts_seconds, agent.kill, "node-failed")
        return agent


def pilot_failure_probability(setup: SiteSetup, elapsed_seconds: float) -> float:
    """The probability that a pilot that starts some time after the beginning ends at once."""
    for begins_seconds, lasts_seconds, probability in setup.fault_bursts:
        if begins_seconds <= elapsed_seconds < begins_seconds + lasts_seconds:
            return probability
    return setup.pilot_failure_probability


class _NodeHost:
    """The node of an agent: part of a batch system, and its end is observed."""

    __slots__ = ("_batch", "_schedule", "_witness")

    def __init__(self, batch: BatchSystem, witness: WorldWitness | None, schedule: Schedule) -> None:
        self._batch = batch
        self._witness = witness
        self._schedule = schedule

    def black_hole(self) -> str:
        return self._batch.black_hole()

    def ended(self, instance: str, reason: str = "ended") -> None:
        if self._witness is not None:
            self._witness.on_gone(instance, self._schedule.now)
        self._batch.ended(instance, reason)


class _EndedAtOnce:
    """A pilot that ended as soon as it started."""

    def kill(self) -> None:
        """Do nothing: it has ended."""
