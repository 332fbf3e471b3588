"""Which transports a service has, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.notifiers.smtp import is_address
from pilotage.adapters.notifiers.webhook import WebhookNotifier
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Clock, Notifier

if TYPE_CHECKING:
    from pilotage.adapters.notifiers.smtp import SmtpNotifier


class Transports(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to tell somebody: by name for subscriptions, and the one that mails digests where there is one."""

    notifiers: dict[str, Notifier]
    mailer: SmtpNotifier | None


def make_transports(settings: NotificationSettings, *, clock: Clock) -> Transports:
    """The transports of a service; mail only where a mail server is set."""
    notifiers: dict[str, Notifier] = {"webhook": WebhookNotifier(clock=clock, networks=settings.webhook_networks)}
    mailer: SmtpNotifier | None = None
    if settings.smtp_host:
        from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer

        server = SmtpServer(host=settings.smtp_host, port=settings.smtp_port, sender=settings.smtp_from)
        mailer = SmtpNotifier(server, clock=clock, pause_seconds=settings.digest_seconds)
        for address in (*settings.cluster_management, *settings.grid_control):
            mailer.check_address(address)
        notifiers["mail"] = mailer
    return Transports(notifiers=notifiers, mailer=mailer)


def owner_addresses(pairs: Iterable[str]) -> Callable[[str], str | None]:
    """Who has which mail address: as `OWNER=ADDRESS` says, or the owner's own name where it looks like an address."""
    known: dict[str, str] = {}
    for pair in pairs:
        owner, sign, address = pair.rpartition("=")
        if not sign or not owner or not is_address(address):
            raise PilotageError(
                "this does not say who has which mail address", subject=pair[:80], expected="OWNER=NAME@DOMAIN"
            )
        known[owner] = address
    return lambda owner: known.get(owner) or (owner if is_address(owner) else None)
