"""A state folder that was made for nothing goes; one that anybody uses stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal, only_writer, remove_unused
from pilotage.ports import JournalBusy
from tests.kit.events import a_short_job
from tests.kit.sqlite_books import keep, opened


def test_a_book_that_heard_of_nothing_goes_with_its_folder(tmp_path: Path) -> None:
    state = tmp_path / ".pilotage"
    SqliteJournal(state).close()
    (state / "service.log").write_text("served nobody")
    assert remove_unused(state)
    assert list(tmp_path.iterdir()) == []


def test_a_book_that_heard_of_a_job_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
    assert not remove_unused(tmp_path)
    with opened(tmp_path) as journal:
        assert journal.job("j1") is not None


def test_a_book_that_somebody_writes_stays(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    assert not remove_unused(tmp_path)
    journal.close()
    assert remove_unused(tmp_path)


def test_who_waited_for_the_lock_of_a_folder_that_went_does_not_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ".pilotage"
    SqliteJournal(state).close()
    real = os.open

    def slow(path: Path, *arguments: int) -> int:
        descriptor = real(path, *arguments)
        monkeypatch.undo()
        assert remove_unused(state)  # between the opening of the lock and the asking for it
        return descriptor

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(JournalBusy):
        only_writer(state)
    assert not state.exists()


def test_a_folder_without_a_book_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert not remove_unused(tmp_path)
    assert (tmp_path / "mine.txt").exists()
