"""The folder that the attempts of one slot run in, one after the other: emptied rather than made anew."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000  # of ext2 and what came after it
_OWNERS = stat.S_IRWXU
_MARK_NS = 1_234_567_891_234_567_000  # to the microsecond: some file systems keep no more


class Scratch:
    """A slot's folder. Another one takes its place where it cannot be emptied, or somebody may still be in it.

    It is held open from one attempt to the next, so that it is known whatever takes its name; `rest` lets go of it.
    """

    def __init__(self, root: str, slot_number: int) -> None:
        """Say where; the folder is made by `prepare`."""
        self._root = root
        self._slot_number = slot_number
        self._generation = 0
        self._is_ready = False
        self._is_marked = False  # its time is ours, and stays so until something is made in it
        self._identity = (0, 0)  # device and inode of what is held open: nothing else has them meanwhile
        self.descriptor = -1  # what is held open; less than 0: nothing
        self.removed: list[str] = []  # what `empty` removed last: names of files, and of folders with a slash
        self.path = os.path.join(root, f"slot-{slot_number}")

    def prepare(self) -> None:
        """Make sure that there is an empty folder. Raises `OSError`."""
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
        """Make the folder, at first under a name of this pilot alone: by that its place on the disk is chosen."""
        draft = f"{self.path}-{os.path.basename(self._root)}"
        remove_tree(draft)  # which somebody may have left who was killed here
        os.mkdir(draft, 0o700)
        os.rename(draft, self.path)

    def empty(self) -> bool:
        """Remove everything in it, so that it can be used again; whether nothing is left.

        Where something else has its name now, as a link that a command put there, that is not ours to empty.
        """
        removed: list[str] = []
        self.removed = removed
        if self.descriptor < 0:
            return True  # nobody was in it
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
            self._mark()  # who leaves nothing once will often do so
        return True

    def _mark(self) -> None:
        """Give the empty folder a time that no other has: the system sets another as soon as something is made in it."""
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
            self._is_ready = False  # something else has its name: it is looked at as a pilot does that begins
        return self._is_ready

    def _found(self) -> os.stat_result | None:
        """What the system says of the folder; None where something else has its name."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return None
        return found if (found.st_dev, found.st_ino) == self._identity else None

    def _opened(self, found: os.stat_result) -> os.stat_result | None:
        """The folder, which a command closed to its owner, opened again: who holds it does not notice that. None where it stays closed."""
        try:
            os.fchmod(self.descriptor, stat.S_IRWXU)
        except OSError:
            return None
        return found

    def rest(self) -> None:
        """No attempt follows for now: let go of what is held open. The folder stays, and is used again."""
        if self.descriptor >= 0:
            held, self.descriptor = self.descriptor, -1
            with contextlib.suppress(OSError):  # as a network file system may say that is gone
                os.close(held)

    def abandon(self) -> None:
        """Leave the folder as it is and use another from now on; it goes with the pilot's folder."""
        self._generation += 1
        self._is_ready = False
        self.rest()
        self.path = os.path.join(self._root, f"slot-{self._slot_number}.{self._generation}")

    def keep(self, folder: str, name: str) -> str:
        """Put the folder away for somebody to look at; its new path. Raises `OSError`."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        kept = os.path.join(folder, name)
        remove_tree(kept)
        os.rename(self.path, kept)
        self._is_ready = False
        self.rest()
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
    """Remove a folder and what is in it; whether it is gone. What is no folder, such as a link to one, stays."""
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
    """Remove what is in a folder, whatever modes it was given. No link is followed, neither out of it nor in its own place.

    Whether nothing is left; it is not where it is no folder.
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
    """Open a folder, and only that, below another if one is given; what was closed to its owner is opened to it."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(path, flags, dir_fd=top)
    except PermissionError:
        os.chmod(path, stat.S_IRWXU, dir_fd=top)
        return os.open(path, flags, dir_fd=top)


def _remove_files(path: str, top: int, removed: list[str]) -> bool:
    """Remove what is in a folder that is open and was just seen at a path, where that is files alone: mostly it is.

    Whether it was; what was removed is noted.
    """
    try:
        for name in os.listdir(path):
            os.unlink(name, dir_fd=top)  # which no folder is removed by
            removed.append(name)
    except OSError:
        return False
    return True


def _empty_below(top: int, removed: list[str]) -> bool:
    """The same for a folder that is open: whatever is removed is named from there, and noted."""
    found = [""]
    whole = True
    for folder in found:  # which grows: the folders within come after it
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
    """What is in a folder: the names, and whether each is a folder, which not every file system tells with the name.

    It is opened anew: over a network, what was once read to its end through one descriptor is not told again.
    """
    opened = _open_folder(folder or os.curdir, top)
    try:
        with os.scandir(opened) as entries:
            return [(os.path.join(folder, each.name), each.is_dir(follow_symlinks=False)) for each in entries]
    finally:
        os.close(opened)


def _remove(remove: Callable[..., None], name: str, top: int) -> bool:
    """Remove one thing; where its folder is closed to its owner, that is opened first."""
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
