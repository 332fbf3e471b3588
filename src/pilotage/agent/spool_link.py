"""The link of a pilot whose node shares no network with its service, only a folder with a relay: see `relay_folder`.

It behaves as a connection does. A thread looks for the answer, ever more seldom, and makes a pipe readable when it is there,
so that who listens to several links listens to this one the same way.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.agent.link import Answer, Link, LinkBroken
from pilotage.agent.relay_folder import POLL_SECONDS, PREFIX, RelayFolder, next_pause

if TYPE_CHECKING:
    from collections.abc import Callable


class SpoolLink(Link):
    """A link through a folder; see `Link`."""

    def __init__(self, address: str, *, token: str | Callable[[], str] = "") -> None:
        """Look whether the folder is there and closed to others; raises `OSError` where it is not."""
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
        """Where to listen for an answer."""
        return self._awake

    def send(self, method: str, target: str, body: bytes = b"", *, fields: str = "", ticket: int = 1) -> None:
        """Put a request into the folder; raises `OSError` where that cannot be."""
        self.ticket = ticket
        self._count += 1
        name = f"{self._id}-{self._count}"
        told = [line.split(": ", 1) for line in fields.split("\r\n") if line]
        token = self._asks_token() if callable(self._asks_token) else self._asks_token
        if token:
            told.append(["Authorization", f"Bearer {token}"])
        head = {"method": method, "target": target, "fields": told, "size_bytes": len(body)}
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
        """The answer, if it is there; raises `OSError` where it cannot be read."""
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
            raise LinkBroken(f"the answer cannot be understood: {error}") from error
        self.ticket = 0
        self.answers += 1
        return Answer(status, fields, body)

    def close(self) -> None:
        """Wait no longer, and leave nothing behind."""
        self.ticket = 0
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
        """The answer to a request, or what keeps it from being read; None where nobody waits for it any more."""
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
