"""The few things that a spool asks of the file system: locks, small files replaced as a whole, folders made durable."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE = 0o600  # events and server names are the business of one user
FOLDER_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it; the newest ones survive a power cut."""
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


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything, in as many calls as it takes."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def replace_file(file: Path, content: bytes) -> None:
    """Put a small file in place of another: readers see the old one or the new one, also after a power cut."""
    new = file.with_name(f"{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_all(descriptor, content)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(file)


def read_small(file: Path) -> bytes:
    """What a small file says; nothing where there is none."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def append_durably(file: Path, content: bytes) -> None:
    """Add whole lines to a file and wait until they are on disk; a torn line at its end is cut off first."""
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
        start = max(0, end - 65536)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def open_lock(file: Path) -> int:
    """Open a file for its lock. A forked child lets go of it: a lock that two processes share excludes neither."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, FILE_MODE)
    _locks.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Let go of a lock and close its file; in a forked child it is closed already, and its number may be another's."""
    if descriptor in _locks:
        _locks.discard(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _close_locks() -> None:
    for descriptor in _locks:
        os.close(descriptor)  # no LOCK_UN: that would let go of the parent's lock as well
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
    """Hold the lock of a file if nobody else does; says whether it is held."""
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
    """Whether there is nothing under a path; one that cannot be looked at may be there."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
