"""Makes the mail notifier; loads the mail modules only if a mail server is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Clock

if TYPE_CHECKING:
    from pilotage.adapters.notifiers.smtp import SmtpNotifier


def mail_notifier(settings: NotificationSettings, *, clock: Clock) -> SmtpNotifier | None:
    """The mail notifier; None if no mail server is configured."""
    if not settings.smtp_host:
        return None
    from pilotage.adapters.notifiers.smtp import SmtpNotifier, SmtpServer

    server = SmtpServer(host=settings.smtp_host, port=settings.smtp_port, sender=settings.smtp_from)
    made = SmtpNotifier(server, clock=clock, pause_seconds=settings.digest_seconds)
    for address in (*settings.cluster_management, *settings.grid_control):
        made.check_address(address)
    return made
