"""The scratch folder of a slot, which its attempts use one after the other: emptied rather than made anew."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000  # FS_IOC_GETFLAGS, _SETFLAGS, FS_TOPDIR_FL
_OWNERS = stat.S_IRWXU
_MARK_NS = 1_234_567_891_234_567_000  # whole microseconds: some file systems keep no more


class Scratch:
    """A slot's folder. It is replaced if it cannot be emptied, or if a process may still use it.

    It is held open between attempts, so that it is recognised if another file takes its name; `rest` closes it.
    """

    def __init__(self, root: str, slot_number: int) -> None:
        """Take the location; `prepare` makes the folder."""
        self._root = root
        self._slot_number = slot_number
        self._generation = 0
        self._is_ready = False
        self._is_marked = False  # it has our time stamp, which changes when a file is made in it
        self._identity = (0, 0)  # device and inode of the open folder, which stay unique while it is open
        self.descriptor = -1  # of the open folder; negative: closed
        self.removed: list[str] = []  # what the last `empty` removed: file names, and folder names with a slash
        self.path = os.path.join(root, f"slot-{slot_number}")

    def prepare(self) -> None:
        """Provide an empty folder. Raises `OSError`."""
        if self._is_ready and (self.descriptor >= 0 or self._hold_again()):
            return
        os.makedirs(self._root, mode=0o700, exist_ok=True)
        spread(self._root)
        if not os.path.lexists(self.path):
            self._make()
        elif not _empty(self.path):
            self.abandon()
            self._make()
        self.rest()
        self._hold()
        self._is_ready = True
        self._mark()

    def _make(self) -> None:
        """Make the folder, first under a name unique to this pilot, which determines its place on the disk."""
        draft = f"{self.path}-{os.path.basename(self._root)}"
        remove_tree(draft)  # a pilot that was killed here may have left it
        os.mkdir(draft, 0o700)
        os.rename(draft, self.path)

    def empty(self) -> bool:
        """Remove everything in the folder; returns whether nothing is left.

        If another file has its name now, such as a link that a command made, that is not ours to empty.
        """
        removed: list[str] = []
        self.removed = removed
        if self.descriptor < 0:
            return True  # it was not used
        found = self._found()
        if found is not None and found.st_mode & _OWNERS != _OWNERS:
            found = self._opened(found)
        if found is None:
            self.abandon()
            return False
        if self._is_marked and found.st_mtime_ns == _MARK_NS:
            return True
        self._is_marked = False
        if not _remove_files(self.path, self.descriptor, removed) and not _empty_below(self.descriptor, removed):
            self.abandon()
            return False
        if not removed:
            self._mark()  # a slot whose attempts leave nothing will often do so again
        return True

    def _mark(self) -> None:
        """Give the empty folder a unique time stamp: the system changes it when a file is made in it."""
        with contextlib.suppress(OSError):
            os.utime(self.path, ns=(_MARK_NS, _MARK_NS), follow_symlinks=False)
            found = self._found()
            self._is_marked = found is not None and found.st_mtime_ns == _MARK_NS

    def _hold(self) -> None:
        self.descriptor = _open_folder(self.path)
        held = os.fstat(self.descriptor)
        self._identity = (held.st_dev, held.st_ino)

    def _hold_again(self) -> bool:
        try:
            self._hold()
        except OSError:
            self._is_ready = False  # another file has its name: `prepare` starts over
        return self._is_ready

    def _found(self) -> os.stat_result | None:
        """The folder's stat; None if another file has its name."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return None
        return found if (found.st_dev, found.st_ino) == self._identity else None

    def _opened(self, found: os.stat_result) -> os.stat_result | None:
        """Restore the owner's permissions that a command removed; None if that fails."""
        try:
            os.fchmod(self.descriptor, stat.S_IRWXU)
        except OSError:
            return None
        return found

    def rest(self) -> None:
        """Close the folder while no attempt follows; it stays, and is used again."""
        if self.descriptor >= 0:
            held, self.descriptor = self.descriptor, -1
            with contextlib.suppress(OSError):  # a network file system may report an error for a removed folder
                os.close(held)

    def abandon(self) -> None:
        """Leave the folder as it is and use another from now on; it is removed with the pilot's folder."""
        self._generation += 1
        self._is_ready = False
        self.rest()
        self.path = os.path.join(self._root, f"slot-{self._slot_number}.{self._generation}")

    def keep(self, folder: str, name: str) -> str:
        """Move the folder away for inspection; returns its new path. Raises `OSError`."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        kept = os.path.join(folder, name)
        remove_tree(kept)
        os.rename(self.path, kept)
        self._is_ready = False
        self.rest()
        return kept


def spread(folder: str) -> None:
    """Spread new subfolders over the disk, if the file system can.

    ext4 takes the inode of a new file from near its folder, and skips those that were removed in the last minutes: with
    many files made and removed that search takes longer than the command that makes the file.
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
    """Remove a folder tree; returns whether it is gone. Anything else, such as a link to a folder, stays."""
    if not os.path.lexists(path):
        return True
    if not _empty(path):
        return False
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _empty(path: str) -> bool:
    """Remove the content of a folder, whatever its permissions, without following links; returns whether it is empty.

    False if it is not a folder.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        top = _open_folder(path)
    except OSError:
        return False
    try:
        return _empty_below(top, [])
    finally:
        os.close(top)


def _open_folder(path: str, top: int | None = None) -> int:
    """Open a folder, and nothing else, below another if given; restores the owner's permissions if needed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(path, flags, dir_fd=top)
    except PermissionError:
        os.chmod(path, stat.S_IRWXU, dir_fd=top)
        return os.open(path, flags, dir_fd=top)


def _remove_files(path: str, top: int, removed: list[str]) -> bool:
    """Remove the content of an open folder, last seen at a path, if it consists of files only, as it mostly does.

    Returns whether it did; records what was removed.
    """
    try:
        for name in os.listdir(path):
            os.unlink(name, dir_fd=top)  # fails for a folder
            removed.append(name)
    except OSError:
        return False
    return True


def _empty_below(top: int, removed: list[str]) -> bool:
    """Remove the content of an open folder with all subfolders; records what was removed."""
    found = [""]
    whole = True
    for folder in found:  # the list grows by the subfolders
        try:
            entries = _entries_of(folder, top)
        except OSError:
            if not folder:
                return False
            whole = False
            continue
        for name, is_folder in entries:
            if is_folder:
                found.append(name)
            elif _remove(os.unlink, name, top):
                removed.append(name)
            else:
                whole = False
    for folder in reversed(found[1:]):
        removed.append(f"{folder}/")
        whole = _remove(os.rmdir, folder, top) and whole
    return whole or not _entries_of("", top)


def _entries_of(folder: str, top: int) -> list[tuple[str, bool]]:
    """The names in a folder, and whether each is a folder, which not every file system tells with the name.

    Opens it anew: over NFS a descriptor that was read to its end does not show changes.
    """
    opened = _open_folder(folder or os.curdir, top)
    try:
        with os.scandir(opened) as entries:
            return [(os.path.join(folder, each.name), each.is_dir(follow_symlinks=False)) for each in entries]
    finally:
        os.close(opened)


def _remove(remove: Callable[..., None], name: str, top: int) -> bool:
    """Remove one entry; restores the permissions of its folder if needed."""
    try:
        remove(name, dir_fd=top)
    except PermissionError:
        try:
            folder = os.path.dirname(name)
            if folder:
                os.chmod(folder, stat.S_IRWXU, dir_fd=top)
            else:
                os.fchmod(top, stat.S_IRWXU)
            remove(name, dir_fd=top)
        except OSError:
            return False
    except OSError:
        return False
    return True
