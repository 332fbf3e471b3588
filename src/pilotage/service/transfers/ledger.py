"""What is under way: the open transfers, the lanes they run in, what they came to, and which of them hang."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from pilotage.model.locators import shown_locator
from pilotage.model.texts import clipped
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import FoundStore
from pilotage.service.transfers.meter import Clock, Meter, TimedOut
from pilotage.service.transfers.pool import Lane, Lanes, Run, TransferPool

GRACE_SECONDS = 30.0
"""A transfer that is so late hangs in its store: it is reported, and its thread forgotten."""
LOOK_SECONDS = 15.0
FAULT_MAX = 500

Kind = Literal["fetch", "remove", "store", "send"]
Place = tuple[str, str]
"""The site and the name of a cached file."""


class TransferStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer that is under way."""

    kind: Kind
    key: str
    locator: str  # without anything secret
    store: str
    site: str
    job: str
    bytes_done: int
    total_bytes: int | None
    bytes_per_second: float
    seconds: float
    tries: int
    fault: str


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the transfers with a store came to since the service started."""

    store: str
    under_way: int
    waiting: int
    files: int
    bytes: int
    seconds: float
    failures: dict[str, int]  # by reason
    last_fault: str


class _Counts:
    def __init__(self) -> None:
        self.files, self.bytes, self.seconds = 0, 0, 0.0
        self.failures: dict[str, int] = {}
        self.last_fault = ""


class Transfer:
    """One order, from its arrival to its report."""

    def __init__(self, kind: Kind, key: str, *, lanes: Lanes, clock: Clock, locator: str, site: str, job: str) -> None:
        self.kind = kind
        self.key = key
        self.lanes = lanes
        self.meter = Meter([lane.rate for lane in lanes], clock=clock)
        self.locator = locator
        self.store = ""
        self.site = site
        self.job = job
        self.place: Place | None = None  # if it concerns a file of a cache
        self.run: Run = lambda: None
        self.give_up: Callable[[StoreError], None] = lambda _: None
        self.is_over = False


class TransferLedger:
    """The transfers of a service, open and past. Any thread may use it."""

    def __init__(self, pool: TransferPool, *, clock: Clock = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._change = threading.Condition()
        self._store_lanes: dict[str, Lane] = {}
        self._site_lanes: dict[Place, Lane] = {}  # by site and purpose
        self._counts: dict[str, _Counts] = {}  # by store
        self._open: dict[tuple[str, str, str], Transfer] = {}  # by kind, site and key
        self._running: set[Transfer] = set()
        self._places: dict[Place, deque[Transfer]] = {}
        self._stuck: set[Place] = set()
        self._watch: threading.Thread | None = None
        self._stopping = False

    # --- lanes ---

    def store_lane(self, found: FoundStore) -> Lane:
        """The lane of a store."""
        with self._change:
            lane = self._store_lanes.get(found.name)
            if lane is None:
                at_once, rate = found.settings.concurrency, found.settings.bytes_per_second
                lane = Lane(found.name, at_once=at_once, bytes_per_second=rate, clock=self._clock)
                self._store_lanes[found.name] = lane
                self._counts[found.name] = _Counts()
            return lane

    def site_lane(self, site: str, purpose: str, *, at_once: int, bytes_per_second: int = 0) -> Lane:
        """The lane of a site for one purpose; another one after its limits have changed."""
        with self._change:
            lane = self._site_lanes.get((site, purpose))
            if lane is None or (lane.at_once, lane.rate.bytes_per_second) != (at_once, bytes_per_second):
                lane = Lane(site, at_once=at_once, bytes_per_second=bytes_per_second, clock=self._clock)
                self._site_lanes[site, purpose] = lane
            return lane

    # --- one transfer ---

    def open(
        self, kind: Kind, key: str, *, locator: str, lanes: Lanes = (), store: str = "", site: str = "", job: str = ""
    ) -> Transfer | None:
        """A new transfer; None if the same one is open, or the service stops."""
        with self._change:
            if self._stopping or (kind, site, key) in self._open:
                return None
            transfer = Transfer(kind, key, lanes=lanes, clock=self._clock, locator=locator, site=site, job=job)
            transfer.store = store
            self._open[kind, site, key] = transfer
            return transfer

    def queue(self, transfer: Transfer, *, place: Place | None = None) -> None:
        """Run a transfer when its lanes have room; those of one file of a cache, one after another."""
        if place is not None:
            transfer.place = place
            with self._change:
                waiting = self._places.setdefault(place, deque())
                waiting.append(transfer)
                if len(waiting) > 1:
                    return
        self._pool.submit(transfer.lanes, transfer.run)

    def begin(self, transfer: Transfer, *, seconds: float | None = None) -> bool:
        """The turn of a transfer has come, for so many seconds; whether it is still wanted."""
        with self._change:
            if transfer.is_over or self._stopping:
                return False
            transfer.meter.start()
            if seconds is not None:
                transfer.meter.allow(seconds)
            self._running.add(transfer)
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, name="late transfers", daemon=True)
                self._watch.start()
            return True

    def finish(self, transfer: Transfer, *, fault: StoreError | None = None) -> bool:
        """A transfer has come to its end; whether that was still awaited."""
        following: Transfer | None = None
        with self._change:
            if transfer.is_over:
                return False
            transfer.is_over = True
            self._running.discard(transfer)
            self._open.pop((transfer.kind, transfer.site, transfer.key), None)
            if transfer.place is not None:
                following = self._leave(transfer.place, transfer)
            if transfer.store:
                self._count(transfer, fault)
            if not self._open:
                self._change.notify_all()
        if following is not None:
            self._pool.submit(following.lanes, following.run)
        return True

    def _leave(self, place: Place, transfer: Transfer) -> Transfer | None:
        """Take a transfer out of the queue of its file; the next one, if that may run now."""
        waiting = self._places[place]
        was_first = waiting[0] is transfer
        waiting.remove(transfer)
        if not waiting:
            del self._places[place]
            return None
        return waiting[0] if was_first else None

    def _count(self, transfer: Transfer, fault: StoreError | None) -> None:
        counts, meter = self._counts[transfer.store], transfer.meter
        counts.seconds += meter.seconds
        counts.bytes += meter.bytes_moved
        if fault is None:
            counts.files += 1
        elif not meter.is_stopped or meter.is_late:  # what was cancelled says nothing about the store
            counts.failures[fault.reason] = counts.failures.get(fault.reason, 0) + 1
            counts.last_fault = clipped(f"{fault.reason}: {fault.what}", FAULT_MAX)

    def fetches_of(self, place: Place) -> tuple[list[Transfer], list[Transfer]]:
        """The fetches of a file that run, and those that wait for their turn."""
        with self._change:
            fetches = [each for each in self._places.get(place, ()) if each.kind == "fetch"]
            running = [each for each in fetches if each in self._running]
            return running, [each for each in fetches if each not in self._running]

    def take_stuck(self, place: Place) -> bool:
        """Whether a forgotten thread may still have the draft of a file open; it is told once."""
        with self._change:
            is_stuck = place in self._stuck
            self._stuck.discard(place)
            return is_stuck

    # --- all of them ---

    def stop(self) -> None:
        """Cancel what is open, and open nothing more."""
        with self._change:
            self._stopping = True
            transfers = list(self._open.values())
            self._change.notify_all()
        for each in transfers:
            each.meter.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether everything is cancelled because the service stops."""
        return self._stopping

    def under_way(self) -> list[TransferStatus]:
        """The transfers that run now, the longest first."""
        with self._change:
            running = [each for each in self._running if each.kind != "remove"]
        return [_status(each) for each in sorted(running, key=lambda each: each.meter.started_at)]

    def stores(self) -> list[StoreStatus]:
        """What the transfers with each store came to, by name."""
        with self._change:
            return [
                StoreStatus(
                    store=name,
                    under_way=lane.running,
                    waiting=lane.waiting,
                    files=self._counts[name].files,
                    bytes=self._counts[name].bytes,
                    seconds=self._counts[name].seconds,
                    failures=dict(self._counts[name].failures),
                    last_fault=self._counts[name].last_fault,
                )
                for name, lane in sorted(self._store_lanes.items())
            ]

    def _look(self) -> None:
        """Give up transfers that hang in their stores beyond their time limit; ends with the last transfer."""
        while True:
            with self._change:
                self._change.wait(LOOK_SECONDS)
                if self._stopping or not self._running:
                    self._watch = None
                    return
            self.give_up_late()

    def give_up_late(self) -> None:
        """Give up transfers that are far beyond their time limits."""
        with self._change:
            late = [each for each in self._running if self._clock() >= each.meter.ends_at + GRACE_SECONDS]
            self._stuck.update(each.place for each in late if each.place is not None)
        for each in late:
            each.meter.stop()
            fault = TimedOut("its store does not answer", subject=shown_locator(each.locator))
            if self.finish(each, fault=fault):
                each.give_up(fault)


def _status(transfer: Transfer) -> TransferStatus:
    meter = transfer.meter
    seconds = meter.seconds
    return TransferStatus(
        kind=transfer.kind,
        key=transfer.key,
        locator=shown_locator(transfer.locator),
        store=transfer.store,
        site=transfer.site,
        job=transfer.job,
        bytes_done=meter.bytes_done,
        total_bytes=meter.total_bytes,
        bytes_per_second=meter.bytes_moved / seconds if seconds else 0.0,
        seconds=seconds,
        tries=meter.tries,
        fault=meter.fault,
    )
