"""Events that were kept once and are joined again: what comes of them, and which fault is told where one cannot be."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest

from pilotage.book.fold.replay import NotReplayed, Replay, wire_event
from pilotage.book.rows.rows import EventRow, ParkedRow, StreamRow
from pilotage.book.rows.streams import received_ranges
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptCreated, AttemptFinished, Noted, Tagged
from pilotage.model.states import ExitCodeGasw
from tests.kit.events import START, Stream, a_short_job
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook

CREATED = AttemptCreated(site="lyon", lease_seconds=60.0)
FAILED = AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED, reason="application-error")
TWICE = "an event came twice, or before its job"


@pytest.fixture
def book() -> MemoryBook:
    return MemoryBook()


def replayed(book: Book, events: list[Event], *, received: float = START, skewed: bool = False) -> int:
    replay = Replay(book.ledger)
    for event in events:
        replay.add(event, received=received, skewed=skewed)
    return replay.finish()


def fault(book: Book, events: list[Event]) -> str:
    with pytest.raises(NotReplayed) as told:
        replayed(book, events)
    return str(told.value)


def other(event: Event) -> Event:
    """The same number with another content."""
    return msgspec.structs.replace(event, time=event.time + 1)


def known_otherwise(event: Event) -> str:
    return (
        f"{event.source} {event.stream} {event.n} is known with other content, or was received and is no longer stored"
    )


def test_what_was_kept_is_as_it_came(book: MemoryBook) -> None:
    events = a_short_job()
    assert replayed(book, events, received=START + 9) == len(events)
    found = book.rows(EventRow)
    assert [wire_event(row, job="j1", source="service", stream="j1-service") for row in found] == events
    assert {(row.received, row.skewed) for row in found} == {(START + 9, 0)}
    [stream] = book.rows(StreamRow)
    assert (stream.watermark, received_ranges(stream)) == (len(events), [(1, len(events))])


def test_each_event_keeps_when_it_was_received_and_whether_its_clock_was_wrong(book: MemoryBook) -> None:
    events = a_short_job(packages=1)
    notes = [(START, False), (START, True), (START + 5, True), (START + 5, False), (START, False)]
    replay = Replay(book.ledger)
    for event, (received, skewed) in zip(events, notes, strict=True):
        replay.add(event, received=received, skewed=skewed)
    replay.finish()
    assert [(row.received, bool(row.skewed)) for row in book.rows(EventRow)] == notes


def test_a_clock_that_was_right_then_is_not_flagged_now(book: MemoryBook) -> None:
    events = a_short_job(packages=1)
    replayed(book, events, received=START - 1e6)
    assert not any(row.skewed for row in book.rows(EventRow))


def test_what_was_taken_once_is_not_refused_for_its_size_or_its_name(book: MemoryBook) -> None:
    by = Stream()
    large = Tagged(name="large", value="x" * 70_000)
    named = Tagged(name="broken\n", value="1")
    events = [*a_short_job(stream=by), by.event(large, job="j1"), by.event(named, job="j1")]
    assert replayed(book, events) == len(events)


def test_an_event_that_cannot_be_read_is_named(book: MemoryBook) -> None:
    events = a_short_job()
    events[2] = msgspec.structs.replace(events[2], type="NeverHeardOf")
    told = fault(book, events)
    assert told.startswith("service j1-service 3: ")
    assert "NeverHeardOf" in told


def test_of_several_that_are_refused_the_first_is_told(book: MemoryBook) -> None:
    events = a_short_job()
    assert fault(book, [*events, other(events[3]), other(events[4])]) == known_otherwise(events[3])


def test_a_refusal_is_told_rather_than_a_repeat(book: MemoryBook) -> None:
    events = a_short_job()
    assert fault(book, [*events, events[2], other(events[3])]) == known_otherwise(events[3])


def test_an_event_that_came_twice_is_not_joined_again(book: MemoryBook) -> None:
    events = a_short_job()
    assert fault(book, [*events, events[3]]) == TWICE
    assert book.rows(EventRow) == []


def test_an_event_before_its_job_is_not_joined_again(book: MemoryBook) -> None:
    events = a_short_job()
    assert fault(book, events[1:]) == TWICE
    assert book.rows(EventRow) == []
    assert book.rows(ParkedRow) == []


def test_an_event_that_came_again_later_is_noticed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pilotage.book.fold.replay.GROUP_EVENTS", 1)
    note = Stream("client", "c").event(Noted(text="x"))
    with closing(SqliteBook()) as book:
        assert fault(book, [*a_short_job(), note, note]) == "an event of client c came twice"


def test_what_another_part_of_the_book_has_heard_of_a_stream_stays_heard(book: MemoryBook) -> None:
    by = Stream()
    first, second = a_short_job("j1", packages=1, stream=by), a_short_job("j2", packages=1, stream=by)
    replayed(book, first)
    replayed(book, second)
    [stream] = book.rows(StreamRow)
    assert (stream.watermark, received_ranges(stream)) == (by.n, [(1, by.n)])


@pytest.mark.parametrize("transactions", [1, 2])
def test_what_follows_later_of_a_package_whose_life_was_short_finds_who_told_of_it(
    book: MemoryBook, transactions: int
) -> None:
    by = Stream("service", "later")
    events = a_short_job(packages=1)
    late = [by.event(data, job="j1", package="1.1.1", attempt=2) for data in (CREATED, FAILED)]
    replay = Replay(book.ledger)
    for at, part in enumerate((events[:2], events[2:], late)):
        if part is late and transactions > 1:
            replay.finish()
            replay = Replay(book.ledger)
        for event in part:
            replay.add(event, received=START + at, skewed=False)
    assert replay.finish() == len(events) + len(late)
    at_once = MemoryBook()
    replayed(at_once, [*events, *late])
    attempts = [each.package("j1", "1.1.1").attempts for each in (book, at_once)]
    assert [sorted(each) for each in attempts] == [[1, 2], [1, 2]]
    assert attempts[0] == attempts[1]
