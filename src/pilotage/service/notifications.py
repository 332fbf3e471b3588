"""Notifications as one part: subscriptions, digests and their deliveries over one journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pilotage.model.configuration import NotificationSettings
from pilotage.ports import Clock, Journal, Mailer, Notifier
from pilotage.service.deliveries import Deliveries, SubscriptionAgenda
from pilotage.service.digests import Digests
from pilotage.service.keeper import Afterwards
from pilotage.service.subscriptions import Subscriptions

THREADS = 2
"""Of those who ask about subscriptions: they wait for the one writer, and must not keep readers waiting with them."""


class MakeNotifications(Protocol):
    """What makes the notifications of a service, once its journal is open and its address is known."""

    def __call__(self, journal: Journal, *, base_url: str) -> Notifications:
        """Take up what the journal has."""
        ...


class Notifications:
    """What notes in the transactions of batches whom to tell, and what tells them."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        settings: NotificationSettings,
        base_url: str,
        notifiers: Mapping[str, Notifier],
        mailer: Mailer | None,
        address_of: Callable[[str], str | None],
    ) -> None:
        """Take up what the journal has; nothing is sent before `start`.

        `notifiers` are the transports that subscriptions may use beside `poll`; `mailer` sends digests, and without one
        there are none; `address_of` knows the mail address of an owner.
        """
        self.base_url = base_url
        self.subscriptions = Subscriptions(journal, clock=clock, settings=settings, notifiers=notifiers)
        self.digests = Digests(
            journal, clock=clock, settings=settings, mailer=mailer, base_url=base_url, address_of=address_of
        )
        self._agenda = SubscriptionAgenda(self.subscriptions, clock=clock, base_url=base_url)
        self.deliveries = Deliveries([self._agenda, self.digests], clock=clock)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="subscriptions")

    @property
    def within(self) -> tuple[Afterwards, ...]:
        """What belongs into the transaction of each batch."""
        return self.subscriptions.note, self.digests.note

    def settle_by(self, settle: Callable[[], None]) -> None:
        """Take what waits until that has happened which the book says; it is called before anything is sent."""
        self._agenda.settle = settle

    def start(self) -> None:
        """Begin to deliver."""
        self.deliveries.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way is waited for."""
        self.deliveries.stop()
        self.threads.shutdown(wait=True)


def bell_name(subscription: str) -> str:
    """What the bell is rung for when a subscription has news: no job is called so."""
    return f"/subscriptions/{subscription}"
