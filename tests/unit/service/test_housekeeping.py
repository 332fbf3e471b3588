"""A service sees to finished jobs by itself."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.codec import Codec
from pilotage.model.settings.settings import RetentionSettings
from pilotage.service.journal.retention import Housekeeping
from pilotage.service.journal.writer import BatchCommitter, Writer
from tests.kit.events import START, StandingClock, a_short_job

DAY_SECONDS = 86_400.0


class Heard(logging.Handler):
    """Waits for a word in the log."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.said = threading.Event()
        self._word = word

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self.said.set()


@pytest.mark.parametrize("days, word, by", [(2, "sealed", None), (40, "cleared", "timeout")])
def test_finished_jobs_are_sealed_and_cleared_when_their_time_has_come(
    tmp_path: Path, days: int, word: str, by: str | None
) -> None:
    heard = Heard(word)
    logger = logging.getLogger("pilotage.service.journal.retention")
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    journal = SqliteJournal(tmp_path)
    clock = StandingClock(START)
    keeper = BatchCommitter(journal, clock=clock)
    keeper.take(a_short_job())
    clock.at += days * DAY_SECONDS
    writer = Writer(keeper, committed=lambda jobs: None)
    writer.start()
    settings = RetentionSettings(every_seconds=0.001)
    housekeeping = Housekeeping(
        journal, settings=settings, writer=writer, codec=Codec(), clock=clock, stream="housekeeping-1"
    )
    housekeeping.start()
    try:
        assert heard.said.wait(30)
    finally:
        housekeeping.stop()
        writer.stop()
        logger.removeHandler(heard)
    row = journal.job("j1")
    assert row is not None
    assert (row.cleared_by, row.place == "sealed") == (by, word == "sealed")
    journal.close()


def test_never_is_never(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    clock = StandingClock(START)
    writer = Writer(BatchCommitter(journal, clock=clock), committed=lambda jobs: None)
    housekeeping = Housekeeping(
        journal, settings=RetentionSettings(every_seconds=0.0), writer=writer, codec=Codec(), clock=clock, stream="h"
    )
    before = threading.active_count()
    housekeeping.start()
    assert threading.active_count() == before
    housekeeping.stop()
    journal.close()
