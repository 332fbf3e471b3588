"""What an agent finds around it: the clock, the wire, the files, its host and its habits, and who watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from pilotage.model.demand import Capacity
from pilotage.model.events import Event
from pilotage.model.exchange import Assignment, AttemptRef, Exchange, ExchangeReply
from pilotage.model.site import PILOT_MARGIN_SECONDS
from pilotage.simulator.clock import Schedule
from pilotage.simulator.faults import FaultBox
from pilotage.simulator.nature import Nature
from pilotage.simulator.network import Network
from pilotage.simulator.store import Store


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


class Surroundings:
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
