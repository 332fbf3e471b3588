"""What an application is told through its environment, and the file with its token."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.attempt.environment import (
    OWN_NAMES,
    SIZE_BYTES,
    Environments,
    SlotToken,
    base_environment,
    own_entries,
    spool_name,
    threads_of,
)
from tests.kit.agent_runs import open_descriptors

_REF = {"job": "j1", "package": "1.2.3", "attempt": 4}
_WORK = {"path": "r/001", "index": 5, "folder": "/job"}


def _told(assignment: dict[str, Any], **named: str) -> dict[str, str]:
    entries = own_entries({"ref": _REF, **assignment}, _WORK, scratch="/scratch", **named)
    return dict(each.decode().removeprefix("PILOTAGE_").split("=", 1) for each in entries)


def test_an_attempt_without_a_demand_has_one_core_and_no_more() -> None:
    expected = {
        "JOB": "j1", "PACKAGE": "1.2.3", "ATTEMPT": "4", "PATH": "r/001", "EPOCH": "1", "INDEX": "5", "SEEN": "0",
        "CORES": "1", "MEMORY_BYTES": "0", "GPUS": "0", "NODES": "1", "SCRATCH": "/scratch", "FOLDER": "/job",
    }  # fmt: skip
    assert _told({}) == expected
    assert _told({"demand": {"wall_seconds": 1.0}}) == expected
    assert [f"PILOTAGE_{name}" for name in _told({})] == list(OWN_NAMES)


def test_an_attempt_is_told_what_it_may_take_and_where_its_events_go() -> None:
    demand = {"cores_hundredths": 250, "memory_bytes": 7, "gpus": 2, "nodes": 3}
    told = _told({"epoch": 6, "seen": 8, "demand": demand}, spools="/spools")
    assert {name: told[name] for name in ("EPOCH", "SEEN", "CORES", "MEMORY_BYTES", "GPUS", "NODES")} == {
        "EPOCH": "6", "SEEN": "8", "CORES": "2.5", "MEMORY_BYTES": "7", "GPUS": "2", "NODES": "3",
    }  # fmt: skip
    assert told["SPOOL"] == f"/spools/{spool_name(_REF)}" == "/spools/j1-1.2.3-4"


def test_nothing_that_the_agent_was_told_is_passed_on() -> None:
    own = {"PATH": "/bin", "PILOTAGE_TOKEN": "secret", "PILOTAGE_SITE": "old"}
    assert base_environment(own, SITE="here", NODE="") == {"PATH": "/bin", "PILOTAGE_SITE": "here"}


def test_what_is_ours_goes_before_what_the_document_asks_for_and_that_before_the_base() -> None:
    environments = Environments({"A": "base", "B": "base"})
    ours = [b"PILOTAGE_JOB=j1"]
    assert environments.make(ours, {}, threads=0) == [b"A=base", b"B=base", b"PILOTAGE_JOB=j1"]
    made = environments.make(ours, {"B": "asked", "C": "asked", "PILOTAGE_JOB": "asked"}, threads=0)
    assert made == [b"A=base", b"B=asked", b"C=asked", b"PILOTAGE_JOB=j1"]


@pytest.mark.parametrize(
    "base, asked, threads, told",
    [({}, {}, 3, b"3"), ({}, {}, 0, None), ({"OMP_NUM_THREADS": "9"}, {}, 3, b"9"), ({}, {"OMP_NUM_THREADS": "8"}, 3, b"8")],
)  # fmt: skip
def test_threads_are_said_where_nobody_else_says_them(
    base: dict[str, str], asked: dict[str, str], threads: int, told: bytes | None
) -> None:
    entries = Environments(base).make([], asked, threads=threads)
    assert [each for each in entries if each.startswith(b"OMP_")] == ([b"OMP_NUM_THREADS=" + told] if told else [])


@pytest.mark.parametrize(
    "demand, threads",
    [
        ({}, 1), ({"cores_hundredths": 50}, 1), ({"cores_hundredths": 99}, 1), ({"cores_hundredths": 100}, 1),
        ({"cores_hundredths": 101}, 0), ({"cores_hundredths": 150}, 0), ({"cores_hundredths": 200}, 2),
        ({"cores_hundredths": 800, "nodes": 1}, 8), ({"cores_hundredths": 800, "nodes": 2}, 1),
    ],
)  # fmt: skip
def test_a_library_may_start_as_many_threads_as_there_are_whole_cores(demand: dict[str, int], threads: int) -> None:
    assert threads_of(demand) == threads


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_token_fills_its_file_and_leaves_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "file":
        monkeypatch.delattr(os, "memfd_create")
    before = open_descriptors()
    token = SlotToken(str(tmp_path / "token"))
    for text in ("a" * SIZE_BYTES, "short", "", "ö"):
        token.show(text)
        shown = text.replace("ö", "?").encode().ljust(SIZE_BYTES, b"\n")
        assert Path(token.path).read_bytes() == shown
        assert stat.S_IMODE(Path(token.path).stat().st_mode) == 0o600
        plain = Path(token.plain_file())
        assert plain.read_bytes() == shown
        assert stat.S_IMODE(plain.stat().st_mode) == 0o600
    with pytest.raises(OSError, match="a token of 513 bytes is too long"):
        token.show("a" * (SIZE_BYTES + 1))
    token.close()
    token.close()
    assert open_descriptors() == before


def test_a_token_in_memory_cannot_be_cut_off(tmp_path: Path) -> None:
    token = SlotToken(str(tmp_path / "token"))
    assert token.path.startswith(f"/proc/{os.getpid()}/fd/")
    for size_bytes in (0, SIZE_BYTES + 1):
        with pytest.raises(PermissionError):
            os.truncate(token.path, size_bytes)
    assert Path(token.path).read_bytes() == b"\n" * SIZE_BYTES
    assert not (tmp_path / "token").exists()
    token.close()
