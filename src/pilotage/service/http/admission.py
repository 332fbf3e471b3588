"""Who may be connected at once: so many strangers, users and agents, and always room for who comes by the local socket.

A connection is a stranger's until it has shown a token that is known here, and one that says nothing is given up for the next who
comes. So whoever only connects takes nothing from anybody, and who shows a token finds room for its kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Final

from pilotage.model.errors import PilotageError

LOOKED_AT_MAX = 64
"""Of so many that rest longest one goes; whoever has spoken, and was not heard yet, stays."""
GUEST = "pilotage.guest"
"""In the scope of a request: its connection."""


class Kind(Enum):
    """What a connection is counted as."""

    LOCAL = "local"  # by the socket in the state folder, which nobody else can reach
    STRANGER = "stranger"
    USER = "user"
    AGENT = "agent"


class TooManyConnections(PilotageError):
    """Everything that is kept for connections of this kind is in use; the next may find room."""

    retryable = True


class Guest:
    """One connection, and what it is doing: it rests, or is about to say something, until its request is under way."""

    __slots__ = (
        "_guests",
        "body_bytes",
        "close",
        "head_bytes",
        "is_discarding",
        "is_held_back",
        "is_speaking",
        "kind",
        "peer",
        "since",
        "stalled_since",
        "waits",
    )

    def __init__(self, guests: Guests, *, kind: Kind, peer: str, now: float) -> None:
        """Somebody has connected; `peer` is the address, without the part that anybody can choose freely."""
        self._guests = guests
        self.kind = kind
        self.peer = peer
        self.close: Callable[[], object] = _nothing  # ends the connection at once
        self.is_held_back: Callable[[], bool] = bool  # whether it is we who do not read on
        self.is_speaking: Callable[[], bool] = bool  # whether it has said something that was not read yet
        self.since = now  # it does what it does now
        self.waits = WAITS_FOR_HEAD
        self.head_bytes = 0
        self.body_bytes = 0
        self.is_discarding = False  # the rest of a body that nobody reads is still coming
        self.stalled_since = math.inf  # it takes nothing of what it is told

    def is_known(self, *, agent: bool) -> None:
        """It has shown a token; raises `TooManyConnections` where there is no room for one more of its kind."""
        self._guests.let_in(self, Kind.AGENT if agent else Kind.USER)


WAITS_FOR_HEAD: Final = "head"
WAITS_FOR_BODY: Final = "body"
WAITS_FOR_US: Final = "answer"
RESTS: Final = "rest"


def _nothing() -> None:
    """Nothing is there to be closed yet."""


class Guests:
    """Everybody who is connected. Of one thread."""

    def __init__(self, most: int) -> None:
        """Hold at most so many connections."""
        self.most = most
        outside = most - max(2, most // 8)  # the rest is for the local socket
        newcomers = max(1, outside // 8)
        self._most_outside = outside
        self._most: dict[Kind, int] = {
            Kind.LOCAL: most,
            Kind.STRANGER: max(1, outside // 4),
            Kind.USER: max(1, outside // 2),
            Kind.AGENT: outside - newcomers,
        }
        self._most_known = outside - newcomers
        self._most_of_peer = {Kind.STRANGER: max(1, outside // 8), Kind.USER: max(1, outside // 4)}
        self._idle: dict[Kind, dict[Guest, None]] = {kind: {} for kind in Kind}  # who rests longest comes first
        self._counts: Counter[Kind] = Counter()
        self._peers: Counter[tuple[Kind, str]] = Counter()
        self.all: dict[Guest, None] = {}

    def come(self, guest: Guest) -> None:
        """Somebody connects; where it is full, whoever has said nothing for longest goes. Raises `TooManyConnections`."""
        self._make_room(guest.kind, guest.peer)
        self.all[guest] = None
        self._count(guest, 1)
        self._idle[guest.kind][guest] = None

    def leave(self, guest: Guest) -> None:
        """A connection is over."""
        if guest in self.all:
            del self.all[guest]
            self._idle[guest.kind].pop(guest, None)
            self._count(guest, -1)

    def busy(self, guest: Guest) -> None:
        """A request of it is under way."""
        self._idle[guest.kind].pop(guest, None)

    def idle(self, guest: Guest) -> None:
        """Its request was answered."""
        if guest in self.all:
            self._idle[guest.kind][guest] = None

    def let_in(self, guest: Guest, kind: Kind) -> None:
        """Count somebody as what it has shown itself to be; raises `TooManyConnections`."""
        if guest.kind in (Kind.LOCAL, kind) or guest not in self.all:
            return
        self._make_room(kind, guest.peer, moves=True)
        resting = guest in self._idle[guest.kind]
        self._idle[guest.kind].pop(guest, None)
        self._count(guest, -1)
        guest.kind = kind
        self._count(guest, 1)
        if resting:
            self._idle[kind][guest] = None

    def _count(self, guest: Guest, change: int) -> None:
        self._counts[guest.kind] += change
        key = (guest.kind, guest.peer)
        self._peers[key] += change
        if not self._peers[key]:
            del self._peers[key]

    def _make_room(self, kind: Kind, peer: str, *, moves: bool = False) -> None:
        if self._peers[kind, peer] >= self._most_of_peer.get(kind, self.most):
            self._send_away(lambda each: each.peer == peer, kind)
        if self._counts[kind] >= self._most[kind]:
            self._send_away(None, kind)
        known = (Kind.USER, Kind.AGENT)
        if kind in known and sum(self._counts[each] for each in known) >= self._most_known:
            self._send_away(None, *known)
        if not moves:
            # What the local socket has beyond its part is what others leave.
            outside = sum(self._counts[each] for each in Kind if each is not Kind.LOCAL)
            if kind is not Kind.LOCAL and outside >= self._most_outside:
                self._send_away(None, Kind.STRANGER, *known)
            if len(self.all) >= self.most:
                self._send_away(None, Kind.STRANGER, *known, Kind.LOCAL)

    def _send_away(self, wanted: Callable[[Guest], bool] | None, *kinds: Kind) -> None:
        """End the connection of these kinds that has said nothing for longest; raises `TooManyConnections` where all are busy."""
        for kind in kinds:
            resting = (each for each in self._idle[kind] if wanted is None or wanted(each))
            found = next((each for each in islice(resting, LOOKED_AT_MAX) if not each.is_speaking()), None)
            if found is not None:
                self.leave(found)
                found.close()
                return
        raise TooManyConnections(
            "there are too many connections at once", next_step="try again in a moment, and use one for many requests"
        )
