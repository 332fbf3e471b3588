"""The environment of an agent: clock, network, files, host, settings, and the observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange, ExchangeReply
from pilotage.model.resources import Capacity
from pilotage.model.site import PILOT_MARGIN_SECONDS
from pilotage.simulator.world.behaviour import Behaviour
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.network import Network

# Staged outputs of attempts, each with its own key, and who read them: the physical truth about files.

OnRead = Callable[[AttemptRef, AttemptRef, float], None]
"""Called for each read: the reader, the source, and when."""


class Store:
    """Staged outputs. No attempt overwrites another's; for a time they may be unreachable."""

    def __init__(self, schedule: Schedule, *, on_read: OnRead | None = None, remembers: bool = True) -> None:
        """Take the clock, and the observer of reads; large benchmarks keep no list of them."""
        self._schedule = schedule
        self._staged: dict[str, dict[str, int]] = {}  # by job and package: its attempts that staged, one bit each
        self._back_at: dict[AttemptRef, float] = {}
        self._on_read = on_read
        self._remembers = remembers
        self.reads: list[tuple[AttemptRef, AttemptRef]] = []

    def stage(self, ref: AttemptRef) -> None:
        """Store the outputs of an attempt."""
        staged = self._staged.get(ref.job)
        if staged is None:
            staged = self._staged[ref.job] = {}
        own = 1 << ref.attempt
        if (before := staged.setdefault(ref.package, own)) != own:
            staged[ref.package] = before | own

    def has(self, ref: AttemptRef) -> bool:
        """Whether the files of an attempt exist and are reachable."""
        staged = self._staged.get(ref.job)
        if staged is None or not staged.get(ref.package, 0) >> ref.attempt & 1:
            return False
        back_at = self._back_at.get(ref) if self._back_at else None
        if back_at is None:
            return True
        if self._schedule.now < back_at:
            return False
        del self._back_at[ref]
        return True

    def read(self, ref: AttemptRef, reader: AttemptRef) -> bool:
        """Let an attempt read the files of another; False if they are missing. A failed read is remembered too."""
        if self._remembers:
            self.reads.append((reader, ref))
        if self._on_read is not None:
            self._on_read(reader, ref, self._schedule.now)
        if self._back_at:
            return self.has(ref)
        staged = self._staged.get(ref.job)
        return staged is not None and bool(staged.get(ref.package, 0) >> ref.attempt & 1)

    def dispose(self, ref: AttemptRef) -> None:
        """Remove the files of an attempt for ever."""
        staged = self._staged.get(ref.job, {})
        if ref.package in staged:
            staged[ref.package] &= ~(1 << ref.attempt)

    def vanish(self, ref: AttemptRef, until: float) -> None:
        """Make the files of an attempt unreachable until a time."""
        self._back_at[ref] = max(until, self._back_at.get(ref, 0.0))


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of agents; values from the service (the interval) take precedence."""

    interval_seconds: float = 10.0  # until the first reply
    patience_intervals: float = 1.5  # an exchange without a reply is repeated after this
    patience_growth: float = 2.0  # factor on the wait for the next repetition
    patience_seconds_max: float = 120.0
    hold_seconds: float = 0.01  # how long a first event waits for others; 0: not at all
    linger_seconds: float = 0.01  # the same while attempts wait here, so that no slot idles for it
    rush_seconds: float = 1.0  # an exchange with events is answered at once: shortest time between two of them
    idle_seconds: float = 300.0  # a pilot without attempts ends after this
    outlive_seconds: float = 21_600.0  # a pilot without any reply ends after this
    farewell_seconds: float = 300.0  # how long it tries to send its last events
    wall_margin_seconds: float = PILOT_MARGIN_SECONDS  # it stops everything this long before the end of its wall time
    backlog: int = 0
    remembered_max: int = 16  # how many finished attempts it can still report again


class Witness(Protocol):
    """Observes what really happens, whatever is reported. Every time is the true one."""

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str) -> None:
        """An agent has started, on a node."""
        ...

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        """An assignment reached an agent that did not hold it yet."""
        ...

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt occupies its share of a node."""
        ...

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt frees its share, however it ended."""
        ...

    def on_spooled(self, event: Event) -> None:
        """An agent will send this event until it is acknowledged."""
        ...

    def on_forged(self, event: Event) -> None:
        """An agent will send this forged event, too."""
        ...

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        """A reply acknowledged the events of an agent up to `n`."""
        ...


class Host(Protocol):
    """What started an agent: the batch system of its site."""

    def black_hole(self) -> str:
        """The reason why every attempt fails here at present; empty if none."""
        ...

    def ended(self, instance: str, reason: str = "ended") -> None:
        """The process ended, and why."""
        ...


class Listener(Protocol):
    """A process that waits for replies."""

    def receive(self, reply: ExchangeReply) -> None:
        """Handle a reply."""
        ...


class AgentContext:
    """What all agents of a simulation share, and the live ones by name."""

    __slots__ = ("agents", "behaviour", "injector", "network", "schedule", "settings", "store", "uplink", "witness")

    def __init__(
        self,
        *,
        schedule: Schedule,
        network: Network,
        store: Store,
        injector: FaultInjector,
        behaviour: Behaviour,
        uplink: Callable[[Exchange], None],
        settings: AgentSettings = AgentSettings(),  # noqa: B008 # frozen
        witness: Witness | None = None,
    ) -> None:
        """Take each part; `uplink` gets the exchanges that the network has carried."""
        self.schedule = schedule
        self.network = network
        self.store = store
        self.injector = injector
        self.behaviour = behaviour
        self.uplink = uplink
        self.settings = settings
        self.witness = witness
        self.agents: dict[str, Listener] = {}
