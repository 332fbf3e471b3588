"""A store in folders of this computer: `file://` locators and absolute paths."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import AlreadyInStore, NotInStore, StoreObject

_DRAFT = ".pilotage-draft-"


class FolderStore:
    """Files of this computer, by locator."""

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator; None if there is no regular file."""
        path = path_of(locator)
        with _store_errors(locator):
            return _object(locator, path)

    def checksum(self, locator: str) -> str:
        """The sha256 of a file."""
        with _store_errors(locator), path_of(locator).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The files below a folder, sorted by locator; empty if the folder does not exist."""
        root = path_of(prefix)
        base = prefix.rstrip("/")
        found: list[StoreObject] = []
        with _store_errors(prefix):
            for folder, _, names in os.walk(root, onerror=_refuse_unless_gone):
                for name in names:
                    path = Path(folder, name)
                    below = path.relative_to(root).as_posix()
                    one = _object(f"{base}/{_quoted(prefix, below)}", path)
                    if one is not None and not name.startswith(_DRAFT):
                        found.append(one)
        return iter(sorted(found, key=lambda each: each.locator))

    def fetch(self, locator: str, target: str) -> StoreObject:
        """Copy a file from the store."""
        source = path_of(locator)
        with _store_errors(locator):
            _copy(source, Path(target), os.replace)
            return _present(locator, source)

    def put(self, source: str, locator: str) -> StoreObject:
        """Copy a file into the store; makes its folder if needed."""
        target = path_of(locator)
        with _store_errors(locator):
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(Path(source), target, _link_once)
            return _present(locator, target)

    def delete(self, locator: str) -> bool:
        """Remove a file."""
        path = path_of(locator)
        with _store_errors(locator):
            if _object(locator, path) is None:
                return False
            path.unlink(missing_ok=True)
        return True


def folder_store() -> FolderStore:
    """The store of the scheme `file`."""
    return FolderStore()


def path_of(locator: str) -> Path:
    """The path of a locator; raises `StoreError` if it is not on this computer."""
    parts = urlsplit(locator)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and not parts.query and not parts.fragment:
        path = unquote(parts.path)
    else:
        path = locator
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise StoreError(
            "not a file of this computer", subject=locator[:200], expected="file:///PATH or an absolute path"
        )
    return Path(path)


def _quoted(prefix: str, name: str) -> str:
    if not prefix.startswith("file:"):
        return name
    from urllib.parse import quote

    return quote(name)


def _object(locator: str, path: Path) -> StoreObject | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return StoreObject(locator=locator, size_bytes=found.st_size, modified_at=found.st_mtime)


def _present(locator: str, path: Path) -> StoreObject:
    found = _object(locator, path)
    if found is None:
        raise NotInStore("no such file", subject=locator)
    return found


def _copy(source: Path, target: Path, name_it: Callable[[str, Path], None]) -> None:
    """Copy to a draft beside the target, and rename it when complete."""
    with source.open("rb") as reading:
        descriptor, draft = tempfile.mkstemp(prefix=_DRAFT, dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as writing:
                shutil.copyfileobj(reading, writing, 2**20)
                writing.flush()
                os.fsync(writing.fileno())
            Path(draft).chmod(0o644)
            name_it(draft, target)
        finally:
            with suppress(FileNotFoundError):
                Path(draft).unlink()


def _link_once(draft: str, target: Path) -> None:
    target.hardlink_to(draft)


def _refuse_unless_gone(fault: OSError) -> None:
    if not isinstance(fault, (FileNotFoundError, NotADirectoryError)):
        raise fault


@contextmanager
def _store_errors(locator: str) -> Iterator[None]:
    """Turn an `OSError` into an error of the store."""
    try:
        yield
    except FileNotFoundError as fault:
        raise NotInStore("no such file", subject=locator) from fault
    except FileExistsError as fault:
        raise AlreadyInStore("the file exists, and is not replaced", subject=locator) from fault
    except OSError as fault:
        raise StoreError(f"the store cannot be used: {fault.strerror}", subject=locator) from fault
