"""One agent for each folder of a site: a lock that holds on any shared file system, also after a crash.

The lock is a file that is linked into its place, which one process alone can do. It says who holds it, and its time is
renewed as long as that lives. It is taken over from a process of this computer that is dead, and from one of another
computer that has not renewed it for a while; ages are told by the clock of the file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.agent.files import FILE_MODE
from pilotage.agent.sweeping import started_at

if TYPE_CHECKING:
    from collections.abc import Callable

RENEW_SECONDS = 10.0
STALE_SECONDS = 90.0
LOCK_FILE = "site-agent.lock"


class AlreadyRuns(OSError):
    """Another agent of this folder lives; the message says where."""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class FolderLock:
    """The lock of a folder, from `take` to `release`."""

    def __init__(
        self, folder: Path, *, renew_seconds: float = RENEW_SECONDS, lost: Callable[[], object] | None = None
    ) -> None:
        """Name the folder; `lost` is called where another process took the lock away."""
        self._folder = folder
        self._file = folder / LOCK_FILE
        self._renew_seconds = renew_seconds
        self._lost = lost
        own = os.getpid()
        self._id = os.urandom(8).hex()
        self._said = {
            "id": self._id, "host": os.uname().nodename, "boot": _boot(), "pid": own, "started": started_at(own),
        }  # fmt: skip
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def take(self) -> None:
        """Take the lock; raises `AlreadyRuns`, or another `OSError`."""
        draft = self._folder / f".{LOCK_FILE}-{self._id}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(descriptor, json.dumps(self._said).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            for _ in range(10):
                # The answer to a link may be lost on a network although it was made: the count of names tells.
                with contextlib.suppress(FileExistsError):
                    os.link(draft, self._file)
                if os.stat(draft).st_nlink == 2:
                    break
                held = _read(self._file)
                if held is not None and not _is_dead(self._folder, held):
                    raise AlreadyRuns(
                        f"an agent of {self._folder} runs already: process {held.get('pid')} on {held.get('host')}"
                    )
                if held is not None:
                    self._set_aside(held)
            else:
                raise AlreadyRuns(f"the lock of {self._folder} is taken again and again")
        finally:
            draft.unlink()
        self._thread.start()

    def release(self) -> None:
        """Let go of it."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._is_ours():
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _set_aside(self, held: dict[str, Any]) -> None:
        """Remove the lock of a dead one; where somebody else's has come in its place it is put back."""
        aside = self._folder / f".{LOCK_FILE}-{self._id}-dead"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._file, aside)
            if (_read(aside) or {}).get("id") != held.get("id"):
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._file)
            aside.unlink()

    def _is_ours(self) -> bool:
        return (_read(self._file) or {}).get("id") == self._id

    def _renew(self) -> None:
        while not self._ending.wait(self._renew_seconds):
            try:
                if not self._is_ours():
                    if self._lost is not None:
                        self._lost()
                    return
                os.utime(self._file)
            except OSError:
                continue  # the file system does not answer: it will, or somebody takes over


def _read(file: Path) -> dict[str, Any] | None:
    """What a lock says; None where there is none."""
    try:
        said = json.loads(file.read_bytes() or b"{}")
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _is_dead(folder: Path, held: dict[str, Any]) -> bool:
    if held.get("host") == os.uname().nodename:
        pid = held.get("pid")
        if held.get("boot") != _boot():
            return True
        return not isinstance(pid, int) or not held.get("started") or started_at(pid) != held["started"]
    return _age_seconds(folder) > STALE_SECONDS


def _age_seconds(folder: Path) -> float:
    probe = folder / f".now-{os.urandom(6).hex()}"
    probe.touch(mode=FILE_MODE)
    try:
        return probe.stat().st_mtime - (folder / LOCK_FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()
