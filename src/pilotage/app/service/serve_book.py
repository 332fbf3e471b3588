"""Puts together the service of a book: its journal, tokens, certificates and port, with or without running jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.provenance.records import open_records_for
from pilotage.app.state_folder import SystemClock, local_user, log, open_journal
from pilotage.model.settings.settings import Settings

if TYPE_CHECKING:
    from pilotage.ports import Journal
    from pilotage.reading.access import Principal
    from pilotage.service.announcement import Announcement as Announcement  # noqa: PLC0414 # offered on
    from pilotage.service.http.services import MakeBackend
    from pilotage.service.notifications.notifications import MakeNotifications


def serve_book(
    settings: Settings, *, started: Callable[[Announcement], None], other_ports: Sequence[int] = ()
) -> int | None:
    """Serve the book over HTTP until a signal comes, and return that; `other_ports` are tried if its own is taken."""
    return serve_settings(settings, started=started, other_ports=other_ports)


def serve_settings(
    settings: Settings,
    *,
    started: Callable[[Announcement], None],
    make_backend: MakeBackend | None = None,
    idle_seconds: float | None = None,
    other_ports: Sequence[int] = (),
) -> int | None:
    """Serve the book of the settings until a signal comes, and return the signal; with `make_backend`, also run jobs.

    If the port of the settings is taken, the `other_ports` are tried, one after another; 0 is any free one.
    """
    from pilotage.adapters.journals.sqlite.locations import BOOK
    from pilotage.adapters.settings.tokens import ensure_token, token_file
    from pilotage.app.service.credentials import tls_files, tokens_of
    from pilotage.model.errors import part
    from pilotage.reading.access import Access, digest_of, local_principal
    from pilotage.service.announcement import last_port
    from pilotage.service.server import refuse_open_folder, serve

    folder = state_folder(settings, folder=Path.cwd())
    if folder.exists():
        refuse_open_folder(folder)  # before a token is written there

    def known() -> dict[str, Principal]:
        return {digest_of(ensure_token(folder)): local_principal(local_user())}

    access = Access(known(), tokens=tokens_of(folder, settings))

    def look_after() -> None:
        if not token_file(folder).exists():  # removed on purpose to get a new one, or by mistake
            access.renew(known())
            log.warning("%s was removed: a new token was made, and the old one is no longer valid", folder)

    def serve_at(port: int) -> int | None:
        chosen = msgspec.structs.replace(settings, service=msgspec.structs.replace(settings.service, port=port))
        return serve(
            settings=chosen,
            state_folder=folder,
            open_journal=lambda: open_journal(settings),
            access=access,
            token_file=token_file(folder).absolute(),
            clock=SystemClock(),
            make_notifications=_notifications_for(settings),
            make_backend=make_backend,
            tls=tls_files(settings, folder),
            idle_seconds=idle_seconds,
            started=started,
            own_files=[folder.absolute() / BOOK] if settings.journal.address.kind == "sqlite" else [],
            look_after=look_after,
            open_records=open_records_for(settings, folder),
        )

    ports = [settings.service.port, *other_ports]
    if 0 in ports and (port := last_port(folder)):
        # Any free port will do, so take the last one: events logged meanwhile are addressed to it.
        ports.insert(ports.index(0), port)
    if len(ports) > 1:
        with part(purpose="to serve the book over HTTP"):
            from pilotage.service.http.listener import CannotListen

        for port in ports[:-1]:
            with suppress(CannotListen):
                return serve_at(port)
    return serve_at(ports[-1])


def _notifications_for(settings: Settings) -> MakeNotifications:
    """Makes the notifications of a service, with the transports that the settings name."""
    from pilotage.app.service.notifiers import Transports, owner_addresses
    from pilotage.service.notifications.notifications import Notifications

    clock = SystemClock()
    transports = Transports(settings.notifications, clock=clock)
    addresses = owner_addresses(settings.notifications.owner_addresses)

    def make(journal: Journal, *, base_url: str) -> Notifications:
        return Notifications(
            journal,
            clock=clock,
            settings=settings.notifications,
            base_url=base_url,
            notifiers=transports,
            mailer=transports.mailer,
            address_of=addresses,
        )

    return make
