"""Which commands use the service of a folder, and which job each shows: locks, which end with their processes.

They are places in one file, however many jobs there are. Who leaves lets go first and then tries to be alone: of several
that leave at once, one finds that nobody else is there.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

FOLLOWED_FILE = "followed.lock"
"""In the state folder: locked by each command that runs or shows a job and would stop it with Ctrl-C."""
LEAVING_SECONDS = 40.0
"""How long somebody who stops the service is waited for at most."""
LOOK_SECONDS = 0.02
_SERVICE = 0  # the place of the service; those of jobs are behind it


class Followers:
    """The commands at one state folder, as one of them sees the others."""

    def __init__(self, state: Path) -> None:
        """Take the state folder, which need not be there yet."""
        self._file = state / FOLLOWED_FILE
        self._descriptor: int | None = None  # open as long as this process lives, unless it is closed

    def use(self) -> None:
        """Say that this command uses the service; somebody who is about to stop it is waited for."""
        until = time.monotonic() + LEAVING_SECONDS
        while not self._locked(_SERVICE, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def show(self, job: str) -> None:
        """Say that this command shows a job."""
        self._locked(_place_of(job), fcntl.LOCK_SH)

    def others_show(self, job: str) -> bool:
        """Whether another command shows a job, now that this one does not any longer."""
        return self._left_to_others(_place_of(job))

    def others_use(self) -> bool:
        """Whether another command uses the service, now that this one does not; if none, others wait for its end."""
        return self._left_to_others(_SERVICE)

    def close(self) -> None:
        """Let go of everything."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _left_to_others(self, place: int) -> bool:
        with suppress(OSError):
            if self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place)
        return not self._locked(place, fcntl.LOCK_EX)

    def _locked(self, place: int, kind: int) -> bool:
        """Lock a place; whether nobody is in the way. A folder that has no locks keeps nobody from anything."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(self._descriptor, kind | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # either is said of a lock that somebody has
            return self._descriptor is None
        except OSError:
            return True
        return True


def _place_of(job: str) -> int:
    from hashlib import sha256

    return 1 + int.from_bytes(sha256(job.encode()).digest()[:6], "big")
