"""Starts a service that keeps running when the terminal closes, and stops it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.state_folder import JOURNAL_VARIABLE, state_folders
from pilotage.client.finding import address_in
from pilotage.model.errors import PilotageError, refuse_missing_parts
from pilotage.model.exit_codes import ExitCode
from pilotage.model.settings.settings import Settings
from pilotage.service.announcement import Announcement, find_service, left_behind, refuse_second, why_ended
from pilotage.service.process import no_room

LOG_FILE = "service.log"
LOCK_FILE = "book.lock"
"""In the state folder: locked by the writer of the book, even before it answers, and until its book is closed."""
START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.02
START_LOOK_SECONDS = 0.005  # a user waits for a first package, and not for long
BROKEN_MAX = 3
"""How often a command restarts a service that stopped by itself."""
_LOG_BYTES_MAX = 65_536
_STAMP = re.compile(r"^[0-9-]+[ T][0-9:.,]+Z? [A-Z]+ [a-z_.]+: ")  # the head of a log line


class NotStarted(PilotageError):
    """The service ended before it answered; the message has its last words."""


class KilledAtStart(NotStarted):
    """A signal killed the service before it answered: nothing is wrong with it, and it can be started again."""

    exit_code = ExitCode.STOPPED
    retryable = True


class NoRoom(NotStarted):
    """The service cannot start because the disk of its state is full: free some space, and try again."""

    exit_code = ExitCode.STOPPED
    retryable = True


class NotStopped(PilotageError):
    """There is no service to stop, or it does not end."""


class StartingService:
    """A started service that may not answer yet."""

    def __init__(self, child: subprocess.Popen[bytes], *, folder: Path, log: Path, log_bytes: int) -> None:
        """Take its process, its state folder, and the length of its log before the start."""
        self._child = child
        self._folder = folder
        self._log = log
        self._log_bytes = log_bytes

    def wait(self) -> Announcement:
        """Its announcement, once it answers; raises `NotStarted` if it ends first, or takes too long."""
        child, log = self._child, self._log
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            found = find_service(self._folder)
            if found is not None and found.pid == child.pid:
                child.returncode = 0  # it continues without us, and is not waited for
                return found
            if child.poll() is not None:
                raise self._not_started(child.returncode)
            time.sleep(START_LOOK_SECONDS)
        child.terminate()
        child.wait()
        raise NotStarted(f"the service did not answer within {START_SECONDS:g} s", next_step=f"its log: {log}")

    def _not_started(self, status: int) -> NotStarted:
        """The error for a service that ended before it answered, from its log or its exit status."""
        reason = _last_line(self._log, self._log_bytes)
        if status < 0 and not reason:
            what = f"the service was killed by {_signal_name(-status)} before it answered"
            return KilledAtStart(what, next_step=f"start it again; its log: {self._log}")
        if not reason and (full := no_room(self._folder)):  # so it could not even report it
            return NoRoom(f"the service did not start: {full}")
        reason = reason or f"it ended with exit status {status}, and said nothing"
        return NotStarted(f"the service did not start: {reason}", next_step=f"its log: {self._log}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RestartLimit:
    """Counts how often the services of a folder stopped by themselves during one command."""

    def __init__(self) -> None:
        self._times = 0

    def refuse(self, folder: Path) -> None:
        """Raise `NotStarted` instead of another restart, if there were too many: a user has to look at it."""
        reason = why_ended(folder)
        self._times += bool(reason)
        if self._times > BROKEN_MAX:
            raise NotStarted(
                f"the service ended by itself {self._times} times: {reason}", next_step=f"its log: {folder / LOG_FILE}"
            )


def start_in_background(settings: Settings, arguments: Sequence[str], *, folder: Path | None = None) -> Announcement:
    """Start the service as `begin_in_background` does; returns when it answers."""
    return begin_in_background(settings, arguments, folder=folder).wait()


def begin_in_background(settings: Settings, arguments: Sequence[str], *, folder: Path | None = None) -> StartingService:
    """Start the service with these words of the command line, and the journal of the settings, without waiting.

    It runs in the given folder, or in the current one.
    """
    home = folder if folder is not None else Path.cwd()
    folder = state_folder(settings, folder=home)
    try:
        return _begin(settings, arguments, home=home, folder=folder)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = no_room(next(each for each in (folder, *folder.parents) if each.exists())) or str(fault)
        raise NoRoom(f"the service did not start: {reason}") from fault


def _begin(settings: Settings, arguments: Sequence[str], *, home: Path, folder: Path) -> StartingService:
    refuse_missing_parts()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_second(folder)
    log = folder / LOG_FILE
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as output:
        log_bytes = output.tell()
        # A session of its own: the service does not end with the terminal.
        child = subprocess.Popen(
            [sys.executable, "-m", "pilotage", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=home,
            start_new_session=True,
            # Not on the command line, which every user of this computer can read: the address may contain a password.
            env={**os.environ, JOURNAL_VARIABLE: settings.journal.url},
        )
    return StartingService(child, folder=folder, log=log, log_bytes=log_bytes)


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read(_LOG_BYTES_MAX).decode("utf-8", "replace").strip()
    return _STAMP.sub("", text.splitlines()[-1]) if text else ""  # its last lines say why it ended


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A stopped service, and the batch jobs that it could not cancel at its sites, in words."""

    url: str
    left: tuple[str, ...] = ()


def stop_service(settings: Settings, *, upward: bool = False, patience_seconds: float = STOP_SECONDS) -> Stopped:
    """Stop the service of this folder, or of the nearest above it; returns when it has ended."""
    folder = state_folder(settings, folder=Path.cwd())
    found = find_service(folder)
    if found is None and upward:
        folder = _running_above() or folder
        found = find_service(folder)
    if found is None:
        raise NotStopped(
            "no service runs here",
            subject=str(folder),
            next_step="go to its folder, or name its book with the --journal it was started with",
        )
    try:
        os.kill(found.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended by itself
    except PermissionError as error:
        raise NotStopped("the service belongs to another user", subject=f"process {found.pid}") from error
    until = time.monotonic() + patience_seconds
    while find_service(folder) is not None or is_held(folder / LOCK_FILE):  # the next command may write the book
        if time.monotonic() > until:
            raise NotStopped(f"the service did not end within {patience_seconds:g} s", subject=f"process {found.pid}")
        time.sleep(LOOK_SECONDS)
    return Stopped(url=found.url, left=left_behind(folder))


def _running_above() -> Path | None:
    """The state folder that commands in this folder would find: the nearest one of the user."""
    for folder in state_folders(environment=os.environ, folder=Path.cwd()):
        with suppress(PilotageError):
            address = address_in(folder.path)
            if address is not None and address.runs:
                return folder.path
    return None


# The agents that a service started on this computer: which of them are alive, and how to end them.

AGENTS_SECONDS = 20.0


class _Pilot(msgspec.Struct, frozen=True):
    pid: int
    started: Any  # by the system's clock, which distinguishes it from a later process of the same number


def end_agents(state: Path) -> bool:
    """End the agents that the service of a folder left on this computer; each ends its attempts. Whether all did."""
    left = sorted((state / "pilots").glob("*.json"))
    for record in left:
        _terminate(record)
    until = time.monotonic() + AGENTS_SECONDS
    while any(map(is_held, left)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _terminate(record: Path) -> None:
    """Tell the agent of a record to end, if its process is still the one that was started."""
    from pilotage.agent.processes import started_at

    with suppress(OSError, msgspec.DecodeError):
        pilot = msgspec.json.decode(record.read_bytes(), type=_Pilot)
        if is_held(record) and started_at(pilot.pid) == pilot.started:
            os.kill(pilot.pid, signal.SIGTERM)


def is_held(record: Path) -> bool:
    """Whether a file is locked: an agent holds the lock of its record while it lives."""
    try:
        with record.open("rb") as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
