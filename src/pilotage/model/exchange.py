"""What an agent and the service say to each other: one exchange, which carries everything in both directions.

An exchange is complete in itself: the agent tells everything it holds, the service answers with what is missing there
and what should not be. So a lost, repeated or late message does no harm: the next one mends it. A reply counts only
as the answer to the exchange that is open, which `sequence` tells; an exchange older than one that was seen brings its
events, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pilotage.model.clocks import is_doubtful, is_wrong
from pilotage.model.demand import Capacity, Demand
from pilotage.model.events import ATTEMPT_MAX, COUNTER_MAX, Event

AttemptNumber = Annotated[int, Meta(ge=1, le=ATTEMPT_MAX)]
Counter = Annotated[int, Meta(ge=0, le=COUNTER_MAX)]


class AttemptRef(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """Which attempt: the id of the job, the dotted place of the package, and the number of the attempt."""

    job: str
    package: str
    attempt: AttemptNumber


class InputSource(msgspec.Struct, frozen=True, gc=False):
    """Where inputs come from: the granted attempt of a package of the same job."""

    package: str
    attempt: AttemptNumber


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt that an agent shall run: it holds a lease from the moment the service wrote it down."""

    ref: AttemptRef
    epoch: int = 1
    demand: Demand = Demand()
    inputs: tuple[InputSource, ...] = ()
    drop_revision: int = 0  # what was dropped when it was created: it sees its inputs so, whatever happens later


SETTLING = 2**40
"""From here on whoever settles what a dead pilot left counts its exchanges: behind all of the pilot's own."""
SEQUENCE_JUMP_MAX = 2**20
"""How far beyond the last that was heard the number of a pilot's exchange may be: months of asking in vain. Whatever is
further was made up, and would make all that the pilot says later old."""


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an agent says. Its name is its own: a batch system that starts one request twice makes two agents.

    `held` names every attempt it was given of which it has not told the end; `events` are those of its stream, whose
    name is its own too, that were not acknowledged yet, in order.
    """

    pilot: str
    site: str
    sequence: Counter
    seen: Counter = 0  # the position of the book that it was told last
    time: float = 0.0  # what its clock shows as it says this; 0: it does not say
    service_time: float | None = None  # what the service's clock shows at least, by the last reply; 0: it has had none
    serves: AttemptRef | None = None  # bound mode: the one attempt it was started for
    node: str = ""
    capacity: Capacity = Capacity()
    backlog: Counter = 0  # how many attempts beyond its capacity it keeps waiting, so that no slot idles
    remaining_seconds: float | None = None  # of its wall time
    leaving: str = ""  # a reason: it takes nothing more, and ends when it holds nothing
    held: tuple[AttemptRef, ...] = ()
    events: tuple[Event, ...] = ()

    def is_beyond(self, last: int) -> bool:
        """Whether its number is out of all reach of the last one that was heard; 0: none was. Who settles begins anew."""
        if self.sequence >= SETTLING and last < SETTLING:
            return self.leaving != "gone"
        return last > 0 and self.sequence - last > SEQUENCE_JUMP_MAX

    def is_skewed(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether the clock of the agent is wrong, by its own word."""
        return bool(self.time) and is_wrong(
            self.time, service_time=self.service_time or 0.0, received=received, tolerance_seconds=tolerance_seconds
        )

    def is_doubtful(self, *, received: float, tolerance_seconds: float) -> bool:
        """Whether that cannot be told before the agent has heard what the clock of the service shows, and it will say so."""
        if not self.time or self.service_time is None:
            return False
        return is_doubtful(
            self.time, service_time=self.service_time, received=received, tolerance_seconds=tolerance_seconds
        )


class ExchangeReply(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the service answers, once everything it says is durable."""

    pilot: str
    sequence: int
    position: int = 0  # of the book, for the clock of the events that follow
    time: float = 0.0  # what the clock of the service showed; an agent finds out from it whether its own is wrong
    acknowledged: int = 0  # events of the agent's stream up to this one need not be sent again
    assignments: tuple[Assignment, ...] = ()
    cancelled: tuple[AttemptRef, ...] = ()  # to be stopped and forgotten: nobody waits for them
    interval_seconds: float = 10.0
    leave: str = ""  # a reason: end, whatever you hold
