"""A store in folders of this computer: `file://` locators and absolute paths."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pilotage.adapters.stores.contents import DRAFT, open_source, pieces_of, refuse_changed, refuse_other, sha256_of
from pilotage.model.locators import BadLocator, locator_below, parse_locator, shown_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    CHUNK_BYTES,
    AccessDenied,
    AlreadyInStore,
    FileChanged,
    NotInStore,
    PresignedRequest,
    StoreFull,
    StoreObject,
    StoreUnreachable,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOTCONN, errno.EHOSTDOWN})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FolderStore:
    """Files of this computer, by locator."""

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator; None if there is no regular file."""
        path = path_of(locator)
        with _StoreErrors(locator):
            return _object(locator, path)

    def is_folder(self, locator: str) -> bool:
        """Whether it is a folder."""
        with _StoreErrors(locator):
            return path_of(locator).is_dir()

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on."""
        path = path_of(locator)
        with _StoreErrors(locator), path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise NotInStore("not a file", subject=shown_locator(locator))
            began = _version(found)
            if version and began != version:
                raise FileChanged("the file is another one than before", subject=shown_locator(locator))
            file.seek(offset)
            while piece := file.read(CHUNK_BYTES):
                yield piece
            if _version(os.fstat(file.fileno())) != began:
                raise FileChanged("the file changed while it was read", subject=shown_locator(locator))

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of a file."""
        return sha256_of(self.read(locator, version=version))

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The files below a folder, sorted by locator; empty if the folder does not exist."""
        root = path_of(prefix)
        found: list[StoreObject] = []
        with _StoreErrors(prefix):
            for folder, _, names in os.walk(root, onerror=_refuse_unless_gone):
                for name in names:
                    path = Path(folder, name)
                    one = _object(locator_below(prefix, path.relative_to(root).as_posix()), path)
                    if one is not None and not name.startswith(DRAFT):
                        found.append(one)
        return iter(sorted(found, key=lambda each: each.locator))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Copy a file into the store; makes its folder if needed."""
        target = path_of(locator)
        with open_source(source) as reading, _StoreErrors(locator):
            refuse_other(_object(locator, target), replaces, locator)
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(prefix=DRAFT, dir=target.parent)
            try:
                size_bytes = os.fstat(reading.fileno()).st_size
                with os.fdopen(descriptor, "wb", buffering=0) as writing:
                    for piece in pieces_of(reading, sent=sent):
                        _write(writing.fileno(), piece)
                    os.fsync(writing.fileno())
                refuse_changed(reading, size_bytes=size_bytes, locator=locator)
                Path(draft).chmod(0o644)
                if replaces:
                    refuse_other(_object(locator, target), replaces, locator)
                    Path(draft).replace(target)
                else:
                    _publish(Path(draft), target, locator)
            finally:
                with suppress(FileNotFoundError):
                    Path(draft).unlink()
            return _present(locator, target)

    def delete(self, locator: str) -> bool:
        """Remove a file."""
        path = path_of(locator)
        with _StoreErrors(locator):
            if _object(locator, path) is None:
                return False
            path.unlink(missing_ok=True)
        return True

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """A folder has none."""
        return None

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """A folder has none."""
        return None

    def close(self) -> None:
        """Nothing is open between two calls."""


def folder_store(_: StoreSettings) -> FolderStore:
    """The store of the scheme `file`."""
    return FolderStore()


def path_of(locator: str) -> Path:
    """The path of a locator; raises `StoreError` if it is not on this computer."""
    try:
        parsed = parse_locator(locator)
    except BadLocator as fault:
        raise StoreError(fault.what, subject=fault.subject, expected="file:///PATH or an absolute path") from fault
    if parsed.scheme != "file" or not parsed.path.startswith("/"):
        raise StoreError(
            "not a file of this computer",
            subject=shown_locator(locator),
            expected="file:///PATH or an absolute path",
        )
    return Path(parsed.path)


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"


def _object(locator: str, path: Path) -> StoreObject | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return StoreObject(locator=locator, size_bytes=found.st_size, modified_at=found.st_mtime, version=_version(found))


def _present(locator: str, path: Path) -> StoreObject:
    found = _object(locator, path)
    if found is None:
        raise NotInStore("no such file", subject=shown_locator(locator))
    return found


def _publish(draft: Path, target: Path, locator: str) -> None:
    """Name a draft; raises `FileExistsError` if there is a file by now."""
    try:
        target.hardlink_to(draft)
    except OSError as fault:
        if fault.errno not in _NO_LINKS:
            raise
        refuse_other(_object(locator, target), "", locator)  # as near to a link as such a file system comes
        draft.replace(target)


def _write(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _refuse_unless_gone(fault: OSError) -> None:
    if not isinstance(fault, (FileNotFoundError, NotADirectoryError)):
        raise fault


class _StoreErrors:
    """Turns an `OSError` into an error of the store; a generator would take longer than reading a small file."""

    __slots__ = ("_locator",)

    def __init__(self, locator: str) -> None:
        self._locator = locator

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, OSError) and not isinstance(fault, StoreError):
            raise _told(fault, shown_locator(self._locator)) from fault


def _told(fault: OSError, subject: str) -> StoreError:
    if isinstance(fault, (FileNotFoundError, NotADirectoryError)):
        return NotInStore("no such file", subject=subject)
    if isinstance(fault, IsADirectoryError):
        return NotInStore("not a file", subject=subject)
    if isinstance(fault, FileExistsError):
        return AlreadyInStore("another file is there, and is not replaced", subject=subject)
    if isinstance(fault, PermissionError):
        return AccessDenied("this user may not do that", subject=subject)
    kind = StoreFull if fault.errno in _FULL else StoreUnreachable if fault.errno in _PASSING else StoreError
    return kind(f"the folder cannot be used: {fault.strerror}", subject=subject)
