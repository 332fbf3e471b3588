"""A link for a pilot whose node shares no network with the service, only a folder with a relay.

It behaves like a connection. A thread polls for the answer, at growing intervals, and makes a pipe readable when it
arrives, so that the pilot can wait for several links in the same way.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.durable_files import FILE_MODE, FOLDER_MODE
from pilotage.agent.link.link import Answer, Link, LinkBroken

if TYPE_CHECKING:
    from collections.abc import Callable


# The folder through which pilots and a relay exchange messages if they share a file system and no network.
#
# DIR/             owned by one user and closed to others: requests contain tokens
#   requests/NAME  a request, put there by a rename
#   taken/NAME     the same while the relay forwards it
#   answers/NAME   empty while a pilot waits for it; then the answer, put in its place by a rename
#
# A message is one line of JSON, then its body. No locks: a rename has one winner on every file system.
# Timestamps are compared only with timestamps of the same file system, since clocks of two computers differ.

PREFIX = "spool:"
HEAD_BYTES_MAX = 1 << 16
POLL_SECONDS = (0.05, 1.0)
POLL_GROWTH = 1.15
_DRAFT = "."  # prefix of the name of a file that is still being written


class BadFolder(OSError):
    """The folder does not exist or is open to others; the message says what to do."""


class BadContent(OSError):
    """A file of the folder is not a message."""


class Message(NamedTuple):
    """The head of a message, and its file, positioned at the body."""

    head: dict[str, Any]
    file: IO[bytes]
    size_bytes: int  # of the body


def next_pause(pause_seconds: float) -> float:
    """The next polling interval."""
    return min(POLL_GROWTH * pause_seconds, POLL_SECONDS[1])


class RelayFolder:
    """The layout of a relay folder, and the operations of both sides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests = folder / "requests"
        self.taken = folder / "taken"
        self.answers = folder / "answers"

    def make(self) -> None:
        """Make missing folders; raises `OSError`."""
        for each in (self.folder, self.requests, self.taken, self.answers):
            each.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self.check()

    def check(self) -> None:
        """Reject a folder that others could read or write; raises `BadFolder`."""
        try:
            status = self.folder.stat()
        except OSError as error:
            raise BadFolder(f"no relay uses {self.folder}: {error.strerror}") from error
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise BadFolder(f"{self.folder} must belong to you and be closed to others: chmod 700 {self.folder}")
        if not self.answers.is_dir():
            raise BadFolder(f"no relay uses {self.folder}: start the site agent with --spool")

    # --- a pilot ---------------------------------------------------------------------------------------------------

    def ask(self, name: str, head: dict[str, Any], body: bytes) -> None:
        """Make the empty answer, then put the request. Raises `OSError`."""
        os.close(os.open(self.answers / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        draft = self.requests / f"{_DRAFT}{name}"
        with _new(draft) as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(body)
        draft.rename(self.requests / name)

    def answer(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Read and remove the answer to a request; None if it has not arrived. Raises `OSError`."""
        file = self.answers / name
        try:
            # Opening an existing file makes an NFS client fetch its newest state; a lookup may not.
            message = _open(file)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return None  # it is being replaced
            raise
        if message is None:
            return None
        with message.file:
            body = message.file.read()
        with contextlib.suppress(OSError):
            file.unlink()
        if len(body) != message.head.get("size_bytes", len(body)):
            raise BadContent("the answer is incomplete")
        return message.head, body

    def forget(self, name: str) -> None:
        """Withdraw a request and its answer."""
        for file in (self.answers / name, self.requests / name, self.requests / f"{_DRAFT}{name}"):
            with contextlib.suppress(OSError):
                file.unlink()

    # --- the relay -------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[str]:
        """Take up to `count` requests, oldest first; raises `OSError`."""
        os.utime(self.requests)  # makes an NFS client read the folder again
        names = sorted(each for each in os.listdir(self.requests) if not each.startswith(_DRAFT))
        taken = []
        for name in names[:count]:
            with contextlib.suppress(FileNotFoundError):  # the pilot withdrew it
                os.rename(self.requests / name, self.taken / name)
                taken.append(name)
        return taken

    def open_taken(self, name: str) -> Message:
        """Open a taken request; raises `OSError`, and `BadContent` if it is not a request."""
        message = _open(self.taken / name)
        if message is None:
            raise BadContent("the request is empty")
        return message

    def is_awaited(self, name: str) -> bool:
        """Tell whether a pilot waits for this answer; True if unknown."""
        try:
            os.stat(self.answers / name)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def draft_answer(self, name: str) -> IO[bytes]:
        """Open a file for an answer, not yet visible to the pilot."""
        return _new(self.taken / f"{_DRAFT}{name}")

    def publish(self, name: str) -> None:
        """Rename the answer to its final name; raises `OSError`."""
        if self.is_awaited(name):
            os.rename(self.taken / f"{_DRAFT}{name}", self.answers / name)

    def done_with(self, name: str) -> None:
        """Remove a taken request."""
        for file in (self.taken / f"{_DRAFT}{name}", self.taken / name):
            with contextlib.suppress(OSError):
                file.unlink()

    def clean(self, *, older_seconds: float, busy: frozenset[str] = frozenset()) -> int:
        """Remove older files that are not in use: their pilots have given up. Returns their number."""
        probe = self.taken / f"{_DRAFT}now"
        with _new(probe) as file:
            now = os.fstat(file.fileno()).st_mtime  # the clock of the file system
        probe.unlink()
        removed = 0
        for folder in (self.requests, self.taken, self.answers):
            for name in os.listdir(folder):
                if name.lstrip(_DRAFT) in busy:
                    continue
                with contextlib.suppress(OSError):
                    if now - (folder / name).stat().st_mtime > older_seconds:
                        (folder / name).unlink()
                        removed += 1
        return removed


def _new(file: Path) -> IO[bytes]:
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    return os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb")


def _open(file: Path) -> Message | None:
    """Open a whole message; None if the file is empty."""
    opened = file.open("rb")
    try:
        size_bytes = os.fstat(opened.fileno()).st_size
        if not size_bytes:
            opened.close()
            return None
        line = opened.readline(HEAD_BYTES_MAX)
        head = json.loads(line)
        if not line.endswith(b"\n") or not isinstance(head, dict):
            raise ValueError("not a line of JSON")
    except ValueError as error:
        opened.close()
        raise BadContent(f"{file.name} is not a message: {error}") from None
    except OSError:
        opened.close()
        raise
    return Message(head, opened, size_bytes - len(line))


class SpoolLink(Link):
    """A link through a relay folder; see `Link`."""

    def __init__(self, address: str, *, token: str | Callable[[], str] = "") -> None:
        """Check that the folder exists and is closed to others; raises `OSError` if not."""
        self.address = address
        self.ticket = 0
        self.answers = 0
        self._asks_token = token
        self._folder = RelayFolder(Path(address[len(PREFIX) :]))
        self._folder.check()
        self._id = f"{time.time_ns():020d}-{os.urandom(6).hex()}"  # names sort by age
        self._count = 0
        self._change = threading.Condition()
        self._name = ""  # of the open request
        self._came: tuple[dict[str, Any], bytes] | OSError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Descriptor that becomes readable when an answer arrives."""
        return self._awake

    def send(self, method: str, target: str, body: bytes = b"", *, fields: str = "", ticket: int = 1) -> None:
        """Put a request into the folder; raises `OSError`."""
        self.ticket = ticket
        self._count += 1
        name = f"{self._id}-{self._count}"
        lines = [line.split(": ", 1) for line in fields.split("\r\n") if line]
        token = self._asks_token() if callable(self._asks_token) else self._asks_token
        if token:
            lines.append(["Authorization", f"Bearer {token}"])
        head = {"method": method, "target": target, "fields": lines, "size_bytes": len(body)}
        try:
            self._folder.ask(name, head, body)
        except OSError:
            self._folder.forget(name)
            raise
        with self._change:
            self._name, self._came = name, None
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="spool link", daemon=True)
                self._thread.start()
            self._change.notify()

    def receive(self) -> Answer | None:
        """The answer, if it has arrived; raises `OSError` if it cannot be read."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._awake, 4096)
        with self._change:
            came, self._came = self._came, None
        if came is None:
            return None
        if isinstance(came, OSError):
            raise came
        head, body = came
        try:
            fields = {
                str(name).lower().encode("latin-1"): str(value).encode("latin-1") for name, value in head["fields"]
            }
            status = int(head["status"])
        except (KeyError, TypeError, ValueError) as error:
            raise LinkBroken(f"the answer is malformed: {error}") from error
        self.ticket = 0
        self.answers += 1
        return Answer(status, fields, body)

    def close(self) -> None:
        """Stop waiting, and remove the open request."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            name, self._name = self._name, ""
            os.close(self._awake)
            os.close(self._wake)
            self._change.notify()
        if name:
            self._folder.forget(name)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._name or self._closed)
                if self._closed:
                    return
                name = self._name
            came = self._await(name)
            if came is not None:
                self._deliver(name, came)

    def _deliver(self, name: str, came: tuple[dict[str, Any], bytes] | OSError) -> None:
        with self._change:
            if self._name == name and not self._closed:
                self._name, self._came = "", came
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake, b"!")

    def _await(self, name: str) -> tuple[dict[str, Any], bytes] | OSError | None:
        """Wait for the answer; returns an error if it cannot be read, None if it is no longer wanted."""
        pause_seconds = POLL_SECONDS[0]
        while True:
            with self._change:
                if self._change.wait_for(lambda: self._name != name or self._closed, timeout=pause_seconds):
                    return None
            try:
                came = self._folder.answer(name)
            except FileNotFoundError:
                return LinkBroken("the relay's folder was emptied")
            except OSError as error:
                return error
            if came is not None:
                return came
            pause_seconds = next_pause(pause_seconds)
