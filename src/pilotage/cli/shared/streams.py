"""Standard streams that never raise: they record the first failure to write, such as a full disk or a closed pipe.

click and Python itself write to these streams, too, and an exception in the middle of a message would end in a
traceback. `output.finish` turns a recorded failure into an exit code.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_CLOSED = -1


class Sink(io.RawIOBase):
    """Writes to a file descriptor until that fails; discards what follows."""

    def __init__(self, descriptor: int) -> None:
        """Use a descriptor; a closed one fails at the first write."""
        super().__init__()
        self._descriptor = descriptor
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """True, even after a failure."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        if self._descriptor == _CLOSED:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return self._descriptor != _CLOSED and os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all data, or record the failure."""
        size = memoryview(data).nbytes
        if self.failure is None:
            try:
                if self._descriptor == _CLOSED:
                    raise OSError(errno.EBADF, "it is closed")
                return os.write(self._descriptor, data)
            except OSError as error:
                self.failure = error
        return size


class _ClosedInput(io.RawIOBase):
    """Replaces a closed standard input: reading it raises an `OSError`."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: WriteableBuffer, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


def guard_standard_streams() -> None:
    """Replace the standard streams of the process, unless they were replaced already, as tests do."""
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()), encoding="utf-8")
    if sys.stdout is sys.__stdout__:
        sys.stdout = _guarded(sys.__stdout__)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(sys.__stderr__)


def _guarded(stream: TextIO | None) -> TextIO:
    sink = Sink(_CLOSED if stream is None else stream.fileno())
    return io.TextIOWrapper(
        io.BufferedWriter(sink),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace",  # a character that the locale lacks must not raise
        line_buffering=True,
    )


def failure_of(stream: TextIO) -> OSError | None:
    """The recorded failure of a guarded stream, or None."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, Sink) else None
