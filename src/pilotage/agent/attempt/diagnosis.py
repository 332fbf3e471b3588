"""Diagnoses failures: a reason of the book, an exit code of GASW, and a message for people."""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_CHARACTERS_MAX = 2000

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT")
_SPACE_BYTES_MIN = 64 * 1024

# As in `model/states.py`, which the simulator uses; a test compares them.
_CODES = {
    "cancelled": "EXECUTION_CANCELED",
    "disk-full": "ERROR_WRITE_LOCAL",
    "input-checksum": "ERROR_READ_GRID",
    "looping": "EXECUTION_STALLED",
    "missing-input": "ERROR_READ_GRID",
    "missing-output": "ERROR_FILE_NOT_FOUND",
    "preempted": "EXECUTION_CANCELED",
}
_CODES_BY_PHASE = {
    "": "UNDEFINED",
    "setup": "ERROR_WRITE_LOCAL",
    "inputs": "ERROR_READ_GRID",
    "outputs": "ERROR_WRITE_GRID",
    "logs": "ERROR_GET_STD",
}


def exit_code_for(reason: str, *, phase: str) -> str:
    """GASW's exit code of a failure: one per reason; for platform failures one per phase."""
    if reason == "platform-failure":
        return _CODES_BY_PHASE.get(phase, "EXECUTION_FAILED")
    return _CODES.get(reason, "EXECUTION_FAILED")


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size_text(size_bytes: int) -> str:
    """A size in bytes, for people."""
    for factor, unit in _UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


class Failure(Exception):
    """An attempt has failed: a reason, and a message for people. The reason and the phase determine GASW's exit code."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        phase: str = "",
        exit_status: int | None = None,
        signal_number: int | None = None,
    ) -> None:
        """Take the parts; give `phase` only if it is not the attempt's current one."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.phase = phase
        self.exit_status = exit_status
        self.signal_number = signal_number
        self.binary: int | None = None  # number of the binary, from 0, whose output is missing


class TokenEnded(OSError):
    """The service no longer accepts this agent's token, and gives it no other."""


def from_system(error: OSError, *, doing: str) -> Failure:
    """The failure for a system error of the agent."""
    why = error.strerror or type(error).__name__
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in FULL:
        return Failure("disk-full", f"the disk is full: {doing}{where}")
    if isinstance(error, TokenEnded):
        return Failure("credential-expired", f"{doing} failed: {error}")
    return Failure("platform-failure", f"{doing} failed: {why}{where}")


def of_exit_status(status: int, *, what: str) -> Failure:
    """The failure of a command with a nonzero exit status."""
    hint = ""
    if 128 < status <= 128 + signal.NSIG:
        hint = f", by which a shell reports {_signal_name(status - 128)}"
    return Failure("application-error", f"{what} ended with exit code {status}{hint}", exit_status=status)


def of_signal(number: int, *, what: str) -> Failure:
    """The failure of a command that was ended by a signal."""
    if number in (signal.SIGSEGV, signal.SIGBUS):
        text = "a segmentation fault" if number == signal.SIGSEGV else "a bus error"
        return Failure("segmentation-fault", f"{what} ended by {text} ({_signal_name(number)})", signal_number=number)
    return Failure("signal", f"{what} was ended by {_signal_name(number)}", signal_number=number)


def not_started(word: str, number: int, *, folder: str, path: str) -> Failure:
    """The failure of a command that could not be started, with the likely cause."""
    return Failure(
        "command-not-found", f"{word!r} cannot be started: {_why_not(word, number, folder=folder, path=path)}"
    )


def _why_not(word: str, number: int, *, folder: str, path: str) -> str:
    found = _file_of(word, folder=folder, path=path)
    if number == errno.ENOENT and found is None:
        if "/" not in word and os.path.exists(os.path.join(folder, word)):
            return f"no folder of PATH has it; to run the file of this name in its own folder, write ./{word}"
        return "there is no such file" if "/" in word else f"no folder of PATH has it: {path}"
    if number == errno.ENOENT and found is not None:
        interpreter = _interpreter(found)
        return (
            f"its first line asks for {interpreter!r}, which does not exist"
            if interpreter
            else "its loader does not exist"
        )
    if number == errno.EACCES:
        here = found or os.path.join(folder, word)
        if os.path.isdir(here):
            return "it is a folder"
        if os.path.exists(here) and not os.access(here, os.X_OK):
            return "the file is not executable"
        interpreter = _interpreter(here)
        return f"no permission, for it or for {interpreter!r}" if interpreter else "no permission"
    if number == errno.ENOEXEC:
        return "it is neither a program for this machine nor a script whose first line begins with #!"
    if number == errno.E2BIG:
        return "its arguments and environment exceed the system's limit"
    if number == errno.EINVAL:
        return "an argument contains a null character"
    return os.strerror(number)


def _file_of(word: str, *, folder: str, path: str) -> str | None:
    if "/" in word:
        candidates: Sequence[str] = [os.path.join(folder, word)]
    else:
        candidates = [os.path.join(folder, entry, word) for entry in path.split(":")]
    return next((each for each in candidates if os.path.isfile(each)), None)


def _interpreter(path: str) -> str:
    """The interpreter in the first line of a script; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        line = os.read(descriptor, 512).split(b"\n", 1)[0]
    finally:
        os.close(descriptor)
    words = line[2:].split() if line.startswith(b"#!") else []
    return words[0].decode("utf-8", "replace") if words else ""


def looks_full(folder: str, last_lines: str) -> bool:
    """Tell whether a command failed because the disk is full: by its last output, or by the free space."""
    if _NO_SPACE.search(last_lines):
        return True
    try:
        left = os.statvfs(folder)
    except OSError:
        return False
    return left.f_bavail * left.f_frsize < _SPACE_BYTES_MIN or (left.f_files > 0 and left.f_favail == 0)


def exit_message(first: str, last_lines: str) -> str:
    """One line for people, then the last lines of the command's output, as far as they fit."""
    first = first[:MESSAGE_CHARACTERS_MAX]
    room = MESSAGE_CHARACTERS_MAX - len(first) - 1
    if not last_lines or room < 40:
        return first
    return f"{first}\n{last_lines[-room:]}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
