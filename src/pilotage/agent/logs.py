"""What the commands of an attempt write: one file for each stream, used again and again, and never large.

A file that grows beyond its limit is cut back to its beginning while the command goes on writing: the files are open for
appending, so that what comes next follows there. The last piece of what is cut away is remembered, the rest counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEAD_BYTES = 32 * 1024
TAIL_BYTES = 32 * 1024
_PIECE_BYTES = 1024 * 1024
_ROUNDS_MAX = 8


class LogFile:
    """One stream of one slot. The slot's thread begins and ends; others may look and cut in between."""

    def __init__(self, path: str, stream: str) -> None:
        """Open the file, which is made where it is not there."""
        self.path = path
        self.stream = stream
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        self._lock = threading.Lock()
        self._tail = b""  # the end of what was cut away
        self._dropped_bytes = 0
        self._was_empty = True  # when its attempt was over
        self._on_dropped: Callable[[bytes], None] | None = None

    def begin(self, *, on_dropped: Callable[[bytes], None] | None = None) -> None:
        """Start empty. `on_dropped` is shown everything that is cut away, in pieces."""
        if self._was_empty and on_dropped is self._on_dropped:  # nothing was written, and so nothing cut away
            self._was_empty = False
            return
        with self._lock:
            self._on_dropped = on_dropped
            self._tail = b""
            self._dropped_bytes = 0
            if not self._was_empty:
                os.ftruncate(self.descriptor, 0)
            self._was_empty = False

    def written_bytes(self) -> int:
        """How much was written since `begin`."""
        with self._lock:
            return self._dropped_bytes + (os.fstat(self.descriptor).st_size if self.descriptor >= 0 else 0)

    def must_be_cut(self, size_bytes_max: int) -> bool:
        """Whether the file is larger than this; one that was closed meanwhile is not looked at."""
        with self._lock:
            return self.descriptor >= 0 and os.fstat(self.descriptor).st_size > max(size_bytes_max, HEAD_BYTES)

    def is_shown(self) -> bool:
        """Whether somebody is shown what is cut away: then the writer should rest meanwhile."""
        return self._on_dropped is not None

    def shown_bytes(self) -> int:
        """How much of the beginning of the file `on_dropped` was shown already."""
        return HEAD_BYTES if self._dropped_bytes else 0

    def cut(self) -> None:
        """Cut the file back to its beginning."""
        with self._lock:
            if self.descriptor < 0:
                return  # closed meanwhile: the number may be another file's by now
            self._show_all()
            self._tail = (self._tail + self._end_of_file())[-TAIL_BYTES:]
            size = os.fstat(self.descriptor).st_size
            os.ftruncate(self.descriptor, HEAD_BYTES)
            self._dropped_bytes += size - HEAD_BYTES

    def text(self, *, final: bool) -> dict[str, Any] | None:
        """The log as it goes over the wire, without its `ref`; None where nothing was written.

        The space of a long one is given back with its `final` text: nobody knows when the slot is next used.
        """
        # Who appends does not care where the descriptor stands, and to ask for the end takes less than for all of a status.
        if not self._dropped_bytes and not os.lseek(self.descriptor, 0, os.SEEK_END):
            self._was_empty = final
            return None
        with self._lock:
            head = os.pread(self.descriptor, HEAD_BYTES, 0)
            size = os.fstat(self.descriptor).st_size
            tail = (self._tail + self._end_of_file())[-TAIL_BYTES:] if size > HEAD_BYTES or self._tail else b""
            written = self._dropped_bytes + size
            if final and size > HEAD_BYTES:
                os.ftruncate(self.descriptor, 0)
        told: dict[str, Any] = {"stream": self.stream, "head": head.decode("utf-8", "replace")}
        if tail:
            told["tail"] = tail.decode("utf-8", "replace")
        if written > len(head) + len(tail):
            told["dropped_bytes"] = written - len(head) - len(tail)
        if not final:
            told["final"] = False
        return told

    def last_lines(self, characters_max: int) -> str:
        """The end of what was written, from the beginning of a line where that is not too far."""
        with self._lock:
            end = self._tail + self._end_of_file()
            if not self._tail:
                size = os.fstat(self.descriptor).st_size
                end = os.pread(self.descriptor, 4 * characters_max, max(0, size - 4 * characters_max))
        text = end.decode("utf-8", "replace").rstrip()
        if len(text) <= characters_max:
            return text
        text = text[-characters_max:]
        first, newline, rest = text.partition("\n")
        return rest if newline and len(first) < characters_max // 2 else text

    def close(self) -> None:
        """Close and remove the file."""
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)
        try:
            os.unlink(self.path)
        except OSError:
            return  # the folder it lies in goes, or is gone

    def _show_all(self) -> None:
        """Show what is cut away, up to where the file ends; if it grows without end meanwhile, up to some point."""
        offset = self.shown_bytes()
        for _ in range(_ROUNDS_MAX if self._on_dropped is not None else 0):
            size = os.fstat(self.descriptor).st_size
            if offset >= size:
                return
            while offset < size and self._on_dropped is not None:
                piece = os.pread(self.descriptor, min(_PIECE_BYTES, size - offset), offset)
                self._on_dropped(piece)
                offset += len(piece)

    def _end_of_file(self) -> bytes:
        """What stands behind the head, of it the last."""
        size = os.fstat(self.descriptor).st_size
        start = max(HEAD_BYTES, size - TAIL_BYTES)
        return os.pread(self.descriptor, TAIL_BYTES, start) if size > start else b""


def last_lines_of(logs: Sequence[LogFile], characters_max: int) -> str:
    """The end of what was written to stderr, or to stdout where nothing was written there; of a script, to its own."""
    with contextlib.suppress(OSError):
        for stream in ("stderr", "stdout"):
            text = next((log.last_lines(characters_max) for log in logs if log.stream.endswith(stream)), "")
            if text:
                return text
    return ""
