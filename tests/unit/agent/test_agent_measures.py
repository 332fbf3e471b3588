"""What an attempt tells of what it used, and of what is tidied up behind one that failed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.processes import look_at, own_peak_bytes
from tests.kit.agent_runs import Place, log_of, place_in

MEBIBYTE = 1 << 20
USER_WORK = "sum(i * i for i in range(1_000_000))"
SYSTEM_WORK = "f = open('/dev/zero', 'rb', buffering=0)\nx = bytearray(1 << 20)\nfor _ in range(3000): f.readinto(x)"
WRITE = "import os\nwith open('big', 'wb') as f: f.write(bytes(4 << 20)); f.flush(); os.fsync(f.fileno())"
READ = (
    "import os\nf = os.open('big', os.O_RDONLY)\nos.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)\nos.read(f, 4 << 20)"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def counted_of(folder: Path, script: str) -> tuple[int, int]:
    """What the kernel counts as read and written by a script in a folder, where it counts at all."""
    here = ["/bin/sh", "-c", 'cd "$1" && exec "$2" -c "$3"', "sh", str(folder), sys.executable, script]
    _, status, usage = os.wait4(os.posix_spawn(here[0], here, os.environ), 0)
    assert status == 0
    return 512 * usage.ru_inblock, 512 * usage.ru_oublock


def test_the_time_of_a_program_and_that_of_the_system_for_it_are_told_apart(place: Place) -> None:
    own = place.run(sys.executable, "-c", USER_WORK).payload
    systems = place.run(sys.executable, "-c", SYSTEM_WORK).payload
    for payload in (own, systems):
        total = payload["cpu_user_seconds"] + payload["cpu_system_seconds"]
        assert payload["cpu_seconds"] == pytest.approx(total, abs=1e-6)
    assert own["cpu_user_seconds"] > own["cpu_system_seconds"]
    assert systems["cpu_system_seconds"] > systems["cpu_user_seconds"]


def test_what_several_commands_used_is_added_up_and_begins_anew_with_an_attempt(place: Place) -> None:
    binary = {"argv": [sys.executable, "-c", USER_WORK]}
    one = place.run(binaries=[binary]).payload
    three = place.run(binaries=[binary, binary, binary]).payload
    none = place.run("/bin/true").payload
    assert three["cpu_user_seconds"] > 1.5 * one["cpu_user_seconds"]
    assert none["cpu_user_seconds"] < one["cpu_user_seconds"]


def test_what_a_command_and_its_children_wrote_to_a_disk_and_read_from_it_is_told(place: Place, tmp_path: Path) -> None:
    _, written = counted_of(tmp_path, WRITE)
    read, _ = counted_of(tmp_path, READ)
    if not (read and written):
        pytest.skip("the kernel does not count what this file system reads and writes")
    (tmp_path / "write.py").write_text(WRITE)
    (tmp_path / "read.py").write_text(READ)
    script = f"{sys.executable} {tmp_path}/write.py; {sys.executable} {tmp_path}/read.py; true"
    payload = place.shell(script).payload
    assert payload["written_bytes"] >= 4 * MEBIBYTE
    assert payload["read_bytes"] >= 4 * MEBIBYTE
    assert "written_bytes" not in place.run("/bin/true").payload


def test_of_a_command_that_nobody_saw_it_is_told_what_its_memory_stayed_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.agent.attempt.watcher._FIRST_LOOK_SECONDS", 30.0)
    with place_in(tmp_path, look_seconds=30.0) as place:
        payload = place.run("/bin/true").payload
    assert "peak_memory_bytes" not in payload
    assert 0 < payload["peak_memory_below_bytes"] <= own_peak_bytes() + 4 * MEBIBYTE


def test_what_is_known_is_not_told_as_a_bound(place: Place) -> None:
    size = own_peak_bytes() + 64 * MEBIBYTE
    hog = {"argv": [sys.executable, "-c", f"x = b'x' * {size}"]}
    payload = place.run(binaries=[{"argv": ["/bin/true"]}, hog, {"argv": ["/bin/true"]}]).payload
    assert payload["peak_memory_bytes"] > size
    assert "peak_memory_below_bytes" not in payload


def test_the_cleaning_behind_a_failed_attempt_is_over_and_told_when_its_end_is(place: Place) -> None:
    script = "echo $$ > part; mkdir d; echo x > d/deep; (sleep 60 & echo $! > $PILOTAGE_FOLDER/child); exit 3"
    payload = place.shell(script).payload
    last = payload["phases"][-1]
    assert [each["phase"] for each in payload["phases"]] == ["setup", "application", "cleaning"]
    assert place.phases[-1] == "cleaning"
    assert last["seconds"] > 0
    assert place.scratch_is_empty()
    child = look_at(int((place.folder / "child").read_text()))
    assert child is None or child.state == "Z", "somebody else is to bury it"
    assert place.staged_names() == []


def test_outputs_that_were_made_in_part_are_cleaned_away(place: Place) -> None:
    binary = {"outputs": [{"name": "a"}, {"name": "b"}]}
    payload = place.run("/bin/sh", "-c", "echo x > a", binary=binary).payload
    phases = [each["phase"] for each in payload["phases"]]
    assert (payload["reason"], phases[-2:]) == ("missing-output", ["outputs", "cleaning"])
    assert place.scratch_is_empty()
    assert place.staged_names() == []


def test_the_kept_folder_of_a_failed_attempt_is_put_away_while_cleaning(place: Place) -> None:
    payload = place.shell("echo x > clue; exit 1", keep_failed=True).payload
    assert payload["phases"][-1]["phase"] == "cleaning"
    assert "its folder is kept: " in payload["exit_message"]
    assert place.scratch_is_empty()


def test_what_cannot_be_cleaned_away_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.workplace.cleanup, "clear", lambda *_, **__: False)
    outcome = place.shell("echo $PILOTAGE_SCRATCH; echo x > clue; exit 1")
    assert "a process of it does not end, and may still use its folder" in outcome.payload["exit_message"]
    assert Path(log_of(outcome).strip(), "clue").read_text() == "x\n"
    assert "exit_message" not in place.shell("test ! -e clue").payload


def test_a_folder_that_cannot_be_emptied_is_told_and_used_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if Path(path).name == "stays":
            raise PermissionError(1, "no", path)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    payload = place.shell("echo x > stays; exit 1").payload
    folder = Path(payload["exit_message"].rpartition(": ")[2])
    assert "its folder cannot be emptied, and is left as it is: " in payload["exit_message"]
    assert stat.S_ISREG((folder / "stays").stat().st_mode)
    assert place.shell("test ! -e stays").payload["exit_code"] == "SUCCESS"
