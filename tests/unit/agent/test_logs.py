"""What is kept of a log: its head, its tail, and how much there was in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.logs import HEAD_BYTES, TAIL_BYTES, LogFile, LogScans, Scan, last_lines_of
from tests.kit.agent_runs import open_descriptors


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    log = LogFile(str(tmp_path / "log"), "stdout")
    log.begin()
    yield log
    if log.descriptor >= 0:
        log.close()


def _content(size_bytes: int, start: int = 0) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(start, start + size_bytes // 8 + 1))[:size_bytes]


def _expected(content: bytes) -> dict[str, Any]:
    head, rest = content[:HEAD_BYTES], content[HEAD_BYTES:]
    told: dict[str, Any] = {"stream": "stdout", "head": head.decode()}
    if rest:
        told["tail"] = rest[-TAIL_BYTES:].decode()
    if len(rest) > TAIL_BYTES:
        told["dropped_bytes"] = len(rest) - TAIL_BYTES
    return told


_BOTH = HEAD_BYTES + TAIL_BYTES


@pytest.mark.parametrize("size_bytes", [1, HEAD_BYTES, HEAD_BYTES + 1, _BOTH - 1, _BOTH, _BOTH + 1, 3 * _BOTH])
def test_a_log_that_was_never_cut_is_told_by_its_ends(log: LogFile, size_bytes: int) -> None:
    content = _content(size_bytes)
    os.write(log.descriptor, content)
    assert log.text(final=False) == {**_expected(content), "final": False}
    assert log.text(final=True) == _expected(content)
    assert os.fstat(log.descriptor).st_size == (0 if size_bytes > HEAD_BYTES else size_bytes)


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD_BYTES + 8, 8], [HEAD_BYTES + 8, 0], [3 * _BOTH, 8, 16], [3 * _BOTH, _BOTH, 0], [HEAD_BYTES + 8, 3 * _BOTH, 8],
        [HEAD_BYTES, 8],
    ],
)  # fmt: skip
def test_a_log_that_was_cut_is_told_as_one_that_was_not(log: LogFile, pieces: list[int]) -> None:
    content = b""
    for number, size_bytes in enumerate(pieces):
        piece = _content(size_bytes, start=number * 100_000)
        content += piece
        os.write(log.descriptor, piece)
        if number + 1 < len(pieces):
            log.cut()
            assert os.fstat(log.descriptor).st_size == HEAD_BYTES
    assert log.written_bytes() == len(content)
    assert log.text(final=True) == _expected(content)


def test_what_is_cut_away_is_shown_once_and_in_order(tmp_path: Path) -> None:
    log, shown = LogFile(str(tmp_path / "log"), "stdout"), bytearray()
    assert log.is_shown() is False
    log.begin(on_dropped=shown.extend)
    assert log.is_shown() is True
    first, second = _content(3 << 20), _content(_BOTH, start=900_000)
    os.write(log.descriptor, first)
    assert log.shown_bytes() == 0
    log.cut()
    assert (bytes(shown), log.shown_bytes()) == (first, HEAD_BYTES)
    os.write(log.descriptor, second)
    log.cut()
    assert bytes(shown) == first + second
    log.close()


def test_a_log_begins_anew(log: LogFile) -> None:
    os.write(log.descriptor, _content(2 * _BOTH))
    log.cut()
    log.begin()
    assert (log.written_bytes(), log.shown_bytes(), log.text(final=True)) == (0, 0, None)
    log.begin()
    os.write(log.descriptor, b"next")
    assert log.text(final=True) == {"stream": "stdout", "head": "next"}
    log.begin()
    assert log.written_bytes() == 0


def test_a_log_that_was_empty_in_between_begins_anew_all_the_same(log: LogFile) -> None:
    assert log.text(final=False) is None
    os.write(log.descriptor, b"late")
    log.begin()
    assert log.written_bytes() == 0


@pytest.mark.parametrize(
    "size_bytes, limit, cut",
    [
        (HEAD_BYTES, 0, False), (HEAD_BYTES + 1, 0, True), (2 * HEAD_BYTES, 2 * HEAD_BYTES, False),
        (2 * HEAD_BYTES + 1, 2 * HEAD_BYTES, True),
    ],
)  # fmt: skip
def test_a_log_is_cut_where_it_is_larger_than_its_limit(
    log: LogFile, size_bytes: int, limit: int, *, cut: bool
) -> None:
    os.write(log.descriptor, b"x" * size_bytes)
    assert log.must_be_cut(limit) is cut


def test_a_log_that_is_closed_is_gone_and_not_cut(log: LogFile) -> None:
    before = open_descriptors()
    os.write(log.descriptor, b"x" * 2 * _BOTH)
    log.close()
    assert not Path(log.path).exists()
    assert open_descriptors() == before - 1
    log.cut()
    assert (log.must_be_cut(0), log.written_bytes()) == (False, 0)


@pytest.mark.parametrize(
    "content, characters_max, told",
    [
        (b"", 10, ""),
        (b"abc\n\n", 10, "abc"),
        (b"abc\ndefghij", 11, "abc\ndefghij"),
        (b"abc\ndefghij", 10, "defghij"),
        (b"abcdef\nghij", 10, "bcdef\nghij"),
        (b"abcde\nghijk", 10, "ghijk"),
        (b"abcdefghijkl", 10, "cdefghijkl"),
        ("ö".encode() * 12, 10, "ö" * 10),
    ],
)
def test_last_lines_begin_with_a_line_where_that_is_not_too_far(
    log: LogFile, content: bytes, characters_max: int, told: str
) -> None:
    os.write(log.descriptor, content)
    assert log.last_lines(characters_max) == told


def test_last_lines_of_a_log_that_was_cut_are_found_in_what_is_left(log: LogFile) -> None:
    os.write(log.descriptor, _content(_BOTH))
    log.cut()
    assert log.last_lines(7) == _content(_BOTH)[-8:-1].decode()
    os.write(log.descriptor, b"the end\n")
    assert log.last_lines(7) == "the end"


def test_what_went_wrong_is_looked_for_in_stderr_first(tmp_path: Path) -> None:
    logs = [LogFile(str(tmp_path / name), name) for name in ("stdout", "pre-stderr")]
    assert last_lines_of(logs, 10) == ""
    os.write(logs[0].descriptor, b"out")
    assert last_lines_of(logs, 10) == "out"
    os.write(logs[1].descriptor, b"err")
    assert last_lines_of(logs, 10) == "err"
    for log in logs:
        log.close()


def _found(*pieces: bytes, patterns: list[dict[str, str]] | None = None) -> tuple[str, str] | None:
    scan = Scan("log", patterns or [{"pattern": "^bad"}])
    for piece in pieces:
        scan.feed(piece)
    found = scan.finish()
    return (found.reason, found.message) if found is not None else None


@pytest.mark.parametrize(
    "pieces, line",
    [
        ([b"good\nbad 1\nbad 2\n"], "bad 1"), ([b"good\nba", b"d 1\n"], "bad 1"), ([b"no bad\n"], None), ([b"bad"], "bad"),
        ([b"good\n", b"bad", b" end"], "bad end"), ([], None), ([b"bad\n", b"bad again\n"], "bad"), ([b"goo", b"bad\n"], None),
        ([b"bad" + b"x" * (1 << 20)], "bad" + "x" * 297), ([b"x" * 1048577, b"bad\n"], "bad"), ([b"x" * 1048576, b"bad\n"], None),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_pattern_is_looked_for_line_by_line(pieces: list[bytes], line: str | None) -> None:
    assert _found(*pieces) == (None if line is None else ("failure-pattern", f"log says {line!r}"))


def test_a_pattern_has_its_reason_and_one_that_cannot_be_read_fails() -> None:
    patterns = [{"pattern": "a"}, {"pattern": "b", "reason": "looping"}]
    assert _found(b"b\n", patterns=patterns) == ("looping", "log says 'b'")
    with pytest.raises(Failure, match="is invalid") as raised:
        Scan("log", [{"pattern": "("}])
    assert raised.value.reason == "platform-failure"


def test_patterns_are_for_stderr_unless_they_say_so_and_for_files_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "own.log").write_text("bad own")
    (tmp_path / "out").write_text("bad out")
    logs = [LogFile(str(tmp_path / name), name) for name in ("stdout", "stderr")]
    os.write(logs[0].descriptor, b"bad stdout")
    said: dict[str, Any] = {"failure_patterns": [{"pattern": "bad"}], "binaries": [{"stdout": "out"}]}
    before = open_descriptors()

    def told(**more: Any) -> str | None:
        found = LogScans({**said, **more}).look(logs, str(tmp_path))
        return found.message if found is not None else None

    assert told() is None
    assert told(failure_patterns=[]) is None
    assert told(failure_patterns=[{"pattern": "bad", "file": "stdout"}]) == "stdout says 'bad stdout'"
    assert told(failure_patterns=[{"pattern": "bad o", "file": "stdout"}]) == "out says 'bad out'"
    assert told(failure_patterns=[{"pattern": "bad", "file": "own.log"}]) == "own.log says 'bad own'"
    assert told(failure_patterns=[{"pattern": "bad", "file": "none.log"}]) is None
    os.write(logs[1].descriptor, b"bad stderr")
    assert told() == "stderr says 'bad stderr'"
    scans = LogScans(said)
    assert (scans.of_stream("stderr") is None, scans.of_stream("stdout") is None) == (False, True)
    assert open_descriptors() == before
    for log in logs:
        log.close()
