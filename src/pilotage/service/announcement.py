"""Announces the service of a folder to clients: a small file, locked while the service lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

SERVICE_FILE = "service.json"
ENDED_FILE = "ended.json"
"""Beside it, from the end of a service until the next one answers, if the end needs to be explained."""
_REASON_CHARACTERS_MAX = 500


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of a service, its process, and the file of its token."""

    url: str
    pid: int
    token_file: str
    version: str
    started_at: float
    ca_file: str = ""  # its own certificate authority, for clients on this computer; empty: it has none
    socket: str = (
        ""  # the address for agents on this computer; the URL if the folder has no sockets; empty: it runs no jobs
    )


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a service ended: by itself because it failed, or leaving batch jobs behind at its sites."""

    at: float
    reason: str = ""  # empty: it was stopped
    left: tuple[str, ...] = ()  # batch jobs that it could not cancel


def note_end(folder: Path, ended: Ended) -> None:
    """Record how the service of a state folder ended."""
    reason = " ".join(ended.reason.split())[:_REASON_CHARACTERS_MAX]
    draft = folder / f".{ENDED_FILE}-{os.getpid()}"
    draft.write_bytes(msgspec.json.encode(msgspec.structs.replace(ended, reason=reason)))
    draft.replace(folder / ENDED_FILE)


def why_ended(folder: Path) -> str:
    """Why the last service of a state folder ended by itself; empty if it was stopped, or one is alive."""
    return _how_ended(folder).reason


def left_behind(folder: Path) -> tuple[str, ...]:
    """The batch jobs that the last service of a state folder left queued at its sites, in words."""
    return _how_ended(folder).left


def _how_ended(folder: Path) -> Ended:
    if find_service(folder) is None:
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((folder / ENDED_FILE).read_bytes(), type=Ended)
    return Ended(at=0.0)


def find_service(folder: Path) -> Announcement | None:
    """The service that is alive in a state folder; None if there is none, even if a dead one left its file."""
    try:
        descriptor = os.open(folder / SERVICE_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _is_free(descriptor):
            return None
        return msgspec.json.decode(os.read(descriptor, 65_536), type=Announcement)
    except msgspec.DecodeError:
        return None
    finally:
        os.close(descriptor)


def last_port(folder: Path) -> int:
    """The port of the last service here, or 0: events logged since then are addressed to it."""
    try:
        announced = msgspec.json.decode((folder / SERVICE_FILE).read_bytes(), type=Announcement)
        return urlsplit(announced.url).port or 0
    except (OSError, ValueError):  # raised by msgspec, or for the port
        return 0


def _is_free(descriptor: int) -> bool:
    # The lock ends with its process, however that ends; a process id can be reused by another process.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def refuse_second(folder: Path) -> None:
    """Raise `JournalBusy` if a service is alive in the folder."""
    other = find_service(folder)
    if other is not None:
        from pilotage.ports import JournalBusy

        raise JournalBusy(
            "another process writes this book",
            subject=str(folder),
            got=f"process {other.pid}",
            next_step=f"stop it with `pilotage serve --stop`, or ask it: it answers at {other.url}",
        )


@contextmanager
def announced(folder: Path, announcement: Announcement) -> Iterator[Callable[[], None]]:
    """Announce the service while the block runs; the file appears whole. Yields a function that writes it again.

    The file stays afterwards, without its lock: events logged meanwhile wait for the address of the service.
    """
    locked: list[int] = []

    def write() -> None:
        draft = folder / f".{SERVICE_FILE}-{announcement.pid}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        locked.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, msgspec.json.format(msgspec.json.encode(announcement)) + b"\n")
        draft.replace(folder / SERVICE_FILE)

    try:
        write()
        (folder / ENDED_FILE).unlink(missing_ok=True)
        yield write
    finally:
        for descriptor in locked:
            os.close(descriptor)
