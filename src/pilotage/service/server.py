"""The service as a process: opens the book, serves HTTP, announces its address, and shuts down in order."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.book.statistics.statistics import prepare
from pilotage.model.errors import PilotageError, part
from pilotage.model.settings.settings import Settings
from pilotage.model.version import VERSION
from pilotage.ports import Clock, Journal
from pilotage.reading.access import Access
from pilotage.service.announcement import SERVICE_FILE, Announcement, Ended, announced, note_end, refuse_second
from pilotage.service.journal.recording import OpenRecords
from pilotage.service.journal.writer import Afterwards
from pilotage.service.notifications.notifications import MakeNotifications
from pilotage.service.process import PROCESS

if TYPE_CHECKING:
    from pilotage.service.http.listener import Certificate, TlsFiles
    from pilotage.service.http.services import MakeBackend

log = logging.getLogger(__name__)

SOCKET_FILE = "agent.sock"
SETTLE_SECONDS = 2.0

Started = Callable[[Announcement], None]
"""Called once, when requests are answered."""


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
    make_backend: MakeBackend | None = None,
    tls: TlsFiles | None = None,
    idle_seconds: float | None = None,
    started: Started | None = None,
    own_files: Sequence[Path] = (),
    look_after: Callable[[], None] = lambda: None,
    open_records: OpenRecords | None = None,
) -> int | None:
    """Serve the book until a signal comes, and return the signal; all acknowledged events are durable by then.

    With `make_backend` it also runs jobs and answers agents; after `idle_seconds` without jobs and requests it stops by
    itself. With `tls`, TCP connections use TLS; the socket in the folder stays plain.

    While `own_files` exist the state folder is still its own; `look_after` restores missing files in it, and is called
    regularly. With `open_records`, it makes records of jobs that are over.

    Raises `JournalBusy` if another service has the folder or the journal, `CannotListen` if the port is taken, and
    `ServiceBroken` if it stopped by itself because it could no longer work.
    """
    with part(purpose="to serve the book over HTTP"):
        from pilotage.service.http.listener import Listener, NoSocketsHere, bind, bind_local, refuse_plain, url_of
        from pilotage.service.http.services import Services
        from pilotage.service.http.watchdogs import (
            OwnStateFolder,
            ServiceBroken,
            end_when_broken,
            end_when_displaced,
            failure_of,
        )

    state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_open_folder(state_folder)
    refuse_second(state_folder)
    with ExitStack() as outermost, ExitStack() as stack:
        certificate = _certificate(tls)
        scheme = "https" if certificate is not None else "http"
        bound = stack.enter_context(bind(settings.service.host, settings.service.port))
        if certificate is None and settings.service.plain_http == "loopback":
            refuse_plain(bound)
        url = (tls.url if tls is not None else "") or url_of(bound, scheme=scheme)
        journal = open_journal()
        stack.callback(journal.close)
        notifications = make_notifications(journal, base_url=url) if make_notifications is not None else None
        services = Services(
            journal,
            access=access,
            settings=settings,
            clock=clock,
            within=within,
            notifications=notifications,
            make_backend=make_backend,
            state_folder=state_folder.absolute(),
            open_records=open_records,
        )
        # Agents on this computer connect through a socket in the state folder, which no other user can reach.
        local = state_folder / SOCKET_FILE
        beside = []
        agents_at = str(local.absolute()) if make_backend is not None else ""
        if make_backend is not None:
            try:
                beside.append(stack.enter_context(bind_local(local)))
            except NoSocketsHere as fault:
                agents_at = url
                log.warning("agents come over TCP, to %s: %s", agents_at, fault)
        announcement = Announcement(
            url=url,
            ca_file=tls.ca_file if tls is not None else "",
            pid=os.getpid(),
            token_file=str(token_file),
            version=VERSION,
            started_at=clock.now(),
            socket=agents_at,
        )

        def announce() -> None:
            again = stack.enter_context(announced(state_folder, announcement))
            dismiss = services.backend.dismiss if services.backend is not None else log.info
            kept = OwnStateFolder(files=own_files, announce=again, look_after=look_after)
            stack.callback(end_when_displaced(state_folder / SERVICE_FILE, dismiss=dismiss, kept=kept))
            # Soon, not now: clients that waited for the start are answered first.
            settling = threading.Timer(SETTLE_SECONDS, settle_down)
            settling.daemon = True
            settling.start()
            stack.callback(settling.cancel)
            if started is not None:
                started(announcement)

        def note(reason: str, *left: str) -> None:
            note_end(state_folder, Ended(at=clock.now(), reason=reason, left=left))

        from pilotage.service.http.dispatcher import make_dispatcher

        dispatcher = make_dispatcher(services)
        backend = services.backend
        listener = Listener(
            dispatcher,
            bound=bound,
            beside=beside,
            started=announce,
            stopping=dispatcher.stop,
            winding_down=backend.jobs.wind_down if backend is not None else None,
            certificate=certificate,
        )
        if idle_seconds is not None and backend is not None:
            from pilotage.service.http.watchdogs import end_when_idle

            stack.callback(end_when_idle(listener, backend, idle_seconds=idle_seconds))
        # Until the very end: a broken part may hang while it is closed.
        outermost.callback(end_when_broken(listener, lambda: failure_of(services), note=note))
        listener.listen()
        if listener.broken:
            raise ServiceBroken(
                "the service ended by itself",
                got=listener.broken,
                next_step="start it again: its work is in its book",
            )
        if backend is not None and backend.jobs.left_behind:
            try:
                note("", *backend.jobs.left_behind)
            except OSError as fault:  # the disk is full; the shutdown continues
                log.warning("this cannot be recorded (%s): %s", fault, "; ".join(backend.jobs.left_behind))
        return listener.ended_by


class OpenToOthers(PilotageError):
    """Other users could read or change the state of a service, its token and its book: close the folder to them."""


def refuse_open_folder(folder: Path) -> None:
    """Raise `OpenToOthers` unless only this user can access the state folder."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise OpenToOthers(
            "the state folder belongs to another user",
            subject=str(folder),
            expected=f"user id {os.geteuid()}",
            got=str(found.st_uid),
            next_step="choose another folder: --journal sqlite:DIR",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise OpenToOthers(
            "other users can access the state folder",
            subject=str(folder),
            expected="mode 700",
            got=f"{mode:o}",
            next_step=f"chmod 700 {shlex.quote(str(folder))}; or choose another folder: --journal sqlite:DIR",
        )


def _certificate(tls: TlsFiles | None) -> Certificate | None:
    if tls is None:
        return None
    from pilotage.service.http.listener import Certificate

    return Certificate(tls)


def settle_down() -> None:
    """Load the modules of a busy book, collect garbage rarely, and request huge pages.

    Objects that exist now stay, so the collector skips them; rows and events form no cycles, so frequent collections
    would cost time and find nothing.
    """
    prepare()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    PROCESS.ask()
