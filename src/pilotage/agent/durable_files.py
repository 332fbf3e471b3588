"""File operations of a spool: locks, small files replaced atomically, folders synced to disk."""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE = 0o600  # events and server names are private to one user
FOLDER_MODE = 0o700
_BLOCK_BYTES = 65536  # for reading a file backwards


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents; new ones survive a power failure."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: str) -> None:
    """Write everything of a folder's file system to disk: for many files, that is quicker than one after another."""
    import ctypes

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    except AttributeError:  # a system without syncfs
        os.sync()
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write everything, in as many calls as it takes."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def replace_file(file: Path, content: bytes) -> None:
    """Replace a small file atomically: readers see the old or the new content, also after a power failure."""
    new = file.with_name(f"{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_all(descriptor, content)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(file)


def read_small(file: Path) -> bytes:
    """Read a small file; empty if it does not exist."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def append_durably(file: Path, content: bytes) -> None:
    """Append whole lines to a file and sync it; a torn line at its end is cut off first."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        whole = _after_last_newline(descriptor, size_bytes=size)
        if whole < size:
            os.ftruncate(descriptor, whole)
        try:
            write_all(descriptor, content)
        except OSError:
            os.ftruncate(descriptor, whole)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size == 0:
        sync_folder(file.parent)


def _after_last_newline(descriptor: int, *, size_bytes: int) -> int:
    end = size_bytes
    while end:
        start = max(0, end - _BLOCK_BYTES)
        found = os.pread(descriptor, _BLOCK_BYTES, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def open_lock(file: Path) -> int:
    """Open a file for its lock. A forked child closes it: a lock that two processes share excludes neither."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, FILE_MODE)
    _locks.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Release a lock and close its file; a forked child has closed it already, and its number may be reused."""
    if descriptor in _locks:
        _locks.discard(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _close_locks() -> None:
    for descriptor in _locks:
        os.close(descriptor)  # no LOCK_UN: that would release the parent's lock as well
    _locks.clear()


_locks: set[int] = set()
os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting for it."""
    descriptor = open_lock(file)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        close_lock(descriptor)


@contextmanager
def locked_if_free(file: Path) -> Iterator[bool]:
    """Hold the lock of a file if it is free; yields whether it is held."""
    descriptor = open_lock(file)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        close_lock(descriptor)


def is_gone(path: str) -> bool:
    """Tell whether a path does not exist; one that cannot be examined may exist."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


# A line of a spool is a checksum, a blank and JSON: readable for people, and a torn line is recognised.
#
# A segment begins with a header line and may end with an end line; in between each line is an event:
#
# 8 hexadecimal digits of CRC-32, a blank, {"source":…,"stream":…,"n":7,"seen":41,"type":…}
#
# A line counts when its newline is there and its checksum is right. Bytes after the last newline were being
# written when the writer died, and were never sent: the courier sends whole lines only.

VERSION = 1
HEADER_START = b'{"spool":'
END_START = b'{"end":'

_HEAD = re.compile(rb'\{"source":"[a-z]+","stream":"[^"]+","n":([0-9]+),"seen":([0-9]+),')
_LINE_MAX = 64 << 20  # no event is that long: a file without a newline for so long is not a spool


class SegmentOrigin(NamedTuple):
    """Where a segment was written: a copy of its folder lies elsewhere and is recognised by that."""

    host: str
    machine: str
    device: int
    inode: int


class SegmentHeader(NamedTuple):
    """The first line of a segment: its stream, its first number, and where it was written."""

    source: str
    stream: str
    first: int
    seen: int
    origin: SegmentOrigin


class SegmentEnd(NamedTuple):
    """The last line of a segment: the next number, or why the stream was retired."""

    following: int
    seen: int
    retired: str


class SegmentTail(NamedTuple):
    """The end of a segment: the offset of its last newline, and the text of its last line (None if damaged)."""

    end: int
    text: bytes | None


def line_of(text: bytes) -> bytes:
    """Encode a text as a line with its checksum."""
    return b"%08x %b\n" % (zlib.crc32(text), text)


def text_of(line: bytes) -> bytes | None:
    """Decode a line (without its newline); None if the checksum is wrong."""
    text = line[9:]
    return text if line[:9] == b"%08x " % zlib.crc32(text) else None


def counters_of(text: bytes) -> tuple[int, int] | None:
    """Number of an event and the position it has seen; None if the text is not an event."""
    found = _HEAD.match(text)
    return (int(found[1]), int(found[2])) if found else None


def header_text(header: SegmentHeader) -> bytes:
    """Encode a header."""
    value: dict[str, Any] = {"spool": "pilotage", "version": VERSION}
    value.update(header._asdict())
    value["mark"] = header.origin._asdict()
    return json.dumps(value, separators=(",", ":")).encode()


def parse_header(text: bytes) -> SegmentHeader | None:
    """Decode a header; None if this version does not know it."""
    value = _object(text)
    if value is None or value.get("version") != VERSION or not text.startswith(HEADER_START):
        return None
    try:
        origin = SegmentOrigin(**value["mark"])
        return SegmentHeader(value["source"], value["stream"], value["first"], value["seen"], origin)
    except (KeyError, TypeError):
        return None


def end_text(*, following: int, seen: int, retired: str = "") -> bytes:
    """Encode an end line."""
    return json.dumps({"end": following, "seen": seen, "retired": retired}, separators=(",", ":")).encode()


def parse_end(text: bytes) -> SegmentEnd | None:
    """Decode an end line; None if the text is not one."""
    value = _object(text) if text.startswith(END_START) else None
    return SegmentEnd(value["end"], value["seen"], value["retired"]) if value is not None else None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def tail_of(descriptor: int, *, size_bytes: int) -> SegmentTail | None:
    """The last whole line of a file of that size; None if it has no newline.

    Reads backwards from the end, so a long segment costs no more than a short one.
    """
    window = 4096
    while True:
        start = max(0, size_bytes - window)
        block = os.pread(descriptor, size_bytes - start, start)
        end = block.rfind(b"\n")
        begin = block.rfind(b"\n", 0, end)
        if end >= 0 and (begin >= 0 or start == 0):
            return SegmentTail(start + end + 1, text_of(block[begin + 1 : end]))
        if start == 0 or window > _LINE_MAX:
            return None
        window *= 8


def first_line(descriptor: int) -> bytes | None:
    """Text of the first line of a file; None if the line is not whole."""
    line, newline, _ = os.pread(descriptor, 4096, 0).partition(b"\n")
    return text_of(line) if newline else None
