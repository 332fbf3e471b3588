"""A service whose state folder was deleted, or taken over by another service, must not live on: it ends, and its agents.

Where only the file is gone that says where it answers, or the token of the local user, that is made once more. Nothing of what it would write could be found again. It ends at once, without closing its book: that would remove files by
their names, which may be those of another service by now. What was acknowledged was durable, wherever it is.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.service.http.watching import watched

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
LOOKS = 2
"""So often in a row it must be gone: a network file system may be confused for a moment."""
GRACE_SECONDS = 20.0
"""How long agents may take to end what they run."""
EXIT_STATUS = 1
_PAUSE_SECONDS = 0.1

Dismiss = Callable[[str], None]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How a service knows that its state folder is still its own, and puts back what is missing there."""

    files: Sequence[
        Path
    ] = ()  # with the folder itself: while all are there and the same, only the announcement is gone
    announce: Callable[[], None] | None = None  # once more
    look_after: Callable[[], None] = lambda: None  # at what else must be there; called with every look


def end_when_displaced(
    file: Path,
    *,
    dismiss: Dismiss,
    kept: Kept | None = None,
    leave: Callable[[int], object] = os._exit,
    look_seconds: float = LOOK_SECONDS,
) -> Callable[[], None]:
    """Watch from a thread whether a file stays the one that it is; what is returned ends the watching.

    When it does not, agents are told to leave by `dismiss`, the processes that this one has started are ended, and it
    leaves with an exit status; unless what was `kept` shows that only this file was removed: then it is written again.
    """
    kept = kept or Kept()
    own = [(each, _identity(each)) for each in (file.parent, *kept.files)]

    first = _identity(file)

    def watch(over: threading.Event) -> None:
        ours, missed = first, 0
        while True:
            if over.wait(look_seconds):
                return
            missed = missed + 1 if _is_another(file, ours) else 0
            try:
                if not missed:
                    kept.look_after()
                elif missed >= LOOKS and kept.announce is not None and _is_ours(file, own):
                    kept.announce()
                    log.warning("%s was removed, and is written again", file)
                    ours, missed = _identity(file), 0
            except (OSError, PilotageError) as fault:  # no room, most often: it is tried again
                log.warning("what was removed from %s cannot be put back: %s", file.parent, fault)
            if missed >= LOOKS:
                break
        log.error("%s was removed, or is another service's by now: this service ends, and its agents", file)
        dismiss("the state folder of its service is gone")
        end_children()
        leave(EXIT_STATUS)

    return watched(watch, name="displaced")


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_dev, found.st_ino


def _is_ours(file: Path, own: Sequence[tuple[Path, tuple[int, int]]]) -> bool:
    """Whether a file is missing, and all that shows whose folder this is, is not."""
    return not os.path.lexists(file) and not any(_is_another(each, ours) for each, ours in own)


def _is_another(file: Path, ours: tuple[int, int]) -> bool:
    """Whether a file is not the one that it was; one that cannot be looked at is taken for the same."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return (found.st_dev, found.st_ino) != ours


def end_children(*, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process that this one has started: in good order, and by force those that do not heed."""
    until = time.monotonic() + grace_seconds
    told: set[int] = set()
    while left := _children():
        for pid in left.difference(told):
            _signal(pid, signal.SIGTERM)
        told |= left
        if time.monotonic() >= until:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            return
        time.sleep(_PAUSE_SECONDS)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children() -> set[int]:
    """The processes that this one has started and that live."""
    own, found = os.getpid(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_text("latin-1").rpartition(") ")[2].split(" ", 2)[:2]
                if int(parent) == own and state != "Z":
                    found.add(int(entry.name))
    return found
