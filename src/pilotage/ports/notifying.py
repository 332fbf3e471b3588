"""How subscribers and owners are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from pilotage.book.notices.notices import Notice
from pilotage.model.errors import PilotageError
from pilotage.ports.clock import Clock

if TYPE_CHECKING:
    from pilotage.model.settings.settings import NotificationSettings


class BadAddress(PilotageError):
    """An address that a transport cannot use; the message says what it must look like."""


class NotDelivered(PilotageError):
    """The receiver did not take it, or nobody knows whether it did: it is sent again, with the same ids."""

    retryable = True

    def __init__(
        self, what: str, *, subject: str = "", next_step: str = "", after_seconds: float | None = None
    ) -> None:
        """Say why, and how long the receiver asked to be left alone."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.after_seconds = after_seconds


class DeliveryRefused(NotDelivered):
    """The receiver said that it will not take it, now or later."""

    retryable = False


class Notifier(Protocol):
    """A way to tell subscribers. Any thread may use it."""

    @property
    def notices_max(self) -> int:
        """How many notices it tells at once: all of them arrive, or none is known to."""
        ...

    @property
    def pause_seconds(self) -> float:
        """How long a receiver is left alone after it was told."""
        ...

    def check_address(self, address: str) -> None:
        """Refuse an address that cannot be told anything, with `BadAddress`; nothing is sent."""
        ...

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Tell some notices, in order; when this returns the receiver has them. Raises `NotDelivered`."""
        ...


class MakesNotifier(Protocol):
    """What makes a notifier of one kind. It is found by its entry point in `pilotage.notifiers`."""

    def __call__(self, settings: NotificationSettings, *, clock: Clock) -> Notifier | None:
        """The notifier of a service; None where its settings do not ask for one. Raises `BadAddress`."""
        ...


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One mail: a letter that is sent again has the same id."""

    id: str
    recipients: tuple[str, ...]
    subject: str
    body: str


class Mailer(Protocol):
    """A way to send letters. Any thread may use it."""

    def send(self, letter: Letter) -> None:
        """Hand a letter over; raises `NotDelivered`, or `DeliveryRefused` where it is no use to try again."""
        ...
