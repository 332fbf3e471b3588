"""One thread that watches running commands: their time, memory, logs and progress.

A command that ends before the thread looks costs nothing. A command over its limit gets SIGTERM, and SIGKILL after the
grace period; one over its memory limit gets SIGKILL at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from pilotage.agent.attempt.diagnosis import size_text
from pilotage.agent.attempt.files import is_pattern, matches, names_below
from pilotage.agent.processes import family, largest_peak_bytes, look_at, memory_bytes, own_share_bytes, signal_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotage.agent.attempt.logs import LogFile
    from pilotage.agent.processes import ProcessCleanup

_PEAK_LOOK_SECONDS_MAX = 5.0
_FIRST_LOOK_SECONDS = 0.2  # measures the memory of every command that takes half a second
_PARKED_AFTER_SECONDS = 5.0
_HURRY_SECONDS = 0.02
_CPU_SHARE_MIN = 0.001  # of a core: a program below this waits rather than works


class Limits(NamedTuple):
    """The limits of an attempt; 0 or empty: no limit."""

    wall_seconds: float = 0.0
    memory_bytes: int = 0
    stalled_after_seconds: float = 0.0
    watched: tuple[str, ...] = ()
    folder: str = ""  # of the watched files


NO_LIMITS = Limits()


class Stopped(NamedTuple):
    """Why an attempt was stopped from outside, and the message about it."""

    reason: str
    message: str


class Watch:
    """The state of a slot's attempt. The slot's thread reports starts and ends; other threads look and stop."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()  # a process is only signalled while its id cannot be reused
        self._session = 0
        self._limits = NO_LIMITS
        self._logs: Sequence[LogFile] = ()
        self._deadline = 0.0
        self._kill_at = 0.0
        self._began = 0.0
        self._look_at = 0.0
        self._was_measured = False
        self._progressed = 0.0
        self._progress: tuple[int, float] = (-1, 0.0)
        self.is_busy = False
        self.peak_bytes = 0
        self.stopped: Stopped | None = None

    def attempt_began(self, logs: Sequence[LogFile]) -> None:
        """Start an attempt that writes these logs; it can be stopped from now on."""
        with self._lock:
            self._logs = logs
            self.stopped = None
            self.peak_bytes = 0
            self.is_busy = True

    def writes(self, logs: Sequence[LogFile]) -> None:
        """Add logs that the attempt writes."""
        with self._lock:
            self._logs = logs

    def application_began(self, limits: Limits) -> None:
        """Start the command phase, whose commands share these limits."""
        now = time.monotonic()
        self._limits = limits
        self._deadline = now + limits.wall_seconds if limits.wall_seconds else 0.0
        self._progressed = now
        self._progress = (-1, 0.0)

    def application_ended(self) -> None:
        """End the command phase."""
        self._limits = NO_LIMITS
        self._deadline = 0.0

    def attempt_ended(self) -> None:
        """Free the slot."""
        with self._lock:
            self.is_busy = False
            self._logs = ()
            self._limits = NO_LIMITS
            self._deadline = 0.0

    def command_began(self, session: int) -> None:
        """Note a running command; stop it if the attempt was stopped meanwhile."""
        with self._lock:
            self._session = session
            self._began = time.monotonic()
            self._look_at = self._began + self._watcher.first_look_seconds
            self._was_measured = False
            self._kill_at = 0.0
            if self.stopped is not None:
                self._signal(at_once=False)
        if self._watcher.is_parked:
            self._watcher.wake()

    def command_ended(self) -> None:
        """Note that the command ended; its process id is not reaped yet."""
        with self._lock:
            self._session = 0

    def stop(self, reason: str, message: str, *, at_once: bool = False) -> None:
        """Stop the running command, and let the attempt end soon; only the first reason counts."""
        with self._lock:
            if not self.is_busy or self.stopped is not None:
                return
            self.stopped = Stopped(reason, message)
            if self._session:
                self._signal(at_once=at_once)
        self._watcher.wake()

    def look(self, now: float) -> bool:
        """Check the limits, in the watcher's thread; returns whether to look again very soon."""
        with self._lock:
            session = self._session
            if not session:
                return False
            if self._kill_at:
                if now >= self._kill_at:
                    signal_group(session, signal.SIGKILL)
                return False
        if self._deadline and now >= self._deadline:
            self.stop("wall-time", f"it ran longer than its {self._limits.wall_seconds:g} s")
            return False
        if now < self._look_at:
            return False
        large = [log for log in self._logs if log.must_be_cut(self._watcher.log_bytes_max)]
        for log in large:
            self._cut(log)
        self._look_at_processes(session, now)
        return bool(large)

    def next_moment(self) -> float:
        """When to look next at the latest; 0: never."""
        with self._lock:
            if not self._session:
                return 0.0
            first_look = 0.0 if self._was_measured or self._kill_at else self._look_at
            moments = [each for each in (self._kill_at, self._deadline, first_look) if each]
        return min(moments, default=0.0)

    def _cut(self, log: LogFile) -> None:
        """Truncate a log. A command that writes faster than it is scanned is paused, or the scan would miss something."""
        if not log.is_shown():
            log.cut()
            return
        with self._lock:
            stands_still = self._session if self.stopped is None else 0
            if stands_still:
                signal_group(stands_still, signal.SIGSTOP)
        log.cut()
        with self._lock:
            if stands_still and stands_still == self._session:
                signal_group(stands_still, signal.SIGCONT)

    def _look_at_processes(self, session: int, now: float) -> None:
        limits = self._limits
        pids = family(session)
        pids += [each for each in self._watcher.adopted_by_session(session) if each not in pids]
        used = memory_bytes(pids)
        # The total now, or the peak of one process: the joint peak between two looks is unknown.
        self.peak_bytes = max(self.peak_bytes, used, largest_peak_bytes(pids))
        self._was_measured = True
        if limits.memory_bytes and used > limits.memory_bytes:
            shared_once = own_share_bytes(pids)
            if shared_once > limits.memory_bytes:
                self.peak_bytes = max(self.peak_bytes, shared_once)  # measured a moment later, and growing
                message = f"it used {size_text(shared_once)} of memory; its limit is {size_text(limits.memory_bytes)}"
                self.stop("out-of-memory", message, at_once=True)
                return
        if limits.stalled_after_seconds:
            self._look_for_progress(pids, now)
        pause = self._watcher.look_seconds
        if not limits.memory_bytes and not limits.stalled_after_seconds:
            pause = max(pause, min((now - self._began) / 20, _PEAK_LOOK_SECONDS_MAX))
        self._look_at = now + pause - self._watcher.look_seconds / 2

    def _look_for_progress(self, pids: list[int], now: float) -> None:
        limits = self._limits
        if limits.watched:
            progress = (_size_bytes(limits.folder, limits.watched), 0.0)
        else:
            processes = [look_at(pid) for pid in pids]
            cpu_seconds = sum(each.cpu_seconds for each in processes if each is not None)
            progress = (sum(log.written_bytes() for log in self._logs), cpu_seconds)
        worth_seconds = max(0.01, _CPU_SHARE_MIN * limits.stalled_after_seconds)
        if progress[0] != self._progress[0] or abs(progress[1] - self._progress[1]) >= worth_seconds:
            self._progress = progress
            self._progressed = now
        elif now - self._progressed >= limits.stalled_after_seconds:
            what = ", ".join(limits.watched) if limits.watched else "its log and its CPU time"
            self.stop("looping", f"no progress for {limits.stalled_after_seconds:g} s: {what}")

    def _signal(self, *, at_once: bool) -> None:
        """Send SIGTERM or SIGKILL to the process group; the lock is held."""
        signal_group(self._session, signal.SIGKILL if at_once else signal.SIGTERM)
        signal_group(self._session, signal.SIGCONT)  # a stopped process would not handle it
        self._kill_at = time.monotonic() + self._watcher.grace_seconds


class Watcher:
    """The watching thread for all slots of a pilot. It starts with the first command and sleeps while there is none."""

    def __init__(
        self, cleanup: ProcessCleanup, *, look_seconds: float, grace_seconds: float, log_bytes_max: int
    ) -> None:
        self.look_seconds = look_seconds
        self.first_look_seconds = min(look_seconds, _FIRST_LOOK_SECONDS)
        self.grace_seconds = grace_seconds
        self.log_bytes_max = log_bytes_max
        self.is_parked = True
        self._cleanup = cleanup
        self._watches: list[Watch] = []
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def new_watch(self) -> Watch:
        """A watch for one more slot."""
        watch = Watch(self)
        with self._lock:
            self._watches.append(watch)
        return watch

    def forget(self, watch: Watch) -> None:
        """Remove the watch of a closed slot."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def wake(self) -> None:
        """Look now: a command started, or must be stopped."""
        with self._lock:
            self.is_parked = False
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)
                self._thread.start()
        self._event.set()

    def adopted_by_session(self, session: int) -> list[int]:
        """The adopted orphans of a session."""
        return self._cleanup.adopted_of(session)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._event.set()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        busy_at = time.monotonic()
        while not self._is_closed:
            now = time.monotonic()
            watches = list(self._watches)
            hurry = True in [watch.look(now) for watch in watches]
            if any(watch.is_busy for watch in watches):
                busy_at = now
            self.is_parked = now - busy_at > _PARKED_AFTER_SECONDS
            if self.is_parked and not any(watch.is_busy for watch in watches):
                self._event.wait()
            else:
                moments = [each for each in (watch.next_moment() for watch in watches) if each]
                soonest = min(moments, default=now + self.look_seconds)
                pause = _HURRY_SECONDS if hurry else min(self.look_seconds, max(soonest - now, 0.001))
                self._event.wait(pause)
            self._event.clear()


def _size_bytes(folder: str, watched: Sequence[str]) -> int:
    """Total size of the watched files, plus one per file, so that a new empty file counts as progress."""
    names: set[str] = set()
    for name in watched:
        if is_pattern(name):
            names.update(each for each in names_below(folder) if matches(name, each))
        else:
            names.add(name)
    total = 0
    for name in names:
        try:
            total += 1 + os.stat(os.path.join(folder, name)).st_size
        except OSError:
            continue
    return total
