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
CONNECTION = "pilotage.connection"
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


class ClientConnection:
    """One connection and its state: idle, receiving a request, or being answered."""

    __slots__ = (
        "_clients",
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

    def __init__(self, clients: OpenConnections, *, kind: Kind, peer: str, now: float) -> None:
        """A new connection; `peer` is its address, without the part that a client can choose freely."""
        self._clients = clients
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

    def mark_authenticated(self, *, agent: bool) -> None:
        """The connection showed a known token; raises `TooManyConnections` if its kind has no free slot."""
        self._clients.reclassify(self, Kind.AGENT if agent else Kind.USER)


WAITS_FOR_HEAD: Final = "head"
WAITS_FOR_BODY: Final = "body"
WAITS_FOR_US: Final = "answer"
RESTS: Final = "rest"


def _nothing() -> None:
    """Placeholder until there is something to close."""


class OpenConnections:
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
        self._idle: dict[Kind, dict[ClientConnection, None]] = {kind: {} for kind in Kind}  # longest idle first
        self._counts: Counter[Kind] = Counter()
        self._peers: Counter[tuple[Kind, str]] = Counter()
        self.all: dict[ClientConnection, None] = {}

    def add(self, client: ClientConnection) -> None:
        """Count a new connection; at the limit, close the one idle for longest. Raises `TooManyConnections`."""
        self._make_room(client.kind, client.peer)
        self.all[client] = None
        self._count(client, 1)
        self._idle[client.kind][client] = None

    def remove(self, client: ClientConnection) -> None:
        """A connection was closed."""
        if client in self.all:
            del self.all[client]
            self._idle[client.kind].pop(client, None)
            self._count(client, -1)

    def busy(self, client: ClientConnection) -> None:
        """A request of it is being handled."""
        self._idle[client.kind].pop(client, None)

    def idle(self, client: ClientConnection) -> None:
        """Its request was answered."""
        if client in self.all:
            self._idle[client.kind][client] = None

    def reclassify(self, client: ClientConnection, kind: Kind) -> None:
        """Count a connection as the kind it has proven to be; raises `TooManyConnections`."""
        if client.kind in (Kind.LOCAL, kind) or client not in self.all:
            return
        self._make_room(kind, client.peer, moves=True)
        resting = client in self._idle[client.kind]
        self._idle[client.kind].pop(client, None)
        self._count(client, -1)
        client.kind = kind
        self._count(client, 1)
        if resting:
            self._idle[kind][client] = None

    def _count(self, client: ClientConnection, change: int) -> None:
        self._counts[client.kind] += change
        key = (client.kind, client.peer)
        self._peers[key] += change
        if not self._peers[key]:
            del self._peers[key]

    def _make_room(self, kind: Kind, peer: str, *, moves: bool = False) -> None:
        if self._peers[kind, peer] >= self._most_of_peer.get(kind, self.most):
            self._evict(lambda each: each.peer == peer, kind)
        if self._counts[kind] >= self._most[kind]:
            self._evict(None, kind)
        known = (Kind.USER, Kind.AGENT)
        if kind in known and sum(self._counts[each] for each in known) >= self._most_known:
            self._evict(None, *known)
        if not moves:
            # Beyond its own share, the local socket uses slots that the others leave free.
            outside = sum(self._counts[each] for each in Kind if each is not Kind.LOCAL)
            if kind is not Kind.LOCAL and outside >= self._most_outside:
                self._evict(None, Kind.STRANGER, *known)
            if len(self.all) >= self.most:
                self._evict(None, Kind.STRANGER, *known, Kind.LOCAL)

    def _evict(self, wanted: Callable[[ClientConnection], bool] | None, *kinds: Kind) -> None:
        """Close the longest-idle connection of these kinds; raises `TooManyConnections` if all are busy."""
        for kind in kinds:
            resting = (each for each in self._idle[kind] if wanted is None or wanted(each))
            found = next((each for each in islice(resting, LOOKED_AT_MAX) if not each.is_speaking()), None)
            if found is not None:
                self.remove(found)
                found.close()
                return
        raise TooManyConnections(
            "too many connections are open", next_step="try again in a moment, and use one connection for many requests"
        )
