"""What /proc tells of processes, and how those that must not be left over are found and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.agent import processes
from pilotage.agent.processes import (
    KernelKills,
    all_processes,
    carries,
    descendants,
    end_descendants,
    family,
    largest_peak_bytes,
    look_at,
    memory_bytes,
    own_peak_bytes,
    own_share_bytes,
    signal_group,
    started_at,
    sweep,
)
from tests.kit.agent_runs import is_alive, open_descriptors, wait_for_program, wait_until

_NO_PID = 2**22 + 1  # more than any system gives
_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _sleeping(script: str = "exec sleep 1000", **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that leads a session and says a line when it is ready."""
    command = ["/bin/sh", "-c", f"echo ready; {script}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, start_new_session=True, env={"PATH": os.environ["PATH"], **environment}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            if script.startswith("exec "):
                wait_for_program(process.pid, script.split()[1])
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def _stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_a_process_is_told_as_the_system_tells_it() -> None:
    with _sleeping() as process:
        seen, fields = look_at(process.pid), _stat_of(process.pid)
        assert seen is not None
        assert (seen.pid, seen.parent, seen.session) == (process.pid, os.getpid(), process.pid)
        assert seen.state in "SR"
        assert seen.started_ticks == int(fields[19])
        assert seen in [each._replace(state=seen.state) for each in all_processes()]
    assert look_at(process.pid) is None


def test_the_time_of_a_process_and_of_its_children_is_in_seconds() -> None:
    usage = os.times()
    seen = look_at(os.getpid())
    assert seen is not None
    now = os.times()
    assert sum(usage[:4]) - 0.05 <= seen.cpu_seconds <= sum(now[:4]) + 0.05


def test_a_process_is_known_by_when_it_started() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert started_at(os.getpid()) == f"{boot}:{_stat_of(os.getpid())[19]}"
    assert started_at(_NO_PID) == ""
    with _sleeping("exit") as process:
        wait_until(lambda: _stat_of(process.pid)[0] == "Z")
        assert started_at(process.pid) == ""


def test_memory_is_counted_for_each_process() -> None:
    with _sleeping() as process:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        assert memory_bytes([process.pid]) == pages * _PAGE
        assert memory_bytes([process.pid, process.pid, _NO_PID]) == 2 * pages * _PAGE
        assert 0 < own_share_bytes([process.pid]) < pages * _PAGE, "it shares its libraries with others"
        assert own_share_bytes([process.pid, _NO_PID]) == own_share_bytes([process.pid])
        peak = largest_peak_bytes([process.pid])
        assert pages * _PAGE <= peak < own_peak_bytes()
        assert largest_peak_bytes([process.pid, os.getpid()]) >= own_peak_bytes() - 1024**2
    assert (memory_bytes([]), own_share_bytes([]), largest_peak_bytes([])) == (0, 0, 0)
    assert (memory_bytes([_NO_PID]), own_share_bytes([_NO_PID]), largest_peak_bytes([_NO_PID])) == (0, 0, 0)


def test_a_share_that_is_not_told_is_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes._read
    monkeypatch.setattr(processes, "_read", lambda path: b"" if "smaps" in path else real(path))
    with _sleeping() as process:
        assert own_share_bytes([process.pid]) == memory_bytes([process.pid]) > 0


def test_a_peak_is_told_in_bytes() -> None:
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:")]
    assert int(line.split()[1]) * 1024 <= own_peak_bytes() <= (int(line.split()[1]) + 10_000) * 1024


def test_a_family_is_a_process_and_what_descends_from_it() -> None:
    with _sleeping("sh -c 'sleep 1000; :' & wait") as process:
        wait_until(lambda: len(family(process.pid)) == 3)
        found = family(process.pid)
        assert found[0] == process.pid
        assert sorted(found[1:]) == sorted(descendants(process.pid))
        assert sorted(end_descendants(process.pid)) == sorted(found[1:])
        assert not any(is_alive(pid) for pid in found[1:])
        assert process.wait() == 0, "it is left alone, and goes on"
    assert family(process.pid) == []
    assert end_descendants(_NO_PID) == descendants(_NO_PID) == []


def test_a_process_carries_marks_only_if_all_of_them_are_in_its_environment() -> None:
    with _sleeping(A="1", B="2") as process:
        for marks, expected in (
            ([b"A=1"], True), ([b"A=1", b"B=2"], True), ([b"A=1", b"B=3"], False), ([b"A="], False), ([], True),
        ):  # fmt: skip
            assert carries(process.pid, marks) is expected
    assert carries(_NO_PID, [b"A=1"]) is False


def test_a_signal_reaches_a_group_that_is_there() -> None:
    with _sleeping() as process:
        assert signal_group(process.pid, 0) is True
        assert process.poll() is None
        assert signal_group(process.pid, signal.SIGTERM) is True
        assert process.wait() == -signal.SIGTERM
        assert signal_group(process.pid, 0) is False


def test_sweeping_waits_until_nothing_with_the_mark_is_left() -> None:
    with _sleeping("sleep 1000 & sleep 1000 & wait", PILOTAGE_MARK="a-test.sweep") as process:
        wait_until(lambda: len(family(process.pid)) == 3)
        found = family(process.pid)
        assert sweep({"another", "a-test.sweep"}) == sorted(found)
        assert not any(is_alive(pid) for pid in found)
        assert sweep({"a-test.sweep"}) == []


def test_who_asks_is_never_swept() -> None:
    script = "from pilotage.agent.processes import sweep; print(sweep({'a-test.own'}))"
    environment = {**os.environ, "PILOTAGE_MARK": "a-test.own"}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_looking_leaves_no_file_open() -> None:
    before = open_descriptors()
    all_processes()
    descendants(os.getpid())
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "text, claims",
    [("low 0\noom 4\noom_kill 0\n", [False]), ("oom_kill 2\n", [True, True, False]), ("oom_kill\n", [False])],
)
def test_a_kill_is_one_that_came_after_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, claims: list[bool]
) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n")
    monkeypatch.setattr(processes, "_events_file", lambda: str(events))
    kills = KernelKills()
    events.write_text(text)
    assert [kills.claim() for _ in claims] == claims


def test_kills_of_before_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 5\n")
    monkeypatch.setattr(processes, "_events_file", lambda: str(events))
    kills = KernelKills()
    assert kills.claim() is False
    events.write_text("oom_kill 6\n")
    assert [kills.claim(), kills.claim()] == [True, False]
    events.unlink()
    assert kills.claim() is False


def test_a_system_that_counts_no_kills_tells_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_events_file", lambda: "")
    assert KernelKills().claim() is False
