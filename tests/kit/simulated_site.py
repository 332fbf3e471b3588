"""A small simulated site for tests of agents: everything real but the service, which says what the test tells it to."""

from __future__ import annotations

import msgspec

from pilotage.model.events.events import EVENT_TYPES, Event
from pilotage.model.events.payloads import AttemptFinished, Payload
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange, ExchangeReply, InputSource
from pilotage.model.resources import Capacity, Demand
from pilotage.model.site import Site
from pilotage.simulator.agents.agent import Agent, Fleet
from pilotage.simulator.world.agent_context import AgentContext, AgentSettings, Store
from pilotage.simulator.world.behaviour import AttemptOutcome
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import Dice, Fixed

LATENCY_SECONDS = 0.1
BEGINNING = 1_000_000.0
NO_FAULTS, USUAL, ONE_CORE, ONE_SLOT = Faults(), AgentSettings(), Capacity(), Demand()


class PlainNature:
    """Every attempt takes a minute and succeeds, unless the test says otherwise."""

    def __init__(self) -> None:
        self.usual = AttemptOutcome(0.0, 60.0, 0.0, 0)
        self.fates: dict[AttemptRef, AttemptOutcome] = {}
        self.host_speed = 1.0

    def outcome(self, ref: AttemptRef, site: str) -> AttemptOutcome:
        return self.fates.get(ref, self.usual)

    def speed(self, node: str, site: str) -> float:
        return self.host_speed


class SimulatedSite:
    """One site, its agents, and the service: also host and witness of the agents."""

    def __init__(
        self,
        *,
        faults: Faults = NO_FAULTS,
        settings: AgentSettings = USUAL,
        capacity: Capacity = ONE_CORE,
        wall_seconds: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.schedule = Schedule(BEGINNING)
        self.dice = Dice(seed)
        self.injector = FaultInjector(faults, self.dice)
        self.store = Store(self.schedule)
        self.behaviour = PlainNature()
        self.network = Network(self.schedule, self.injector, self.dice, Fixed(LATENCY_SECONDS))
        self.site = Site(name="north", capacity=capacity, wall_seconds=wall_seconds)
        self.world = AgentContext(
            schedule=self.schedule,
            network=self.network,
            store=self.store,
            injector=self.injector,
            behaviour=self.behaviour,
            uplink=self.hear,
            settings=settings,
            witness=self,
        )
        self.fleet = Fleet(self.world)
        self.heard: list[Exchange] = []
        self.gone: list[str] = []
        self.reasons: list[str] = []
        self.hole = ""
        self.trace: list[tuple[object, ...]] = []
        self.spooled: list[Event] = []
        self.forged: list[Event] = []

    # --- the service

    def hear(self, exchange: Exchange) -> None:
        self.heard.append(exchange)

    def start(self, name: str = "p.1", *, request: str = "p", serves: AttemptRef | None = None) -> Agent:
        agent = self.fleet.start(name, self, request=request, site=self.site, serves=serves)
        self.run(1.0)
        return agent

    @property
    def last(self) -> Exchange:
        return self.heard[-1]

    def answer(
        self,
        *assignments: Assignment,
        to: Exchange | None = None,
        cancelled: tuple[AttemptRef, ...] = (),
        leave: str = "",
        position: int = 0,
        acknowledges: bool = True,
        seconds: float = 1.0,
    ) -> ExchangeReply:
        """Answer an exchange, the last one unless another is named, and let some time pass."""
        exchange = to or self.last
        reply = ExchangeReply(
            pilot=exchange.pilot,
            sequence=exchange.sequence,
            position=position,
            acknowledged=exchange.events[-1].n if exchange.events and acknowledges else 0,
            assignments=assignments,
            cancelled=cancelled,
            leave=leave,
        )
        self.fleet.deliver([reply])
        self.run(seconds)
        return reply

    def run(self, seconds: float) -> None:
        self.schedule.run(until=self.schedule.now + seconds)

    @property
    def now(self) -> float:
        return self.schedule.now - BEGINNING

    # --- the host

    def black_hole(self) -> str:
        return self.hole

    def ended(self, instance: str, reason: str = "ended") -> None:
        self.gone.append(instance)
        self.reasons.append(reason)

    # --- the witness

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str) -> None:
        self.trace.append(("pilot", pilot))

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        self.trace.append(("assigned", pilot, assignment.ref))

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        self.trace.append(("started", pilot, ref))

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        self.trace.append(("ended", pilot, ref))

    def on_spooled(self, event: Event) -> None:
        self.spooled.append(event)

    def on_forged(self, event: Event) -> None:
        self.forged.append(event)

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        self.trace.append(("acknowledged", pilot, n))

    def count(self, what: str, ref: AttemptRef) -> int:
        """How often something was seen of an attempt."""
        return sum(1 for seen in self.trace if seen[0] == what and seen[-1] == ref)


def ref(line: int, attempt: int = 1) -> AttemptRef:
    return AttemptRef("job", f"1.{line}.1", attempt)


def work(
    line: int, *, attempt: int = 1, demand: Demand = ONE_SLOT, inputs: tuple[InputSource, ...] = (), epoch: int = 1
) -> Assignment:
    return Assignment(ref=ref(line, attempt), demand=demand, inputs=inputs, epoch=epoch)


def said(event: Event) -> Payload:
    """The payload of an event, read as the book reads it."""
    return msgspec.json.decode(event.data, type=EVENT_TYPES[event.type].payload)


def ends(exchange: Exchange) -> list[AttemptFinished]:
    """The ends of attempts that an exchange tells."""
    return [payload for payload in map(said, exchange.events) if isinstance(payload, AttemptFinished)]


def kinds(exchange: Exchange) -> list[str]:
    """The types of the events of an exchange."""
    return [event.type for event in exchange.events]
