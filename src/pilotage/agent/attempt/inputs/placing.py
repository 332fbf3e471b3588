"""Places the inputs of an attempt in its folder, and checks afterwards that it did not change them.

An input is a hard link to the file in the job's tree, or in the cache of the site, if the file system allows it, else a
copy. A command that writes into a link changes the file for all packages; that cannot be prevented, but it is detected
and reported. A file that exists, and that a network file system does not show yet, or not whole, is waited for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.diagnosis import FULL, Failure, TokenEnded, from_system
from pilotage.agent.attempt.files import (
    check_content,
    check_name,
    copy,
    link_at_all,
    link_or_copy,
    make_parents,
    move,
    refresh,
)
from pilotage.agent.attempt.workplace import bring_captured

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pilotage.agent.attempt.archives import UnpackedSoftware
    from pilotage.agent.attempt.files import FolderVisibility, KnownFiles
    from pilotage.agent.attempt.workplace import DamagedFiles, Fetch

    Found = tuple[str, os.stat_result]

_EXECUTABLE = 0o755
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""What a system says of a file that is not there, or not any more."""


LOOK_SECONDS = (0.05, 1.0)
"""Pauses between two looks for a file that is shown late, which grow."""
COPIED_BYTES_MAX = 64 << 20
"""A file that pilotage did not make is copied; a larger one is linked, and a command that changes it fails."""


class PlacedInput(NamedTuple):
    """An input in the folder; `source` is empty for a copy, which the command may change."""

    name: str
    source: str = ""
    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0
    cached: str = ""  # its name in the cache of the site, if it is a link to that


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
        damaged: DamagedFiles,
        software: Callable[[], UnpackedSoftware],
    ) -> None:
        self._job = job
        self._work = work
        self._visibility = visibility
        self._folder: str = work["folder"]
        self._scratch = scratch
        self._known = known
        self._fetch = fetch
        self._damaged = damaged
        self._software = software
        self._check: Callable[[], None] = lambda: None

    def place(
        self, inputs: Sequence[Mapping[str, Any]], check: Callable[[], None], *, before: Mapping[str, PlacedInput] = {}
    ) -> list[PlacedInput]:
        """Place all inputs except those placed `before`; `check` is called before each and may raise. Raises `Failure`."""
        placed: dict[str, PlacedInput] = dict(before)
        self._check = check
        absent = [each for each in inputs if each["name"] not in before]
        bring_captured(self._fetch, absent, sees_folder=lambda: bool(self._visibility.of(self._work).folder))
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
                if each.get("content"):
                    placed[name] = self._place_content(each, target)
                elif each.get("path"):
                    placed[name] = self._place_from(each, target)
                elif each.get("cached"):
                    placed[name] = self._place_cached(each, target)
                else:
                    placed[name] = self._place(each, target)
            except OSError as error:
                raise _not_brought(name, error) from error
        return list(placed.values())

    def _place_content(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        try:
            source = self._fetch.content(each["sha256"])
            status = os.stat(source)
            if self._known.sha256(source, status) != each["sha256"]:
                # A command wrote into it through its link, which was reported: fetch it again.
                os.unlink(source)
                source = self._fetch.content(each["sha256"])
                status = os.stat(source)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise Failure(_reason(error), f"cannot get the captured file {each['name']!r}: {error}") from error
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        return self._linked(each["name"], source, target, status)

    def _place(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        name = each["name"]
        found = self._seen(each) if self._visibility.of(self._work).folder else None
        if found is None and each.get("stored"):
            return self._place_content(each, target)
        if found is None:
            fetched = self._fetched(name)
            check_content(each, fetched, os.stat(fetched), self._known)
            move(fetched, target)
            if each.get("executable"):
                os.chmod(target, _EXECUTABLE)
            return PlacedInput(name)
        source, status = found
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        if not each.get("made") and status.st_size <= COPIED_BYTES_MAX:
            # A command that writes into its input must not change the user's own file.
            copy(source, target)
            return PlacedInput(name)
        return self._linked(name, source, target, status)

    def _place_from(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        """Link a file that must be at its path on this node; it is not copied, whatever its size."""
        name, path = each["name"], os.path.realpath(each["path"])

        def look(*, again: bool = False) -> Found:
            try:
                status = os.stat(path)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                gone = f"the input {name!r} must be there: {each['path']} does not exist on {os.uname().nodename}"
                raise Failure("missing-input", gone) from error
            _check_file(each, path, status, self._known, again=again)
            return path, status

        try:
            found: Found | None = look()
        except Failure:
            if not self._work.get("visible_seconds"):
                raise
            found = self._wait_for(lambda: look(again=True), path)
        source, status = found or look()
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        linked = link_at_all(source, target, symbolic=not self._work.get("container"))
        return (
            PlacedInput(name, source, status.st_ino, status.st_size, status.st_mtime_ns)
            if linked
            else PlacedInput(name)
        )

    def _seen(self, each: Mapping[str, Any]) -> Found | None:
        """An input in the job's folder with the right content, waited for if a package made it; None: not visible here."""
        try:
            return self._look(each)
        except Failure:
            if not (each.get("made") and each.get("sha256") and self._work.get("visible_seconds")):
                raise
        return self._wait_for(lambda: self._look(each, again=True), f"{self._folder}/{each['name']}")

    def _look(self, each: Mapping[str, Any], *, again: bool = False) -> Found | None:
        found = self._found(each["name"])
        if found is not None:
            _check_file(each, *found, self._known, again=again)
        return found

    def _wait_for(self, look: Callable[[], Found | None], path: str) -> Found | None:
        """Look for a file until it is as the work order says, or its time is over; raises the last `Failure`."""
        until, pause_seconds = time.monotonic() + float(self._work["visible_seconds"]), LOOK_SECONDS[0]
        while True:
            self._check()
            time.sleep(pause_seconds)
            pause_seconds = min(2.0 * pause_seconds, LOOK_SECONDS[1])
            refresh(path)
            try:
                return look()
            except Failure:
                if time.monotonic() >= until:
                    raise

    def _place_cached(self, each: Mapping[str, Any], target: str) -> PlacedInput:
        """Place a file from the cache of the site, or from the pilot's own if the node does not see the site's."""
        name, cached = each["name"], each["cached"]
        check_name(cached)
        found, failure = self._in_cache(each) if self._fetch.cached_here(cached) is None else (None, None)
        if found is None:
            found, cached = self._fetched_cached(each, failure), ""
        source, status = found
        if each.get("unpacked"):
            os.symlink(self._software().folder(source, each["sha256"]), target)
            return PlacedInput(name)
        if each.get("executable") and not status.st_mode & stat.S_IXUSR:
            return _copied(source, target, each)
        return self._linked(name, source, target, status, cached=cached)

    def _in_cache(self, each: Mapping[str, Any]) -> tuple[Found | None, Failure | None]:
        """A file in the cache of the site with the right content, waited for if the node sees the cache; or why not."""
        cache = self._work.get("cache")
        if not cache:
            return None, None
        cache = os.path.expanduser(cache)
        path = f"{cache}/{each['cached']}"

        def look(*, again: bool = False) -> Found:
            try:
                status = os.lstat(path)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                raise Failure("missing-input", f"the input {each['name']!r} is not in the cache {cache}") from error
            _check_file(each, path, status, self._known, again=again)
            return path, status

        try:
            return look(), None
        except Failure as not_yet:
            failure = not_yet
        try:
            if self._work.get("visible_seconds") and os.path.isdir(cache):
                return self._wait_for(lambda: look(again=True), path), None
        except Failure as late:
            if late.reason not in ("missing-input", "input-checksum"):
                raise  # it was cancelled
            failure = late
        if failure.reason == "input-checksum":
            self._damaged.add(each["cached"], path)
        return None, failure

    def _fetched_cached(self, each: Mapping[str, Any], failure: Failure | None) -> Found:
        """The path and stat of a cached file that the service sent; `failure` says why it was not found at the site."""
        name, cached, sha256 = each["name"], each["cached"], each.get("sha256", "")
        try:
            source = self._fetch.cached(cached, sha256)
            if source is not None and sha256 and self._known.sha256(source, os.stat(source)) != sha256:
                os.unlink(source)  # a command wrote into it through its link, which was reported
                source = self._fetch.cached(cached, sha256)
        except OSError as error:
            if error.errno in FULL:
                raise
            why = f"{failure}; " if failure is not None else ""
            raise Failure(_reason(error), f"{why}cannot fetch the input {name!r}: {error}") from error
        if source is None:
            raise failure or Failure("missing-input", f"the input {name!r} does not exist: the server has no such file")
        return source, os.stat(source)

    def _found(self, name: str) -> tuple[str, os.stat_result] | None:
        """The path and stat of a file in the job's folder; None if the service must send it."""
        source = f"{self._folder}/{name}"
        try:
            status = os.lstat(source)
        except OSError as error:
            if error.errno not in GONE:
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
    def _linked(name: str, source: str, target: str, status: os.stat_result, *, cached: str = "") -> PlacedInput:
        if link_or_copy(source, target):
            return PlacedInput(name, source, status.st_ino, status.st_size, status.st_mtime_ns, cached)
        return PlacedInput(name)


def changed_input(placed: Collection[PlacedInput]) -> PlacedInput | None:
    """The first input that was changed since it was placed."""
    for each in placed:
        _, source, inode, size_bytes, modified_ns, _ = each
        if not source:
            continue
        try:
            status = os.lstat(source)
        except OSError:
            continue  # removed or replaced, which does not affect the original
        if status.st_ino == inode and (status.st_mtime_ns != modified_ns or status.st_size != size_bytes):
            return each
    return None


def note_damaged(placed: Collection[PlacedInput], damaged: DamagedFiles) -> None:
    """Remove the files of the site's cache that were changed since they were placed, and have them reported."""
    for each in placed:
        if each.cached and changed_input((each,)) is not None:
            damaged.add(each.cached, each.source)


def _check_file(
    each: Mapping[str, Any], path: str, status: os.stat_result, known: KnownFiles, *, again: bool = False
) -> None:
    """Raise `Failure` if a file is not the one that the work order means; `again`: its content is read in any case."""
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise Failure("missing-input", f"the input {each['name']!r} is {what}")
    check_content(each, path, status, known, again=again)


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
