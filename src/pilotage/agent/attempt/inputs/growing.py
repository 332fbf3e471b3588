"""Follows inputs that still grow: of a package that started beside the running attempts which make them.

The agent of such an attempt says in a file that all nodes of its site see where its folder is, and later what it made
there. The agent of the reader copies what has been written so far, and goes on copying: so the reader cannot change the
file, and has it whole when it has moved on to the job's tree. Beside it, `NAME.pilotage` says how far the copy is.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.agent.attempt.diagnosis import Failure, from_system
from pilotage.agent.attempt.files import SIDECAR, check_name, make_parents
from pilotage.agent.attempt.inputs.placing import GONE, LOOK_SECONDS
from pilotage.agent.durable_files import read_small, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

FOLLOW_SECONDS = 0.5
"""Pause between two looks at a growing file."""
LATE_SECONDS_MIN = 10.0
"""A file that should be seen is waited for at least so long."""
_PIECE_BYTES = 1 << 20


class _GrowingInput:
    """A copy of a file that a running attempt writes."""

    def __init__(self, name: str, source: str, *, folder: str, target: str) -> None:
        """`source` is the file in which the other agent speaks, `folder` the job's tree."""
        self.name = name
        self._source = os.path.expanduser(source)
        self._folder = folder
        self._target = target
        self._path = ""
        self._from = self._to = -1
        self._inode = 0
        self._bytes = 0
        self._told = (-1, False)
        self._sha256 = hashlib.sha256()
        self.complete = False

    def open(self) -> bool:
        """Open the file if it is there; False if its attempt has not made it yet. Raises `Failure` if it cannot be seen."""
        said = self._said()
        if said is None:
            raise self._unseen("nothing says where it is")
        made = said.get("made")
        if made is not None:
            about = made.get(self.name)
            if about is None:
                raise Failure("missing-input", f"the attempt that should make the input {self.name!r} did not make it")
            paths = [about["path"], f"{self._folder}/{self.name}"]
        else:
            try:
                is_same = os.stat(said["folder"]).st_ino == said["inode"]
            except OSError:
                is_same = False
            if not is_same:
                raise self._unseen(f"{said['folder']} is another folder here, or none")
            paths = [f"{said['folder']}/{self.name}"]
        for path in paths:
            try:
                self._from = os.open(path, _READING)
            except OSError as error:
                if error.errno not in GONE:
                    raise
                continue
            self._path = path if made is None else ""
            status = os.fstat(self._from)
            self._inode = status.st_ino
            if not stat.S_ISREG(status.st_mode):
                raise Failure("missing-input", f"the input {self.name!r} is not a regular file")
            self._to = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            return True
        if made is not None:
            raise self._unseen("it is complete, and neither staged nor published here")
        return False

    def follow(self) -> None:
        """Copy what is new; raises `Failure` if it is not the beginning of the same file any more."""
        said = self._said()  # before the file is read: what is said of it then holds for all of it
        made = (said or {}).get("made")
        status = os.fstat(self._from)
        if status.st_size < self._bytes or (made is None and self._is_replaced()):
            raise self._changed("was written anew")
        while True:
            piece = os.read(self._from, _PIECE_BYTES)
            if not piece:
                break
            write_all(self._to, piece)
            self._sha256.update(piece)
            self._bytes += len(piece)
        if made is not None:
            about = made.get(self.name)
            if about is None or (about["size_bytes"], about["sha256"]) != (self._bytes, self._sha256.hexdigest()):
                raise self._changed("has changed where it had been read")
            self.complete = True
        self._tell()

    def close(self) -> None:
        """Close both files."""
        for descriptor in (self._from, self._to):
            if descriptor >= 0:
                os.close(descriptor)
        self._from = self._to = -1

    def _tell(self) -> None:
        if self._told != (self._bytes, self.complete):
            self._told = (self._bytes, self.complete)
            write_sidecar(self._target, self._bytes, self._sha256.hexdigest() if self.complete else "")

    def _said(self) -> Mapping[str, Any] | None:
        text = read_small(Path(self._source))
        said: dict[str, Any] | None = json.loads(text) if text else None
        return said

    def _is_replaced(self) -> bool:
        try:
            return os.lstat(self._path).st_ino != self._inode
        except OSError:
            return False  # it is being staged, or its attempt has ended: what is said next decides

    def _unseen(self, why: str) -> Failure:
        return Failure("missing-input", f"the growing input {self.name!r} cannot be seen on this node: {why}")

    def _changed(self, how: str) -> Failure:
        return Failure("input-checksum", f"the input {self.name!r} {how} while it grew: only its end may grow")


class GrowingInputs:
    """The inputs of an attempt that may grow while it runs."""

    def __init__(self, work: Mapping[str, Any], scratch: str) -> None:
        """Take them from the work order; `place` brings them."""
        self._work = work
        self._scratch = scratch
        self._early: Sequence[Mapping[str, Any]] = work.get("early", ())
        self._open: list[_GrowingInput] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Failure | None = None

    @property
    def names(self) -> list[str]:
        """Files in the folder that are no outputs."""
        return [name for each in self._early for name in (each["name"], each["name"] + SIDECAR)]

    def place(self, check: Callable[[], None], stop: Callable[[str, str], None]) -> None:
        """Wait until every file is there, and go on copying; `stop` ends the command if a file turns out to be another."""
        given = {each["name"]: each for each in self._work.get("inputs", ())}
        try:
            for each in self._early:
                name = each["name"]
                check_name(name)
                target = f"{self._scratch}/{name}"
                if not each.get("source"):
                    write_sidecar(target, os.stat(target).st_size, given[name].get("sha256", ""), final=True)
                    continue
                make_parents(self._scratch, name)
                growing = _GrowingInput(name, each["source"], folder=self._work["folder"], target=target)
                self._open.append(growing)
                self._wait_for(growing, check)
                growing.follow()
        except OSError as error:
            self.end()
            raise from_system(error, doing="following a growing input") from error
        except Failure:
            self.end()
            raise
        if any(not each.complete for each in self._open):
            self._thread = threading.Thread(target=self._follow, args=(stop,), name="growing-inputs", daemon=True)
            self._thread.start()

    def _wait_for(self, growing: _GrowingInput, check: Callable[[], None]) -> None:
        patience = max(float(self._work.get("visible_seconds", 0.0)), LATE_SECONDS_MIN)
        until, pause_seconds = time.monotonic() + patience, LOOK_SECONDS[0]
        while True:
            check()
            try:
                if growing.open():
                    return
                until = time.monotonic() + patience  # its folder is seen
            except Failure:
                if time.monotonic() >= until:
                    raise
            time.sleep(pause_seconds)
            pause_seconds = min(2.0 * pause_seconds, LOOK_SECONDS[1])

    def _follow(self, stop: Callable[[str, str], None]) -> None:
        """Copy until all files are complete, in a thread of its own."""
        try:
            while not self._ending.wait(FOLLOW_SECONDS):
                for each in self._open:
                    if not each.complete:
                        each.follow()
                if all(each.complete for each in self._open):
                    return
        except Failure as failure:
            self._failure = failure
        except (OSError, ValueError, LookupError) as error:
            self._failure = Failure("platform-failure", f"a growing input cannot be followed: {error}")
        if self._failure is not None:
            stop(self._failure.reason, self._failure.message)

    def end(self) -> Failure | None:
        """The command has ended: follow no more; the failure of a file that turned out to be another."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        for each in self._open:
            each.close()
        self._open = []
        return self._failure


def write_sidecar(target: str, size_bytes: int, sha256: str, *, final: bool = False) -> None:
    """Say beside an input how far it is; it is final if its checksum is known, or if that is said."""
    about: dict[str, Any] = {"bytes": size_bytes, "final": final or bool(sha256)}
    if sha256:
        about["sha256"] = sha256
    folder, name = os.path.split(target)
    draft = f"{folder}/.{name}{SIDECAR}.new"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(about, file)
    os.replace(draft, target + SIDECAR)
