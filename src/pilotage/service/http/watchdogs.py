"""Stops a service whose engine or writer has ended: it could do nothing but block its folder.

It shuts down in order, or by force if that takes too long: all acknowledged events are in the book, and the next
service resumes from it. The reason is in its log, and in a file of its folder until the next service answers.
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
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.listener import Listener
from pilotage.service.http.services import Services

if TYPE_CHECKING:  # a service of the book alone imports no engine
    from pilotage.engine.engine import Engine
    from pilotage.engine.state.jobs import JobState

# A thread that watches something while a service runs.

Watch = Callable[[threading.Event], None]
"""Checks repeatedly; returns when the event is set, or when there is nothing left to check."""


def watched(watch: Watch, *, name: str) -> Callable[[], None]:
    """Watch in a thread of this name; returns a function that stops the thread and waits for its end."""
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
"""How long an orderly shutdown may take: longer than requests, and calls at sites, are waited for."""


class ServiceBroken(PilotageError):
    """The service stopped by itself because its engine or writer had ended. Start it again; its log says more."""

    exit_code = ExitCode.STOPPED
    retryable = True


def failure_of(services: Services) -> str:
    """Why a running service can no longer work; empty while it can."""
    if services.backend is not None and services.backend.jobs.broken:
        return services.backend.jobs.broken
    if why := services.writer.broken or services.journal.lost:
        return why
    return "" if services.writer.alive else "the writer of the book has ended"


def end_when_broken(
    listener: Listener,
    why: Callable[[], str],
    *,
    note: Callable[[str], None],
    leave: Callable[[int], object] = os._exit,
    look_seconds: float = LOOK_SECONDS,
    end_seconds: float = END_SECONDS,
) -> Callable[[], None]:
    """Watch from a thread, and stop the listener when there is a reason; returns a function that ends the watching.

    The reason is recorded first, for clients that find the service gone.
    """

    def watch(over: threading.Event) -> None:
        while not over.wait(look_seconds):
            # During the start, and once it is being stopped, nothing needs to be alive.
            if listener.started and not listener.should_exit and (reason := why()):
                log.error("the service stops, because it can no longer work: %s", reason)
                with suppress(OSError):  # a full disk may be the reason
                    note(reason)
                listener.broken = reason
                listener.should_exit = True
                if not over.wait(end_seconds):
                    log.error("it did not stop in order within %g s: it exits", end_seconds)
                    leave(ExitCode.STOPPED)
                return

    return watched(watch, name="broken")


# Stops a service whose state folder was deleted, or taken over by another service, and its agents.
#
# If only its announcement or the local user's token is missing, that file is written again. Otherwise nothing it writes
# could be found again. It exits at once, without closing its book: closing would remove files by their names, which may
# belong to another service by now. Acknowledged events were durable, wherever they are.

DISPLACED_LOOK_SECONDS = 2.0
LOOKS = 2
"""Checks in a row that must fail: a network file system may be inconsistent for a moment."""
GRACE_SECONDS = 20.0
"""How long agents may take to end their work."""
EXIT_STATUS = 1
_PAUSE_SECONDS = 0.1

Dismiss = Callable[[str], None]


class OwnStateFolder(msgspec.Struct, frozen=True, kw_only=True):
    """How a service knows that its state folder is still its own, and restores missing files there."""

    files: Sequence[Path] = ()  # including the folder: while all are unchanged, only the announcement is missing
    announce: Callable[[], None] | None = None  # again
    look_after: Callable[[], None] = lambda: None  # restores other files; called with every check


def end_when_displaced(
    file: Path,
    *,
    dismiss: Dismiss,
    kept: OwnStateFolder | None = None,
    leave: Callable[[int], object] = os._exit,
    look_seconds: float = DISPLACED_LOOK_SECONDS,
) -> Callable[[], None]:
    """Watch from a thread whether a file is replaced or removed; returns a function that ends the watching.

    If it is, `dismiss` tells agents to leave, child processes are ended, and this process exits with a status; unless
    `kept` shows that only this file was removed: then it is written again.
    """
    kept = kept or OwnStateFolder()
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
                    missed = 0  # counted anew, even if it cannot be written now or is removed again at once
                    kept.announce()
                    log.warning("%s was removed, and is written again", file)
                    ours = _identity(file)
            except (OSError, PilotageError) as fault:  # most often no space: tried again
                log.warning("missing files of %s cannot be restored: %s", file.parent, fault)
            if missed >= LOOKS:
                break
        log.error("%s was removed, or another service took it over: this service stops, and its agents", file)
        dismiss("the state folder of its service is gone")
        end_children()
        leave(EXIT_STATUS)

    return watched(watch, name="displaced")


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_dev, found.st_ino


def _is_ours(file: Path, own: Sequence[tuple[Path, tuple[int, int]]]) -> bool:
    """Whether only this file is missing, and everything that identifies the folder is unchanged."""
    return not os.path.lexists(file) and not any(_is_another(each, ours) for each, ours in own)


def _is_another(file: Path, ours: tuple[int, int]) -> bool:
    """Whether a file was replaced; one that cannot be examined counts as unchanged."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return (found.st_dev, found.st_ino) != ours


def end_children(*, grace_seconds: float = GRACE_SECONDS) -> None:
    """End all child processes: with a signal, and by force those that ignore it."""
    until = time.monotonic() + grace_seconds
    signalled: set[int] = set()
    while left := _children():
        for pid in left.difference(signalled):
            _signal(pid, signal.SIGTERM)
        signalled |= left
        if time.monotonic() >= until:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            return
        time.sleep(_PAUSE_SECONDS)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children() -> set[int]:
    """The living child processes."""
    own, found = os.getpid(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_text("latin-1").rpartition(") ")[2].split(" ", 2)[:2]
                if int(parent) == own and state != "Z":
                    found.add(int(entry.name))
    return found


# Stops a service that was started for a run when it has no jobs and gets no requests any more.

IDLE_LOOKS = 10
"""Checks within the idle time."""


def end_when_idle(listener: Listener, backend: JobBackend, *, idle_seconds: float) -> Callable[[], None]:
    """Watch from a thread, and stop an idle listener; returns a function that ends the watching."""

    def watch(over: threading.Event) -> None:
        busy_at = time.monotonic()
        while not over.wait(idle_seconds / IDLE_LOOKS):
            now = time.monotonic()
            try:
                works = not listener.started or backend.jobs.ask(has_work).result()
            except PilotageError:
                return  # it is stopping anyway
            if works or backend.activity.under_way:
                busy_at = now
            if now - max(busy_at, backend.activity.last_at) >= idle_seconds:
                log.warning("no jobs and no requests: the service stops")
                listener.should_exit = True
                return

    return watched(watch, name="idling")


def has_work(engine: Engine) -> bool:
    """Whether anything is left to do, including held jobs, which may be released."""
    return any(_goes_on(job) for job in engine.state.jobs.by_id.values())


def _goes_on(job: JobState) -> bool:
    if job.cancelled or job.aborted:
        from pilotage.engine.state.jobs import PackageStatus

        return job.counts[PackageStatus.LIVE] > 0  # its agents have not been told yet
    return job.unfinished > 0 or bool(job.late)
