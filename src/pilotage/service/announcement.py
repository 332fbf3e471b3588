"""How clients find the service of a folder: a small file that is locked as long as the service lives."""

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
"""Beside it, from the end of a service until the next one answers, where there is something to say of that end."""
_REASON_CHARACTERS_MAX = 500


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a service answers, which process it is, and which file holds the token for it."""

    url: str
    pid: int
    token_file: str
    version: str
    started_at: float
    ca_file: str = ""  # the authority of its certificate, for clients on this computer; none: there is none of its own
    socket: str = (
        ""  # where agents of this computer reach it; its URL where the folder has no sockets; empty: runs nothing
    )


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a service ended: by itself, since it could do nothing any more, or with something left at its sites."""

    at: float
    reason: str = ""  # empty: somebody ended it
    left: tuple[str, ...] = ()  # what could not be taken out of the queues of sites


def note_end(folder: Path, ended: Ended) -> None:
    """Leave word of how the service of a state folder ends."""
    reason = " ".join(ended.reason.split())[:_REASON_CHARACTERS_MAX]
    draft = folder / f".{ENDED_FILE}-{os.getpid()}"
    draft.write_bytes(msgspec.json.encode(msgspec.structs.replace(ended, reason=reason)))
    draft.replace(folder / ENDED_FILE)


def why_ended(folder: Path) -> str:
    """Why the last service of a state folder ended by itself; empty where somebody ended it, or one lives."""
    return _how_ended(folder).reason


def left_behind(folder: Path) -> tuple[str, ...]:
    """What the last service of a state folder left in the queues of its sites, in words."""
    return _how_ended(folder).left


def _how_ended(folder: Path) -> Ended:
    if find_service(folder) is None:
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((folder / ENDED_FILE).read_bytes(), type=Ended)
    return Ended(at=0.0)


def find_service(folder: Path) -> Announcement | None:
    """The service that lives in a state folder; None where there is none, or where a dead one left its file."""
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
    """The port of the service that was here last, or 0: events that were logged since wait for that address."""
    try:
        told = msgspec.json.decode((folder / SERVICE_FILE).read_bytes(), type=Announcement)
        return urlsplit(told.url).port or 0
    except (OSError, ValueError):  # of msgspec and of the port alike
        return 0


def _is_free(descriptor: int) -> bool:
    # The lock goes with its process however that ends, and no other process inherits it as it may the number.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def refuse_second(folder: Path) -> None:
    """Raise `JournalBusy` where a service lives in the folder."""
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
    """Tell clients of the service while the block runs; the file appears whole. What is given writes it once more.

    It stays at the end, without its lock: what is logged meanwhile must wait for the address that the service had.
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
