"""The logs of an attempt: one file per stream, reused, and of limited size.

A file that exceeds its limit is truncated to its beginning while the command goes on writing: it is open for appending,
so that new output follows there. The end of the removed part is kept, the rest only counted.
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
    """One stream of one slot. The slot's thread begins and ends it; other threads may read and truncate it."""

    def __init__(self, path: str, stream: str) -> None:
        self.path = path
        self.stream = stream
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        self._lock = threading.Lock()
        self._tail = b""  # the end of the removed part
        self._dropped_bytes = 0
        self._was_empty = True  # at the end of its attempt
        self._on_dropped: Callable[[bytes], None] | None = None

    def begin(self, *, on_dropped: Callable[[bytes], None] | None = None) -> None:
        """Start empty. `on_dropped` gets everything that is removed, in pieces."""
        if self._was_empty and on_dropped is self._on_dropped:  # nothing was written, so nothing is to be reset
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
        """Bytes written since `begin`."""
        with self._lock:
            return self._dropped_bytes + (os.fstat(self.descriptor).st_size if self.descriptor >= 0 else 0)

    def must_be_cut(self, size_bytes_max: int) -> bool:
        """Tell whether the file is larger than this; False if it was closed meanwhile."""
        with self._lock:
            return self.descriptor >= 0 and os.fstat(self.descriptor).st_size > max(size_bytes_max, HEAD_BYTES)

    def is_shown(self) -> bool:
        """Tell whether removed text is scanned: then the writer should pause meanwhile."""
        return self._on_dropped is not None

    def shown_bytes(self) -> int:
        """How many bytes from the file's beginning `on_dropped` already got."""
        return HEAD_BYTES if self._dropped_bytes else 0

    def cut(self) -> None:
        """Truncate the file to its beginning."""
        with self._lock:
            if self.descriptor < 0:
                return  # closed meanwhile: its number may be reused
            self._show_all()
            self._tail = (self._tail + self._end_of_file())[-TAIL_BYTES:]
            size = os.fstat(self.descriptor).st_size
            os.ftruncate(self.descriptor, HEAD_BYTES)
            self._dropped_bytes += size - HEAD_BYTES

    def text(self, *, final: bool) -> dict[str, Any] | None:
        """The log as sent to the service, without its `ref`; None if it is empty.

        The `final` text of a long log also frees its disk space: the slot may stay unused for long.
        """
        # Appending ignores the file offset, and seeking to the end is cheaper than a stat.
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
        record: dict[str, Any] = {"stream": self.stream, "head": head.decode("utf-8", "replace")}
        if tail:
            record["tail"] = tail.decode("utf-8", "replace")
        if written > len(head) + len(tail):
            record["dropped_bytes"] = written - len(head) - len(tail)
        if not final:
            record["final"] = False
        return record

    def last_lines(self, characters_max: int) -> str:
        """The end of the log, from the start of a line if that is near."""
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
            return  # its folder is removed, or will be

    def _show_all(self) -> None:
        """Pass on the part to remove, up to the end of the file; up to a limit if it keeps growing."""
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
        """The end of the part behind the head."""
        size = os.fstat(self.descriptor).st_size
        start = max(HEAD_BYTES, size - TAIL_BYTES)
        return os.pread(self.descriptor, TAIL_BYTES, start) if size > start else b""


def last_lines_of(logs: Sequence[LogFile], characters_max: int) -> str:
    """The end of stderr, or of stdout if stderr is empty; for a script, of its own logs."""
    with contextlib.suppress(OSError):
        for stream in ("stderr", "stdout"):
            text = next((log.last_lines(characters_max) for log in logs if log.stream.endswith(stream)), "")
            if text:
                return text
    return ""


# Failure patterns: texts in logs that mean failure, whatever the exit code; searched line by line in all output.
_SHOWN_CHARACTERS_MAX = 300


class Scan:
    """Searches one stream, piece by piece, for its patterns; keeps the first match."""

    def __init__(self, file: str, patterns: Sequence[Mapping[str, Any]]) -> None:
        self._file = file
        self._patterns = [(_compiled(each["pattern"]), each.get("reason", "failure-pattern")) for each in patterns]
        self._rest = b""
        self.found: Failure | None = None

    def feed(self, piece: bytes) -> None:
        """Search the next piece."""
        if self.found is not None:
            return
        whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        if not newline and len(self._rest) > _PIECE_BYTES:
            whole, self._rest = self._rest, b""  # a very long line is searched in parts
        if whole:
            self._look_at(whole)

    def finish(self) -> Failure | None:
        """End the search; returns the match."""
        if self.found is None and self._rest:
            self._look_at(self._rest)
        return self.found

    def feed_file(self, descriptor: int, offset: int = 0) -> None:
        """Search a file from an offset on."""
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
        raise Failure("platform-failure", f"the failure pattern {pattern!r} is invalid: {error}") from error


class LogScans:
    """The scans of an attempt, from the patterns of its work."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        self._by_file: dict[str, list[Mapping[str, Any]]] = {}
        for each in work.get("failure_patterns", ()):
            self._by_file.setdefault(each.get("file", "stderr"), []).append(each)
        self._work = work
        streams: list[str] = [name for name in ("stdout", "stderr") if name in self._by_file]
        self._streams: dict[str, Scan] = {name: self._scan(name) for name in streams}

    def of_stream(self, stream: str) -> Scan | None:
        """The scan for the removed parts of a log."""
        return self._streams.get(stream)

    def look(self, logs: Sequence[LogFile], scratch: str) -> Failure | None:
        """After the commands have ended: the first failure found in any log."""
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
        """The files in the folder to scan, each with the name that its patterns have."""
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
            return None  # a log that does not exist shows no failure
        try:
            scan.feed_file(descriptor)
        except OSError as error:
            raise Failure("platform-failure", f"{path} cannot be read: {error}", phase="logs") from error
        finally:
            os.close(descriptor)
        return scan.finish()
