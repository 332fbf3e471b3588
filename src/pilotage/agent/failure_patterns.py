"""Texts in logs that mean failure, whatever the exit code: looked for line by line, in everything that was written."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from pilotage.agent.diagnosis import Failure
from pilotage.agent.expressions import Expression, UnboundedExpression, compile_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pilotage.agent.logs import LogFile

_PIECE_BYTES = 1024 * 1024
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
