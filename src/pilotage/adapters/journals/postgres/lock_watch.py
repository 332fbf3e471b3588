"""Notices at once when the connection with the book's lock is lost, even while nothing is written.

When PostgreSQL restarts or ends the session, the lock goes to the next process that asks for it. The writer must take
it again before it writes, or learn that it lost it; a service that waits for its next event would learn that much too
late.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

from pilotage.ports import JournalError, JournalUnavailable

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
"""Pause before an unreachable server is tried again."""
LOOK_SECONDS = 30.0
"""How often the connection is checked without a sign from the system."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class ConnectionWatch:
    """A thread beside the writer. It polls only the socket, so it costs nothing while all is well."""

    def __init__(self, *, socket_of: Callable[[], int], revive: Callable[[], None]) -> None:
        """Take a function that returns the socket, or -1, and one that reopens a lost connection.

        `revive` raises `JournalUnavailable` to be called again, and another `JournalError` if that is useless.
        """
        self._socket_of = socket_of
        self._revive = revive
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="lock", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def changed(self) -> None:
        """Watch another connection from now on."""
        with suppress(OSError):  # the pipe is full, so the thread wakes up; or it has ended
            os.write(self._wake, b"\n")

    def stop(self) -> None:
        """End the thread. The caller must not hold a lock that `revive` waits for."""
        self._over = True
        self.changed()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)

    def _run(self) -> None:
        while not self._over:
            if not self._wait():
                continue
            try:
                self._revive()
            except JournalUnavailable:
                self._pause()
            except JournalError as fault:
                if not self._over:
                    log.error("this process may no longer write its book: %s", fault)  # a traceback would not help
                return

    def _wait(self) -> bool:
        """Wait until the connection may be lost; False if only another one is to be watched."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        watched = self._socket_of()
        if watched < 0:
            return True
        poll.register(watched, _GONE)
        found = dict(poll.poll(LOOK_SECONDS * 1000))
        if self._woken in found:
            self._drain()
            return False
        return True

    def _pause(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if poll.poll(AGAIN_SECONDS * 1000):
            self._drain()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
