"""Notices at once when the connection that holds the lock of a book is gone, also while nothing is written.

PostgreSQL gives the lock to whoever asks next when it restarts or ends the session. Whoever held it must take it again before
it writes, or learn that somebody else did; a service that waits for its next event would learn it much too late.
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
"""Until a server that cannot be reached is tried again."""
LOOK_SECONDS = 30.0
"""How often the connection is looked at where the system says nothing of it."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class Watch:
    """A thread beside the writer. It looks at the socket alone, so it costs nothing while all is well."""

    def __init__(self, *, socket_of: Callable[[], int], revive: Callable[[], None]) -> None:
        """Take who tells the socket, -1 where there is none, and who makes a lost connection anew.

        `revive` raises `JournalUnavailable` where that is to be tried again, and another `JournalError` where it is in vain.
        """
        self._socket_of = socket_of
        self._revive = revive
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="lock", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def changed(self) -> None:
        """Another connection is to be watched from now on."""
        with suppress(OSError):  # it is full, and will be looked at; or all is over
            os.write(self._wake, b"\n")

    def stop(self) -> None:
        """Watch no more. Whoever calls must not hold what `revive` waits for."""
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
                    log.error("this process may not write its book any more: %s", fault)  # no trace helps
                return

    def _wait(self) -> bool:
        """Wait until the connection is gone, or may be; False where only another one is to be watched."""
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
