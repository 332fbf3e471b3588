"""How subscribers and owners receive notices."""

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
    """A transport cannot use this address; the message says what it must look like."""


class NotDelivered(PilotageError):
    """The receiver did not take the notices, or its answer is unknown: they are sent again, with the same ids."""

    retryable = True

    def __init__(
        self, what: str, *, subject: str = "", next_step: str = "", after_seconds: float | None = None
    ) -> None:
        """Say why, and how long the receiver asked us to wait."""
        super().__init__(what, subject=subject, next_step=next_step)
        self.after_seconds = after_seconds


class DeliveryRefused(NotDelivered):
    """The receiver refused the notices for good."""

    retryable = False


class Notifier(Protocol):
    """Sends notices by one transport. Any thread may use it."""

    @property
    def notices_max(self) -> int:
        """The most notices of one call: all of them arrive, or none is known to."""
        ...

    @property
    def pause_seconds(self) -> float:
        """How long to wait after a call before the next one to the same receiver."""
        ...

    def check_address(self, address: str) -> None:
        """Raise `BadAddress` for an address that this transport cannot use; sends nothing."""
        ...

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Send notices in order; when this returns, the receiver has them. Raises `NotDelivered`."""
        ...


class MakesNotifier(Protocol):
    """Makes notifiers of one kind. Found by its entry point in `pilotage.notifiers`."""

    def __call__(self, settings: NotificationSettings, *, clock: Clock) -> Notifier | None:
        """The notifier of a service; None if the settings do not ask for one. Raises `BadAddress`."""
        ...


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One mail; sent again, it keeps its id."""

    id: str
    recipients: tuple[str, ...]
    subject: str
    body: str


class Mailer(Protocol):
    """Sends mails. Any thread may use it."""

    def send(self, letter: Letter) -> None:
        """Hand a mail to the mail server; raises `NotDelivered`, or `DeliveryRefused` if trying again cannot help."""
        ...
