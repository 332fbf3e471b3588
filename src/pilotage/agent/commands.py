"""Running one command to its end: started, watched, waited for, and everything ended that it left behind."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent import diagnosis
from pilotage.agent.diagnosis import Failure
from pilotage.agent.processes import own_peak_bytes
from pilotage.agent.spawning import Files, NotStarted, Spawner

if TYPE_CHECKING:
    import resource
    from collections.abc import Collection, Sequence

    from pilotage.agent.processes import Remains
    from pilotage.agent.turns import Turn
    from pilotage.agent.watching import Watch

# A file that was just written may be open still, for writing, in a child of another slot that is about to start.
_BUSY_TRIES = 40
_BUSY_SECONDS = 0.01
_CONTAINER_PATIENCE_SECONDS = 2.0  # in which an engine tidies up behind a container that has ended
_PEAK_MARGIN_BYTES = 4 * 1024 * 1024  # by which the kernel's two counts of one process may differ
_BLOCK_BYTES = 512  # in which the kernel counts what is read and written, whatever the blocks of the disk are


class Ended(NamedTuple):
    """How a command ended: one of its exit status and the signal."""

    exit_status: int | None
    signal_number: int | None


_SUCCEEDED = Ended(0, None)


class Commands:
    """Runs the commands of one slot, and adds up what they used."""

    def __init__(self, watch: Watch, remains: Remains, turn: Turn) -> None:
        """Take what is shared with others."""
        self._spawner = Spawner()
        self._turn = turn
        self._watch = watch
        self._remains = remains
        self._own_peak_bytes = 0
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self._used: list[resource.struct_rusage] = []  # by each command
        self.peak_bytes = 0
        self.left_behind = False  # something that even SIGKILL does not end may still use the folder and the logs

    def measured(self, seen_peak_bytes: int) -> dict[str, Any]:
        """What the commands used, with the largest that somebody saw them grow to: fields of an AttemptFinished.

        Time and disk are those of each command and of the children that were waited for.
        """
        user_seconds = system_seconds = 0.0
        read_blocks = written_blocks = largest = 0
        for used in self._used:
            user_seconds += used.ru_utime
            system_seconds += used.ru_stime
            read_blocks += used.ru_inblock
            written_blocks += used.ru_oublock
            if used.ru_maxrss > largest:
                largest = used.ru_maxrss
        told: dict[str, Any] = {
            "cpu_seconds": user_seconds + system_seconds,
            "cpu_user_seconds": user_seconds,
            "cpu_system_seconds": system_seconds,
        }
        if read_blocks:
            told["read_bytes"] = read_blocks * _BLOCK_BYTES
        if written_blocks:
            told["written_bytes"] = written_blocks * _BLOCK_BYTES
        if self.peak_bytes or seen_peak_bytes:
            told["peak_memory_bytes"] = max(self.peak_bytes, seen_peak_bytes)
        elif largest:
            told["peak_memory_below_bytes"] = largest * 1024
        return told

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: list[bytes],
        folder: str,
        files: Files,
        marks: Collection[bytes],
        is_container: bool = False,
    ) -> Ended:
        """Run a command and wait for its end. Raises `Failure` where it does not start or is stopped."""
        for _ in range(_BUSY_TRIES):
            try:
                status = self._run_once(argv, environment, folder, files, marks, is_container=is_container)
            except NotStarted as refused:
                if refused.number == errno.ETXTBSY:
                    time.sleep(_BUSY_SECONDS)
                    continue
                raise self._not_started(argv, refused, environment, folder) from refused
            except OSError as error:
                raise diagnosis.from_system(error, doing=f"starting {argv[0]!r}") from error
            if not status:
                return _SUCCEEDED
            if os.WIFSIGNALED(status):
                return Ended(None, os.WTERMSIG(status))
            return Ended(os.WEXITSTATUS(status), None)
        raise Failure("command-not-found", f"{argv[0]!r} cannot be started: somebody is writing to the file")

    def check(self) -> None:
        """Raise `Failure` if the attempt is to be stopped."""
        stopped = self._watch.stopped
        if stopped is not None:
            raise Failure(stopped.reason, stopped.message)

    def close(self) -> None:
        """Let go of what is held."""
        self._spawner.close()

    def _run_once(
        self,
        argv: Sequence[str],
        environment: list[bytes],
        folder: str,
        files: Files,
        marks: Collection[bytes],
        *,
        is_container: bool,
    ) -> int:
        watch, remains = self._watch, self._remains
        if watch.stopped is not None:
            self.check()
        had_turn = self._turn.give()
        pid = self._spawner.start(argv, environment=environment, folder=folder, files=files)
        remains.began(pid)
        watch.command_began(pid)
        # The process id stays its own until it is waited for: so nobody's signal can meet another process.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if had_turn:
            self._turn.take()
        watch.command_ended()
        _, status, usage = os.wait4(pid, 0)
        self._count(usage)
        stopped = watch.stopped is not None
        patience_seconds = _CONTAINER_PATIENCE_SECONDS if is_container and not stopped else 0.0
        if not remains.clear(pid, marks, urgent=stopped, patience_seconds=patience_seconds):
            self.left_behind = True
        if status and os.WIFEXITED(status):
            refused = self._spawner.failed_to_start(os.WEXITSTATUS(status))
            if refused is not None:
                raise refused
        if watch.stopped is not None:
            self._raise_stopped(status)
        return status

    def _raise_stopped(self, status: int) -> None:
        try:
            self.check()
        except Failure as failure:
            if os.WIFSIGNALED(status):
                failure.signal_number = os.WTERMSIG(status)
            else:
                failure.exit_status = os.WEXITSTATUS(status)
            raise

    def _count(self, usage: resource.struct_rusage) -> None:
        self._used.append(usage)
        # Every command began as this process: the kernel's figure is the peak of the command where it says more than how
        # large this process is, and elsewhere only what the command stayed below.
        told_bytes = usage.ru_maxrss * 1024
        if told_bytes > self._own_peak_bytes:
            self._own_peak_bytes = own_peak_bytes() + _PEAK_MARGIN_BYTES
            if told_bytes > self._own_peak_bytes:
                self.peak_bytes = max(self.peak_bytes, told_bytes)

    def _not_started(self, argv: Sequence[str], refused: NotStarted, environment: list[bytes], folder: str) -> Failure:
        if refused.where:
            return Failure("platform-failure", f"{argv[0]!r} cannot be started in {folder}: {refused}")
        path = next((entry[5:] for entry in environment if entry.startswith(b"PATH=")), os.fsencode(os.defpath))
        word = argv[0] if argv else ""
        return diagnosis.not_started(word, refused.number, folder=folder, path=os.fsdecode(path))
