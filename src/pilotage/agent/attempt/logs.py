"""What the commands of an attempt write: one file for each stream, used again and again, and never large.

A file that grows beyond its limit is cut back to its beginning while the command goes on writing: the files are open for
appending, so that what comes next follows there. The last piece of what is cut away is remembered, the rest counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.expressions import Expression, UnboundedExpression, compile_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


# Texts in logs that mean failure, whatever the exit code: looked for line by line, in everything that was written.
_SHOWN_CHARACTERS_MAX = 300


class Scan:
    """Looks through one stream, piece by piece, for the patterns that are meant for it; the first that is found stays."""

    def __init__(self, file: str, patterns: Sequence[Mapping[str, Any]]) -> None:
        """Take the patterns for a file."""
        self._file = file
        self._patterns = [(_compiled(each["pattern"]), each.get("reason", "failure-pattern")) for each in patterns]
        self._rest = b""
        self.found: Failure | None = None

    def feed(self, piece: bytes) -> None:
        """Look at what comes next."""
        if self.found is not None:
            return
        whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        if not newline and len(self._rest) > _PIECE_BYTES:
            whole, self._rest = self._rest, b""  # a line without an end is looked at in parts
        if whole:
            self._look_at(whole)

    def finish(self) -> Failure | None:
        """There is no more; what was found."""
        if self.found is None and self._rest:
            self._look_at(self._rest)
        return self.found

    def feed_file(self, descriptor: int, offset: int = 0) -> None:
        """Look at a file from an offset on."""
        while self.found is None:
            piece = os.pread(descriptor, _PIECE_BYTES, offset)
            if not piece:
                return
            offset += len(piece)
            self.feed(piece)

    def _look_at(self, text: bytes) -> None:
        for line in text.decode("utf-8", "replace").split("\n"):
            for pattern, reason in self._patterns:
                if pattern.search(line):
                    shown = line.strip()[:_SHOWN_CHARACTERS_MAX]
                    self.found = Failure(reason, f"{self._file} says {shown!r}")
                    return


def _compiled(pattern: str) -> Expression:
    try:
        return compile_expression(pattern)
    except (re.error, UnboundedExpression) as error:
        raise Failure("platform-failure", f"the failure pattern {pattern!r} cannot be read: {error}") from error


class LogScans:
    """The scans of an attempt, made from its patterns."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        """Take what the work says."""
        self._by_file: dict[str, list[Mapping[str, Any]]] = {}
        for each in work.get("failure_patterns", ()):
            self._by_file.setdefault(each.get("file", "stderr"), []).append(each)
        self._work = work
        streams: list[str] = [name for name in ("stdout", "stderr") if name in self._by_file]
        self._streams: dict[str, Scan] = {name: self._scan(name) for name in streams}

    def of_stream(self, stream: str) -> Scan | None:
        """The scan that is shown what is cut away of a log."""
        return self._streams.get(stream)

    def look(self, logs: Sequence[LogFile], scratch: str) -> Failure | None:
        """After the commands have ended: the first failure that any log tells of."""
        for log in logs:
            scan = self._streams.get(log.stream)
            if scan is not None:
                scan.feed_file(log.descriptor, log.shown_bytes())
                if scan.finish() is not None:
                    return scan.found
        for name, stream in self._files():
            found = self._look_into(os.path.join(scratch, name), self._scan(stream, shown_as=name))
            if found is not None:
                return found
        return None

    def _files(self) -> list[tuple[str, str]]:
        """The files in the folder that are to be looked at, and whose patterns go for each."""
        named = [(name, name) for name in self._by_file if name not in ("stdout", "stderr")]
        for binary in self._work.get("binaries", ()):
            named += [
                (binary[each], each) for each in ("stdout", "stderr") if binary.get(each) and each in self._by_file
            ]
        return named

    def _scan(self, name: str, *, shown_as: str = "") -> Scan:
        return Scan(shown_as or name, self._by_file[name])

    @staticmethod
    def _look_into(path: str, scan: Scan) -> Failure | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None  # a log that was not written tells of no failure
        try:
            scan.feed_file(descriptor)
        except OSError as error:
            raise Failure("platform-failure", f"{path} cannot be read: {error}", phase="logs") from error
        finally:
            os.close(descriptor)
        return scan.finish()
