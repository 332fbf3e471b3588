"""Checksums of files, and which ones are known already: as long as a file's size, time and inode stay, so does its sha256."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

_PIECE_BYTES = 1024 * 1024
_TINY_BYTES = 256
_OWN_DIGESTS = ("_sha256", "_sha2")  # where Python has its own sha256: up to 3.11, and after it
_KNOWN_MAX = 100_000


def get_ready() -> None:
    """Have at hand what larger files are hashed by: it brings a library of its own, for which no package need wait."""
    _digest_of_many()


def sha256_of(path: str, size_bytes: int = _PIECE_BYTES) -> str:
    """The sha256 of a file; who knows its size may say so, which saves room and a look beyond its end."""
    new_digest = _digest_of_tiny() if size_bytes <= _TINY_BYTES else _digest_of_many()
    piece_bytes = min(size_bytes + 1, _PIECE_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        piece = os.read(descriptor, piece_bytes)
        digest = new_digest(piece)
        while len(piece) == piece_bytes or (piece and piece_bytes == _PIECE_BYTES):
            piece = os.read(descriptor, piece_bytes)
            digest.update(piece)
    finally:
        os.close(descriptor)
    sha256: str = digest.hexdigest()
    return sha256


class KnownFiles:
    """The checksums that a pilot has seen, by what the system says of a file."""

    def __init__(self) -> None:
        """Begin with none."""
        self._checksums: dict[tuple[int, int, int, int], str] = {}  # by device, inode, size and time
        self._digest: Any = None  # which brings a library of its own
        self._tiny_digest: Any = None

    def is_known(self, status: os.stat_result, sha256: str) -> bool:
        """Whether a file is known to have this sha256; `status` is what the system says of it now."""
        return self._checksums.get((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)) == sha256

    def sha256(self, path: str, status: os.stat_result) -> str:
        """The sha256 of a file, read only where it is not known; `status` is what the system says of it now."""
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._checksums.get(key)
        if known is None:
            known = sha256_of(path, status.st_size)
            self._keep(key, known)
        return known

    def made(self, path: str, status: os.stat_result) -> str:
        """The sha256 of a file that a command has just made, always read: its inode may have been another's.

        A command can set the time of its file, and a name of the same size may get the inode of one that is gone.
        """
        sha256 = sha256_of(path, status.st_size)
        self.keep(status, sha256)
        return sha256

    def keep_content(self, status: os.stat_result, content: bytes) -> str:
        """Remember a file by its whole content, which was read just now; its sha256."""
        if len(content) <= _TINY_BYTES:
            if self._tiny_digest is None:
                self._tiny_digest = _digest_of_tiny()
            sha256: str = self._tiny_digest(content).hexdigest()
        else:
            if self._digest is None:
                self._digest = _digest_of_many()
            sha256 = self._digest(content).hexdigest()
        self._keep((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), sha256)
        return sha256

    def keep(self, status: os.stat_result, sha256: str) -> None:
        """Remember what is known of a file from elsewhere."""
        self._keep((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), sha256)

    def _keep(self, key: tuple[int, int, int, int], sha256: str) -> None:
        if len(self._checksums) >= _KNOWN_MAX:
            self._checksums.clear()  # what is used again is read once more
        self._checksums[key] = sha256


def _digest_of_tiny() -> Any:
    """The sha256 for a few bytes: OpenSSL's takes longer to begin than Python's own takes for all of them."""
    for name in _OWN_DIGESTS:
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(name).sha256
    return _digest_of_many()


def _digest_of_many() -> Any:
    import hashlib

    return hashlib.sha256
