"""A service whose engine or writer has ended must not stay: it could only say that it does nothing, and keep its folder.

It ends in good order, and by force where that takes too long: all that was acknowledged is in the book, and the next service
goes on from it. Why it ended is in its log, and in a file of its folder until the next one answers.
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
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.errors import PilotageError
from pilotage.model.exit_codes import ExitCode
from pilotage.service.http.backend import Running
from pilotage.service.http.listener import Listener
from pilotage.service.http.services import Services

if TYPE_CHECKING:  # who keeps a book alone loads no engine
    from pilotage.engine.engine import Engine
    from pilotage.engine.state.jobs import JobState

# A thread that watches something for as long as a service lives.

Watch = Callable[[threading.Event], None]
"""Looks again and again, and returns when the event is set, or when there is nothing more to look for."""


def watched(watch: Watch, *, name: str) -> Callable[[], None]:
    """Watch from a thread of this name; what is returned ends the watching, and waits until it has ended."""
    over = threading.Event()
    thread = threading.Thread(target=watch, args=(over,), name=name, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
END_SECONDS = 40.0
"""How long it may take to end in good order: longer than requests under way, and calls at sites, are waited for."""


class ServiceBroken(PilotageError):
    """The service ended by itself: what runs jobs, or writes the book, had ended. Start it again; its log says more."""

    exit_code = ExitCode.STOPPED
    retryable = True


def broken_by(services: Services) -> str:
    """Why a service that has been started does nothing any more; empty while all is well."""
    if services.running is not None and services.running.jobs.broken:
        return services.running.jobs.broken
    if why := services.writer.broken or services.journal.lost:
        return why
    return "" if services.writer.alive else "what writes the book has ended"


def end_when_broken(
    listener: Listener,
    why: Callable[[], str],
    *,
    note: Callable[[str], None],
    leave: Callable[[int], object] = os._exit,
    look_seconds: float = LOOK_SECONDS,
    end_seconds: float = END_SECONDS,
) -> Callable[[], None]:
    """Watch from a thread, and end the listener when there is a reason; what is returned ends the watching.

    The reason is noted before anything else: whoever finds the service gone looks for it.
    """

    def watch(over: threading.Event) -> None:
        while not over.wait(look_seconds):
            # While it starts, and once somebody else ends it, nothing needs to be alive.
            if listener.started and not listener.should_exit and (reason := why()):
                log.error("the service ends, since it can do nothing any more: %s", reason)
                with suppress(OSError):  # a full disk may be the reason
                    note(reason)
                listener.broken = reason
                listener.should_exit = True
                if not over.wait(end_seconds):
                    log.error("it did not end in good order within %g s: it leaves", end_seconds)
                    leave(ExitCode.STOPPED)
                return

    return watched(watch, name="broken")


# A service whose state folder was deleted, or taken over by another service, must not live on: it ends, and its
# agents.
#
# Where only the file is gone that says where it answers, or the token of the local user, that is made once more.
# Nothing of what it would write could be found again. It ends at once, without closing its book: that would remove
# files by their names, which may be those of another service by now. What was acknowledged was durable, wherever it
# is.

DISPLACED_LOOK_SECONDS = 2.0
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
    look_seconds: float = DISPLACED_LOOK_SECONDS,
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


# A service that was started for a run ends by itself when there is nothing to run and nobody asks any more.

IDLE_LOOKS = 10
"""So often within its patience it looks whether there is anything to do."""


def end_when_idle(listener: Listener, running: Running, *, idle_seconds: float) -> Callable[[], None]:
    """Watch from a thread, and end the listener when its time has come; what is returned ends the watching."""

    def watch(over: threading.Event) -> None:
        busy_at = time.monotonic()
        while not over.wait(idle_seconds / IDLE_LOOKS):
            now = time.monotonic()
            try:
                works = not listener.started or running.jobs.ask(has_work).result()
            except PilotageError:
                return  # it is about to end anyway
            if works or running.asked.under_way:
                busy_at = now
            if now - max(busy_at, running.asked.last_at) >= idle_seconds:
                log.warning("nothing to do and nobody asks: the service ends")
                listener.should_exit = True
                return

    return watched(watch, name="idling")


def has_work(engine: Engine) -> bool:
    """Whether anything is left to be done: also what is held, which somebody may release."""
    return any(_goes_on(job) for job in engine.state.jobs.by_id.values())


def _goes_on(job: JobState) -> bool:
    if job.cancelled or job.aborted:
        from pilotage.engine.state.jobs import PackageStatus

        return job.counts[PackageStatus.LIVE] > 0  # its agents are still to be told
    return job.unfinished > 0 or bool(job.late)
