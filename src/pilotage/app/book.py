"""The book, put together: which settings hold, where its service is, and the journal itself."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from pilotage.adapters.settings_files import SETTINGS_FILE, STATE_FOLDER, is_said, load_settings, state_folder
from pilotage.client.finding import StateFolder
from pilotage.model.configuration import Settings
from pilotage.model.errors import PilotageError

if TYPE_CHECKING:
    from pilotage.ports import Journal
    from pilotage.service.access import Principal
    from pilotage.service.announcement import Announcement as Announcement  # noqa: PLC0414 # offered on
    from pilotage.service.http.services import MakeRunning
    from pilotage.service.notifications import MakeNotifications

log = logging.getLogger(__name__)

TLS_FOLDER = "tls"
"""In the state folder: its authority and the certificate of the service, where it has them."""
JOURNAL_VARIABLE = "PILOTAGE_JOURNAL_URL"


class NoFolder(PilotageError):
    """The journal is named by something that is no folder."""


class SystemClock:
    """What time it is, by the clock of this computer."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()


def settings_here(flags: Mapping[str, object] | None = None) -> Settings:
    """The settings for a command in the current folder; flags that are None were not given."""
    settings = load_settings(environment=os.environ, folder=Path.cwd(), flags=flags or {})
    address = settings.journal.address
    if address.kind == "sqlite" and Path(address.folder).is_file():
        raise NoFolder(
            "a book is a folder, and this is a file",
            subject=str(address),
            expected="sqlite:DIR",
            next_step=f"name the folder: sqlite:{Path(address.folder).parent}"
            if Path(address.folder).name == "book.sqlite"
            else "",
        )
    return settings


def other_ports(settings: Settings, *, folder: Path, flags: Mapping[str, object]) -> tuple[int, ...]:
    """What a service may listen on where its port is taken: any, unless somebody said which, or comes from elsewhere.

    Commands on this computer find it by its folder; whoever comes from another one knows the port, and must find it there.
    """
    service = settings.service
    if not service.port or service.address or service.host not in ("127.0.0.1", "::1", "localhost"):
        return ()
    said = is_said("service.port", environment=os.environ, folder=folder, flags=flags)
    return () if said else (0,)


def state_folders(*, environment: Mapping[str, str], folder: Path) -> Iterator[StateFolder]:
    """Where a service that concerns a folder may have said its address: its own first, then those of the folders above."""
    yield _told_by_settings(environment, folder)
    for place in folder.parents:
        if (place / SETTINGS_FILE).is_file() or (place / STATE_FOLDER).is_dir():
            # What is wrong with the settings of a folder above is for those who work there.
            with suppress(PilotageError):
                yield _told_by_settings(environment, place)


def _told_by_settings(environment: Mapping[str, str], folder: Path) -> StateFolder:
    settings = load_settings(environment=environment, folder=folder, flags={})
    host, port = settings.service.host, settings.service.port
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    state = state_folder(settings, folder=folder).absolute()
    scheme = "https" if settings.service.tls_certificate or (state / TLS_FOLDER).is_dir() else "http"
    return StateFolder(path=state, usual_url=f"{scheme}://{shown}:{port}" if port else "")


def open_journal(settings: Settings) -> Journal:
    """The journal that the settings name, opened for writing; raises `JournalBusy` where another process writes it."""
    address = settings.journal.address
    if address.kind == "sqlite":
        from pilotage.adapters.journals.sqlite import SqliteJournal

        return SqliteJournal(Path(address.folder), indexed=indexed_of(settings))
    from pilotage.model.extras import extra

    with extra("postgres", purpose="to keep the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres import PostgresJournal

    return PostgresJournal(address.url, indexed=indexed_of(settings))


def open_reader(settings: Settings) -> Journal | None:
    """The book that the settings name, to be asked and dumped beside whoever writes it; it can do nothing else of a journal.

    None where it was written by an older version, and must be brought up to date before it can be read.
    """
    address = settings.journal.address
    if address.kind == "sqlite":
        from pilotage.adapters.journals.sqlite_places import BOOK
        from pilotage.adapters.journals.sqlite_reader import SqliteReader
        from pilotage.adapters.journals.sqlite_schema import is_current

        folder = Path(address.folder)
        if not is_current(folder / BOOK):
            return None
        return cast("Journal", SqliteReader(folder, indexed=indexed_of(settings)))
    from pilotage.model.extras import extra

    with extra("postgres", purpose="to read the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres import PostgresReader

    return cast("Journal", PostgresReader(address.url, indexed=indexed_of(settings)))


def indexed_of(settings: Settings) -> frozenset[str]:
    """The attributes by which the book of these settings is indexed."""
    from pilotage.adapters.journals.queries import DEFAULT_INDEXED
    from pilotage.book.query import indexed_names

    return indexed_names(settings.query.indexed) or DEFAULT_INDEXED


def serve_book(
    settings: Settings, *, started: Callable[[Announcement], None], other_ports: Sequence[int] = ()
) -> int | None:
    """Serve the book alone over HTTP until a signal comes, which is returned; `other_ports` where its own is taken."""
    return serve_settings(settings, started=started, other_ports=other_ports)


def serve_settings(
    settings: Settings,
    *,
    started: Callable[[Announcement], None],
    make_running: MakeRunning | None = None,
    idle_seconds: float | None = None,
    other_ports: Sequence[int] = (),
) -> int | None:
    """Serve what the settings name until a signal comes, which is returned; with `make_running`, jobs are run.

    Where the port of the settings is taken, the `other_ports` are tried, one after the other; 0 is any free one.
    """
    from pilotage.adapters.journals.sqlite_places import BOOK
    from pilotage.adapters.local_token import ensure_token, token_file
    from pilotage.app.tls import tls_files
    from pilotage.app.tokens import tokens_of
    from pilotage.model.extras import part
    from pilotage.service.access import Access, digest_of, local_principal
    from pilotage.service.announcement import last_port
    from pilotage.service.server import refuse_open_folder, serve

    folder = state_folder(settings, folder=Path.cwd())
    if folder.exists():
        refuse_open_folder(folder)  # before a token is put there

    def known() -> dict[str, Principal]:
        return {digest_of(ensure_token(folder)): local_principal(local_user())}

    access = Access(known(), tokens=tokens_of(folder, settings))

    def look_after() -> None:
        if not token_file(folder).exists():  # removed so that there is another one, or by mistake
            access.renew(known())
            log.warning("%s was removed: there is another token now, and the one before is not taken any more", folder)

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
            make_running=make_running,
            tls=tls_files(settings, folder),
            idle_seconds=idle_seconds,
            started=started,
            own_files=[folder.absolute() / BOOK] if settings.journal.address.kind == "sqlite" else [],
            look_after=look_after,
        )

    ports = [settings.service.port, *other_ports]
    if 0 in ports and (port := last_port(folder)):
        # Any free one will do, so the one that it had: what was logged meanwhile waits for that address.
        ports.insert(ports.index(0), port)
    if len(ports) > 1:
        with part(purpose="to serve the book over HTTP"):
            from pilotage.service.http.listener import CannotListen

        for port in ports[:-1]:
            with suppress(CannotListen):
                return serve_at(port)
    return serve_at(ports[-1])


def _notifications_for(settings: Settings) -> MakeNotifications:
    """What makes the notifications of a service, with the transports that the settings name."""
    from pilotage.adapters.notifiers.making import make_transports, owner_addresses
    from pilotage.service.notifications import Notifications

    clock = SystemClock()
    transports = make_transports(settings.notifications, clock=clock)
    addresses = owner_addresses(settings.notifications.owner_addresses)

    def make(journal: Journal, *, base_url: str) -> Notifications:
        return Notifications(
            journal,
            clock=clock,
            settings=settings.notifications,
            base_url=base_url,
            notifiers=transports.notifiers,
            mailer=transports.mailer,
            address_of=addresses,
        )

    return make


def local_user() -> str:
    """Who this process belongs to, by the system's account and not by what the environment claims."""
    import pwd

    identity = os.geteuid()
    try:
        return pwd.getpwuid(identity).pw_name
    except KeyError:
        return f"uid-{identity}"
