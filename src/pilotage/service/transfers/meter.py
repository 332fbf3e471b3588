"""Measures a transfer while it moves, and slows or stops it: limits of rates, its time limit, and cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pilotage.ports.job_tree import StoreError

BURST_SECONDS = 0.5
"""A limit lets this much through at once after a pause."""

Clock = Callable[[], float]


class TransferStopped(Exception):
    """The transfer is not wanted any more, or the service stops. What it has brought stays for the next try."""


class TimedOut(StoreError):
    """A transfer took longer than its size allows: look at the network and at the load of the store."""

    reason = "timed-out"


class RateLimit:
    """A token bucket that several transfers share; 0 bytes per second is no limit. Any thread may use it."""

    def __init__(self, bytes_per_second: int, *, clock: Clock = time.monotonic) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._guard = threading.Lock()
        self._paid_until = float("-inf")

    def reserve(self, count: int) -> float:
        """Take some bytes; how many seconds to wait before the next."""
        if not self.bytes_per_second:
            return 0.0
        with self._guard:
            now = self._clock()
            self._paid_until = max(self._paid_until, now - BURST_SECONDS) + count / self.bytes_per_second
            return max(0.0, self._paid_until - now)


class Meter:
    """How far one transfer is. Its own thread moves it; other threads read it, and may cancel it."""

    def __init__(self, limits: Sequence[RateLimit] = (), *, clock: Clock = time.monotonic) -> None:
        """Take the limits of its store and its site."""
        self._limits = limits
        self._clock = clock
        self._stopped = threading.Event()
        self.started_at = 0.0  # by the clock; 0: it waits for its turn
        self.ends_at = float("inf")
        self.total_bytes: int | None = None
        self.bytes_done = 0  # of the file, with those of earlier tries
        self.bytes_moved = 0  # by this transfer, in all tries
        self.tries = 0
        self.fault = ""  # of the last try that failed

    def start(self) -> None:
        """Its turn has come."""
        self.started_at = self._clock()

    def allow(self, seconds: float) -> None:
        """Set the time limit, from its start; what it waits for limits of rates does not count."""
        self.ends_at = self.started_at + seconds

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return max(0.0, self._clock() - self.started_at) if self.started_at else 0.0

    def advance(self, count: int) -> None:
        """So many more bytes were moved. Raises `TransferStopped`, `TimedOut`."""
        self.bytes_done += count
        self.bytes_moved += count
        self.check()
        for limit in self._limits:
            seconds = limit.reserve(count)
            if seconds > 0.0:
                self.ends_at += seconds
                self.pause(seconds)

    def pause(self, seconds: float) -> None:
        """Wait. Raises `TransferStopped` as soon as it is cancelled, and `TimedOut`."""
        self._stopped.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raises `TransferStopped`, `TimedOut`."""
        if self._stopped.is_set():
            raise TransferStopped
        if self.is_late:
            raise TimedOut(f"it took longer than {self.ends_at - self.started_at:.0f} s")

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return self._clock() >= self.ends_at

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Cancel it."""
        self._stopped.set()
