"""Runs one command: starts it, watches it, waits for it, and ends every process that it leaves behind."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt import diagnosis
from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.processes import own_peak_bytes

if TYPE_CHECKING:
    import resource
    import threading
    from collections.abc import Callable, Collection, Sequence

    from pilotage.agent.attempt.watcher import Watch
    from pilotage.agent.processes import ProcessCleanup


# Starting a command: in its folder, in a session of its own, with its streams in files, and no other descriptor open.
#
# `subprocess.Popen` does the same, at a cost that matters for short commands: an object, a pipe and two reads each.
# The function underneath it takes plain arguments, but their number differs between versions of Python: it is used if
# the number is known and a trial at the start succeeds; otherwise `Popen` is.

try:
    import _posixsubprocess
except ImportError:  # not CPython, or a version with another layout
    _fork_exec: Any = None
else:
    _fork_exec = _posixsubprocess.fork_exec

# Arguments after the eight descriptors, by version: restore_signals, start_new_session, then the rest.
_TAILS: dict[tuple[int, int], tuple[Any, ...]] = {
    (3, 8): (True, True, None),
    (3, 9): (True, True, None, None, None, -1, None),
    (3, 10): (True, True, None, None, None, -1, None),
    (3, 11): (True, True, -1, None, None, None, -1, None, True),
    (3, 12): (True, True, -1, None, None, None, -1, None, True),
    (3, 13): (True, True, -1, None, None, None, -1, None, True),
    (3, 14): (True, True, -1, None, None, None, -1, None),
}
_TAIL = _TAILS.get(sys.version_info[:2], ())
_ENCODING = sys.getfilesystemencoding()
_NOT_STARTED = 255  # exit status of a child that could not exec the command


class Files(NamedTuple):
    """The descriptors of a command's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class NotStarted(Exception):
    """The command could not be started: the system's `errno`; `where` is empty if the command itself is at fault."""

    def __init__(self, number: int, where: str = "") -> None:
        super().__init__(os.strerror(number))
        self.number = number
        self.where = where


class Spawner:
    """Starts the commands of one slot."""

    def __init__(self, *, quick: bool | None = None) -> None:
        """Use the quick way if this Python has it (`quick` is for tests)."""
        self._quick = quick_way_works() if quick is None else quick
        self._error_pipe: tuple[int, int] | None = None
        self._folder = ""  # working directory of the last command
        self._folder_bytes = b""

    def start(self, argv: Sequence[str], *, environment: list[bytes], folder: str, files: Files) -> int:
        """Start a command; returns its process id, which is also its group and session. Raises `NotStarted`, `OSError`.

        With the quick way, `failed_to_start` tells after the end whether the command existed.
        """
        if not argv or not argv[0]:
            raise NotStarted(errno.ENOENT)
        words = "\0".join(argv).encode(_ENCODING, "surrogateescape").split(b"\0")
        if len(words) != len(argv):
            raise NotStarted(errno.EINVAL)
        if not self._quick:
            return _start_by_popen(words, environment, folder, files)
        if self._error_pipe is None:
            # One pipe for all: a child reports failure by its exit status, so no read waits for its end.
            self._error_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if folder != self._folder:
            self._folder, self._folder_bytes = folder, folder.encode(_ENCODING, "surrogateescape")
        read_end, write_end = self._error_pipe
        stdin, stdout, stderr = files
        candidates = words[:1] if b"/" in words[0] else _candidates(words[0], environment)
        pid: int = _fork_exec(
            words, candidates, True, (write_end,), self._folder_bytes, environment,
            stdin, -1, -1, stdout, -1, stderr, read_end, write_end, *_TAIL,
        )  # fmt: skip
        return pid

    def failed_to_start(self, exit_status: int) -> NotStarted | None:
        """After the end of a process: why it never became the command, or None if it did."""
        if exit_status != _NOT_STARTED or self._error_pipe is None:
            return None
        try:
            message = os.read(self._error_pipe[0], 65536)
        except BlockingIOError:
            return None
        _, _, rest = message.partition(b":")
        number, _, where = rest.partition(b":")
        try:
            return NotStarted(int(number, 16), "its folder" if where.startswith(b"noexec") else "")
        except ValueError:
            return NotStarted(errno.ENOEXEC, "an error inside Python")

    def close(self) -> None:
        """Close the descriptors."""
        if self._error_pipe is not None:
            for descriptor in self._error_pipe:
                os.close(descriptor)
            self._error_pipe = None


def _candidates(word: bytes, environment: list[bytes]) -> list[bytes]:
    """The possible paths of a command without a slash: one per folder of its own PATH."""
    path = next((entry[5:] for entry in environment if entry.startswith(b"PATH=")), os.fsencode(os.defpath))
    return [os.path.join(folder, word) for folder in path.split(b":")]


def _start_by_popen(words: list[bytes], environment: list[bytes], folder: str, files: Files) -> int:
    variables = dict(entry.split(b"=", 1) for entry in environment)
    try:
        started = subprocess.Popen(
            words, env=variables, cwd=folder, stdin=files.stdin, stdout=files.stdout, stderr=files.stderr,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise
        where = (
            "its folder" if error.filename is not None and os.fsencode(error.filename) == os.fsencode(folder) else ""
        )
        raise NotStarted(error.errno or errno.ENOEXEC, where) from error
    started.returncode = 0  # it is waited for by its id, not through this object
    return started.pid


def quick_way_works() -> bool:
    """Tell whether the function under `Popen` works here: tried once, with an existing and a missing command."""
    if not _proved:
        _proved.append(_prove())
    return _proved[0]


_proved: list[bool] = []


def _prove() -> bool:
    if _fork_exec is None or not _TAIL or sys.implementation.name != "cpython":
        return False
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    spawner = Spawner(quick=True)
    try:
        files = Files(null, write_end, null)
        pid = spawner.start(["/bin/sh", "-c", "echo $$ $A; pwd"], environment=[b"A=b"], folder="/", files=files)
        _, status = os.waitpid(pid, 0)
        output = os.read(read_end, 4096) if status == 0 else b""
        absent = spawner.start(["/no such command"], environment=[], folder="/", files=files)
        _, absent_status = os.waitpid(absent, 0)
        failure = spawner.failed_to_start(os.WEXITSTATUS(absent_status)) if os.WIFEXITED(absent_status) else None
    except (TypeError, ValueError, OSError, NotStarted):
        return False
    finally:
        spawner.close()
        for descriptor in (read_end, write_end, null):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return output == b"%d b\n/\n" % pid and failure is not None and failure.number == errno.ENOENT


# A file that was just written may still be open for writing in a forked child of another slot, before its exec.
_BUSY_TRIES = 40
_BUSY_SECONDS = 0.01
_CONTAINER_PATIENCE_SECONDS = 2.0  # in which a container engine cleans up after itself
_PEAK_MARGIN_BYTES = 4 * 1024 * 1024  # difference between the kernel's two peak counters of one process
_BLOCK_BYTES = 512  # unit of the kernel's I/O counters, whatever the block size of the disk


class CommandEnd(NamedTuple):
    """How a command ended: its exit status or its signal."""

    exit_status: int | None
    signal_number: int | None


_SUCCEEDED = CommandEnd(0, None)


class Commands:
    """Runs the commands of one slot, and adds up their resource usage."""

    def __init__(self, watch: Watch, cleanup: ProcessCleanup, turn: SpawnTurn) -> None:
        self._spawner = Spawner()
        self._turn = turn
        self._watch = watch
        self._cleanup = cleanup
        self._own_peak_bytes = 0
        self.reset()

    def reset(self) -> None:
        """Reset the counters."""
        self._used: list[resource.struct_rusage] = []  # one per command
        self.peak_bytes = 0
        self.left_behind = False  # a process that survives SIGKILL may still use the folder and the logs

    def measured(self, watched_peak_bytes: int) -> dict[str, Any]:
        """The usage of all commands, as fields of an AttemptFinished; `watched_peak_bytes` comes from the watcher.

        CPU time and I/O include the children that each command waited for.
        """
        user_seconds = system_seconds = 0.0
        read_blocks = written_blocks = largest = 0
        for used in self._used:
            user_seconds += used.ru_utime
            system_seconds += used.ru_stime
            read_blocks += used.ru_inblock
            written_blocks += used.ru_oublock
            if used.ru_maxrss > largest:
                largest = used.ru_maxrss
        usage: dict[str, Any] = {
            "cpu_seconds": user_seconds + system_seconds,
            "cpu_user_seconds": user_seconds,
            "cpu_system_seconds": system_seconds,
        }
        if read_blocks:
            usage["read_bytes"] = read_blocks * _BLOCK_BYTES
        if written_blocks:
            usage["written_bytes"] = written_blocks * _BLOCK_BYTES
        if self.peak_bytes or watched_peak_bytes:
            usage["peak_memory_bytes"] = max(self.peak_bytes, watched_peak_bytes)
        elif largest:
            usage["peak_memory_below_bytes"] = largest * 1024
        return usage

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: list[bytes],
        folder: str,
        files: Files,
        marks: Collection[bytes],
        is_container: bool = False,
        core_bytes: int = 0,
    ) -> CommandEnd:
        """Run a command and wait for its end. Raises `Failure` if it does not start or is stopped.

        With `core_bytes` it leaves a core file of at most this size when it crashes.
        """
        for _ in range(_BUSY_TRIES):
            try:
                status = self._run_once(
                    argv, environment, folder, files, marks, is_container=is_container, core_bytes=core_bytes
                )
            except NotStarted as refused:
                if refused.number == errno.ETXTBSY:
                    time.sleep(_BUSY_SECONDS)
                    continue
                raise self._not_started(argv, refused, environment, folder) from refused
            except OSError as error:
                raise diagnosis.from_system(error, doing=f"starting {argv[0]!r}") from error
            if not status:
                return _SUCCEEDED
            if os.WIFSIGNALED(status):
                return CommandEnd(None, os.WTERMSIG(status))
            return CommandEnd(os.WEXITSTATUS(status), None)
        raise Failure("command-not-found", f"{argv[0]!r} cannot be started: another process is writing to the file")

    def check(self) -> None:
        """Raise `Failure` if the attempt was stopped."""
        stopped = self._watch.stopped
        if stopped is not None:
            raise Failure(stopped.reason, stopped.message)

    def close(self) -> None:
        """Close the descriptors."""
        self._spawner.close()

    def _run_once(
        self,
        argv: Sequence[str],
        environment: list[bytes],
        folder: str,
        files: Files,
        marks: Collection[bytes],
        *,
        is_container: bool,
        core_bytes: int,
    ) -> int:
        watch, cleanup = self._watch, self._cleanup
        if watch.stopped is not None:
            self.check()
        had_turn = self._turn.give()
        if core_bytes:
            from pilotage.agent.attempt.collected import core_limit

            with core_limit(core_bytes):
                pid = self._spawner.start(argv, environment=environment, folder=folder, files=files)
        else:
            pid = self._spawner.start(argv, environment=environment, folder=folder, files=files)
        cleanup.began(pid)
        watch.command_began(pid)
        # The process id cannot be reused before the wait, so a signal always reaches the right process.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if had_turn:
            self._turn.take()
        watch.command_ended()
        _, status, usage = os.wait4(pid, 0)
        self._count(usage)
        stopped = watch.stopped is not None
        patience_seconds = _CONTAINER_PATIENCE_SECONDS if is_container and not stopped else 0.0
        if not cleanup.clear(pid, marks, urgent=stopped, patience_seconds=patience_seconds):
            self.left_behind = True
        if status and os.WIFEXITED(status):
            refused = self._spawner.failed_to_start(os.WEXITSTATUS(status))
            if refused is not None:
                raise refused
        if watch.stopped is not None:
            self._raise_stopped(status)
        return status

    def _raise_stopped(self, status: int) -> None:
        try:
            self.check()
        except Failure as failure:
            if os.WIFSIGNALED(status):
                failure.signal_number = os.WTERMSIG(status)
            else:
                failure.exit_status = os.WEXITSTATUS(status)
            raise

    def _count(self, usage: resource.struct_rusage) -> None:
        self._used.append(usage)
        # A command starts as a fork of this process: the kernel's peak is the command's own only if it exceeds the size of
        # this process, and otherwise an upper bound.
        command_peak_bytes = usage.ru_maxrss * 1024
        if command_peak_bytes > self._own_peak_bytes:
            self._own_peak_bytes = own_peak_bytes() + _PEAK_MARGIN_BYTES
            if command_peak_bytes > self._own_peak_bytes:
                self.peak_bytes = max(self.peak_bytes, command_peak_bytes)

    def _not_started(self, argv: Sequence[str], refused: NotStarted, environment: list[bytes], folder: str) -> Failure:
        if refused.where:
            return Failure("platform-failure", f"{argv[0]!r} cannot be started in {folder}: {refused}")
        path = next((entry[5:] for entry in environment if entry.startswith(b"PATH=")), os.fsencode(os.defpath))
        word = argv[0] if argv else ""
        return diagnosis.not_started(word, refused.number, folder=folder, path=os.fsdecode(path))


# Slots take turns at the many short system calls between two commands.
#
# A thread releases the interpreter lock at each system call, and waits for it when the call returns. Two slots that
# link, stage and remove files at the same time wake each other up at every call, which takes longer than the calls. So a
# turn lasts from the end of one command to the start of the next, also across attempts: one wait for both.
#
# A turn is only an optimisation and protects nothing. A slot that waits too long goes on without it; and if the calls
# themselves are slow, as on a busy disk or over a network, slots had better make them in parallel.

PATIENCE_SECONDS = 0.05
LONG_SECONDS = 0.005  # more than ten times what a turn takes on a local disk
WITHOUT_FACTOR = 20  # a slot skips turns for so many times the time it lost: it loses a twentieth at most


class SpawnTurn:
    """The turn of one slot, for its thread; all slots of a pilot share the lock."""

    __slots__ = ("_again_at", "_clock", "_has_it", "_lock", "_taken_at")

    def __init__(self, lock: threading.Lock, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = lock
        self._clock = clock
        self._has_it = False
        self._taken_at = 0.0
        self._again_at = -1.0  # skips turns until then

    def take(self) -> None:
        """Wait briefly for the turn, unless this slot has it."""
        if self._has_it or self._clock() < self._again_at:
            return
        self._has_it = self._lock.acquire(timeout=PATIENCE_SECONDS)
        self._taken_at = self._clock()
        if not self._has_it:
            self._again_at = self._taken_at + WITHOUT_FACTOR * PATIENCE_SECONDS

    def give(self) -> bool:
        """Release the turn before anything slow; returns whether this slot had it."""
        if not self._has_it:
            return False
        self._has_it = False
        self._lock.release()
        now = self._clock()
        lasted_seconds = now - self._taken_at
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds
        return True
