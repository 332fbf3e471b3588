from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.processes import KernelKills
from tests.kit.agent_runs import Place, log_of, place_in

MEBIBYTE = 1024 * 1024
FOR_EVER = "while :; do sleep 0.01; done"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, log_bytes_max=2 * MEBIBYTE) as place:
        yield place


def test_a_command_that_runs_longer_than_it_may_is_ended(place: Place) -> None:
    payload = place.shell(FOR_EVER, demand={"wall_seconds": 0.2}).payload
    assert (payload["reason"], payload["exit_code"]) == ("wall-time", "EXECUTION_FAILED")
    assert "longer than its 0.2 s" in payload["exit_message"]
    [seconds] = [each["seconds"] for each in payload["phases"] if each["phase"] == "application"]
    assert 0.2 <= seconds < 5


def test_the_time_limit_is_for_all_binaries_together(place: Place) -> None:
    binary = {"argv": ["sleep", "0.15"]}
    payload = place.run(binaries=[binary] * 8, demand={"wall_seconds": 0.4}).payload
    assert payload["reason"] == "wall-time"


def test_a_command_that_ignores_the_request_to_end_is_killed(place: Place) -> None:
    payload = place.shell(f"trap '' TERM INT HUP; {FOR_EVER}", demand={"wall_seconds": 0.1}).payload
    assert (payload["reason"], payload["signal"]) == ("wall-time", 9)


def test_a_command_that_stands_still_is_ended_too(place: Place) -> None:
    assert place.shell("kill -STOP $$", demand={"wall_seconds": 0.1}).payload["reason"] == "wall-time"


def test_a_command_may_end_in_order_when_asked(place: Place) -> None:
    script = f"trap 'echo tidy; exit 0' TERM; {FOR_EVER}"
    outcome = place.shell(script, demand={"wall_seconds": 0.1})
    assert log_of(outcome) == "tidy\n"
    assert (outcome.payload["reason"], outcome.payload["exit_status"]) == ("wall-time", 0)


HOG = "import time\nx = bytearray({size})\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep({seconds})"


def test_more_memory_than_allowed_ends_a_command(place: Place) -> None:
    hog = [sys.executable, "-c", HOG.format(size=200 * MEBIBYTE, seconds=30)]
    payload = place.run(*hog, demand={"memory_bytes": 100 * MEBIBYTE}).payload
    assert (payload["reason"], payload["exit_code"]) == ("out-of-memory", "EXECUTION_FAILED")
    assert payload["peak_memory_bytes"] > 100 * MEBIBYTE


def test_the_peak_is_not_below_what_a_command_was_ended_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pilotage.agent.attempt.watcher.own_share_bytes", lambda pids: 10 * 2**30
    )  # looked at a moment later
    hog = [sys.executable, "-c", HOG.format(size=200 * MEBIBYTE, seconds=30)]
    payload = place.run(*hog, demand={"memory_bytes": 100 * MEBIBYTE}).payload
    assert payload["peak_memory_bytes"] == 10 * 2**30
    assert payload["exit_message"].startswith("it used 10 GiB of memory; its limit is 100 MiB")


def test_the_memory_of_all_processes_of_a_command_counts(place: Place) -> None:
    (place.folder / "hog.py").write_text(HOG.format(size=60 * MEBIBYTE, seconds=30))
    script = f"for i in 1 2 3; do {sys.executable} hog.py & done; wait"
    payload = place.shell(script, inputs=[{"name": "hog.py"}], demand={"memory_bytes": 150 * MEBIBYTE}).payload
    assert payload["reason"] == "out-of-memory"


def test_the_peak_memory_of_a_command_is_told(place: Place) -> None:
    hog = [sys.executable, "-c", HOG.format(size=300 * MEBIBYTE, seconds=0.1)]
    payload = place.run(*hog).payload
    assert payload["exit_code"] == "SUCCESS"
    assert 300 * MEBIBYTE < payload["peak_memory_bytes"] < 600 * MEBIBYTE


def test_the_size_of_the_agent_is_not_taken_for_that_of_a_command(place: Place) -> None:
    place.run("/bin/true")
    payload = place.run("/bin/true").payload
    assert payload.get("peak_memory_bytes", 0) < 8 * MEBIBYTE


def test_the_kernel_that_ends_a_command_for_memory_is_believed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.workplace.kernel_kills, "claim", lambda: True)
    assert place.shell("kill -KILL $$").payload["reason"] == "out-of-memory"
    assert place.shell("sh -c 'kill -KILL $$'; exit 137").payload["reason"] == "out-of-memory"
    assert place.shell("kill -SEGV $$").payload["reason"] == "segmentation-fault"


def test_each_kill_of_the_kernel_is_told_once(tmp_path: Path) -> None:
    kills = KernelKills()
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 3\n")
    kills._file = str(events)
    kills._claimed = 1
    assert [kills.claim(), kills.claim(), kills.claim()] == [True, True, False]


def test_a_command_that_neither_works_nor_writes_is_looping(place: Place) -> None:
    payload = place.run("sleep", "30", stalled_after_seconds=0.2).payload
    assert (payload["reason"], payload["exit_code"]) == ("looping", "EXECUTION_STALLED")
    assert "its log and its CPU time" in payload["exit_message"]


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
    ],
)
def test_a_command_that_writes_or_works_is_not_looping(place: Place, script: str) -> None:
    assert place.shell(script, stalled_after_seconds=0.4).payload["exit_code"] == "SUCCESS"


def test_watched_files_must_grow_whatever_else_happens(place: Place) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo $i >> sub-1.dat; sleep 0.1; done"
    assert place.shell(script, watched=["sub-*.dat"], stalled_after_seconds=0.4).payload["exit_code"] == "SUCCESS"
    assert (
        place.shell("while :; do echo x; done", watched=["a"], stalled_after_seconds=0.2).payload["reason"] == "looping"
    )


def test_a_command_that_writes_without_end_fills_no_disk(place: Place) -> None:
    size = 200 * MEBIBYTE
    outcome = place.shell(f"echo first; head -c {size} /dev/zero | tr '\\0' x; echo; echo last")
    assert outcome.payload["exit_code"] == "SUCCESS"
    (log,) = outcome.logs
    assert log["head"].startswith("first\nxxx")
    assert log["tail"].endswith("xxx\nlast\n")
    written = len(log["head"]) + len(log["tail"]) + log["dropped_bytes"]
    # What is written in the very moment in which the file is cut is counted, or not.
    assert 0.9 * size < written <= size + 12
    file = place.root / "scratch" / "slot-1.0.stdout"
    assert file.stat().st_size < size / 2


def test_a_failure_is_found_in_what_was_cut_away(place: Place) -> None:
    lines = f"yes {'nothing to see here ' * 10} | head -c 20000000"
    script = f"{lines}; echo FATAL: lost; {lines}; {lines}"
    payload = place.shell(f"({script}) >&2", failure_patterns=[{"pattern": "^FATAL"}]).payload
    assert payload["reason"] == "failure-pattern"
    assert "FATAL: lost" in payload["exit_message"]


def test_a_command_may_close_its_streams(place: Place) -> None:
    outcome = place.shell("echo before; exec 0<&- 1>&- 2>&-; : > made", binary={"outputs": [{"name": "made"}]})
    assert log_of(outcome) == "before\n"
    assert place.outputs(outcome) == {"made": b""}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte, where this machine lets us mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root may mount a file system")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    yield folder
    subprocess.run([unmount, str(folder)], check=True)


def test_a_full_disk_under_a_command_is_told_as_that(small_disk: Path) -> None:
    with place_in(small_disk) as place:
        for script in ("cat /dev/zero > big", "cat /dev/zero > big 2>/dev/null; exit 1"):
            payload = place.shell(script).payload
            assert (payload["reason"], payload["exit_code"]) == ("disk-full", "ERROR_WRITE_LOCAL")
        assert place.run("/bin/true").payload["exit_code"] == "SUCCESS"


def test_a_full_disk_under_inputs_and_outputs_is_told_as_that(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "large").write_bytes(b"x" * 2 * MEBIBYTE)
    with place_in(small_disk) as place:
        place.folder = tmp_path / "job"
        payload = place.run("/bin/true", inputs=[{"name": "large"}]).payload
        assert (payload["reason"], payload["exit_code"]) == ("disk-full", "ERROR_WRITE_LOCAL")
    (tmp_path / "roomy").mkdir()
    with place_in(tmp_path / "roomy") as place:
        place.staged = small_disk
        payload = place.shell("head -c 3000000 /dev/zero > big", binary={"outputs": [{"name": "big"}]}).payload
        assert payload["reason"] == "disk-full"
    assert sorted(each.name for each in small_disk.iterdir()) == ["job", "mark", "staged"]


def test_a_full_disk_under_what_a_command_prints_is_told_as_that(small_disk: Path) -> None:
    with place_in(small_disk) as place:
        payload = place.shell("cat /dev/zero", binary={"stdout": "out"}).payload
        assert payload["reason"] == "disk-full"
