"""A service whose state folder was deleted, or taken over by another service, must not live on: it ends, and its agents.

Nothing of what it would write could be found again. It ends at once, without closing its book: that would remove files by
their names, which may be those of another service by now. What was acknowledged was durable, wherever it is.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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


def end_when_displaced(
    file: Path, *, dismiss: Dismiss, leave: Callable[[int], object] = os._exit, look_seconds: float = LOOK_SECONDS
) -> Callable[[], None]:
    """Watch from a thread whether a file stays the one that it is; what is returned ends the watching.

    When it does not, agents are told to leave by `dismiss`, the processes that this one has started are ended, and it
    leaves with an exit status.
    """
    found = file.stat()
    ours = (found.st_dev, found.st_ino)

    def watch(over: threading.Event) -> None:
        missed = 0
        while missed < LOOKS:
            if over.wait(look_seconds):
                return
            missed = missed + 1 if _is_another(file, ours) else 0
        log.error("%s was removed, or is another service's by now: this service ends, and its agents", file)
        dismiss("the state folder of its service is gone")
        end_children()
        leave(EXIT_STATUS)

    return watched(watch, name="displaced")


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
