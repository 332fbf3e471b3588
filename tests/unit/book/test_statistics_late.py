"""What statistics counted a package with is remembered with it, whatever its job learns later, and over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.book.rows import rows
from pilotage.model.events.payloads import AttemptCreated, JobAccepted
from tests.conformance.journal.harness import SqliteHarness, keeper
from tests.kit.events import START, Stream, registered

Sketches = dict[tuple[int, int, str], Any]


def sketches(folder: Path, *, reopened: bool) -> Sketches:
    """The statistics after an acceptance that came late and a second attempt elsewhere."""
    with SqliteHarness(folder) as harness:
        by = Stream()
        about: dict[str, Any] = {"job": "j1", "package": "1.1.1"}
        journal = harness.open()
        for event in (
            by.event(registered(), job="j1"),
            by.event(AttemptCreated(site="lyon", lease_seconds=60.0), **about, attempt=1, time=START + 5),
            by.event(JobAccepted(), job="j1", time=START + 1),
            by.event(AttemptCreated(site="prague", lease_seconds=60.0), **about, attempt=2, time=START + 7),
        ):
            journal = harness.reopen() if reopened else journal
            keeper(journal).take([event])
        return {
            (row.width_seconds, row.slice, row.site): msgspec.msgpack.decode(row.sketch, strict=False)
            for row in harness.rows(rows.StatisticRow)
        }


@pytest.mark.parametrize("reopened", [True, False])
def test_no_count_is_negative(tmp_path: Path, *, reopened: bool) -> None:
    found = sketches(tmp_path, reopened=reopened)
    assert found
    assert all(count > 0 for sketch in found.values() for count in sketch[0].values()), found


def test_a_restart_changes_no_statistics(tmp_path: Path) -> None:
    assert sketches(tmp_path / "one", reopened=True) == sketches(tmp_path / "other", reopened=False)
