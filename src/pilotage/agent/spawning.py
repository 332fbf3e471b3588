"""Starting a command: in its folder, in a session of its own, with its streams in files, and nothing else of ours open.

`subprocess.Popen` does this as well, at a cost that short commands feel: an object, a pipe and two reads for each. The
function underneath it takes the same things as plain arguments, but their number differs between versions of Python:
it is used where the number is known and a trial at the start proves that it works, and `Popen` everywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

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
