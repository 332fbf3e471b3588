"""The cache of a site as a folder of this computer: drafts that grow, verified files, and removal by name alone.

Names are minted by the engine. No link below the folder is followed, so that nothing outside can be written or removed.
"""
# Paths are relative to descriptors of their folders: `pathlib` knows none.
# ruff: noqa: PTH103

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from pilotage.agent.durable_files import sync_file_system
from pilotage.ports.job_tree import StoreError

PART = ".part"
"""The ending of drafts."""
_VERSION = f".version{PART}"
_NAME = re.compile(r"(?:[0-9A-Za-z_-]{1,64}/)?[0-9A-Za-z_-][0-9A-Za-z._-]{0,190}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DRAFT = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW_DRAFT = _DRAFT | os.O_EXCL
_ATTRIBUTE = "user.pilotage.verified"
_PIECE_BYTES = 1 << 20  # less is fetched again rather than noted
SYNCED_TOGETHER_MIN = 4
"""So many files are made durable by one wait for all of their file system; fewer one by one, without what others write there."""


class CacheUnusable(StoreError):
    """The folder of a site's cache cannot be written or read: `cache` in the site's entry names it."""

    reason = "cache-unusable"


class DiskFull(CacheUnusable):
    """The disk of a site's cache is full: free space there, or limit it by `cache_bytes` in the site's entry."""

    reason = "disk-full"


class BadName(CacheUnusable):
    """Not a name that a cache gives to its files."""

    reason = "bad-name"


class VerifiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the cache with its checksum, and the version that its store gave it."""

    size_bytes: int
    sha256: str
    version: str = ""


class _Attribute(VerifiedFile, frozen=True, kw_only=True):
    modified_ns: int
    locator: str = ""  # a digest of it


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Attribute).decode


class CacheFolder:
    """A folder of fetched files."""

    def __init__(self, path: str) -> None:
        self.path = path

    def verified(self, name: str, *, locator: str) -> VerifiedFile | None:
        """The file of this name, if it was fetched from this locator and is unchanged since; None if that is unknown.

        The file itself says what it was verified as, in an extended attribute; on a disk without those, nothing does.
        """
        with self._errors(), self._folder(name) as (folder, last):
            if folder is None:
                return None
            try:
                handle = os.open(last, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                return None
            try:
                told = _decode(os.getxattr(handle, _ATTRIBUTE))
                found = os.fstat(handle)
            except (OSError, msgspec.DecodeError):
                return None
            finally:
                os.close(handle)
        if (found.st_size, found.st_mtime_ns) != (told.size_bytes, told.modified_ns):
            return None
        if told.locator != _digest(locator) or not stat.S_ISREG(found.st_mode):
            return None
        return VerifiedFile(size_bytes=told.size_bytes, sha256=told.sha256, version=told.version)

    @contextmanager
    def draft(self, name: str) -> Iterator[Draft]:
        """Open the draft of a file. It stays when it is left, unless it was discarded."""
        with self._errors(), self._folder(name, make=True) as (folder, last):
            assert folder is not None
            try:
                handle, is_new = os.open(f"{last}{PART}", _NEW_DRAFT, 0o644, dir_fd=folder), True
            except FileExistsError:
                handle, is_new = os.open(f"{last}{PART}", _DRAFT, 0o644, dir_fd=folder), False
            try:
                yield Draft(handle, folder=folder, name=last, is_new=is_new)
            finally:
                os.close(handle)

    def publish(self, drafts: Sequence[str], *, is_wanted: Callable[[str], bool]) -> dict[str, StoreError]:
        """Give complete drafts their names, durably; returns what prevented it, by name.

        Their content is on disk before they get their names, and the names are when this returns. `is_wanted` is asked
        just before. Raises `StoreError` if none can be published.
        """
        faults: dict[str, StoreError] = {}
        by_folder: dict[str, list[str]] = {}
        for name in drafts:
            by_folder.setdefault(name.rpartition("/")[0], []).append(name)
        together = len(drafts) >= SYNCED_TOGETHER_MIN
        with self._errors():
            if together:
                sync_file_system(self.path)
            for names in by_folder.values():
                with self._folder(names[0]) as (folder, _):
                    if folder is None:
                        fault = CacheUnusable("the folder of its drafts was removed", subject=self.path)
                        faults.update(dict.fromkeys(names, fault))
                        continue
                    for name in filter(is_wanted, names):
                        try:
                            _name_draft(folder, name.rpartition("/")[2], sync=not together)
                        except OSError as fault:
                            faults[name] = self._fault(fault)
                    if not together:
                        os.fsync(folder)
            if together:
                sync_file_system(self.path)
        return faults

    def remove(self, name: str) -> None:
        """Remove a file and its draft, if they are there."""
        with self._errors(), self._folder(name) as (folder, last):
            if folder is not None:
                _unlink(folder, last, f"{last}{PART}", f"{last}{_VERSION}")

    def drop_draft(self, name: str) -> None:
        """Remove the draft of a file."""
        with self._errors(), self._folder(name) as (folder, last):
            if folder is not None:
                _unlink(folder, f"{last}{PART}", f"{last}{_VERSION}")

    @contextmanager
    def _folder(self, name: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """The folder of a name, open, and the name in it; None if there is no such folder."""
        if not _NAME.fullmatch(name):
            raise BadName("not a name of a cached file", subject=name[:200])
        inner, _, last = name.rpartition("/")
        opened: list[int] = []
        try:
            try:
                self._open(inner, opened)
            except FileNotFoundError:
                if make:
                    self._make(inner, opened)
            yield opened[-1] if len(opened) > bool(inner) else None, last
        finally:
            for handle in opened:
                os.close(handle)

    def _open(self, inner: str, opened: list[int]) -> None:
        if not opened:
            opened.append(os.open(self.path, _FOLDER))
        if inner:
            opened.append(os.open(inner, _FOLDER | os.O_NOFOLLOW, dir_fd=opened[0]))

    def _make(self, inner: str, opened: list[int]) -> None:
        os.makedirs(self.path, mode=0o755, exist_ok=True)
        if not opened:
            opened.append(os.open(self.path, _FOLDER))
        if inner:
            with suppress(FileExistsError):
                os.mkdir(inner, 0o755, dir_fd=opened[0])
        self._open(inner, opened)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an `OSError` of the folder into one of ours."""
        try:
            yield
        except OSError as fault:
            raise self._fault(fault) from fault

    def _fault(self, fault: OSError) -> StoreError:
        kind = DiskFull if fault.errno in _FULL else CacheUnusable
        return kind(f"the cache cannot be used: {os.strerror(fault.errno or 0)}", subject=self.path)


class Draft:
    """A file that is being fetched. What there is of a large one is of use to a later transfer of the same version."""

    def __init__(self, handle: int, *, folder: int, name: str, is_new: bool) -> None:
        self._is_new = is_new  # nothing of it was there
        self._handle = handle
        self._folder = folder
        self._name = name
        self._hashed = hashlib.sha256()
        self._noted = False  # whether its version is written beside it
        self.version = ""
        self.size_bytes = 0

    def begin(self, version: str) -> None:
        """Go on with what there is of a version, else start anew. Without a version, nothing is known to be of it."""
        if version and version == self.version:
            return
        if self._is_new and not self.size_bytes and not self.version:
            self.version = version
            return
        if not self.version and version and self._version_there() == _digest(version):
            self._noted = True
            while piece := os.pread(self._handle, _PIECE_BYTES, self.size_bytes):
                self._hashed.update(piece)
                self.size_bytes += len(piece)
        else:
            self.restart()
        self.version = version

    @property
    def sha256(self) -> str:
        """The checksum of its content."""
        return self._hashed.hexdigest()

    def append(self, piece: bytes) -> None:
        """Add a piece."""
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(self._handle, rest, self.size_bytes)
            self._hashed.update(rest[:written])
            self.size_bytes += written
            rest = rest[written:]
        if not self._noted and self.version and self.size_bytes >= _PIECE_BYTES:
            self._note_version()

    def restart(self) -> None:
        """Begin anew."""
        os.ftruncate(self._handle, 0)
        _unlink(self._folder, f"{self._name}{_VERSION}")
        self._hashed, self._noted, self.version = hashlib.sha256(), False, ""
        self.size_bytes = 0

    def discard(self) -> None:
        """Remove it."""
        _unlink(self._folder, f"{self._name}{PART}", f"{self._name}{_VERSION}")

    def complete(self, *, locator: str) -> VerifiedFile:
        """It is whole and verified: write down what it was verified as. Only then may it be published."""
        found = os.fstat(self._handle)
        told = _Attribute(
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            version=self.version,
            modified_ns=found.st_mtime_ns,
            locator=_digest(locator),
        )
        with suppress(OSError):  # without it, an order that is repeated after a crash is carried out again
            os.setxattr(self._handle, _ATTRIBUTE, _encode(told))
        return VerifiedFile(size_bytes=told.size_bytes, sha256=told.sha256, version=told.version)

    def _note_version(self) -> None:
        handle = os.open(f"{self._name}{_VERSION}", _DRAFT | os.O_TRUNC, 0o644, dir_fd=self._folder)
        try:
            os.write(handle, _digest(self.version).encode())
        finally:
            os.close(handle)
        self._noted = True

    def _version_there(self) -> str:
        try:
            handle = os.open(f"{self._name}{_VERSION}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)
        except FileNotFoundError:
            return ""
        try:
            return os.read(handle, 64).decode("ascii", "replace")
        finally:
            os.close(handle)


def _name_draft(folder: int, name: str, *, sync: bool) -> None:
    """Give a draft its name; `sync`: its content is written to disk first."""
    if sync:
        handle = os.open(f"{name}{PART}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    os.rename(f"{name}{PART}", name, src_dir_fd=folder, dst_dir_fd=folder)
    _unlink(folder, f"{name}{_VERSION}")


def _unlink(folder: int, *names: str) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
