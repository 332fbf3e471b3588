"""Limits how many connections of each kind are open at once, and always keeps some for the local socket.

A connection counts as unauthenticated until it shows a known token. When the limit is reached, the connection idle for
longest is closed for the next one. So a client that only connects displaces nobody, and one with a token finds a slot.
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
"""Close one of this many longest-idle connections; one that has sent something not read yet stays."""
GUEST = "pilotage.guest"
"""The key of the connection in the scope of a request."""


class Kind(Enum):
    """What a connection counts as."""

    LOCAL = "local"  # through the socket in the state folder, which no other user can reach
    STRANGER = "stranger"
    USER = "user"
    AGENT = "agent"


class TooManyConnections(PilotageError):
    """All connections of this kind are in use; try again later."""

    retryable = True


class Guest:
    """One connection and its state: idle, receiving a request, or being answered."""

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
        """A new connection; `peer` is its address, without the part that a client can choose freely."""
        self._guests = guests
        self.kind = kind
        self.peer = peer
        self.close: Callable[[], object] = _nothing  # closes the connection at once
        self.is_held_back: Callable[[], bool] = bool  # whether we stopped reading
        self.is_speaking: Callable[[], bool] = bool  # whether it sent something that was not read yet
        self.since = now  # since when it is in this state
        self.waits = WAITS_FOR_HEAD
        self.head_bytes = 0
        self.body_bytes = 0
        self.is_discarding = False  # the rest of an unwanted body is still arriving
        self.stalled_since = math.inf  # the client does not read its answer

    def is_known(self, *, agent: bool) -> None:
        """The connection showed a known token; raises `TooManyConnections` if its kind has no free slot."""
        self._guests.let_in(self, Kind.AGENT if agent else Kind.USER)


WAITS_FOR_HEAD: Final = "head"
WAITS_FOR_BODY: Final = "body"
WAITS_FOR_US: Final = "answer"
RESTS: Final = "rest"


def _nothing() -> None:
    """Placeholder until there is something to close."""


class Guests:
    """All open connections. For one thread."""

    def __init__(self, most: int) -> None:
        """Hold at most this many connections."""
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
        self._idle: dict[Kind, dict[Guest, None]] = {kind: {} for kind in Kind}  # longest idle first
        self._counts: Counter[Kind] = Counter()
        self._peers: Counter[tuple[Kind, str]] = Counter()
        self.all: dict[Guest, None] = {}

    def come(self, guest: Guest) -> None:
        """Count a new connection; at the limit, close the one idle for longest. Raises `TooManyConnections`."""
        self._make_room(guest.kind, guest.peer)
        self.all[guest] = None
        self._count(guest, 1)
        self._idle[guest.kind][guest] = None

    def leave(self, guest: Guest) -> None:
        """A connection was closed."""
        if guest in self.all:
            del self.all[guest]
            self._idle[guest.kind].pop(guest, None)
            self._count(guest, -1)

    def busy(self, guest: Guest) -> None:
        """A request of it is being handled."""
        self._idle[guest.kind].pop(guest, None)

    def idle(self, guest: Guest) -> None:
        """Its request was answered."""
        if guest in self.all:
            self._idle[guest.kind][guest] = None

    def let_in(self, guest: Guest, kind: Kind) -> None:
        """Count a connection as the kind it has proven to be; raises `TooManyConnections`."""
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
            # Beyond its own share, the local socket uses slots that the others leave free.
            outside = sum(self._counts[each] for each in Kind if each is not Kind.LOCAL)
            if kind is not Kind.LOCAL and outside >= self._most_outside:
                self._send_away(None, Kind.STRANGER, *known)
            if len(self.all) >= self.most:
                self._send_away(None, Kind.STRANGER, *known, Kind.LOCAL)

    def _send_away(self, wanted: Callable[[Guest], bool] | None, *kinds: Kind) -> None:
        """Close the longest-idle connection of these kinds; raises `TooManyConnections` if all are busy."""
        for kind in kinds:
            resting = (each for each in self._idle[kind] if wanted is None or wanted(each))
            found = next((each for each in islice(resting, LOOKED_AT_MAX) if not each.is_speaking()), None)
            if found is not None:
                self.leave(found)
                found.close()
                return
        raise TooManyConnections(
            "too many connections are open", next_step="try again in a moment, and use one connection for many requests"
        )
