"""What is told of a failure: the reason, the words for people, and what the system meant."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilotage.agent.attempt.diagnosis import (
    Failure,
    exit_message,
    from_system,
    looks_full,
    not_started,
    of_exit_status,
    of_signal,
    size_text,
)
from pilotage.agent.errors import AgentError, EventRefused, SpoolError, SpoolFull, spool_error
from tests.kit.agent_runs import open_descriptors


@pytest.mark.parametrize(
    "size_bytes, text",
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**20 - 1, "1024 KiB"), (2**20, "1 MiB"),
        (2**30, "1 GiB"), (5 * 2**39, "2.5 TiB"), (2**40, "1 TiB"), (2**50, "1024 TiB"),
    ],
)  # fmt: skip
def test_a_size_is_told_in_the_largest_unit_that_it_fills(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    "status, hint",
    [(1, ""), (127, ""), (128, ""), (129, "signal 1 (SIGHUP)"), (137, "signal 9 (SIGKILL)"), (193, "signal 65"), (194, "")],
)  # fmt: skip
def test_an_exit_status_above_128_may_tell_of_a_signal(status: int, hint: str) -> None:
    failure = of_exit_status(status, what="prog")
    more = f", by which a shell reports {hint}" if hint else ""
    assert (failure.reason, failure.exit_status, failure.signal_number) == ("application-error", status, None)
    assert failure.message == f"prog ended with exit code {status}{more}"


@pytest.mark.parametrize(
    "number, reason, words",
    [
        (signal.SIGSEGV, "segmentation-fault", "ended by a segmentation fault (signal 11 (SIGSEGV))"),
        (signal.SIGBUS, "segmentation-fault", "ended by a bus error (signal 7 (SIGBUS))"),
        (signal.SIGKILL, "signal", "was ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_signal_is_named(number: int, reason: str, words: str) -> None:
    failure = of_signal(number, what="prog")
    assert (failure.reason, failure.signal_number, failure.exit_status) == (reason, number, None)
    assert failure.message == f"prog {words}"


@pytest.mark.parametrize(
    "error, reason, message",
    [
        (OSError(errno.ENOSPC, "No room", "/f"), "disk-full", "the disk is full: copying (/f)"),
        (OSError(errno.EDQUOT, "No room"), "disk-full", "the disk is full: copying"),
        (OSError(errno.EIO, "Bad disk", "/f"), "platform-failure", "copying failed: Bad disk (/f)"),
        (OSError("odd"), "platform-failure", "copying failed: OSError"),
    ],
)
def test_what_the_system_says_is_told(error: OSError, reason: str, message: str) -> None:
    failure = from_system(error, doing="copying")
    assert (failure.reason, failure.message) == (reason, message)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content, mode in (
        ("plain", "x", 0o644), ("program", "x", 0o755), ("script", "#!/no/interpreter -x\nrest", 0o755),
        ("bare", "#!\n", 0o755), ("locked", "#! /bin/sh\n", 0o755),
    ):  # fmt: skip
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tool").write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    "word, number, words",
    [
        ("absent", errno.ENOENT, "no folder of PATH has it: /none:sub"),
        ("./absent", errno.ENOENT, "there is no such file"),
        ("plain", errno.ENOENT, "no folder of PATH has it; to run the file of this name in its own folder, write ./plain"),
        ("sub/gone", errno.ENOENT, "there is no such file"),
        ("./script", errno.ENOENT, "its first line asks for '/no/interpreter', which does not exist"),
        ("./program", errno.ENOENT, "its loader does not exist"),
        ("./bare", errno.ENOENT, "its loader does not exist"),
        ("tool", errno.ENOENT, "its loader does not exist"),
        ("./sub", errno.EACCES, "it is a folder"),
        ("./plain", errno.EACCES, "the file is not executable"),
        ("tool", errno.EACCES, "the file is not executable"),
        ("./locked", errno.EACCES, "no permission, for it or for '/bin/sh'"),
        ("./program", errno.EACCES, "no permission"),
        ("./absent", errno.EACCES, "no permission"),
        ("./program", errno.ENOEXEC, "it is neither a program for this machine nor a script whose first line begins with #!"),
        ("./program", errno.E2BIG, "its arguments and environment exceed the system's limit"),
        ("./program", errno.EINVAL, "an argument contains a null character"),
        ("./program", errno.ELOOP, os.strerror(errno.ELOOP)),
    ],
)  # fmt: skip
def test_why_a_command_does_not_start_is_told_as_far_as_one_can_see(
    folder: Path, word: str, number: int, words: str
) -> None:
    before = open_descriptors()
    failure = not_started(word, number, folder=str(folder), path="/none:sub")
    assert failure.reason == "command-not-found"
    assert failure.message == f"{word!r} cannot be started: {words}"
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "blocks, files, free_files, full",
    [(16, 9, 9, False), (15, 9, 9, True), (16, 9, 0, True), (16, 0, 0, False), (16, 9, 1, False)],
)
def test_a_disk_is_full_without_blocks_or_without_inodes(
    monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, free_files: int, *, full: bool
) -> None:
    left = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=files, f_favail=free_files)
    monkeypatch.setattr(os, "statvfs", lambda _: left)
    assert looks_full("/", "") is full


def test_a_disk_is_full_where_the_command_says_so_and_not_where_nobody_can_look(tmp_path: Path) -> None:
    assert looks_full(str(tmp_path / "gone"), "cp: No space left on device") is True
    assert looks_full(str(tmp_path / "gone"), "fine") is False


@pytest.mark.parametrize(
    "first, last, told",
    [
        ("why", "", "why"),
        ("why", "last lines", "why\nlast lines"),
        ("w" * 3000, "last lines", "w" * 2000),
        ("w" * 1960, "last lines", "w" * 1960),
        ("w" * 1959, "l" * 50, "w" * 1959 + "\n" + "l" * 40),
        ("why", "a" + "l" * 1996, "why\n" + "l" * 1996),
    ],
    ids=["alone", "both", "long", "no room", "least room", "cut"],
)
def test_a_message_has_as_many_last_lines_as_there_is_room_for(first: str, last: str, told: str) -> None:
    assert exit_message(first, last) == told


def test_a_failure_says_nothing_that_it_was_not_told() -> None:
    failure = Failure("signal", "why")
    assert (failure.phase, failure.exit_status, failure.signal_number, failure.binary) == ("", None, None, None)
    assert str(failure) == "why"


def test_an_error_is_told_in_its_parts() -> None:
    assert str(AgentError("it failed")) == "it failed"
    assert str(AgentError("it failed", subject="s", got="b")) == "s: it failed, got b"
    whole = AgentError("it failed", subject="s", expected="a", got="b", next_step="do this")
    assert str(whole) == "s: it failed; expected a, got b\n  do this"
    refused = EventRefused("no", code="conflict", subject="event 7")
    assert (refused.code, refused.what, refused.subject, refused.retryable) == ("conflict", "no", "event 7", False)
    assert "refused.jsonl" in refused.next_step


@pytest.mark.parametrize(
    "number, kind, words",
    [
        (errno.ENOSPC, SpoolFull, "no room while writing"), (errno.EDQUOT, SpoolFull, "no room while writing"),
        (errno.EFBIG, SpoolFull, "no room while writing"), (errno.ENOLCK, SpoolError, "has no file locks"),
        (errno.ENOSYS, SpoolError, "has no file locks"), (errno.EIO, SpoolError, "failed while writing"),
    ],
)  # fmt: skip
def test_an_error_of_the_disk_says_what_to_do(number: int, kind: type[SpoolError], words: str) -> None:
    error = spool_error(OSError(number, os.strerror(number)), doing="writing", subject="/spool")
    assert type(error) is kind
    assert words in error.what
    assert os.strerror(number) in error.what
    assert error.subject == "/spool"
    assert error.retryable is (kind is SpoolFull)
