"""Delivers notices and mails, each receiver in its own turn, so that a failing one does not delay the others.

A thread collects due deliveries from their sources and gives them to a few workers; never two at once to one receiver.
The time of the next try is in the journal, so a restart continues where the last service stopped.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import msgspec

from pilotage.book.notices.notices import Number, notice_of, number_of, retry_seconds
from pilotage.book.rows.tables import NoticeRow, SubscriptionRow
from pilotage.ports import Clock, JournalError, NotDelivered
from pilotage.service.notifications.subscriptions import Subscriptions

log = logging.getLogger(__name__)

WORKERS = 8
TURN_NOTICES = 100
TURN_SECONDS = 10.0
"""A turn ends after so many notices or seconds, so that others get theirs and a stop is quick."""

LOOK_SECONDS_MAX = 60.0
TROUBLE_SECONDS = 5.0
"""How long to wait after a failure of our own, such as a journal that does not answer."""

_SWEEP = "sweep"


class DueDelivery(msgspec.Struct, frozen=True):
    """A delivery, not before a time; only one per key is in progress."""

    key: str
    at: float
    run: Callable[[], None]


class DeliverySource(Protocol):
    """A source of deliveries."""

    def due_deliveries(self) -> Iterable[DueDelivery]:
        """Deliveries, due now or later."""
        ...

    def on_news(self, woken: Callable[[], None]) -> None:
        """Call `woken`, in any thread, when there may be another delivery."""
        ...


class SubscriptionDeliveries:
    """Sends the notices of subscriptions with an address, in order, and ends expired ones."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        *,
        clock: Clock,
        base_url: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Deliver for subscriptions; `base_url` is the service's URL, `chance` randomizes retry times."""
        self._subscriptions = subscriptions
        self._clock = clock
        self._base_url = base_url
        self._chance = chance
        self.settle: Callable[[], None] = lambda: None
        """Waits until the changes in the notices have taken effect."""

    def on_news(self, woken: Callable[[], None]) -> None:
        """Call `woken` when there are new notices, or an address changed."""
        self._subscriptions.on_news(lambda _: woken())

    def due_deliveries(self) -> Iterable[DueDelivery]:
        """A turn for each waiting subscription, and an end for expired ones."""
        over = self._subscriptions.next_expiry()
        if over is not None:
            yield DueDelivery(_SWEEP, over, self._subscriptions.sweep)
        for row in self._subscriptions.waiting():
            yield DueDelivery(row.subscription, row.next_at, partial(self._turn, row.subscription))

    def _turn(self, subscription: str) -> None:
        found = self._subscriptions.turn(subscription, limit=TURN_NOTICES)
        if found is None:
            return
        row, queued = found
        self.settle()
        through, fault = self._send(row, queued)
        now = self._clock.now()
        if fault is None:
            pause = self._subscriptions.notifiers[row.transport].pause_seconds
            self._subscriptions.record_turn(row, through=through, fault="", next_at=now + pause if pause else 0.0)
            return
        attempts = 1 if through is not None else row.attempts + 1
        wait = max(retry_seconds(attempts, chance=self._chance()), min(fault.after_seconds or 0.0, LOOK_SECONDS_MAX))
        log.warning(
            "subscription %s of %s: %s; try %d, again in %.0f s", row.subscription, row.owner, fault, attempts, wait
        )
        self._subscriptions.record_turn(row, through=through, fault=str(fault), next_at=now + wait)

    def _send(self, row: SubscriptionRow, queued: Sequence[NoticeRow]) -> tuple[Number | None, NotDelivered | None]:
        """Send as much as one turn allows; returns the last number delivered, and the error that stopped it."""
        notifier = self._subscriptions.notifiers.get(row.transport)
        if notifier is None:
            return None, NotDelivered(f"this service has no transport {row.transport} any more")
        through: Number | None = None
        size, began = notifier.notices_max, self._clock.now()
        for start in range(0, len(queued), size):
            some = queued[start : start + size]
            notices = [notice_of(each, base_url=self._base_url) for each in some]
            try:
                notifier.tell(row.address, notices, secret=row.secret)
            except NotDelivered as fault:
                return through, fault
            through = number_of(some[-1])
            if notifier.pause_seconds or self._clock.now() - began > TURN_SECONDS:
                break
        return through, None


class Deliveries:
    """Carries out the deliveries of some sources: in a thread with workers, or, for tests, all due ones at once."""

    def __init__(self, sources: Sequence[DeliverySource], *, clock: Clock, workers: int = WORKERS) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._change = threading.Condition()
        self._busy: set[str] = set()
        self._troubled: dict[str, float] = {}
        self._woken = False
        self._stopped = False
        self._workers = workers
        self._thread = threading.Thread(target=self._run, name="deliveries", daemon=True)

    def start(self) -> None:
        """Start delivering, including what waited before the start."""
        for source in self._sources:
            source.on_news(self.wake)
        self._thread.start()

    def stop(self) -> None:
        """Start nothing more, and wait for deliveries in progress."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        """Ask the sources again."""
        with self._change:
            self._woken = True
            self._change.notify_all()

    def next_at(self) -> float | None:
        """When the next delivery is due that is not in progress."""
        _, later = self._due()
        return later

    def _run(self) -> None:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="delivery") as pool:
            while True:
                with self._change:
                    if self._stopped:
                        return
                    self._woken = False
                due, later = self._due()
                for delivery in due:
                    with self._change:
                        self._busy.add(delivery.key)
                    pool.submit(self._do, delivery)
                wait = LOOK_SECONDS_MAX if later is None else later - self._clock.now()
                with self._change:
                    self._change.wait_for(
                        lambda: self._woken or self._stopped, timeout=min(max(wait, 0.0), LOOK_SECONDS_MAX)
                    )

    def _due(self) -> tuple[list[DueDelivery], float | None]:
        """The due deliveries that are not in progress, and when the next one is due."""
        now = self._clock.now()
        with self._change:
            busy = set(self._busy)
            troubled = dict(self._troubled)
        due: list[DueDelivery] = []
        later: float | None = None
        for source in self._sources:
            for delivery in source.due_deliveries():
                if delivery.key in busy:
                    continue
                at = max(delivery.at, troubled.get(delivery.key, 0.0))
                if at <= now:
                    due.append(delivery)
                elif later is None or at < later:
                    later = at
        return due, later

    def _do(self, delivery: DueDelivery) -> None:
        trouble = True
        try:
            delivery.run()
            trouble = False
        except JournalError as fault:
            log.warning("a delivery waits for the journal: %s", fault)
        except Exception:
            log.exception("a delivery failed unexpectedly")
        with self._change:
            self._busy.discard(delivery.key)
            self._troubled.pop(delivery.key, None)
            if trouble:
                self._troubled[delivery.key] = self._clock.now() + TROUBLE_SECONDS
            self._woken = True
            self._change.notify_all()
