"""Runs transfers in threads, a few at once for each store and each site: one that hangs delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from pilotage.service.transfers.meter import Clock, RateLimit

log = logging.getLogger(__name__)

QUICK_SECONDS = 0.005
"""While a thread takes the next transfer so often, no other is started: small files of this computer need none."""
THREADS_MAX = 256
"""The most threads, whatever the number of stores: each store and site has its own limit below that."""


class Lane:
    """What the transfers of one store, or to one site, share: how many run at once, and their rate."""

    def __init__(self, name: str, *, at_once: int, bytes_per_second: int = 0, clock: Clock = time.monotonic) -> None:
        self.name = name
        self.at_once = at_once
        self.rate = RateLimit(bytes_per_second, clock=clock)
        self.running = 0
        self.waiting = 0


Lanes = tuple[Lane, ...]
Run = Callable[[], None]


class TransferPool:
    """A queue for each combination of lanes, served in turn. A thread without work ends. Any thread may use it."""

    def __init__(self, *, threads_max: int = THREADS_MAX) -> None:
        """Start nothing."""
        self._threads_max = threads_max
        self._guard = threading.Condition()
        self._queues: dict[Lanes, deque[Run]] = {}
        self._threads: set[threading.Thread] = set()
        self._starter: threading.Thread | None = None
        self._taken = 0
        self._stopping = False

    def submit(self, lanes: Lanes, run: Run) -> None:
        """Run something when all its lanes have room."""
        with self._guard:
            if self._stopping:
                return
            self._queues.setdefault(lanes, deque()).append(run)
            for lane in lanes:
                lane.waiting += 1
            if _have_room(lanes):
                self._have_more_threads()

    def stop(self, *, patience_seconds: float) -> bool:
        """Drop what waits, and wait for what runs; whether all has ended."""
        with self._guard:
            self._stopping = True
            self._queues.clear()
            self._guard.notify_all()
            threads = list(self._threads)
        until = time.monotonic() + patience_seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        with self._guard:
            return len(self._threads)

    def _have_more_threads(self) -> None:
        """Start the first thread at once, and another when those that run are slow to take what waits."""
        if not self._threads:
            self._start_thread()
        elif self._starter is None:
            self._starter = threading.Thread(target=self._start_threads, name="transfers that wait", daemon=True)
            self._starter.start()

    def _start_threads(self) -> None:
        with self._guard:
            while not self._stopping and any(map(_have_room, self._queues)):
                before = self._taken
                self._guard.wait(QUICK_SECONDS)
                if self._taken == before and any(map(_have_room, self._queues)):
                    self._start_thread()
            self._starter = None

    def _start_thread(self) -> None:
        if len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._work, name="transfer", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        mine: Lanes = ()
        while True:
            with self._guard:
                for lane in mine:
                    lane.running -= 1
                taken = self._take()
                if taken is None:
                    self._threads.discard(threading.current_thread())
                    return
                mine, run = taken
                self._taken += 1
                if any(map(_have_room, self._queues)):  # the end of one may make room for two
                    self._have_more_threads()
            try:
                run()
            except Exception:
                log.exception("a transfer failed in an unforeseen way")

    def _take(self) -> tuple[Lanes, Run] | None:
        """The first thing whose lanes have room; its queue is the last in turn then."""
        for lanes, queue in self._queues.items():
            if _have_room(lanes):
                run = queue.popleft()
                del self._queues[lanes]
                if queue:
                    self._queues[lanes] = queue
                for lane in lanes:
                    lane.running += 1
                    lane.waiting -= 1
                return lanes, run
        return None


def _have_room(lanes: Lanes) -> bool:
    return all(lane.running < lane.at_once for lane in lanes)
