"""Running one command to its end: started, watched, waited for, and everything ended that it left behind."""

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


# Starting a command: in its folder, in a session of its own, with its streams in files, and nothing else of ours
# open.
#
# `subprocess.Popen` does this as well, at a cost that short commands feel: an object, a pipe and two reads for
# each. The function underneath it takes the same things as plain arguments, but their number differs between
# versions of Python: it is used where the number is known and a trial at the start proves that it works, and
# `Popen` everywhere else.

try:
    import _posixsubprocess
except ImportError:  # not CPython, or not as we know it
    _fork_exec: Any = None
else:
    _fork_exec = _posixsubprocess.fork_exec

# What stands behind the eight descriptors, by version: restore_signals, start_new_session, then the rest.
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
_NOT_STARTED = 255  # what a child ends with that could not become the command


class Files(NamedTuple):
    """The descriptors that a command finds as its standard streams."""

    stdin: int
    stdout: int
    stderr: int


class NotStarted(Exception):
    """The command could not be started: the system said `number`; `where` is empty unless it was not the command's fault."""

    def __init__(self, number: int, where: str = "") -> None:
        """Keep what the system said."""
        super().__init__(os.strerror(number))
        self.number = number
        self.where = where


class Spawner:
    """Starts the commands of one slot. `close` it when the slot is given up."""

    def __init__(self, *, quick: bool | None = None) -> None:
        """Choose the way: the quick one if this Python has it (`quick` is for tests)."""
        self._quick = quick_way_works() if quick is None else quick
        self._error_pipe: tuple[int, int] | None = None
        self._folder = ""  # in which the last one was started
        self._folder_bytes = b""

    def start(self, argv: Sequence[str], *, environment: list[bytes], folder: str, files: Files) -> int:
        """Start a command; its process id, which is that of its group and session too. Raises `NotStarted`, `OSError`.

        Where the quick way is taken, a command that does not exist is told by `failed_to_start` after its end.
        """
        if not argv or not argv[0]:
            raise NotStarted(errno.ENOENT)
        words = "\0".join(argv).encode(_ENCODING, "surrogateescape").split(b"\0")
        if len(words) != len(argv):
            raise NotStarted(errno.EINVAL)
        if not self._quick:
            return _start_by_popen(words, environment, folder, files)
        if self._error_pipe is None:
            # One for all: a child tells its failure by its exit status, so nobody waits at this pipe for its closing.
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
            told = os.read(self._error_pipe[0], 65536)
        except BlockingIOError:
            return None
        _, _, rest = told.partition(b":")
        number, _, where = rest.partition(b":")
        try:
            return NotStarted(int(number, 16), "its folder" if where.startswith(b"noexec") else "")
        except ValueError:
            return NotStarted(errno.ENOEXEC, "an error of Python's own")

    def close(self) -> None:
        """Let go of what is held."""
        if self._error_pipe is not None:
            for descriptor in self._error_pipe:
                os.close(descriptor)
            self._error_pipe = None


def _candidates(word: bytes, environment: list[bytes]) -> list[bytes]:
    """Where a command may be that is written without a folder: in every folder of its own PATH."""
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
    """Whether the function under `Popen` does here what it should: tried once, with a command and without one."""
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
        told = os.read(read_end, 4096) if status == 0 else b""
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
    return told == b"%d b\n/\n" % pid and failure is not None and failure.number == errno.ENOENT


# A file that was just written may be open still, for writing, in a child of another slot that is about to start.
_BUSY_TRIES = 40
_BUSY_SECONDS = 0.01
_CONTAINER_PATIENCE_SECONDS = 2.0  # in which an engine tidies up behind a container that has ended
_PEAK_MARGIN_BYTES = 4 * 1024 * 1024  # by which the kernel's two counts of one process may differ
_BLOCK_BYTES = 512  # in which the kernel counts what is read and written, whatever the blocks of the disk are


class Ended(NamedTuple):
    """How a command ended: one of its exit status and the signal."""

    exit_status: int | None
    signal_number: int | None


_SUCCEEDED = Ended(0, None)


class Commands:
    """Runs the commands of one slot, and adds up what they used."""

    def __init__(self, watch: Watch, cleanup: ProcessCleanup, turn: SpawnTurn) -> None:
        """Take what is shared with others."""
        self._spawner = Spawner()
        self._turn = turn
        self._watch = watch
        self._cleanup = cleanup
        self._own_peak_bytes = 0
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self._used: list[resource.struct_rusage] = []  # by each command
        self.peak_bytes = 0
        self.left_behind = False  # something that even SIGKILL does not end may still use the folder and the logs

    def measured(self, seen_peak_bytes: int) -> dict[str, Any]:
        """What the commands used, with the largest that somebody saw them grow to: fields of an AttemptFinished.

        Time and disk are those of each command and of the children that were waited for.
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
        told: dict[str, Any] = {
            "cpu_seconds": user_seconds + system_seconds,
            "cpu_user_seconds": user_seconds,
            "cpu_system_seconds": system_seconds,
        }
        if read_blocks:
            told["read_bytes"] = read_blocks * _BLOCK_BYTES
        if written_blocks:
            told["written_bytes"] = written_blocks * _BLOCK_BYTES
        if self.peak_bytes or seen_peak_bytes:
            told["peak_memory_bytes"] = max(self.peak_bytes, seen_peak_bytes)
        elif largest:
            told["peak_memory_below_bytes"] = largest * 1024
        return told

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: list[bytes],
        folder: str,
        files: Files,
        marks: Collection[bytes],
        is_container: bool = False,
    ) -> Ended:
        """Run a command and wait for its end. Raises `Failure` where it does not start or is stopped."""
        for _ in range(_BUSY_TRIES):
            try:
                status = self._run_once(argv, environment, folder, files, marks, is_container=is_container)
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
                return Ended(None, os.WTERMSIG(status))
            return Ended(os.WEXITSTATUS(status), None)
        raise Failure("command-not-found", f"{argv[0]!r} cannot be started: somebody is writing to the file")

    def check(self) -> None:
        """Raise `Failure` if the attempt is to be stopped."""
        stopped = self._watch.stopped
        if stopped is not None:
            raise Failure(stopped.reason, stopped.message)

    def close(self) -> None:
        """Let go of what is held."""
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
    ) -> int:
        watch, cleanup = self._watch, self._cleanup
        if watch.stopped is not None:
            self.check()
        had_turn = self._turn.give()
        pid = self._spawner.start(argv, environment=environment, folder=folder, files=files)
        cleanup.began(pid)
        watch.command_began(pid)
        # The process id stays its own until it is waited for: so nobody's signal can meet another process.
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
        # Every command began as this process: the kernel's figure is the peak of the command where it says more than how
        # large this process is, and elsewhere only what the command stayed below.
        told_bytes = usage.ru_maxrss * 1024
        if told_bytes > self._own_peak_bytes:
            self._own_peak_bytes = own_peak_bytes() + _PEAK_MARGIN_BYTES
            if told_bytes > self._own_peak_bytes:
                self.peak_bytes = max(self.peak_bytes, told_bytes)

    def _not_started(self, argv: Sequence[str], refused: NotStarted, environment: list[bytes], folder: str) -> Failure:
        if refused.where:
            return Failure("platform-failure", f"{argv[0]!r} cannot be started in {folder}: {refused}")
        path = next((entry[5:] for entry in environment if entry.startswith(b"PATH=")), os.fsencode(os.defpath))
        word = argv[0] if argv else ""
        return diagnosis.not_started(word, refused.number, folder=folder, path=os.fsdecode(path))


# Slots take turns at the many short things between two commands: one of them at a time, where that keeps nobody.
#
# Whoever calls the system lets the other threads of the interpreter go on, and waits for them when the call
# returns. Two slots that link, stage and remove at the same time so wake each other up at every call, which takes
# longer than the calls do. So a turn lasts from the end of one command to the beginning of the next, whichever
# attempts they are of: that is one wait for both.
#
# A turn is a courtesy and protects nothing. Who waits in vain goes on without it; and where the calls themselves
# last, as on a busy disk or over a network, slots had better do them side by side.

PATIENCE_SECONDS = 0.05
LONG_SECONDS = 0.005  # more than ten times what a turn takes where files are near
WITHOUT_FACTOR = 20  # for so many times what was lost a slot goes without: a twentieth is lost at most


class SpawnTurn:
    """The turn of one slot, which its thread takes and gives; all slots of a pilot share the lock."""

    __slots__ = ("_again_at", "_clock", "_has_it", "_lock", "_taken_at")

    def __init__(self, lock: threading.Lock, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without it."""
        self._lock = lock
        self._clock = clock
        self._has_it = False
        self._taken_at = 0.0
        self._again_at = -1.0  # until then it goes without

    def take(self) -> None:
        """Wait for the turn, but not long; who has it keeps it."""
        if self._has_it or self._clock() < self._again_at:
            return
        self._has_it = self._lock.acquire(timeout=PATIENCE_SECONDS)
        self._taken_at = self._clock()
        if not self._has_it:
            self._again_at = self._taken_at + WITHOUT_FACTOR * PATIENCE_SECONDS

    def give(self) -> bool:
        """Let others have it, before anything that may last; whether this slot had it."""
        if not self._has_it:
            return False
        self._has_it = False
        self._lock.release()
        now = self._clock()
        lasted_seconds = now - self._taken_at
        if lasted_seconds > LONG_SECONDS:
            self._again_at = now + WITHOUT_FACTOR * lasted_seconds
        return True
