"""Places the inputs of an attempt in its folder, and checks afterwards that it did not change them.

An input is a hard link to the file in the job's tree if the file system allows it, else a copy. A command that writes
into a link changes the file for all packages; that cannot be prevented, but it is detected and reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.diagnosis import FULL, Failure, TokenEnded, from_system
from pilotage.agent.attempt.files import check_name, copy, link_or_copy, make_parents, move

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pilotage.agent.attempt.files import FolderVisibility, KnownFiles
    from pilotage.agent.attempt.workplace import Fetch

_EXECUTABLE = 0o755
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


COPIED_BYTES_MAX = 64 << 20
"""A file that pilotage did not make is copied; a larger one is linked, and a command that changes it fails."""


class PlacedInput(NamedTuple):
    """An input in the folder; `source` is empty for a copy, which the command may change."""

    name: str
    source: str = ""
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0


class Inputs:
    """Places the inputs of one attempt."""

    def __init__(
        self,
        *,
        job: str,
        work: Mapping[str, Any],
        scratch: str,
        known: KnownFiles,
        fetch: Fetch,
        visibility: FolderVisibility,
    ) -> None:
        self._job = job
        self._work = work
        self._visibility = visibility
        self._folder: str = work["folder"]
        self._scratch = scratch
        self._known = known
        self._fetch = fetch

    def place(
        self, inputs: Sequence[Mapping[str, Any]], check: Callable[[], None], *, before: Mapping[str, PlacedInput] = {}
    ) -> list[PlacedInput]:
        """Place all inputs except those placed `before`; `check` is called before each and may raise. Raises `Failure`."""
        placed: dict[str, PlacedInput] = dict(before)
        for each in inputs:
            check()
            name = each["name"]
            if name in placed:
                continue
            check_name(name)
            target = f"{self._scratch}/{name}"
            try:
                if "/" in name:
                    make_parents(self._scratch, name)
                placed[name] = self._place_content(each, target) if each.get("content") else self._place(each, target)
            except OSError as error:
                raise _not_brought(name, error) from error
        return list(placed.values())

    def _place_content(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        try:
            source = self._fetch.content(each["sha256"])
            if self._known.sha256(source, os.stat(source)) != each["sha256"]:
                # A command wrote into it through its link, which was reported: fetch it again.
                os.unlink(source)
                source = self._fetch.content(each["sha256"])
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Failure(_reason(error), f"cannot get the captured file {each['name']!r}: {error}") from error
        status = os.stat(source)
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        return self._linked(each["name"], source, target, status)

    def _place(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        name = each["name"]
        found = self._found(name) if self._visibility.of(self._work).folder else None
        if found is None:
            fetched = self._fetched(name)
            _check_content(each, fetched, os.stat(fetched), self._known)
            move(fetched, target)
            if each.get("executable"):
                os.chmod(target, _EXECUTABLE)
            return PlacedInput(name)
        source, status = found
        mode = status.st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise Failure("missing-input", f"the input {name!r} is {what}")
        _check_content(each, source, status, self._known)
        if each.get("executable") and not mode & stat.S_IXUSR:
            return _copied(source, target, each)
        if not each.get("made") and status.st_size <= COPIED_BYTES_MAX:
            # A command that writes into its input must not change the user's own file.
            copy(source, target)
            return PlacedInput(name)
        return self._linked(name, source, target, status)

    def _found(self, name: str) -> tuple[str, os.stat_result] | None:
        """The path and stat of a file in the job's folder; None if the service must send it."""
        source = f"{self._folder}/{name}"
        try:
            status = os.lstat(source)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            if not self._visibility.look(self._work).folder:
                return None
            # An NFS client may cache that a name does not exist: reading the folder refreshes it.
            with contextlib.suppress(OSError):
                os.listdir(os.path.dirname(source))
            try:
                status = os.lstat(source)
            except (FileNotFoundError, NotADirectoryError):
                raise Failure("missing-input", f"the input {name!r} does not exist in {self._folder}") from error
        if not stat.S_ISLNK(status.st_mode):
            return source, status
        source = os.path.realpath(source)
        try:
            return source, os.stat(source)
        except FileNotFoundError:
            return None  # a link out of the folder, perhaps to where only the service can read

    def _fetched(self, name: str) -> str:
        """Fetch a file from the service; returns its path."""
        try:
            fetched = self._fetch.file(self._job, name)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Failure(_reason(error), f"cannot fetch the input {name!r}: {error}") from error
        if fetched is None:
            raise Failure("missing-input", f"the input {name!r} does not exist: the server has no such file")
        return fetched

    @staticmethod
    def _linked(name: str, source: str, target: str, status: os.stat_result) -> PlacedInput:
        if link_or_copy(source, target):
            return PlacedInput(name, source, status.st_ino, status.st_size, status.st_mtime_ns)
        return PlacedInput(name)


def changed_input(placed: Collection[PlacedInput]) -> PlacedInput | None:
    """The first input that was changed since it was placed."""
    for each in placed:
        _, source, inode, size_bytes, modified_ns = each
        if not source:
            continue
        try:
            status = os.lstat(source)
        except OSError:
            continue  # removed or replaced, which does not affect the original
        if status.st_ino == inode and (status.st_mtime_ns != modified_ns or status.st_size != size_bytes):
            return each
    return None


def _check_content(each: Mapping[str, Any], path: str, status: os.stat_result, known: KnownFiles) -> None:
    wanted_bytes = each.get("size_bytes")
    if wanted_bytes is not None and status.st_size != wanted_bytes:
        raise Failure(
            "input-checksum", f"the input {each['name']!r} has {status.st_size} bytes, expected {wanted_bytes}"
        )
    wanted = each.get("sha256")
    if wanted:
        found = known.sha256(path, status)
        if found != wanted:
            raise Failure("input-checksum", f"the input {each['name']!r} has sha256 {found}, expected {wanted}")


def _copied(source: str, target: str, each: Mapping[str, Any]) -> PlacedInput:
    """A copy with execute permission, which the original may lack."""
    copy(source, target)
    os.chmod(target, _EXECUTABLE)
    return PlacedInput(each["name"])


def _not_brought(name: str, error: OSError) -> Failure:
    if error.errno in FULL:
        return from_system(error, doing=f"copying the input {name!r}")
    if isinstance(error, FileNotFoundError):
        return Failure("missing-input", f"the input {name!r} does not exist: {error}")
    return Failure("missing-input", f"the input {name!r} cannot be read: {error}")


def _reason(error: OSError) -> str:
    return "credential-expired" if isinstance(error, TokenEnded) else "platform-failure"
