"""Rows of ended pilots leave the book with retention, once the jobs they served are sealed and what they taught is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilotage.forecast.history import LatencyHistory
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import PilotEnded, PilotRequested, PilotStarted, SiteLatencies
from pilotage.model.settings.settings import RetentionSettings
from pilotage.ports import Journal
from pilotage.service.journal.rebuild import check
from pilotage.service.journal.retention import Retention
from tests.conformance.journal.harness import Harness, keeper
from tests.kit.events import START, Stream, a_short_job

HOUR_SECONDS = 3600.0
LATE = START + 86_400.0


class Book:
    """A journal under retention."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.engine, self.own = Stream("service", "engine"), Stream("service", "own")
        self.retention = Retention(
            journal,
            settings=RetentionSettings(sealed_after_seconds=HOUR_SECONDS),
            keep=keeper(journal).take,
            identity=self._identity,
        )

    def _identity(self) -> tuple[str, int]:
        self.own.n += 1
        return self.own.stream, self.own.n

    def take(self, *events: Event) -> None:
        keeper(self.journal).take(events)

    def pilot(self, key: str = "lyon-5", *, at: float = START) -> list[Event]:
        """A request, the pilot that answers it, and the end of both."""
        agent = Stream("agent", f"{key}.1")
        return [
            self.engine.event(PilotRequested(site="lyon"), pilot=key, time=at),
            self.engine.event(PilotRequested(site="lyon", native_id="17"), pilot=key, time=at + 1),
            agent.event(PilotStarted(site="lyon", request=key), pilot=f"{key}.1", time=at + 2),
            agent.event(PilotEnded(reason="idle"), pilot=f"{key}.1", time=at + 3),
            self.engine.event(PilotEnded(reason="ended"), pilot=key, time=at + 4),
        ]

    def recorded(self, through: int, *unanswered: int) -> Event:
        learned = LatencyHistory().encoded()
        record = SiteLatencies(starts=1, learned=learned, through=through, unanswered=unanswered)
        return self.engine.event(record, site="lyon", time=START + 5)

    def left(self, now: float) -> list[str]:
        """The rows of pilots after retention was applied."""
        planned = self.retention.plan(now)
        assert self.retention.apply(now) == planned
        return [row.pilot for row in self.journal.pilots(after="", limit=10)]


@pytest.fixture
def book(harness: Harness) -> Book:
    return Book(harness.open())


BOTH = ["lyon-5", "lyon-5.1"]


def test_rows_of_ended_pilots_leave_once_every_job_of_their_time_is_sealed(
    book: Book, scratches: Iterator[Journal]
) -> None:
    book.take(*a_short_job(), *book.pilot(), book.recorded(100))
    assert book.left(LATE) == BOTH, "the job was in the live book when this was planned"
    assert book.left(LATE) == []
    assert check(book.journal, next(scratches)).first == []


def test_a_pilot_of_the_time_of_a_live_job_stays(book: Book) -> None:
    book.take(*a_short_job()[:5], *book.pilot(at=START + 1.0), book.recorded(100))
    assert book.left(LATE) == BOTH


def test_a_pilot_that_was_over_before_the_oldest_live_job_came_leaves(book: Book) -> None:
    book.take(*book.pilot(at=START - 100.0), book.recorded(100), *a_short_job()[:5])
    assert book.left(LATE) == []


def test_a_pilot_stays_until_what_it_taught_is_recorded(book: Book) -> None:
    book.take(*book.pilot())
    assert book.left(LATE) == BOTH
    book.take(book.recorded(5))
    assert book.left(LATE) == BOTH
    book.take(book.recorded(100, 5))
    assert book.left(LATE) == BOTH
    book.take(book.recorded(100))
    assert book.left(LATE) == []


def test_a_request_that_has_not_ended_keeps_its_pilot(book: Book) -> None:
    book.take(*book.pilot()[:4], book.recorded(100))
    assert book.left(LATE) == BOTH


def test_the_agent_of_a_bound_attempt_leaves_once_its_job_has(book: Book) -> None:
    key = "j1:1.1.1:1"
    agent = Stream("agent", f"{key}.1")
    started = agent.event(PilotStarted(site="lyon", request=key), pilot=f"{key}.1", time=START)
    book.take(*a_short_job(), started, agent.event(PilotEnded(reason="idle"), pilot=f"{key}.1", time=START + 1))
    assert book.left(LATE) == [f"{key}.1"]
    assert book.left(LATE) == []


def test_nothing_leaves_before_a_job_would_be_sealed(book: Book) -> None:
    book.take(*book.pilot(), book.recorded(100))
    assert book.left(START + 4 + HOUR_SECONDS) == BOTH
    assert book.left(START + 5 + HOUR_SECONDS) == []


def test_a_late_word_of_a_pilot_that_has_left_is_kept_and_leaves_again(book: Book) -> None:
    book.take(*book.pilot(), book.recorded(100))
    assert book.left(LATE) == []
    book.take(book.engine.event(PilotEnded(reason="ended"), pilot="lyon-5", time=LATE))
    assert book.left(LATE) == ["lyon-5"]
    assert book.left(LATE + HOUR_SECONDS + 1) == []
