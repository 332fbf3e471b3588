"""Files of an attempt: named, linked, copied, moved, and known by their content."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt import files
from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.files import (
    KnownFiles,
    check_name,
    check_output,
    copy,
    copy_sharing,
    fixed_folder,
    is_pattern,
    link_or_copy,
    make_parents,
    move,
    names_below,
)
from pilotage.agent.attempt.inputs.placing import PlacedInput, changed_input
from tests.kit.agent_runs import open_descriptors


def _refuse(number: int) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(b"data")
    (tmp_path / "source").chmod(0o555)
    return tmp_path / "source"


@pytest.mark.parametrize("name", ["a", "a/b", "..a", "a..b/c", ".pilotages/x", "a/.pilotage"])
def test_a_name_within_the_folder_can_be_published(name: str) -> None:
    check_name(name)
    check_output(name)


@pytest.mark.parametrize("name", ["", "/a", "a\0b", "..", "../a", "a/../b", "a/.."])
def test_a_name_that_leads_out_is_refused(name: str) -> None:
    for check in (check_name, check_output):
        with pytest.raises(Failure) as raised:
            check(name)
        assert raised.value.reason == "platform-failure"


@pytest.mark.parametrize("name", [".pilotage", ".pilotage/x", ".pilotage-staged", ".pilotage-staged/x/y"])
def test_what_is_our_own_is_not_published(name: str) -> None:
    check_name(name)
    with pytest.raises(Failure) as raised:
        check_output(name)
    assert raised.value.reason == "missing-output"


def test_a_file_gets_a_second_name_or_a_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link_or_copy(str(source), str(tmp_path / "linked")) is True
    assert (tmp_path / "linked").samefile(source)
    for number in (errno.EXDEV, errno.EPERM, errno.EMLINK):
        monkeypatch.setattr(os, "link", _refuse(number))
        target = tmp_path / f"copied-{number}"
        assert link_or_copy(str(source), str(target)) is False
        assert target.read_bytes() == b"data"
        assert stat.S_IMODE(target.stat().st_mode) == 0o755, "as it was, and its owner may write"
    monkeypatch.setattr(os, "link", _refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        link_or_copy(str(source), str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_blocks_are_shared_where_the_file_system_can(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, before = tmp_path / "target", open_descriptors()
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda _, request, __: asked.append(request))
    assert copy_sharing(str(source), str(target)) is True
    assert (asked, stat.S_IMODE(target.stat().st_mode)) == ([0x40049409], 0o755)
    monkeypatch.setattr(fcntl, "ioctl", _refuse(errno.EOPNOTSUPP))
    assert copy_sharing(str(source), str(target)) is False
    assert not target.exists()
    assert open_descriptors() == before


def test_a_copy_that_fails_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "copy_sharing", lambda *_: False)
    monkeypatch.setattr(os, "chmod", _refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        copy(str(source), str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_file_is_moved_also_between_file_systems(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real = tmp_path / "target", os.rename
    move(str(source), str(target))
    assert (source.exists(), target.read_bytes()) == (False, b"data")

    def rename(old: str, new: str) -> None:
        if not old.endswith(".part"):
            raise OSError(errno.EXDEV, "another device")
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    move(str(target), str(source))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source"]
    assert source.read_bytes() == b"data"
    monkeypatch.setattr(os, "rename", _refuse(errno.EACCES))
    with pytest.raises(PermissionError):
        move(str(source), str(target))
    assert (source.exists(), target.exists()) == (True, False)


def test_folders_are_made_for_a_name(tmp_path: Path) -> None:
    make_parents(str(tmp_path), "file")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        make_parents(str(tmp_path), "a/b/file")
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == ["a", "a/b"]


def test_the_names_below_a_folder_are_those_of_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    assert sorted(names_below(str(tmp_path))) == ["a/b/three", "a/two", "link", "one"]
    assert list(names_below(str(tmp_path / "gone"))) == []


@pytest.mark.parametrize(
    "pattern, folder",
    [
        ("*", ""), ("a/*", "a"), ("a/b/*.txt", "a/b"), ("a/*/c/x", "a"), ("a/[*]b/*", "a/*b"), ("[[]/x*", "["), ("a/b", "a"),
        ("?/x", ""), ("a/[bc]/d/*", "a"),
    ],
)  # fmt: skip
def test_a_pattern_says_the_folder_as_far_as_it_is_fixed(pattern: str, folder: str) -> None:
    assert fixed_folder(pattern) == folder


def test_a_name_with_a_special_character_is_a_pattern() -> None:
    assert [is_pattern(name) for name in ("a*", "?", "[", "a]", "a.b", "")] == [True, True, True, False, False, False]


def test_what_is_known_of_a_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = files.sha256_of

    def counted(path: str, size: int) -> str:
        read.append(path)
        return real(path, size)

    monkeypatch.setattr(files, "sha256_of", counted)
    file, known = tmp_path / "file", KnownFiles()
    file.write_bytes(b"data")
    path, status, expected = str(file), file.stat(), hashlib.sha256(b"data").hexdigest()
    assert [known.sha256(path, status) for _ in range(3)] == [expected] * 3
    assert read == [path]
    assert known.made(path, status) == expected
    assert read == [path] * 2, "what a command has just made is always read"
    known.keep(status, "0" * 64)
    assert known.sha256(path, status) == "0" * 64
    assert known.made(path, status) == expected
    assert known.is_known(status, expected) is True


def test_no_more_files_are_known_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_KNOWN_MAX", 2)
    known, statuses = KnownFiles(), []
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"x" * number)
        statuses.append((tmp_path / str(number)).stat())
    for number, expected in enumerate([[True, False, False], [True, True, False], [False, False, True]]):
        known.keep(statuses[number], "s")
        assert [known.is_known(status, "s") for status in statuses] == expected


@pytest.mark.parametrize(
    "change, is_changed",
    [("nothing", False), ("content", True), ("time", True), ("replaced", False), ("removed", False), ("copy", False)],
)
def test_an_input_is_changed_where_the_file_itself_is_another(tmp_path: Path, change: str, *, is_changed: bool) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"data")
    status = file.stat()
    placed = PlacedInput("in", str(file), status.st_ino, status.st_size, status.st_mtime_ns)
    if change in ("content", "copy"):
        file.write_bytes(b"more data")
        os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns + 1000))
    elif change == "replaced":
        (tmp_path / "new").write_bytes(b"other data")
        (tmp_path / "new").rename(file)
    elif change == "removed":
        file.unlink()
    if change == "copy":
        placed = PlacedInput("in")
    assert changed_input([PlacedInput("copy"), placed]) == (placed if is_changed else None)
