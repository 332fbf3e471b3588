from __future__ import annotations

import fcntl
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.agent import durable_files
from pilotage.agent.durable_files import (
    SegmentEnd,
    SegmentHeader,
    SegmentOrigin,
    SegmentTail,
    append_durably,
    close_lock,
    counters_of,
    end_text,
    first_line,
    header_text,
    is_gone,
    line_of,
    locked,
    locked_if_free,
    make_folder,
    open_lock,
    parse_end,
    parse_header,
    read_small,
    replace_file,
    tail_of,
    text_of,
)
from tests.kit.agent_runs import open_descriptors

_HEADER = SegmentHeader("app", "s", 7, 41, SegmentOrigin("host", "machine", 3, 4))


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _tail(file: Path) -> SegmentTail | None:
    with _opened(file) as descriptor:
        return tail_of(descriptor, size_bytes=file.stat().st_size)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_path_is_gone_only_where_the_system_says_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_gone(str(tmp_path / "file")) is False
    assert is_gone(str(tmp_path / "other")) is True
    assert is_gone(str(tmp_path / "file" / "below")) is False, "not a folder: it cannot be looked at"


def test_folders_and_files_are_for_one_user(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    replace_file(tmp_path / "small", b"x")
    append_durably(tmp_path / "long", b"x\n")
    close_lock(open_lock(tmp_path / "lock"))
    assert [_mode(tmp_path / name) for name in ("a", "a/b")] == [0o700] * 2
    assert [_mode(tmp_path / name) for name in ("small", "long", "lock")] == [0o600] * 3


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is made durable, in order."""
    names: list[str] = []
    for call in ("fsync", "fdatasync"):
        real = getattr(os, call)

        def sync(descriptor: int, real: Callable[[int], None] = real) -> None:
            names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            real(descriptor)

        monkeypatch.setattr(os, call, sync)
    return names


def test_what_is_written_is_made_durable_and_so_is_its_name(tmp_path: Path, synced: list[str]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    make_folder(root / "a" / "b")
    assert synced == ["root", "a"]
    make_folder(root / "a" / "b")
    append_durably(root / "file", b"x\n")
    append_durably(root / "file", b"y\n")
    replace_file(root / "small", b"x")
    assert synced[2:] == ["file", "root", "file", "small.new"]


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = open_descriptors()
    make_folder(tmp_path / "a")
    append_durably(tmp_path / "file", b"x\n")
    replace_file(tmp_path / "small", b"x")
    with locked(tmp_path / "lock"), locked_if_free(tmp_path / "lock"), locked_if_free(tmp_path / "other"):
        assert open_descriptors() == before + 3
    assert open_descriptors() == before


def test_a_forked_child_holds_no_lock(tmp_path: Path) -> None:
    descriptor = open_lock(tmp_path / "lock")
    pid = os.fork()
    if pid == 0:
        os._exit(Path(f"/proc/self/fd/{descriptor}").exists())
    assert os.waitpid(pid, 0)[1] == 0
    close_lock(descriptor)


def test_a_small_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert read_small(file) == b""
    for content in (b"a long one", b"short"):
        replace_file(file, content)
        assert read_small(file) == content
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "before, kept",
    [
        (b"", b""),
        (b"a\n", b"a\n"),
        (b"torn", b""),
        (b"a\ntorn", b"a\n"),
        (b"\n", b"\n"),
        (b"a\n" + b"t" * 65536, b"a\n"),
        (b"a\n" + b"t" * 65535, b"a\n"),
        (b"a\n" + b"t" * 200_000, b"a\n"),
        (b"t" * 200_000, b""),
        (b"b" * 200_000 + b"\n" + b"t" * 70_000, b"b" * 200_000 + b"\n"),
    ],
)
def test_a_torn_line_is_cut_off_before_whole_lines_are_added(tmp_path: Path, before: bytes, kept: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(before)
    append_durably(file, b"new\n")
    assert file.read_bytes() == kept + b"new\n"


def test_a_line_that_does_not_fit_leaves_nothing_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"whole\ntorn")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_durably(file, b"n" * 100 + b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == b"whole\n"


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with locked_if_free(tmp_path / "lock") as first:
        with locked_if_free(tmp_path / "lock") as second:
            assert (first, second) == (True, False)
        with locked_if_free(tmp_path / "lock") as third:
            assert third is False, "who did not get it does not let go of it"
    with locked_if_free(tmp_path / "lock") as fourth:
        assert fourth is True


def test_a_lock_is_let_go_of_also_where_its_file_is_still_open_elsewhere(tmp_path: Path) -> None:
    descriptor = open_lock(tmp_path / "lock")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    copy = os.dup(descriptor)
    close_lock(descriptor)
    with locked_if_free(tmp_path / "lock") as held:
        assert held
    os.close(copy)


def test_a_lock_that_is_closed_is_not_closed_again(tmp_path: Path) -> None:
    descriptor = open_lock(tmp_path / "lock")
    close_lock(descriptor)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # gets the number that is free
    assert other == descriptor
    close_lock(descriptor)
    fcntl.flock(other, fcntl.LOCK_SH)
    os.close(other)


def test_a_line_keeps_its_text_with_a_checksum() -> None:
    line = line_of(b"text")
    assert line == b"3b8ba7c7 text\n"
    assert text_of(line[:-1]) == b"text"
    for damaged in (b"3b8ba7c7 texu", b"3b8ba7c8 text", b"3b8ba7c7_text", b"", b"3b8ba7c7"):
        assert text_of(damaged) is None, damaged


def test_the_counters_of_an_event_are_read_from_its_head() -> None:
    assert counters_of(b'{"source":"app","stream":"s","n":7,"seen":41,"type":"x"}') == (7, 41)
    assert counters_of(b'{"source":"app","stream":"s","n":-7,"seen":41,"type":"x"}') is None
    assert counters_of(end_text(following=8, seen=41)) is None


def test_a_header_is_read_as_it_was_written() -> None:
    text = header_text(_HEADER)
    assert parse_header(text) == _HEADER
    assert b'"version":1,' in text
    for other in (
        text.replace(b'"version":1', b'"version":2'),
        b" " + text,
        text.replace(b'"inode"', b'"node"'),
        text.replace(b'"first"', b'"last"'),
        text[:-1],
        b"[1]",
        end_text(following=8, seen=41),
    ):
        assert parse_header(other) is None, other


def test_an_end_is_read_as_it_was_written() -> None:
    assert parse_end(end_text(following=8, seen=41)) == SegmentEnd(8, 41, "")
    assert parse_end(end_text(following=8, seen=41, retired="copied")) == SegmentEnd(8, 41, "copied")
    assert parse_end(header_text(_HEADER)) is None
    assert parse_end(b'{"end":') is None


@pytest.mark.parametrize("size_bytes", [0, 1, 4000, 4095, 4096, 4097, 32768, 300_000])
@pytest.mark.parametrize("torn_bytes", [0, 1, 4096, 40_000])
@pytest.mark.parametrize("before", [b"", b"first\n"])
def test_the_last_whole_line_is_found_however_long_it_is(
    tmp_path: Path, before: bytes, size_bytes: int, torn_bytes: int
) -> None:
    line = line_of(b"x" * size_bytes)
    (tmp_path / "file").write_bytes(before + line + b"t" * torn_bytes)
    assert _tail(tmp_path / "file") == SegmentTail(len(before) + len(line), b"x" * size_bytes)


def test_a_tail_tells_a_damaged_line_and_a_file_without_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(line_of(b"good") + b"damaged\n")
    assert _tail(file) == SegmentTail(file.stat().st_size, None)
    file.write_bytes(b"\n" + line_of(b"good"))
    assert _tail(file) == SegmentTail(file.stat().st_size, b"good")
    file.write_bytes(b"\n")
    assert _tail(file) == SegmentTail(1, None)
    for content in (b"", b"torn", b"t" * 50_000):
        file.write_bytes(content)
        assert _tail(file) is None


def test_what_was_added_after_the_look_at_the_size_is_no_part_of_the_tail(tmp_path: Path) -> None:
    first, file = line_of(b"first"), tmp_path / "file"
    file.write_bytes(first * 1000 + line_of(b"more"))
    with _opened(file) as descriptor:
        assert tail_of(descriptor, size_bytes=1000 * len(first)) == SegmentTail(1000 * len(first), b"first")


@pytest.mark.parametrize(
    "line_max, expected", [(32767, None), (32768, SegmentTail(14, b"good")), (300_000, SegmentTail(14, b"good"))]
)
def test_a_newline_is_looked_for_as_far_back_as_the_longest_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_max: int, expected: SegmentTail | None
) -> None:
    monkeypatch.setattr(durable_files, "_LINE_MAX", line_max)
    (tmp_path / "file").write_bytes(line_of(b"good") + b"t" * 100_000)
    assert _tail(tmp_path / "file") == expected


@pytest.mark.parametrize(
    "text, found", [(b"", b""), (b"x" * 4086, b"x" * 4086), (b"x" * 4087, None)], ids=["empty", "longest", "longer"]
)
def test_a_first_line_is_short(tmp_path: Path, text: bytes, found: bytes | None) -> None:
    (tmp_path / "file").write_bytes(line_of(text) + line_of(b"next"))
    with _opened(tmp_path / "file") as descriptor:
        assert first_line(descriptor) == found


def test_a_first_line_without_its_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(line_of(b"header")[:-1])
    with _opened(tmp_path / "file") as descriptor:
        assert first_line(descriptor) is None
