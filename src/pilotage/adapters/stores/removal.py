"""Removes a file only if it has the expected content and is not behind a link."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable

from pilotage.ports.job_tree import StoredFile

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_unchanged(folder: str, name: str, *, sha256: str, is_known: Callable[[StoredFile], bool]) -> bool:
    """Remove a file below a folder if it has a checksum; `is_known` skips the read. Returns whether it was removed.

    Each folder on the path is held open, and none is entered through a link, so that a file moved or replaced meanwhile
    is not removed by mistake. Raises `OSError`; for a link with `ELOOP` or `ENOTDIR`.
    """
    *parents, last = name.split("/")
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parents:
            inner = os.open(part, _FOLDER, dir_fd=held)
            os.close(held)
            held = inner
        file = os.open(last, _FILE, dir_fd=held)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
            if not is_known(_stored(name, found)) and _checksum(file) != sha256:
                return False
            if _stored(name, os.stat(last, dir_fd=held, follow_symlinks=False)) != _stored(name, found):
                return False  # it is being written, or another file has its name by now
            os.unlink(last, dir_fd=held)
        finally:
            os.close(file)
    finally:
        os.close(held)
    return True


def _stored(name: str, found: os.stat_result) -> StoredFile:
    return StoredFile(
        name=name,
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        inode=found.st_ino,
        changed_ns=found.st_ctime_ns,
    )


def _checksum(file: int) -> str:
    hashed = hashlib.sha256()
    while piece := os.read(file, 2**20):
        hashed.update(piece)
    return hashed.hexdigest()
