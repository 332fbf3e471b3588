"""Checksums of files, computed once and cached as long as size, time and inode stay the same."""

# Paths are strings here: making a Path costs more than its system call.
# ruff: noqa: PTH116, PTH123

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from contextlib import suppress

from pilotage.ports.job_tree import StoredFile, StoreError
from pilotage.ports.results_index import ResultsIndex, SeenFile

_KEPT_MAX = 512  # checksums written to the index at once
_SETTLED_NS = 2_000_000_000  # a file changed this recently may change again without a new time


def stored(path: str, name: str) -> StoredFile | None:
    """Look up a path; anything but a regular file has size -1."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            with suppress(FileNotFoundError):  # a broken link is in the way, too
                found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as fault:  # a name that is too long, a link to itself, a closed folder
        raise StoreError(f"cannot examine it: {fault.strerror}", subject=name[:200]) from fault
    size_bytes = found.st_size if stat.S_ISREG(found.st_mode) else -1
    return StoredFile(
        name=name,
        size_bytes=size_bytes,
        modified_ns=found.st_mtime_ns,
        inode=found.st_ino,
        changed_ns=found.st_ctime_ns,
    )


class Checksums:
    """Caches checksums in memory, and writes them to the index."""

    def __init__(self, index: ResultsIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._fresh: dict[tuple[str, str], tuple[SeenFile, bool]] = {}

    def is_certainly(self, folder: str, file: StoredFile, sha256: str) -> bool:
        """Tell whether a file is known to have this checksum and was not touched since, not even by a link."""
        known = self._known(folder, file.name)
        return known is not None and known.file == file and bool(file.changed_ns) and known.sha256 == sha256

    def of(self, folder: str, name: str, path: str) -> str | None:
        """The sha256 of a file; None if it is missing or not a regular file."""
        there = stored(path, name)
        if there is None or there.size_bytes < 0:
            return None
        known = self._known(folder, name)
        if known is not None and known.is_still(there):
            return known.sha256
        hashed = hashlib.sha256()
        try:
            with open(path, "rb", buffering=0) as file:
                while piece := file.read(2**20):
                    hashed.update(piece)
                status = os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        sha256 = hashed.hexdigest()
        same = (status.st_size, status.st_mtime_ns, status.st_ino) == (
            there.size_bytes,
            there.modified_ns,
            there.inode,
        )
        if same and time.time_ns() - there.modified_ns > _SETTLED_NS:
            self.remember(folder, there, sha256, made=False)
        return sha256

    def remember(self, folder: str, file: StoredFile, sha256: str, *, made: bool) -> None:
        """Cache the checksum of a file; `made` marks it as ours."""
        with self._lock:
            before = self._fresh.get((folder, file.name))
            if before is not None and before[1] and not (made and before[0].sha256 == sha256):
                self._index.saw(folder, [before[0]], made=True)  # keep the fact that it was ours
            self._fresh[folder, file.name] = (SeenFile(file=file, sha256=sha256), made)
            full = len(self._fresh) >= _KEPT_MAX
        if full:
            self.flush()

    def flush(self) -> None:
        """Write everything to the index."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            by_kind: dict[tuple[str, bool], list[SeenFile]] = {}
            for (folder, _), (file, made) in fresh.items():
                by_kind.setdefault((folder, made), []).append(file)
            for (folder, made), files in by_kind.items():
                self._index.saw(folder, files, made=made)

    def _known(self, folder: str, name: str) -> SeenFile | None:
        with self._lock:
            fresh = self._fresh.get((folder, name))
        return fresh[0] if fresh is not None else self._index.known_files(folder, [name]).get(name)
