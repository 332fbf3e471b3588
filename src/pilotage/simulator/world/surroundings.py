"""What an agent finds around it: the clock, the wire, the files, its host and its habits, and who watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange, ExchangeReply
from pilotage.model.resources import Capacity
from pilotage.model.site import PILOT_MARGIN_SECONDS
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultBox
from pilotage.simulator.world.nature import Nature
from pilotage.simulator.world.network import Network

# What attempts have staged, each under a key of its own, and who read what: the physical truth about files.

OnRead = Callable[[AttemptRef, AttemptRef, float], None]
"""Told of each read: the reader, what was read, and when."""


class Store:
    """Staged outputs. Nothing is ever overwritten by another attempt; for a time they may be out of reach."""

    def __init__(self, schedule: Schedule, *, on_read: OnRead | None = None, remembers: bool = True) -> None:
        """Take the clock, and who is told of reads; large benches have it remember no list of them."""
        self._schedule = schedule
        self._staged: dict[str, dict[str, int]] = {}  # by job and package: its attempts that staged, one bit each
        self._back_at: dict[AttemptRef, float] = {}
        self._on_read = on_read
        self._remembers = remembers
        self.reads: list[tuple[AttemptRef, AttemptRef]] = []

    def stage(self, ref: AttemptRef) -> None:
        """Keep what an attempt made."""
        staged = self._staged.get(ref.job)
        if staged is None:
            staged = self._staged[ref.job] = {}
        own = 1 << ref.attempt
        if (before := staged.setdefault(ref.package, own)) != own:
            staged[ref.package] = before | own

    def has(self, ref: AttemptRef) -> bool:
        """Whether the files of an attempt are there and within reach."""
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
        """Let an attempt read the files of another; False where they are not there. A vain read is remembered too."""
        if self._remembers:
            self.reads.append((reader, ref))
        if self._on_read is not None:
            self._on_read(reader, ref, self._schedule.now)
        if self._back_at:
            return self.has(ref)
        staged = self._staged.get(ref.job)
        return staged is not None and bool(staged.get(ref.package, 0) >> ref.attempt & 1)

    def vanish(self, ref: AttemptRef, until: float) -> None:
        """Put the files of an attempt out of reach until a time."""
        self._back_at[ref] = max(until, self._back_at.get(ref, 0.0))


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The habits of agents; what the service tells them (the interval) goes before what stands here."""

    interval_seconds: float = 10.0  # until the first reply says another
    patience_intervals: float = 1.5  # without a reply for so long, an exchange is repeated
    patience_growth: float = 2.0  # the next repetition waits so much longer
    patience_seconds_max: float = 120.0
    hold_seconds: float = 0.01  # how long a first event waits for others to go with it; 0: not at all
    linger_seconds: float = 0.01  # the same while attempts are waiting here, so that no slot idles for it
    rush_seconds: float = 1.0  # an exchange with events is answered at once: only after so long another is opened
    idle_seconds: float = 300.0  # a pilot that holds nothing for so long ends
    outlive_seconds: float = 21_600.0  # without any reply for so long, it ends too
    farewell_seconds: float = 300.0  # how long it tries to tell its last events
    wall_margin_seconds: float = PILOT_MARGIN_SECONDS  # so long before its wall time is over it stops everything
    backlog: int = 0
    remembered_max: int = 16  # how many attempts that it has finished it can still answer for


class Witness(Protocol):
    """Sees what really happens, whatever is told of it. Every time is the true one."""

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str) -> None:
        """An agent has started, on a node."""
        ...

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        """An assignment reached an agent that did not hold it yet."""
        ...

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt takes its share of a node."""
        ...

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt gives its share back, however it ended."""
        ...

    def on_spooled(self, event: Event) -> None:
        """An agent will tell this until it is acknowledged."""
        ...

    def on_forged(self, event: Event) -> None:
        """An agent will tell this too, and has no right to."""
        ...

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        """An agent heard that its events up to this one need not be sent again."""
        ...


class Host(Protocol):
    """What started an agent: the batch system of its site."""

    def black_hole(self) -> str:
        """Why everything fails here at the moment; empty when it does not."""
        ...

    def ended(self, instance: str, reason: str = "ended") -> None:
        """The process is gone, and why."""
        ...


class Listener(Protocol):
    """A process that waits for replies."""

    def receive(self, reply: ExchangeReply) -> None:
        """Take a reply."""
        ...


class AgentContext:
    """What all agents of a simulation share, and which of them live, by name."""

    __slots__ = ("agents", "box", "nature", "network", "schedule", "settings", "store", "uplink", "witness")

    def __init__(
        self,
        *,
        schedule: Schedule,
        network: Network,
        store: Store,
        box: FaultBox,
        nature: Nature,
        uplink: Callable[[Exchange], None],
        settings: AgentSettings = AgentSettings(),  # noqa: B008 # frozen
        witness: Witness | None = None,
    ) -> None:
        """Take each part; `uplink` is where exchanges arrive once the network has carried them."""
        self.schedule = schedule
        self.network = network
        self.store = store
        self.box = box
        self.nature = nature
        self.uplink = uplink
        self.settings = settings
        self.witness = witness
        self.agents: dict[str, Listener] = {}
