"""Any order, any repetition, any delay and any cut into batches of the same events gives the same book.

Histories come from a scheduler that shares no code with the book; what they mean comes from an oracle that sorts and
filters. Each book is compared with the oracle after every batch.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.book.rows.rows import JobRow, ParkedRow, StatisticRow, StreamRow
from tests.kit.histories import Scheduler
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook
from tests.kit.oracle import identity
from tests.kit.shown import assert_book_says, cut, delivered, everything
from tests.kit.standing import WireEvent

MANY = settings(max_examples=3 * settings().max_examples)
seeds = st.integers(0, 2**32)
steps = st.integers(0, 60)


def history(chance: random.Random, steps: int) -> list[WireEvent]:
    return Scheduler(random.Random(chance.random()), jobs=chance.randint(1, 2), reuses=True).run(steps).events


def told(book: Book, chance: random.Random, events: list[WireEvent], *, before: list[WireEvent] | None = None) -> None:
    """Tell a book of events in batches, beside what it knows, and compare it with the oracle after each."""
    known = {identity(event): event for event in before or ()}
    for batch in cut(chance, events):
        count = len(known)
        known |= {identity(event): event for event in batch}
        receipt = book.take(batch).receipt
        assert receipt.refused == []
        assert receipt.repeated == len(batch) - (len(known) - count)
        assert_book_says(book, list(known.values()))


@given(seeds, steps)
@MANY
def test_a_history_means_the_same_in_any_order_however_often_and_in_any_batches(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    events = history(chance, steps)
    as_it_was, shuffled = MemoryBook(), MemoryBook()
    as_it_was.take(events)
    told(shuffled, chance, delivered(chance, events))
    assert everything(shuffled) == everything(as_it_was)


@given(seeds, steps)
@MANY
def test_with_events_missing_for_good_the_book_shows_what_the_rest_implies(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    share = chance.random()
    events = [event for event in history(chance, steps) if chance.random() < share]
    told(MemoryBook(), chance, delivered(chance, events))


@given(seeds, steps)
def test_what_came_late_counts_as_if_it_had_come_in_time(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    events = history(chance, steps)
    late = {id(event) for event in events if chance.random() < 0.3}
    as_it_was, behind = MemoryBook(), MemoryBook()
    as_it_was.take(events)
    behind.take([event for event in events if id(event) not in late])
    for event in events:
        if id(event) in late:
            behind.take([event])
    assert everything(behind) == everything(as_it_was)


@given(seeds, steps)
def test_events_of_a_job_that_is_not_registered_are_parked_and_count_when_it_is(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    events = history(chance, steps)
    registrations = [event for event in events if event["type"] == "JobRegistered"]
    others = [event for event in events if event["type"] != "JobRegistered"]
    as_it_was, parked = MemoryBook(), MemoryBook()
    as_it_was.take(events)
    told(parked, chance, others)
    assert parked.rows(JobRow) == []
    assert len(parked.rows(ParkedRow)) == sum("job" in event for event in others)
    told(parked, chance, [*delivered(chance, registrations), *others], before=others)
    assert parked.rows(ParkedRow) == []
    assert everything(parked) == everything(as_it_was)


@given(seeds, steps)
def test_a_repeat_changes_nothing_and_is_acknowledged(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    events = history(chance, steps)
    book = MemoryBook()
    book.take(events)
    before, statistics = everything(book), book.rows(StatisticRow)
    for batch in cut(chance, delivered(chance, events)):
        joined = book.take(batch)
        assert (joined.receipt.repeated, joined.receipt.kept) == (len(batch), 0)
        assert joined.changes.all_events() == []
    assert (everything(book), book.rows(StatisticRow)) == (before, statistics)


@given(seeds, steps)
@settings(max_examples=max(30, settings().max_examples // 3))
def test_the_sqlite_ledger_and_the_one_in_memory_keep_the_same_book(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    share = chance.choice((0.5, 1.0, 1.0))
    events = delivered(chance, [event for event in history(chance, steps) if chance.random() < share])
    memory, sqlite = MemoryBook(), SqliteBook()
    try:
        known: dict[tuple[str, str, int] | None, WireEvent] = {}
        for batch in cut(chance, events):
            known |= {identity(event): event for event in batch}
            received = max(event["time"] for event in batch)
            one, other = memory.take(batch, received=received), sqlite.take(batch, received=received)
            assert one.receipt == other.receipt
            assert_book_says(sqlite, list(known.values()))
        assert everything(sqlite) == everything(memory)
        for kind in (JobRow, StreamRow, ParkedRow):
            assert sqlite.rows(kind) == memory.rows(kind)
    finally:
        sqlite.close()
