"""Files on their way in `pilotage status`: how far each is, how fast, and what went wrong last."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.cli.jobs.status import FILES_SHOWN_MAX, transfer_lines


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no line is shortened, whichever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "200")


def moving(**fields: Any) -> dict[str, Any]:
    usual = {
        "kind": "fetch", "file": "s3://bucket/in.root", "store": "s3://bucket", "site": "lyon", "bytes_done": 2**20,
        "total_bytes": 2**30, "bytes_per_second": 1024.4, "seconds": 7.0, "tries": 1, "fault": "",
    }  # fmt: skip
    return usual | fields


def test_each_file_has_a_line() -> None:
    lines = [*transfer_lines([moving(), moving(kind="store", store="tape", fault="timed-out: no answer", tries=3)])]
    assert [" ".join(line.split()) for line in lines] == [
        "files on their way",
        "s3://bucket/in.root to lyon 1 MiB of 1 GiB 1 KiB/s",
        "s3://bucket/in.root to tape 1 MiB of 1 GiB 1 KiB/s try 3 after timed-out: no answer",
    ]


def test_a_size_that_is_not_known_and_a_file_that_is_not_shown_to_everybody() -> None:
    (_, line) = transfer_lines([moving(file="", total_bytes=None)])
    assert " ".join(line.split()) == "s3://bucket to lyon 1 MiB of ? 1 KiB/s"


def test_nothing_is_said_when_nothing_moves_and_not_too_much_when_all_does() -> None:
    assert [*transfer_lines([])] == []
    lines = [*transfer_lines([moving()] * (FILES_SHOWN_MAX + 3))]
    assert len(lines) == FILES_SHOWN_MAX + 2
    assert lines[-1] == "    … and 3 more\n"
