"""Standard streams that never raise: a full disk, a closed stream or a reader who left is remembered, not thrown.

Everybody writes to these streams, click and Python itself among them, and a failure in the middle of a message would
end in a traceback. Here it is noted once, and `output.finish` decides what it means for the exit code.
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
    """A descriptor that is written to until it fails; what comes later goes nowhere."""

    def __init__(self, descriptor: int) -> None:
        """Write to a descriptor; one that is closed fails at the first word."""
        super().__init__()
        self._descriptor = descriptor
        self.failure: OSError | None = None

    def writable(self) -> bool:
        """It takes words, even where they go nowhere."""
        return True

    def fileno(self) -> int:
        """The descriptor itself."""
        if self._descriptor == _CLOSED:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a person sees it."""
        return self._descriptor != _CLOSED and os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what can be written."""
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
    """Standard input where there is none: reading it is an error that says so."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: WriteableBuffer, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


def guard_standard_streams() -> None:
    """Put streams that never raise in the place of the process's own; streams that somebody replaced are left alone."""
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
        errors="backslashreplace",  # words that a locale cannot write are no reason to fail
        line_buffering=True,
    )


def failure_of(stream: TextIO) -> OSError | None:
    """Why a guarded stream could not be written, if it could not."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, Sink) else None
