"""The service as a process: opens the book, answers over HTTP, tells clients where, and ends in good order."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pilotage.book.statistics import prepare
from pilotage.model.configuration import Settings
from pilotage.model.extras import extra
from pilotage.model.version import VERSION
from pilotage.ports import Clock, Journal
from pilotage.service.access import Access
from pilotage.service.announcement import Announcement, announced, refuse_second
from pilotage.service.keeper import Afterwards
from pilotage.service.notifications import MakeNotifications

Started = Callable[[Announcement], None]
"""Told once, when requests are answered."""


def serve(
    *,
    settings: Settings,
    state_folder: Path,
    open_journal: Callable[[], Journal],
    access: Access,
    token_file: Path,
    clock: Clock,
    within: Sequence[Afterwards] = (),
    make_notifications: MakeNotifications | None = None,
    started: Started | None = None,
) -> int | None:
    """Serve the book until a signal comes, which is returned; whatever was acknowledged by then is durable.

    Raises `JournalBusy` where another service has the folder or the journal, `CannotListen` where the port is taken.
    """
    with extra("server", purpose="to serve the book over HTTP"):
        from pilotage.service.http.app import make_app
        from pilotage.service.http.listener import Listener, bind, url_of
        from pilotage.service.http.services import Services

    state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_second(state_folder)
    with ExitStack() as stack:
        bound = stack.enter_context(bind(settings.service.host, settings.service.port))
        journal = open_journal()
        stack.callback(journal.close)
        notifications = make_notifications(journal, base_url=url_of(bound)) if make_notifications is not None else None
        services = Services(
            journal, access=access, settings=settings, clock=clock, within=within, notifications=notifications
        )
        announcement = Announcement(
            url=url_of(bound),
            pid=os.getpid(),
            token_file=str(token_file),
            version=VERSION,
            started_at=clock.now(),
        )

        def announce() -> None:
            stack.enter_context(announced(state_folder, announcement))
            settle_down()
            if started is not None:
                started(announcement)

        listener = Listener(make_app(services), bound=bound, started=announce, stopping=services.bell.stop)
        listener.listen()
        return listener.ended_by


def settle_down() -> None:
    """Load what a busy book needs, and look for garbage rarely.

    What is here now stays; rows and events hold no circles, so looking for those often would cost and find nothing.
    """
    prepare()
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
