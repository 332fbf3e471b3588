"""Finds the settings in effect, the state folder of a service, and its journal."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.settings.settings_files import SETTINGS_FILE, STATE_FOLDER, is_set, load_settings, state_folder
from pilotage.client.finding import StateFolder
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.settings.settings import BadJournalAddress, Settings

if TYPE_CHECKING:
    from pilotage.ports import Journal, JournalAdapter

log = logging.getLogger(__name__)

TLS_FOLDER = "tls"
"""In the state folder: its authority and the certificate of the service, if it has them."""
JOURNAL_VARIABLE = "PILOTAGE_JOURNAL_URL"


class NoFolder(PilotageError):
    """The name of a journal is not a folder."""


class SystemClock:
    """The clock of this computer."""

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
    """The ports a service may use if its own is taken: any, unless the port was chosen, or other computers connect.

    Commands on this computer find it by its folder; other computers know only the port.
    """
    service = settings.service
    if not service.port or service.address or service.host not in ("127.0.0.1", "::1", "localhost"):
        return ()
    is_chosen = is_set("service.port", environment=os.environ, folder=folder, flags=flags)
    return () if is_chosen else (0,)


def state_folders(*, environment: Mapping[str, str], folder: Path) -> Iterator[StateFolder]:
    """Where a service for a folder may have announced itself: its own state folder first, then those above."""
    yield _from_settings(environment, folder)
    for place in folder.parents:
        if (place / SETTINGS_FILE).is_file() or (place / STATE_FOLDER).is_dir():
            # Faulty settings of a folder above do not matter here.
            with suppress(PilotageError):
                yield _from_settings(environment, place)


def _from_settings(environment: Mapping[str, str], folder: Path) -> StateFolder:
    settings = load_settings(environment=environment, folder=folder, flags={})
    host, port = settings.service.host, settings.service.port
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    state = state_folder(settings, folder=folder).absolute()
    scheme = "https" if settings.service.tls_certificate or (state / TLS_FOLDER).is_dir() else "http"
    return StateFolder(path=state, usual_url=f"{scheme}://{shown}:{port}" if port else "")


def open_journal(settings: Settings) -> Journal:
    """The journal of the settings, opened for writing; raises `JournalBusy` if another process writes it."""
    return _journal_adapter(settings).open_journal(settings.journal.address, indexed=indexed_of(settings))


def open_reader(settings: Settings) -> Journal | None:
    """The book of the settings, for queries and dumps next to its writer; it supports nothing else.

    None if an older version wrote it, and it must be upgraded before it can be read.
    """
    return _journal_adapter(settings).open_reader(settings.journal.address, indexed=indexed_of(settings))


def _journal_adapter(settings: Settings) -> JournalAdapter:
    from pilotage.app.adapter_registry import adapter_names, find_adapter

    address = settings.journal.address
    found: JournalAdapter | None = find_adapter("pilotage.journals", address.kind)
    if found is None:
        known = adapter_names("pilotage.journals")
        raise BadJournalAddress(
            "no journal of this kind is installed",
            subject=address.shown,
            expected=", ".join(known),
            got=address.kind,
            next_step=did_you_mean(address.kind, known),
        )
    return found


def indexed_of(settings: Settings) -> frozenset[str]:
    """The attributes that the book of these settings is indexed by."""
    from pilotage.adapters.journals.queries import DEFAULT_INDEXED
    from pilotage.book.query import indexed_names

    return indexed_names(settings.query.indexed) or DEFAULT_INDEXED


def local_user() -> str:
    """The user of this process, from the system's account, not from the environment."""
    import pwd

    identity = os.geteuid()
    try:
        return pwd.getpwuid(identity).pw_name
    except KeyError:
        return f"uid-{identity}"
