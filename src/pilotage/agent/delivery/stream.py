"""Writes one stream: numbers events and appends them, from many processes at once.

A stream is a folder of segments, each named by the number of its first event. Every append holds the lock of the folder
(a microsecond), checks whether the segment still has the length this process left, and if not reads on from its last
line. So all processes of a host share one sequence, and a value logged later has the higher number.

No number is used twice. Only a line without its newline is ever cut from the end of a segment, and the courier sends a
line only when its newline is there and the file is synced, so no cut number was ever sent. A finished segment is closed
by an end line, synced before its successor exists, and the last segment is never deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pilotage.agent.durable_files import (
    FILE_MODE,
    SegmentHeader,
    SegmentOrigin,
    close_lock,
    counters_of,
    end_text,
    first_line,
    header_text,
    line_of,
    open_lock,
    parse_end,
    parse_header,
    sync_folder,
    tail_of,
    write_all,
)
from pilotage.agent.errors import SpoolError, spool_error

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT_BYTES = 4 << 20
LOCK_NAME = "append.lock"
_NEW_NAME = "segment.new"
_SUFFIX = ".segment"


class StreamPosition(NamedTuple):
    """A position in a stream: the first number of a segment, and an offset in it; later positions compare greater."""

    segment: int
    size_bytes: int


class StreamRetired(SpoolError):
    """The stream is closed for writing; the writer goes on in a new one."""


def segment_file(folder: Path, first: int) -> Path:
    """The segment whose first event has that number."""
    return folder / f"{first:016d}{_SUFFIX}"


def segments_of(folder: Path) -> list[int]:
    """The first numbers of a stream's segments, in order."""
    found = []
    for entry in os.scandir(folder):
        number, suffix = entry.name[: -len(_SUFFIX)], entry.name[-len(_SUFFIX) :]
        if suffix == _SUFFIX and number.isdigit():
            found.append(int(number))
    return sorted(found)


def local_origin(descriptor: int) -> SegmentOrigin:
    """Where an open file lies."""
    status = os.fstat(descriptor)
    return SegmentOrigin(os.uname().nodename, _machine(), status.st_dev, status.st_ino)


def _machine() -> str:
    # The machine ID is confidential, so only a checksum of it is stored.
    from zlib import crc32

    try:
        return f"{crc32(Path('/etc/machine-id').read_bytes()):08x}"
    except OSError:
        return ""


class Stream:
    """One stream, opened for appending; safe for threads; a forked child must abandon it."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open the last segment of a folder; raises `StreamRetired` if this process must not append to it."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._guard = threading.Lock()
        self._lock = self._descriptor = -1
        self._end = -1  # where this process left the segment; another size means that others wrote
        try:
            self._lock = open_lock(folder / LOCK_NAME)
            self._take_segment(max(segments_of(folder), default=0))
            self._check_origin()
        except OSError as error:
            self.close()
            raise spool_error(error, doing="opening a stream", subject=str(folder)) from error
        except SpoolError:
            self.close()
            raise

    def _take_segment(self, first: int) -> None:
        descriptor = os.open(segment_file(self.folder, first), os.O_RDWR | os.O_APPEND)
        old, self._descriptor, self._first, self._end = self._descriptor, descriptor, first, -1
        if old >= 0:  # forgotten before it is closed: a fork in between must not see a reused number
            os.close(old)
        header = parse_header(first_line(descriptor) or b"")
        if header is None:
            raise StreamRetired("the segment has no header that this version knows", subject=str(self.folder))
        self.header = header
        self._next = header.first
        self._seen = header.seen
        self.source = header.source
        self.name = header.stream
        self._prefix = b'{"source":"%b","stream":"%b","n":' % (header.source.encode(), header.stream.encode())

    def _check_origin(self) -> None:
        here = local_origin(self._descriptor)
        if self.header.origin != here:
            raise StreamRetired(
                "the spool was copied or moved: the original may still be in use",
                subject=str(self.folder),
                expected=str(self.header.origin),
                got=str(here),
            )

    def append(self, rest: bytes, *, seen: int = 0) -> int:
        """Append an event, given its JSON after the counters, and return its number; it is not yet synced.

        The position seen never falls along a stream, so an event logged later also ranks later in the book.
        """
        with self._guard:
            self._check_open()
            try:  # the same as `_exclusively`, without the cost of a generator
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.lseek(self._descriptor, 0, os.SEEK_END) != self._end:
                    self._catch_up()
                if self._end >= self._segment_bytes and self._next > self._first:
                    self._rotate()
                number = self._next
                seen = max(seen, self._seen)
                line = line_of(b'%b%d,"seen":%d,%b' % (self._prefix, number, seen, rest))
                self._write(line)
                self._end += len(line)
                self._next = number + 1
                self._seen = seen
                return number
            except OSError as error:
                raise spool_error(error, doing="appending an event", subject=str(self.folder)) from error
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _write(self, line: bytes) -> None:
        try:
            write_all(self._descriptor, line)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise

    def _catch_up(self) -> None:
        """Read the lines of other writers, cut a torn line, move on to the newest segment; the lock is held."""
        while True:
            size = os.lseek(self._descriptor, 0, os.SEEK_END)
            tail = tail_of(self._descriptor, size_bytes=size)
            if tail is None:
                raise StreamRetired("the segment has no whole line", subject=str(self.folder))
            if tail.end < size:
                os.ftruncate(self._descriptor, tail.end)
            self._end = tail.end
            if tail.text is None:
                # A complete but damaged line may have been sent before: its number is unknown.
                self._retire("its last line is damaged")
            ended = parse_end(tail.text or b"")
            if ended is None:
                counters = counters_of(tail.text or b"")
                self._next, self._seen = (counters[0] + 1, counters[1]) if counters else (self._first, self.header.seen)
                return
            if ended.retired:
                raise StreamRetired(f"retired: {ended.retired}", subject=str(self.folder))
            self._follow(ended.following, seen=ended.seen)

    def _follow(self, first: int, *, seen: int) -> None:
        try:
            self._take_segment(first)
        except FileNotFoundError:  # its writer died in between
            header = self.header._replace(first=first, seen=seen)
            create_segment(self.folder, header)
            self._take_segment(first)

    def _rotate(self) -> None:
        self._write(line_of(end_text(following=self._next, seen=self._seen)))
        self._end = -1
        os.fdatasync(self._descriptor)  # before the successor exists, or a power failure could leave both open
        self._follow(self._next, seen=self._seen)
        self._catch_up()

    def _retire(self, why: str) -> None:
        self._write(line_of(end_text(following=self._next, seen=self._seen, retired=why)))
        self._end = -1
        os.fdatasync(self._descriptor)
        raise StreamRetired(f"retired: {why}", subject=str(self.folder))

    def retire(self, why: str) -> None:
        """Close the stream for all writers, for good; its events are still delivered."""
        with contextlib.suppress(StreamRetired), self._exclusively("retiring a stream"):  # by us or by another
            self._catch_up()
            self._retire(why)

    def catch_up(self) -> int:
        """Read the lines of other writers, cut a torn line, and return the next number."""
        with self._exclusively("reading a stream"):
            self._catch_up()
            return self._next

    @contextlib.contextmanager
    def _exclusively(self, doing: str) -> Iterator[None]:
        with self._guard:
            self._check_open()
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                yield
            except OSError as error:
                raise spool_error(error, doing=doing, subject=str(self.folder)) from error
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _check_open(self) -> None:
        if self._lock < 0:
            raise SpoolError("the stream is closed", subject=str(self.folder))

    def sync(self) -> StreamPosition:
        """Sync everything that this process appended; returns the position reached."""
        with self._guard:
            self._check_open()
            place = StreamPosition(self._first, self._end)
            descriptor = os.dup(self._descriptor)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # The disk may have lost events that are still in memory and could be sent: start another stream.
            with contextlib.suppress(SpoolError):
                self.retire("it could not be written to disk")
            raise spool_error(error, doing="writing events to disk", subject=str(self.folder)) from error
        finally:
            os.close(descriptor)
        return place

    @property
    def place(self) -> StreamPosition:
        """The position up to which this process has written."""
        return StreamPosition(self._first, self._end)

    def close(self) -> None:
        """Close the files."""
        with self._guard:
            close_lock(self._lock)
            self.abandon()

    def abandon(self) -> None:
        """Close the inherited files in a forked child; the parent keeps the lock."""
        old, self._descriptor, self._lock = self._descriptor, -1, -1
        if old >= 0:
            os.close(old)


def create_segment(folder: Path, header: SegmentHeader) -> None:
    """Make a segment and its header atomically; the stream is locked, or not visible yet."""
    new = folder / _NEW_NAME
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_all(descriptor, line_of(header_text(header._replace(origin=local_origin(descriptor)))))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(segment_file(folder, header.first))
    sync_folder(folder)
