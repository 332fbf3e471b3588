"""What a watch sees of a command and when it ends it, looked at without the thread that looks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.agent.attempt.logs import HEAD_BYTES, LogFile
from pilotage.agent.attempt.watcher import Limits, Stopped, Watch, Watcher, _size_bytes
from pilotage.agent.processes import ProcessCleanup
from tests.kit.agent_runs import wait_for_program

_GRACE_SECONDS = 30.0
_FIRST_SECONDS = 0.2


@pytest.fixture
def watch() -> Watch:
    cleanup = ProcessCleanup(sole=False, grace_seconds=_GRACE_SECONDS)
    watcher = Watcher(cleanup, look_seconds=0.5, grace_seconds=_GRACE_SECONDS, log_bytes_max=HEAD_BYTES)
    watcher.close()  # no thread looks besides
    return watcher.new_watch()


@contextmanager
def _running(watch: Watch, limits: Limits, script: str = "exec sleep 1000") -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, which the watch was told of."""
    command = [
        "/bin/sh",
        "-c",
        f"{script.partition('|')[0]}; echo ready; {script.partition('|')[2] or 'exec sleep 1000'}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if "|" not in script:
            wait_for_program(process.pid, "sleep")
        watch.attempt_began(())
        watch.application_began(limits)
        watch.command_began(process.pid)
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def _told(watch: Watch) -> Stopped | None:
    """Why it was stopped, as of now."""
    return watch.stopped


def test_where_nothing_runs_nothing_is_to_be_done(watch: Watch) -> None:
    assert (watch.look(time.monotonic() + 1e6), watch.next_moment(), watch.peak_bytes) == (False, 0.0, 0)
    watch.stop("cancelled", "nobody is there")
    assert _told(watch) is None


def test_a_command_is_first_looked_at_after_a_moment_and_then_as_often_as_said(watch: Watch) -> None:
    before = time.monotonic()
    with _running(watch, Limits(memory_bytes=1 << 40), script=":"):
        began = watch.next_moment() - _FIRST_SECONDS
        assert before <= began <= time.monotonic()
        assert watch.look(began + _FIRST_SECONDS - 0.01) is False
        assert watch.peak_bytes == 0
        assert watch.look(began + _FIRST_SECONDS) is False
        assert watch.peak_bytes > 100_000
        assert watch.next_moment() == 0.0
        watch.peak_bytes = 0
        for later, seen in ((0.2, False), (0.26, True)):
            watch.look(began + _FIRST_SECONDS + later)
            assert bool(watch.peak_bytes) is seen
        watch.command_ended()
        assert watch.look(began + 1000.0) is False


def test_a_command_that_nothing_limits_is_looked_at_more_seldom_the_longer_it_runs(watch: Watch) -> None:
    with _running(watch, Limits(), script=":"):
        began = watch.next_moment() - _FIRST_SECONDS
        watch.look(began + 40.0)
        watch.peak_bytes = 0
        for later, seen in ((1.7, False), (1.8, True)):
            watch.look(began + 40.0 + later)
            assert bool(watch.peak_bytes) is seen, "a twentieth of the time, less half a look"
        watch.look(began + 10_000.0)
        watch.peak_bytes = 0
        for later, seen in ((4.7, False), (4.8, True)):
            watch.look(began + 10_000.0 + later)
            assert bool(watch.peak_bytes) is seen, "at most five seconds"


def test_a_command_that_runs_too_long_is_asked_to_end_and_then_killed(watch: Watch) -> None:
    with _running(watch, Limits(wall_seconds=100.0), script="trap : TERM|while :; do sleep 0.01; done") as process:
        first = watch.next_moment()
        watch.look(first)
        deadline = watch.next_moment()
        assert 90.0 < deadline - first <= 100.0
        assert watch.look(deadline - 0.01) is False
        assert _told(watch) is None
        assert watch.look(deadline) is False
        assert _told(watch) == Stopped("wall-time", "it ran longer than its 100 s")
        kill_at = watch.next_moment()
        assert 0.0 < kill_at - time.monotonic() <= _GRACE_SECONDS
        watch.stop("cancelled", "too late")
        assert _told(watch) == Stopped("wall-time", "it ran longer than its 100 s")
        watch.look(kill_at - 0.01)
        assert process.poll() is None
        watch.look(kill_at)
        assert process.wait() == -signal.SIGKILL


def test_a_command_that_takes_too_much_memory_is_killed_at_once(watch: Watch) -> None:
    with _running(watch, Limits(memory_bytes=1024), script=":") as process:
        watch.look(watch.next_moment())
        told = _told(watch)
        assert told is not None
        assert told.reason == "out-of-memory"
        assert told.message.endswith("of memory; its limit is 1 KiB")
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("watched", [(), ("log",)])
def test_a_command_of_which_nothing_grows_is_looping(tmp_path: Path, watch: Watch, watched: tuple[str, ...]) -> None:
    limits = Limits(stalled_after_seconds=100.0, watched=watched, folder=str(tmp_path))
    with _running(watch, limits, script=":") as process:
        now = watch.next_moment()
        watch.look(now)
        if watched:
            (tmp_path / "log").touch()
            now += 99.0
            watch.look(now)
        watch.look(now + 99.9)
        assert _told(watch) is None
        watch.look(now + 101.0)
        what = "log" if watched else "its log and its CPU time"
        assert _told(watch) == Stopped("looping", f"no progress for 100 s: {what}")
        assert process.wait() == -signal.SIGTERM


def test_a_command_that_was_to_be_stopped_before_it_began_is_stopped_when_it_begins(watch: Watch) -> None:
    watch.attempt_began(())
    watch.stop("cancelled", "by its user")
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        watch.command_began(process.pid)
        assert process.wait() == -signal.SIGTERM
    assert _told(watch) == Stopped("cancelled", "by its user")
    watch.attempt_began(())
    assert (_told(watch), watch.peak_bytes, watch.is_busy) == (None, 0, True)
    watch.attempt_ended()
    assert watch.is_busy is False


def test_a_log_that_is_too_large_is_cut_and_looked_at_again_soon(tmp_path: Path, watch: Watch) -> None:
    log = LogFile(str(tmp_path / "log"), "stdout")
    log.begin()
    with _running(watch, Limits(), script=":"):
        watch.writes([log])
        os.write(log.descriptor, b"x" * (HEAD_BYTES + 1))
        now = watch.next_moment()
        assert watch.look(now) is True
        assert os.fstat(log.descriptor).st_size == HEAD_BYTES
        assert watch.look(now + 100.0) is False
    log.close()


def test_the_size_of_what_is_watched_counts_files_that_are_empty(tmp_path: Path) -> None:
    for name, size_bytes in (("a.log", 0), ("b.log", 5), ("other", 7)):
        (tmp_path / name).write_bytes(b"x" * size_bytes)
    for watched, expected in (
        ((), 0),
        (("gone",), 0),
        (("a.log",), 1),
        (("*.log", "b.log"), 7),
        (("other", "b.log"), 14),
    ):
        assert _size_bytes(str(tmp_path), watched) == expected
