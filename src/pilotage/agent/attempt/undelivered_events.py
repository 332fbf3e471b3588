"""Delivers events that applications logged but could not deliver themselves, with their own tokens.

Each attempt has a spool of its own, since the token of one package cannot deliver events of another. The spool exists
only if the attempt logged an event, and is removed when the service has all of them. If only the pilot can reach the
service, it also delivers events of running attempts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.environment import spool_name
from pilotage.agent.attempt.scratch import remove_tree
from pilotage.agent.delivery.courier import PACKAGE_PATH, Courier
from pilotage.agent.delivery.spool import Spool, is_pilots_own, normal_server
from pilotage.agent.errors import AgentError
from pilotage.agent.link.http import Connection, LinkConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pilotage.agent.link.http import Connect

AGAIN_SECONDS = (0.5, 60.0)
DRAIN_SECONDS = 30.0
LAST_SECONDS = 5.0
LOOK_SECONDS = 5.0  # how often to check the spools of running attempts
LEFT_MAX = 10_000  # spools to deliver; more are left on disk for another courier


class _UndeliveredStream(NamedTuple):
    folder: str
    token: str
    is_over: bool


class UndeliveredEvents:
    """Delivers in a thread of its own, which starts with the first undelivered event."""

    def __init__(
        self,
        spools: str,
        *,
        server: str = "",
        ca_file: str = "",
        connect: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the folder of the spools, which may be missing, and the server that attempts log to.

        `connect` makes the pilot's own link; without it, the server's address and CA file are used.
        """
        self._spools = spools
        self._ca_file = ca_file
        self._connect = connect
        self._server = server
        self._is_alone = is_pilots_own(server)
        self._clock = clock
        self._looked = clock()
        self._running: dict[str, str] = {}  # tokens of running attempts by spool, if only the pilot can deliver
        self._ended: deque[tuple[Mapping[str, Any], str]] = deque()  # ended attempts, and their tokens
        self._change = threading.Condition()
        self._left: list[_UndeliveredStream] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def attempt_began(self, ref: Mapping[str, Any], token: str) -> None:
        """Note that an attempt starts."""
        if self._is_alone:
            self._running[spool_name(ref)] = token

    def attempt_ended(self, ref: Mapping[str, Any], token: str) -> None:
        """Note that an attempt ended; the next `look` finds its undelivered events."""
        if self._is_alone:
            self._running.pop(spool_name(ref), None)
        self._ended.append((ref, token))

    def look(self) -> None:
        """Schedule undelivered events for delivery. Call it from time to time, from one thread."""
        running: dict[str, str] = {}
        if self._running and self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            running = self._running.copy()
        if not self._ended and not running:
            return
        # Slots append meanwhile, so take entries out one by one.
        over = [self._ended.popleft() for _ in range(len(self._ended))]
        try:
            names = os.listdir(self._spools) if self._spools else []
        except OSError:
            return  # no attempt has logged an event
        ended = {spool_name(ref): token for ref, token in over} if names else {}
        found = [
            _UndeliveredStream(os.path.join(self._spools, name), ended[name], True) for name in names if name in ended
        ]
        found += [
            _UndeliveredStream(os.path.join(self._spools, name), running[name], False)
            for name in names
            if name in running
        ]
        if not found:
            return
        with self._change:
            new = [each for each in found if each not in self._left]
            self._left += new[: max(0, LEFT_MAX - len(self._left))]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="left events", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Try once more, for a few seconds; undelivered events stay on disk."""
        self.look()
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(LAST_SECONDS)

    def _work(self) -> None:
        pause_seconds = AGAIN_SECONDS[0]
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._left) or self._closing)
                last, work = self._closing, list(self._left)
            until = time.monotonic() + (LAST_SECONDS if last else DRAIN_SECONDS * len(work))
            done = [each for each in work if self._deliver(each, until)]
            with self._change:
                # Events of running attempts are found again by the next `look`.
                self._left = [each for each in self._left if each not in done and (each.is_over or each not in work)]
                if last or (self._closing and not self._left):
                    return
                if not self._left:
                    pause_seconds = AGAIN_SECONDS[0]
                elif not done:
                    self._change.wait_for(lambda: self._closing, timeout=pause_seconds)
                    pause_seconds = min(2.0 * pause_seconds, AGAIN_SECONDS[1])

    def _deliver(self, left: _UndeliveredStream, until: float) -> bool:
        """Deliver the events of one attempt; returns whether nothing is left to do."""
        with contextlib.suppress(AgentError, OSError, ValueError):
            waiting = others = 0
            for queue in Spool(Path(left.folder)).queues():
                if self._server and queue.server != normal_server(self._server):
                    others += queue.pending()  # for another server, which must not see the token
                    continue
                courier = Courier(
                    queue, token=lambda: left.token, connection=self._connection(queue.server), path=PACKAGE_PATH
                )
                try:
                    courier.drain_once(timeout_seconds=max(0.1, min(DRAIN_SECONDS, until - time.monotonic())))
                finally:
                    courier.close()
                waiting += queue.pending()
            if waiting or not left.is_over:
                return False
            return bool(others) or remove_tree(left.folder)
        return False

    def _connection(self, server: str) -> Connection | LinkConnection:
        if self._connect is not None:
            return LinkConnection(server, self._connect)
        return Connection(server, ca_file=self._ca_file)
