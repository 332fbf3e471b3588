"""A sealed job whose file is lost or damaged concerns nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.model.events.payloads import Noted
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import StandingClock, Stream, a_short_job, registered


def harm(file: Path, *, how: str) -> None:
    """Lose a file, empty it, or spoil it."""
    if how == "gone":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    else:
        file.write_bytes(b"not a database, and longer than the header of one " * 100)


@pytest.mark.parametrize("how", ["gone", "empty", "spoilt"])
def test_its_late_events_are_refused_by_name_the_others_are_kept_and_it_can_be_purged(tmp_path: Path, how: str) -> None:
    journal = SqliteJournal(tmp_path)
    keeper = BatchCommitter(journal, clock=StandingClock())
    keeper.take(a_short_job())
    journal.seal("j1")
    [file] = (tmp_path / "jobs").glob("*.sqlite")
    harm(file, how=how)
    by = Stream("client", "late")
    late = [
        by.event(Noted(text="late"), job="j1"),
        by.event(registered(), job="j2"),
        by.event(Noted(text="in time"), job="j2"),
    ]
    receipt = keeper.take(late)
    assert ([(one.index, one.code) for one in receipt.refused], receipt.kept) == ([(0, "purged")], 2)
    assert "sealed job" in receipt.refused[0].message
    journal.purge("j1", at=1.0)
    row = journal.job("j1")
    assert row is not None
    assert row.place == "purged"
    journal.close()
