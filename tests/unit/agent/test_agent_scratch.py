"""The folder of a slot: empty for every attempt, however it was left."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.agent.attempt import scratch as scratch_module
from pilotage.agent.attempt.logs import HEAD_BYTES, LogFile
from pilotage.agent.attempt.scratch import Scratch, remove_tree
from pilotage.agent.pilot.spool import encode_end


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    made = Scratch(str(tmp_path / "scratch"), 1)
    made.prepare()
    return made


def leave_file(folder: Path) -> None:
    (folder / "left").write_text("x")


def leave_folders(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "left").write_text("x")


def leave_and_date_back(folder: Path) -> None:
    """As an archive does that was unpacked here."""
    leave_file(folder)
    os.utime(folder, (0, 0))


def leave_locked(folder: Path) -> None:
    leave_folders(folder)
    (folder / "a").chmod(0)


@pytest.mark.parametrize("leave", [leave_file, leave_folders, leave_and_date_back, leave_locked])
def test_whatever_was_left_is_gone_for_the_next_and_for_the_one_after_it(scratch: Scratch, leave: Any) -> None:
    for _ in range(3):
        leave(Path(scratch.path))
        scratch.empty()
        assert list(Path(scratch.path).iterdir()) == []


@pytest.mark.parametrize("busy", ["left", "a/b/left", "a/b", "a"])
def test_what_the_system_will_not_remove_is_left_and_the_next_has_another_folder(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    leave_folders(Path(scratch.path))
    leave_file(Path(scratch.path))

    def refusing(real: Any, path: str, *, dir_fd: int | None = None) -> None:
        if path in (busy, scratch.path):  # as what is open over a network, or has something mounted on it
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, dir_fd=dir_fd)

    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(os, name, partial(refusing, getattr(os, name)))
    before = scratch.path
    assert not scratch.empty()
    assert os.path.lexists(f"{before}/{busy}")
    scratch.prepare()
    assert scratch.path != before
    assert list(Path(scratch.path).iterdir()) == []
    assert not remove_tree(before)


@pytest.mark.parametrize("flags, told", [(0x80000, [0xA0000]), (0xA0000, [])])
def test_the_folders_of_slots_are_asked_to_lie_apart_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, told: list[int]
) -> None:
    heard = []

    def ioctl(_: int, request: int, data: bytes) -> bytes:
        assert len(data) == 8
        if request == 0x80086601:
            return struct.pack("I4x", flags)
        assert request == 0x40086602
        heard.append(struct.unpack("I4x", data)[0])
        return data

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    Scratch(str(tmp_path / "scratch"), 1).prepare()
    assert heard == told


def test_a_file_system_that_knows_nothing_of_such_folders_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOTTY, "no such thing here")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    scratch = Scratch(str(tmp_path / "scratch"), 1)
    scratch.prepare()
    assert Path(scratch.path).is_dir()


def test_a_folder_that_nobody_touched_is_not_looked_into(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_module, "_empty_below", lambda *_: pytest.fail("it was looked into"))
    assert scratch.empty()


@pytest.mark.parametrize("touch", [lambda _: None, leave_file])
@pytest.mark.parametrize("mode", [0, 0o300, 0o500])
def test_a_folder_that_was_closed_to_its_owner_is_open_for_the_next(scratch: Scratch, mode: int, touch: Any) -> None:
    folder = Path(scratch.path)
    touch(folder)
    folder.chmod(mode)
    assert scratch.empty()
    assert (scratch.path, stat.S_IMODE(folder.stat().st_mode)) == (str(folder), 0o700)
    assert list(folder.iterdir()) == []


def test_a_folder_that_stays_closed_is_used_by_nobody(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    before = Path(scratch.path)
    before.chmod(0)
    monkeypatch.setattr(os, "fchmod", refuse)
    assert not scratch.empty()
    before.chmod(0o700)  # whoever clears up after the tests has no other rights
    scratch.prepare()
    assert Path(scratch.path) != before


def test_what_is_made_and_removed_again_leaves_a_folder_that_can_be_used(scratch: Scratch) -> None:
    path = scratch.path
    leave_file(Path(path))
    (Path(path) / "left").unlink()
    scratch.empty()
    assert scratch.path == path
    leave_file(Path(path))
    scratch.empty()
    assert list(Path(path).iterdir()) == []


def test_where_the_system_keeps_no_time_of_ours_every_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "utime", lambda *_, **__: None)
    scratch = Scratch(str(tmp_path / "scratch"), 1)
    scratch.prepare()
    leave_file(Path(scratch.path))
    scratch.empty()
    assert list(Path(scratch.path).iterdir()) == []


def test_a_log_that_was_closed_is_neither_looked_at_nor_cut(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"), "stdout")
    log.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # it gets the number of the log
    try:
        os.write(other, b"x" * (HEAD_BYTES + 1))
        assert not log.must_be_cut(0)
        assert log.written_bytes() == 0
        log.cut()
        assert os.fstat(other).st_size == HEAD_BYTES + 1
    finally:
        os.close(other)


def test_a_long_log_gives_its_space_back_when_its_attempt_is_over(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"), "stdout")
    try:
        log.begin()
        os.write(log.descriptor, b"a" * HEAD_BYTES + b"b" * 3 * HEAD_BYTES)
        last = log.last_lines(10)
        told = log.text(final=True)
        assert told is not None
        assert (told["head"][-1], told["tail"][-1], last) == ("a", "b", "b" * 10)
        assert os.fstat(log.descriptor).st_size == 0
        log.begin()
        assert log.text(final=True) is None
    finally:
        log.close()


TEXTS = st.text(max_size=20)
SECONDS = st.floats(0, 2e9, allow_nan=False).map(lambda value: round(value, 6))
PHASES = st.lists(
    st.fixed_dictionaries({"phase": st.sampled_from(["setup", "inputs"]), "started_at": SECONDS, "seconds": SECONDS})
)
FILES = st.lists(st.fixed_dictionaries({"name": TEXTS, "size_bytes": st.integers(0, 2**60), "sha256": TEXTS}))


@given(
    payload=st.fixed_dictionaries(
        {"exit_code": TEXTS, "phases": PHASES, "cpu_seconds": SECONDS},
        optional={
            "manifest": FILES,
            "exit_message": TEXTS,
            "exit_status": st.integers(-300, 300),
            "signal": st.integers(1, 64),
            "node": TEXTS,
            "reason": st.none() | TEXTS,
            "more": st.booleans(),
        },
    )
)
def test_the_end_of_an_attempt_is_written_as_json_would_be(payload: dict[str, Any]) -> None:
    told = json.loads(encode_end(payload))
    assert list(told) == list(payload)
    for name, value in payload.items():
        if name == "phases":
            assert [each["phase"] for each in told[name]] == [each["phase"] for each in value]
            for one, other in zip(told[name], value, strict=True):
                assert one["started_at"] == pytest.approx(other["started_at"], abs=1e-6)
                assert one["seconds"] == pytest.approx(other["seconds"], abs=1e-6)
        elif isinstance(value, float):
            assert told[name] == pytest.approx(value, abs=1e-6)
        else:
            assert told[name] == value


def held_open(folder: str) -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if os.path.realpath(each) == folder]


def test_a_slot_at_rest_holds_nothing_open_and_goes_on_in_the_same_folder(scratch: Scratch) -> None:
    path = scratch.path
    assert len(held_open(path)) == 1
    leave_file(Path(path))
    scratch.empty()
    scratch.rest()
    assert held_open(path) == []
    scratch.prepare()
    assert scratch.path == path
    leave_file(Path(path))
    scratch.empty()
    assert list(Path(path).iterdir()) == []


def test_a_link_that_took_the_place_of_a_folder_at_rest_is_not_followed(scratch: Scratch, precious: Path) -> None:
    before = Path(scratch.path)
    scratch.empty()
    scratch.rest()
    before.rmdir()
    before.symlink_to(precious)
    scratch.prepare()
    assert Path(scratch.path) != before
    assert scratch.empty()
    assert is_whole(precious)


# --- what is not ours -------------------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of somebody else."""
    folder = tmp_path / "precious"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("x")
    (folder / "file").write_text("x")
    return folder


def is_whole(precious: Path) -> bool:
    return (precious / "file").read_text() == (precious / "below" / "file").read_text() == "x"


@pytest.mark.parametrize("marked", [False, True])
def test_a_link_in_the_place_of_the_folder_is_not_followed(scratch: Scratch, precious: Path, *, marked: bool) -> None:
    before = Path(scratch.path)
    before.rmdir()
    before.symlink_to(precious)
    if marked:  # as somebody would who knows how an untouched folder is told
        os.utime(precious, ns=(scratch_module._MARK_NS, scratch_module._MARK_NS))
    assert not scratch.empty()
    assert is_whole(precious)
    scratch.prepare()
    assert Path(scratch.path) != before
    assert (list(Path(scratch.path).iterdir()), Path(scratch.path).is_symlink()) == ([], False)


def test_another_folder_in_its_place_is_left_as_it_is(scratch: Scratch, precious: Path) -> None:
    before = Path(scratch.path)
    before.rmdir()
    precious.rename(before)
    assert not scratch.empty()
    assert is_whole(before)


def test_links_within_it_are_removed_and_not_followed(scratch: Scratch, precious: Path) -> None:
    folder = Path(scratch.path) / "a"
    folder.mkdir()
    (folder / "link").symlink_to(precious)
    (Path(scratch.path) / "link").symlink_to(precious)
    assert scratch.empty()
    assert list(Path(scratch.path).iterdir()) == []
    assert is_whole(precious)


def test_a_link_that_was_there_before_the_pilot_is_not_followed(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "slot-1").symlink_to(precious)
    made = Scratch(str(tmp_path / "scratch"), 1)
    made.prepare()
    assert is_whole(precious)
    assert not remove_tree(str(tmp_path / "scratch" / "slot-1"))
    assert is_whole(precious)


def test_what_somebody_left_who_was_killed_while_he_made_a_folder_is_in_nobodys_way(tmp_path: Path) -> None:
    made = Scratch(str(tmp_path / "p1"), 1)
    Path(f"{made.path}-p1").mkdir(parents=True)
    made.prepare()
    assert list(Path(made.path).iterdir()) == []
