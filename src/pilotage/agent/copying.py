"""Bringing a file to another place: as a second name of it, as a copy that shares its blocks, or as a copy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil

_FICLONE = 0x40049409

# What a file system says that has no hard links, not between these two places, or no more of them for this file.
_NO_LINK = frozenset({
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL,
})  # fmt: skip


def link_or_copy(source: str, target: str) -> bool:
    """Give a file a second name where that can be, else copy it; whether it is a second name of the same file."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        copy(source, target)
        return False
    return True


def copy(source: str, target: str) -> None:
    """Copy a file with its mode, sharing its blocks where the file system can. A copy that fails leaves nothing."""
    try:
        if not copy_sharing(source, target):
            shutil.copyfile(source, target)
            os.chmod(target, os.stat(source).st_mode & 0o777 | 0o200)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise


def move(source: str, target: str) -> None:
    """Give a file another name; between file systems it is copied, and appears under its name when it is whole."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_whole(source, target)
        os.unlink(source)


def copy_whole(source: str, target: str) -> None:
    """Copy a file so that it appears under its name when it is whole."""
    part = f"{target}.part"
    copy(source, part)
    os.rename(part, target)


def copy_sharing(source: str, target: str) -> bool:
    """Copy a file by sharing its blocks; whether the file system can. Nothing is left where it cannot."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(writing, _FICLONE, reading)
            os.fchmod(writing, os.fstat(reading).st_mode & 0o777 | 0o200)
        except OSError:
            os.unlink(target)
            return False  # whatever keeps it from sharing: another way is tried, and tells what is wrong
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return True
