"""The folder that the attempts of one slot run in, one after the other: emptied rather than made anew."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000  # of ext2 and what came after it
_MARK_NS = 1_234_567_891_234_567_000  # to the microsecond: some file systems keep no more


class Scratch:
    """A slot's folder. Another one takes its place where it cannot be emptied, or somebody may still be in it."""

    def __init__(self, root: str, slot_number: int) -> None:
        """Say where; the folder is made by `prepare`."""
        self._root = root
        self._slot_number = slot_number
        self._generation = 0
        self._is_ready = False
        self._is_marked = False  # its time is ours, and stays so until something is made in it
        self.path = os.path.join(root, f"slot-{slot_number}")

    def prepare(self) -> None:
        """Make sure that there is an empty folder. Raises `OSError`."""
        if self._is_ready:
            return
        os.makedirs(self._root, mode=0o700, exist_ok=True)
        spread(self._root)
        if not os.path.lexists(self.path):
            self._make()
        elif not os.path.isdir(self.path) or os.path.islink(self.path) or _empty(self.path) is None:
            self.abandon()
            self._make()
        self._is_ready = True
        self._mark()

    def _make(self) -> None:
        """Make the folder, at first under a name of this pilot alone: by that its place on the disk is chosen."""
        draft = f"{self.path}-{os.path.basename(self._root)}"
        os.mkdir(draft, 0o700)
        os.rename(draft, self.path)

    def empty(self) -> bool:
        """Remove everything in it, so that it can be used again; whether nothing is left."""
        if not self._is_ready or (self._is_marked and _has_mark(self.path)):
            return True
        self._is_marked = False
        removed = _empty(self.path)
        if removed is None:
            self.abandon()
            return False
        if not removed:
            self._mark()  # who leaves nothing once will often do so
        return True

    def _mark(self) -> None:
        """Give the empty folder a time that no other has: the system sets another as soon as something is made in it."""
        with contextlib.suppress(OSError):
            os.utime(self.path, ns=(_MARK_NS, _MARK_NS))
            self._is_marked = _has_mark(self.path)

    def abandon(self) -> None:
        """Leave the folder as it is and use another from now on; it goes with the pilot's folder."""
        self._generation += 1
        self._is_ready = False
        self.path = os.path.join(self._root, f"slot-{self._slot_number}.{self._generation}")

    def keep(self, folder: str, name: str) -> str:
        """Put the folder away for somebody to look at; its new path. Raises `OSError`."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        kept = os.path.join(folder, name)
        remove_tree(kept)
        os.rename(self.path, kept)
        self._is_ready = False
        return kept


def spread(folder: str) -> None:
    """Have the folders that are made in a folder lie apart on the disk, where the file system knows of such a thing.

    ext4 takes the inode of a new file from near its folder, and looks there at each that was removed in the last minutes,
    since it does not use those: where much is made and removed that takes longer than the command that makes the file.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            (flags,) = struct.unpack("I4x", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
            if not flags & _TOP_FOLDER:
                fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("I4x", flags | _TOP_FOLDER))
        finally:
            os.close(descriptor)


def remove_tree(path: str) -> bool:
    """Remove a folder and what is in it; whether it is gone."""
    if not os.path.lexists(path):
        return True
    if os.path.islink(path) or not os.path.isdir(path) or _empty(path) is None:
        return False
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _empty(path: str) -> int | None:
    """Remove what is in a folder, whatever modes it was given, and follow no link out of it.

    How many things were removed; None where not everything could be.
    """
    found = [path]
    removed = 0
    whole = True
    for folder in found:  # which grows: the folders within come after it
        try:
            entries = list(os.scandir(folder))
        except PermissionError:
            entries = []
            with contextlib.suppress(OSError):
                os.chmod(folder, stat.S_IRWXU)
                entries = list(os.scandir(folder))
        except OSError:
            return None
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.path)
                continue
            try:
                os.unlink(entry.path)
            except OSError:
                if not _unlink(entry.path, folder):
                    whole = False
                    continue
            removed += 1
    for folder in reversed(found[1:]):
        removed += 1
        whole = _remove_folder(folder) and whole
    return removed if whole or not _is_not_empty(path) else None


def _has_mark(path: str) -> bool:
    try:
        return os.stat(path).st_mtime_ns == _MARK_NS
    except OSError:
        return False


def _is_not_empty(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except OSError:
        return True


def _unlink(path: str, folder: str) -> bool:
    try:
        os.unlink(path)
    except PermissionError:
        try:
            os.chmod(folder, stat.S_IRWXU)
            os.unlink(path)
        except OSError:
            return False
    except OSError:
        return False
    return True


def _remove_folder(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except PermissionError:
        try:
            os.chmod(os.path.dirname(folder), stat.S_IRWXU)
            os.rmdir(folder)
        except OSError:
            return False
    except OSError:
        return False
    return True
