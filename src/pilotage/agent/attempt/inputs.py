"""Bringing the inputs of an attempt into its folder, and seeing afterwards that it left them alone.

An input is a second name of the file in the job's tree where the file system allows it, else a copy: so a command that
writes into it would change everybody's. That cannot be prevented, but it is seen, and told.
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
"""A file that pilotage did not make is copied, unless it is larger: then it is linked, and a command that changes it fails."""


class Placed(NamedTuple):
    """An input that lies in the folder; `source` is empty where it is a copy, which the command may do with as it likes."""

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
        """Say from where to where, and what is seen of the folders of the job."""
        self._job = job
        self._work = work
        self._visibility = visibility
        self._folder: str = work["folder"]
        self._scratch = scratch
        self._known = known
        self._fetch = fetch

    def place(
        self, inputs: Sequence[Mapping[str, Any]], check: Callable[[], None], *, before: Mapping[str, Placed] = {}
    ) -> list[Placed]:
        """Place all of them but those placed `before`; `check` is called before each and may raise. Raises `Failure`."""
        placed: dict[str, Placed] = dict(before)
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

    def _place_content(self, each: Mapping[str, Any], target: str) -> Placed:
        try:
            source = self._fetch.content(each["sha256"])
            if self._known.sha256(source, os.stat(source)) != each["sha256"]:
                # A command wrote into it through its second name, and was told so: it is fetched anew.
                os.unlink(source)
                source = self._fetch.content(each["sha256"])
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Failure(_reason(error), f"the captured file {each['name']!r} could not be had: {error}") from error
        status = os.stat(source)
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        return self._linked(each["name"], source, target, status)

    def _place(self, each: Mapping[str, Any], target: str) -> Placed:
        name = each["name"]
        found = self._found(name) if self._visibility.of(self._work).folder else None
        if found is None:
            fetched = self._fetched(name)
            _check_content(each, fetched, os.stat(fetched), self._known)
            move(fetched, target)
            if each.get("executable"):
                os.chmod(target, _EXECUTABLE)
            return Placed(name)
        source, status = found
        mode = status.st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise Failure("missing-input", f"the input {name!r} is {what}")
        _check_content(each, source, status, self._known)
        if each.get("executable") and not mode & stat.S_IXUSR:
            return _copied(source, target, each)
        if not each.get("made") and status.st_size <= COPIED_BYTES_MAX:
            # A command that writes into its input must not reach the user's own file.
            copy(source, target)
            return Placed(name)
        return self._linked(name, source, target, status)

    def _found(self, name: str) -> tuple[str, os.stat_result] | None:
        """Where a file of the job's folder is, and what the system says of it; None where the service must bring it."""
        source = f"{self._folder}/{name}"
        try:
            status = os.lstat(source)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            if not self._visibility.look(self._work).folder:
                return None
            # A network file system may remember for a while that a name was not there: reading the folder ends that.
            with contextlib.suppress(OSError):
                os.listdir(os.path.dirname(source))
            try:
                status = os.lstat(source)
            except (FileNotFoundError, NotADirectoryError):
                raise Failure("missing-input", f"the input {name!r} is not there, in {self._folder}") from error
        if not stat.S_ISLNK(status.st_mode):
            return source, status
        source = os.path.realpath(source)
        try:
            return source, os.stat(source)
        except FileNotFoundError:
            return None  # it leads out of the folder, perhaps to where only the service can go

    def _fetched(self, name: str) -> str:
        """The path of a file that is brought by the service."""
        try:
            fetched = self._fetch.file(self._job, name)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Failure(_reason(error), f"the input {name!r} could not be fetched: {error}") from error
        if fetched is None:
            raise Failure("missing-input", f"the input {name!r} is not there: the server has none of this name")
        return fetched

    @staticmethod
    def _linked(name: str, source: str, target: str, status: os.stat_result) -> Placed:
        if link_or_copy(source, target):
            return Placed(name, source, status.st_ino, status.st_size, status.st_mtime_ns)
        return Placed(name)


def changed_input(placed: Collection[Placed]) -> Placed | None:
    """The first input that is not what it was when it was placed."""
    for each in placed:
        _, source, inode, size_bytes, modified_ns = each
        if not source:
            continue
        try:
            status = os.lstat(source)
        except OSError:
            continue  # removed or replaced, which no second name can do to it
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


def _copied(source: str, target: str, each: Mapping[str, Any]) -> Placed:
    """A copy that may be executed, where the file itself may not."""
    copy(source, target)
    os.chmod(target, _EXECUTABLE)
    return Placed(each["name"])


def _not_brought(name: str, error: OSError) -> Failure:
    if error.errno in FULL:
        return from_system(error, doing=f"bringing the input {name!r}")
    if isinstance(error, FileNotFoundError):
        return Failure("missing-input", f"the input {name!r} is not there: {error}")
    return Failure("missing-input", f"the input {name!r} cannot be read: {error}")


def _reason(error: OSError) -> str:
    return "credential-expired" if isinstance(error, TokenEnded) else "platform-failure"
