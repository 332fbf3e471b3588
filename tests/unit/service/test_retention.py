"""How long jobs are kept: sealed, cleared, purged, each in its time, and told before it is done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.rows.rows import JobRow
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import CancelAccepted, Cleared, JobAccepted, Restarted, Tagged
from pilotage.model.settings.settings import RetentionSettings
from pilotage.service.journal.retention import DAY_SECONDS, Retention
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import START, StandingClock, Stream, a_short_job, registered
from tests.kit.sqlite_books import everything, keep

END = START + 8  # of a short job of two packages
HOUR_SECONDS = 3600.0


class Kept:
    """A book with retention over it."""

    def __init__(self, folder: Path) -> None:
        self.journal = SqliteJournal(folder, durable=False)
        self.clock = StandingClock()
        self._by = Stream("service", "own")
        self.retention = Retention(
            self.journal,
            settings=RetentionSettings(
                cleared_after_days=30.0, purged_after_days=7.0, sealed_after_seconds=HOUR_SECONDS
            ),
            keep=BatchCommitter(self.journal, clock=self.clock).take,
            identity=self._identity,
        )

    def _identity(self) -> tuple[str, int]:
        self._by.n += 1
        return self._by.stream, self._by.n

    def apply(self, now: float) -> list[tuple[str, str]]:
        self.clock.at = now
        planned = self.retention.plan(now)
        done = self.retention.apply(now)
        assert done == planned  # what is told is what is done
        return [(action.deed, action.job) for action in done.actions]

    def job(self, job: str = "j1") -> JobRow:
        row = self.journal.job(job)
        assert row is not None
        return row


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.journal.close()


def test_a_job_goes_through_its_stations(kept: Kept) -> None:
    keep(kept.journal, a_short_job())
    assert kept.apply(END + HOUR_SECONDS - 1) == []
    assert kept.apply(END + HOUR_SECONDS) == [("seal", "j1")]
    assert kept.job().place == "sealed"
    assert kept.apply(END + 30 * DAY_SECONDS - 1) == []
    cleared_at = END + 30 * DAY_SECONDS
    assert kept.apply(cleared_at) == [("clear", "j1")]
    row = kept.job()
    assert (row.state, row.cleared_by, row.cleared_at, row.place) == ("CLEARED", "timeout", cleared_at, "sealed")
    assert kept.apply(cleared_at + 7 * DAY_SECONDS - 1) == []
    assert kept.apply(cleared_at + 7 * DAY_SECONDS) == [("purge", "j1")]
    row = kept.job()
    assert (row.place, row.purged_at) == ("purged", cleared_at + 7 * DAY_SECONDS)
    assert kept.apply(cleared_at + 900 * DAY_SECONDS) == []


def test_a_job_is_left_in_the_live_book_for_a_day_unless_a_setting_says_otherwise() -> None:
    assert RetentionSettings().sealed_after_seconds == DAY_SECONDS


def test_nothing_is_done_when_only_the_plan_is_asked_for(kept: Kept, tmp_path: Path) -> None:
    keep(kept.journal, a_short_job())
    before = everything(tmp_path)
    plan = kept.retention.plan(END + 31 * DAY_SECONDS)
    assert [(action.deed, action.job, action.since, action.why) for action in plan.actions] == [
        ("clear", "j1", END, "over for 30 days or more")
    ]
    assert everything(tmp_path) == before


def test_a_job_that_is_not_over_is_left_alone(kept: Kept) -> None:
    keep(kept.journal, a_short_job()[:5])
    assert kept.apply(END + 900 * DAY_SECONDS) == []


def test_a_job_that_was_begun_again_is_left_alone(kept: Kept) -> None:
    by = Stream(stream="s")
    keep(kept.journal, a_short_job(stream=by))
    keep(kept.journal, [by.event(Restarted(cause="by-hand"), job="j1", package="1.1.1", epoch=2)])
    assert kept.apply(END + 900 * DAY_SECONDS) == []


def test_a_cancelled_job_is_cleared_once_and_purged_though_it_stays_cancelled(kept: Kept) -> None:
    by = Stream(stream="s")
    events: list[Event] = [by.event(registered(), job="j1"), by.event(JobAccepted(), job="j1")]
    keep(kept.journal, [*events, by.event(CancelAccepted(), job="j1")])
    assert kept.apply(START + 30 * DAY_SECONDS) == [("clear", "j1")]
    assert kept.job().state == "CANCELLED"
    assert kept.apply(START + 31 * DAY_SECONDS) == [("seal", "j1")]
    assert kept.apply(START + 37 * DAY_SECONDS) == [("purge", "j1")]


def test_a_job_that_was_spoken_of_lately_is_not_sealed_yet(kept: Kept) -> None:
    keep(kept.journal, a_short_job())
    later = END + 10 * HOUR_SECONDS
    tag = Stream("client", "c").event(Tagged(name="a", value="b"), job="j1", time=later)
    keep(kept.journal, [tag], at=later)
    assert kept.apply(later + 1) == []
    assert kept.apply(later + HOUR_SECONDS) == [("seal", "j1")]


def test_wrong_clocks_of_events_neither_hasten_nor_hinder(kept: Kept) -> None:
    keep(kept.journal, a_short_job())
    by = Stream("client", "c")
    keep(kept.journal, [by.event(Cleared(by="user"), job="j1", time=0.0)], at=END)
    keep(kept.journal, [by.event(Tagged(name="a", value="b"), job="j1", time=200_000_000_000.0)], at=END)
    assert kept.apply(END + 1) == []
    assert kept.apply(END + 2 * DAY_SECONDS) == [("seal", "j1")]
    assert kept.apply(END + 8 * DAY_SECONDS) == [("purge", "j1")]


def test_events_whose_job_never_came_are_dropped_and_told(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    orphan = Stream("client", "c")
    tagged = [orphan.event(Tagged(name="a", value="b"), job="never") for _ in range(3)]
    keep(kept.journal, tagged[:2], at=START)
    keep(kept.journal, tagged[2:], at=START + DAY_SECONDS)
    with caplog.at_level(logging.WARNING):
        assert kept.retention.plan(START + 30 * DAY_SECONDS + 1).parked == 2
        assert kept.retention.apply(START + 30 * DAY_SECONDS + 1).parked == 2
    assert "2 events were dropped" in caplog.text
    assert kept.journal.count_parked(before=START + 99 * DAY_SECONDS) == 1


def test_a_job_that_cannot_be_moved_does_not_stop_the_others(
    kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(kept.journal, [*a_short_job("j1"), *a_short_job("j2")])
    real = kept.journal._sealing._write

    def fails_for_one(row: JobRow) -> tuple[int, list[str]]:
        if row.job == "j1":
            raise OSError(28, "No space left on device")
        return real(row)

    monkeypatch.setattr(kept.journal._sealing, "_write", fails_for_one)
    with caplog.at_level(logging.WARNING):
        done = kept.retention.apply(END + HOUR_SECONDS)
    assert [action.job for action in done.actions] == ["j2"]
    assert "job j1 was not sealed" in caplog.text
    assert (kept.job("j1").place, kept.job("j2").place) == ("live", "sealed")
