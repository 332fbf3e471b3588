"""The content store as a folder: files by sha256, unfinished uploads, and the folders of jobs that use them.

    content/ab/SHA256        a complete, verified file, read-only
    content/ab/SHA256.USER   its holder: a user who sent it, with the size and time of the file when it was verified
    content/ab/SHA256.USER.kept  that user keeps it: it does not expire
    content/ab/SHA256.dropped    the mark of a user who does not hold it any more
    content/uploads/USER-SHA256.part
    folders/KEY/             the folder of a job: its inputs are hard links to the content

A content is in use as long as a folder links to it, so its link count says whether it can go.
"""
# Paths are strings here: making a Path costs more than its system call.
# ruff: noqa: PTH101, PTH103, PTH104, PTH105, PTH108, PTH110, PTH112, PTH116, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pilotage.adapters.stores.folder_tree import FOLDERS
from pilotage.agent.attempt.files import copy
from pilotage.agent.durable_files import make_folder, sync_file_system, sync_folder, write_all
from pilotage.model.jobs.submission import Captured
from pilotage.ports.content_store import StoredContent, UploadConflict, WrongContent
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import StoreFull

CONTENT, UPLOADS = "content", "uploads"
_KEPT, _DROPPED = ".kept", ".dropped"
FREE_BYTES_MIN = 256 * 2**20
"""An upload leaves at least this much of the disk to the book."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{16,64}")
_USER_DIGITS = 16
_PIECE_BYTES = 2**20
_LOCKS = 64
_HASHES_MAX = 256  # unfinished uploads whose running checksum is remembered; others are read again at their end
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINK = frozenset({
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL,
})  # fmt: skip


class FolderContent:
    """A content store in a state folder; safe for threads."""

    def __init__(self, state: Path) -> None:
        """Use a state folder; nothing is made before something is stored."""
        self._root = str(state / CONTENT)
        self._folders = str(state / FOLDERS)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._guard = threading.Lock()
        self._hashes: OrderedDict[str, tuple[int, Any]] = OrderedDict()  # draft → bytes so far, running checksum
        self._numbers = itertools.count(1)

    # Complete contents and their holders.

    def size(self, sha256: str) -> int | None:
        """The size of a complete content."""
        try:
            return os.stat(self._path(sha256)).st_size
        except FileNotFoundError:
            return None

    def look_up(self, sha256: str) -> StoredContent | None:
        """A complete content, if its file is as it was when it was verified."""
        path = self._path(sha256)
        try:
            with self._lock(sha256):
                if not self._is_intact(path, sha256):
                    self._discard(path)
                    return None
                found = os.stat(path)
        except FileNotFoundError:
            return None
        return StoredContent(sha256=sha256, size_bytes=found.st_size, stored_at=found.st_mtime)

    def is_held(self, sha256: str, *, by: str) -> bool:
        """Whether this user sent a content that is still as it was verified; a damaged one is removed."""
        path = self._path(sha256)
        mark = self._mark(sha256, by)
        try:
            with open(mark, encoding="ascii") as file:
                stamp = file.read(64)
            found = os.stat(path)
        except FileNotFoundError:
            return False
        if stamp != _stamp(found):
            with self._lock(sha256):
                self._discard(path)
            return False
        with suppress(OSError):
            os.utime(mark)
        return True

    def missing(self, wanted: Collection[str], *, by: str) -> list[str]:
        """Those that this user has to send."""
        return [sha256 for sha256 in dict.fromkeys(wanted) if not self.is_held(sha256, by=by)]

    def keep(self, sha256: str, *, by: str) -> bool:
        """Mark a content as kept, durably."""
        if not self.is_held(sha256, by=by):
            return False
        mark = f"{self._mark(sha256, by)}{_KEPT}"
        with _refusing(sha256):
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            sync_folder(Path(os.path.dirname(mark)))
        return True

    def is_kept(self, sha256: str, *, by: str) -> bool:
        """Whether this user keeps a content, and it is there."""
        return os.path.exists(f"{self._mark(sha256, by)}{_KEPT}") and self.is_held(sha256, by=by)

    def kept(self, *, by: str) -> list[StoredContent]:
        """The contents with a mark of this user."""
        ending = f".{_user_key(by)}{_KEPT}"
        names = [name for shard in self._shards() for name in os.listdir(shard) if name.endswith(ending)]
        found = (self.look_up(name[:64]) for name in sorted(names))
        return [each for each in found if each is not None]

    def drop(self, sha256: str, *, by: str) -> bool:
        """Take the marks of a user away; the content goes with the next ones that are not used."""
        mark = self._mark(sha256, by)
        with self._lock(sha256):
            self._discard(f"{mark}{_KEPT}")
            try:
                os.replace(mark, f"{self._path(sha256)}{_DROPPED}")
            except FileNotFoundError:
                return False
        return True

    def read(self, sha256: str, *, offset: int, size_bytes: int) -> bytes:
        """Read part of a content."""
        try:
            descriptor = os.open(self._path(sha256), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size_bytes, offset)
        finally:
            os.close(descriptor)

    # Uploads.

    def received(self, sha256: str, *, by: str) -> int:
        """The size of an unfinished upload."""
        try:
            return os.stat(self._draft(sha256, by)).st_size
        except FileNotFoundError:
            return 0

    def append(self, sha256: str, data: bytes, *, by: str, offset: int, size_bytes: int) -> int:
        """Write the next bytes of an upload."""
        draft = self._draft(sha256, by)
        with self._lock(sha256), _refusing(sha256):
            make_folder(Path(draft).parent)
            self._refuse_full(sha256, size_bytes - offset)
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                there = os.fstat(descriptor).st_size
                if there != offset or offset + len(data) > size_bytes:
                    raise UploadConflict(
                        "this piece does not continue the upload",
                        subject=sha256,
                        expected=f"bytes from {there}",
                        got=f"bytes from {offset}",
                        next_step="ask with HEAD how many bytes are there, and go on from there",
                    )
                os.lseek(descriptor, offset, os.SEEK_SET)
                try:
                    write_all(descriptor, data)
                except OSError:
                    os.ftruncate(descriptor, offset)
                    raise
            finally:
                os.close(descriptor)
            self._hash(draft, data, offset)
        return offset + len(data)

    def complete(self, sha256: str, *, by: str, size_bytes: int) -> None:
        """Verify an upload, and give it its name."""
        draft, path = self._draft(sha256, by), self._path(sha256)
        with self._lock(sha256), _refusing(sha256):
            try:
                found = os.stat(draft)
            except FileNotFoundError:
                raise UploadConflict("nothing of this content was sent", subject=sha256) from None
            got = self._digest(draft, found.st_size)
            if found.st_size != size_bytes or got != sha256:
                os.unlink(draft)
                raise WrongContent(
                    "the bytes that were sent have another checksum, and were removed",
                    subject=sha256,
                    got=f"{got}, {found.st_size:,} bytes of {size_bytes:,}",
                    next_step="send the file again from its beginning; it may have changed meanwhile",
                )
            folder = os.path.dirname(path)
            make_folder(Path(folder))
            if os.path.exists(path) and not self._is_intact(path, sha256):
                self._discard(path)
            if os.path.exists(path):
                os.unlink(draft)
            else:
                os.chmod(draft, 0o444)
                _sync(draft)
                os.rename(draft, path)
            self._hold(sha256, by)
            sync_folder(Path(folder))

    def add_small(self, files: Mapping[str, bytes], *, by: str) -> None:
        """Store many small contents; one sync of the file system makes all of them durable."""
        wrong = next((each for each, data in files.items() if hashlib.sha256(data).hexdigest() != each), None)
        if wrong is not None:
            raise WrongContent(
                "the bytes that were sent have another checksum, and were not stored",
                subject=wrong,
                next_step="send the file again; it may have changed meanwhile",
            )
        with _refusing(f"{len(files):,} files"):
            make_folder(Path(self._root, UPLOADS))
            self._refuse_full(f"{len(files):,} files", sum(map(len, files.values())))
            for sha256, data in files.items():
                if not self.is_held(sha256, by=by):
                    with self._lock(sha256):
                        self._add(sha256, data, by)
            sync_file_system(self._root)

    def _add(self, sha256: str, data: bytes, user: str) -> None:
        path = self._path(sha256)
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            make_folder(Path(folder))
        if not os.path.exists(path) or not self._is_intact(path, sha256):
            draft = f"{self._root}/{UPLOADS}/{os.getpid()}-{next(self._numbers)}.part"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            os.rename(draft, path)
        self._hold(sha256, user)

    def _hold(self, sha256: str, user: str) -> None:
        """Note that a user has sent a content, and how its file looks."""
        with open(self._mark(sha256, user), "w", encoding="ascii") as mark:
            mark.write(_stamp(os.stat(self._path(sha256))))

    def _is_intact(self, path: str, sha256: str) -> bool:
        """Whether the content that another user sent is as it was verified."""
        stamp = _stamp(os.stat(path))
        marks = [name for name in os.listdir(os.path.dirname(path)) if name.startswith(f"{sha256}.")]
        return any(Path(os.path.dirname(path), name).read_text("ascii") == stamp for name in marks)

    def _hash(self, draft: str, data: bytes, offset: int) -> None:
        """Continue the running checksum of an upload, if it is known."""
        with self._guard:
            done, running = self._hashes.pop(draft, (0, None))
        if offset == 0:
            done, running = 0, hashlib.sha256()
        if running is None or done != offset:
            return  # of an earlier service: read again at the end
        running.update(data)
        with self._guard:
            self._hashes[draft] = (offset + len(data), running)
            while len(self._hashes) > _HASHES_MAX:
                self._hashes.popitem(last=False)

    def _digest(self, draft: str, size_bytes: int) -> str:
        with self._guard:
            done, running = self._hashes.pop(draft, (0, None))
        if running is not None and done == size_bytes:
            return str(running.hexdigest())
        whole = hashlib.sha256()
        with open(draft, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                whole.update(piece)
        return whole.hexdigest()

    def _refuse_full(self, sha256: str, size_bytes: int) -> None:
        free = os.statvfs(self._root)
        free_bytes = free.f_bavail * free.f_frsize
        if free_bytes < size_bytes + FREE_BYTES_MIN:
            raise StoreFull(
                "the disk of the service has no room for this file",
                subject=sha256,
                expected=f"at most {max(0, free_bytes - FREE_BYTES_MIN):,} bytes",
                got=f"{size_bytes:,} bytes",
                next_step="remove what is not needed there, or name another server",
            )

    # Folders of jobs.

    def place(self, key: str, files: Mapping[str, Captured]) -> str:
        """Make the folder of a job, and link its inputs there; an executable one is copied, since links share a mode."""
        if _KEY.fullmatch(key) is None:
            raise StoreError("not the key of a folder", subject=key[:80])
        folder = os.path.join(self._folders, key)
        make_folder(Path(folder))
        with _refusing(folder):
            parents = {""}
            for name, file in files.items():
                parent = name.rpartition("/")[0]
                if parent not in parents:
                    os.makedirs(os.path.join(folder, parent), exist_ok=True)
                    parents.add(parent)
                self._place(self._path(file.sha256), _inside(folder, name), file)
            os.utime(folder)
            for parent in parents:
                sync_folder(Path(folder, parent))
        return folder

    def _place(self, path: str, target: str, file: Captured) -> None:
        """Link a content, unless the same is there; a file that was changed is replaced."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise StoreError(
                "an input was not sent", subject=f"{target}: {file.sha256}", next_step="send its content first"
            ) from None
        try:
            there = os.lstat(target)
        except FileNotFoundError:
            there = None
        wanted = 0o555 if file.executable else 0o444
        if there is not None and stat.S_ISREG(there.st_mode):
            linked = (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)
            copied = there.st_size == found.st_size and stat.S_IMODE(there.st_mode) == wanted
            if (linked and not file.executable) or (copied and not linked and _sha256(target) == file.sha256):
                return
        draft = f"{os.path.dirname(target)}/.pilotage-{os.getpid()}-{next(self._numbers)}.part"
        try:
            if file.executable or not _linked(path, draft):
                copy(path, draft)
                os.chmod(draft, wanted)
                _sync(draft)
            os.rename(draft, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def folders(self) -> list[str]:
        """The paths of all folders of jobs."""
        try:
            return [os.path.join(self._folders, name) for name in sorted(os.listdir(self._folders))]
        except FileNotFoundError:
            return []

    def remove_folder(self, folder: str, *, unless_since: float) -> bool:
        """Remove the folder of a job, with everything in it."""
        if os.path.dirname(folder) != self._folders:
            raise StoreError("not the folder of a job from elsewhere", subject=folder[:200])
        try:
            if os.stat(folder).st_mtime >= unless_since:
                return False
        except FileNotFoundError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def remove_unused(self, *, before: float, needed: Collection[str] = ()) -> int:
        """Remove what no folder links to, nobody keeps or needs, and nobody asked for since then."""
        count = 0
        for shard in self._shards():
            by_content: dict[str, list[str]] = {}
            for name in os.listdir(shard):
                by_content.setdefault(name[:64], []).append(name)
            for sha256, names in by_content.items():
                if sha256 in needed or any(name.endswith(_KEPT) for name in names):
                    continue
                with self._lock(sha256):
                    count += self._remove_if_unused(shard, sha256, names, before=before)
        uploads = os.path.join(self._root, UPLOADS)
        with suppress(FileNotFoundError):
            for name in os.listdir(uploads):
                path = os.path.join(uploads, name)
                with suppress(FileNotFoundError):
                    if os.stat(path).st_mtime < before:
                        os.unlink(path)
                        count += 1
        return count

    def _remove_if_unused(self, shard: str, sha256: str, names: Collection[str], *, before: float) -> bool:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(os.path.join(shard, name))
        content = found.get(sha256)
        if content is not None and content.st_nlink > 1:
            return False
        if any(max(each.st_mtime, each.st_ctime if name == sha256 else 0.0) >= before for name, each in found.items()):
            return False
        for name in sorted(found, reverse=True):  # its holders first: a holder without content is no holder
            os.unlink(os.path.join(shard, name))
        return content is not None

    def _shards(self) -> Iterator[str]:
        try:
            names = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return
        yield from (os.path.join(self._root, name) for name in names if len(name) == 2)

    # Names.

    def _path(self, sha256: str) -> str:
        if _SHA256.fullmatch(sha256) is None:
            raise StoreError("not a sha256", subject=sha256[:80], expected="64 hexadecimal digits, in lower case")
        return f"{self._root}/{sha256[:2]}/{sha256}"

    def _mark(self, sha256: str, user: str) -> str:
        return f"{self._path(sha256)}.{_user_key(user)}"

    def _draft(self, sha256: str, user: str) -> str:
        self._path(sha256)
        return f"{self._root}/{UPLOADS}/{_user_key(user)}-{sha256}.part"

    def _lock(self, sha256: str) -> threading.Lock:
        return self._locks[hash(sha256) % _LOCKS]

    @staticmethod
    def _discard(path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _user_key(user: str) -> str:
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:_USER_DIGITS]


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"


def _inside(folder: str, name: str) -> str:
    parts = name.split("/")
    if not name or "\0" in name or "" in parts or "." in parts or ".." in parts:
        raise StoreError("not a file name in the folder of a job", subject=name[:200])
    return f"{folder}/{name}"


def _linked(path: str, target: str) -> bool:
    try:
        os.link(path, target)
    except OSError as fault:
        if fault.errno not in _NO_LINK:
            raise
        return False
    return True


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _refusing(subject: str) -> Iterator[None]:
    """Turn a refusal of the file system into an error that says so."""
    try:
        yield
    except OSError as fault:
        if fault.errno in _FULL:
            raise StoreFull(
                "the disk of the service is full", subject=subject, next_step="remove what is not needed there"
            ) from fault
        raise StoreError(f"the content cannot be stored: {fault.strerror}", subject=subject) from fault
