"""A package with a short life has the row, and counts and is told of, as if it had gone the longer way.

Histories here are mostly short lives, told in batches of any size, with whatever else can be told of a package or its job
in between. Two books hear the same batches; one of them takes no life for short.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.codec import Checked
from pilotage.book.fold.fast_path import ShortLives
from pilotage.book.fold.join import Change, Joined
from pilotage.book.rows.rows import EventRow, JobRow, StageRow, StreamRow, TagRow
from tests.kit.memory_ledger import SqliteBook
from tests.kit.short_lives import START, Teller, batches_of, counted
from tests.kit.shown import assert_book_says
from tests.kit.standing import WireEvent


class LongLives(ShortLives):
    """Takes no life for short."""

    def __init__(self, fresh: Sequence[Checked], *, first: int) -> None:
        super().__init__((), first=first)


def change_of(change: Change) -> tuple[Any, ...]:
    package = change.package
    if package is None:
        return change.state_before, change.job
    return change.state_before, change.job, package.stage, package.line, package.number, package.facts


def kept(book: SqliteBook) -> dict[str, Any]:
    """Every row, to the letter of the texts that are stored."""
    return {
        "packages": book.connection.execute("SELECT * FROM package_facts ORDER BY 1, 2, 3, 4").fetchall(),
        **{kind.__name__: book.rows(kind) for kind in (JobRow, StageRow, EventRow, StreamRow, TagRow)},
    }


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_short_life_comes_to_the_same_as_the_longer_way(seed: int, packages: int) -> None:
    chance = random.Random(seed)
    events = Teller(chance).tell(packages)
    short, long = SqliteBook(), SqliteBook()
    told: list[WireEvent] = []
    try:
        for batch in batches_of(chance, list(events)):
            told += batch
            one = short.take(batch, received=START)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("pilotage.book.fold.join.ShortLives", LongLives)
                other = long.take(batch, received=START)
            assert short_ones(other) == []
            assert one.receipt == other.receipt
            assert [change_of(each) for each in one.moved()] == [change_of(each) for each in other.moved()]
            assert kept(short) == kept(long)
        assert counted(short) == counted(long)
        assert_book_says(short, told)
    finally:
        short.close()
        long.close()


def lives(count: int, *, calm: float = 0.0) -> list[WireEvent]:
    teller = Teller(random.Random(3))
    teller.calm = calm
    return teller.tell(count)


def short_ones(joined: Joined) -> list[tuple[int, str, bool]]:
    """Lines and states of short lives, and whether they had a row before."""
    changes = joined.changes
    lived = [(key[2], "DONE", False) for key in changes.lived_packages]
    begun = [(key[2], "RUNNING", False) for key in changes.begun_packages]
    return lived + begun + [(key[2], "DONE", True) for key in changes.ended_packages]


def test_a_life_within_one_batch_is_short_and_so_are_its_two_halves() -> None:
    events = lives(2)
    first = [event for event in events if event.get("package", "").startswith("1.1.")]
    second = [event for event in events if event.get("package", "").startswith("1.2.")]
    book = SqliteBook()
    assert short_ones(book.take([event for event in events if "package" not in event])) == []
    assert short_ones(book.take([*first, second[0]])) == [(1, "DONE", False), (2, "RUNNING", False)]
    assert short_ones(book.take(second[1:])) == [(2, "DONE", True)]
    assert [facts.state for facts in book.packages().values()] == ["DONE", "DONE"]
    book.close()


def test_beside_a_word_about_its_job_no_life_is_taken_for_short() -> None:
    book = SqliteBook()
    joined = book.take(lives(5))
    assert (len(joined.changes.packages), short_ones(joined)) == (5, [])
    book.close()


def test_a_life_whose_beginning_is_forgotten_goes_the_longer_way() -> None:
    events = lives(1)
    begun, *ends = [event for event in events if "package" in event]
    book = SqliteBook()
    book.take([event for event in events if "package" not in event])
    assert short_ones(book.take([begun])) == [(1, "RUNNING", False)]
    book.cache.clear()  # as when a transaction is undone
    assert short_ones(book.take(ends)) == []
    assert [facts.state for facts in book.packages().values()] == ["DONE"]
    book.close()


def both(batches: Sequence[list[WireEvent]]) -> tuple[SqliteBook, SqliteBook, list[Joined]]:
    """What a book says that knows short lives, what one says that does not, and how the first joined each batch."""
    short, long = SqliteBook(), SqliteBook()
    joined = [short.take(batch, received=START) for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pilotage.book.fold.join.ShortLives", LongLives)
        for batch in batches:
            long.take(batch, received=START)
    return short, long, joined


NEARLY: dict[str, tuple[int, dict[str, Any]]] = {
    "the end is another attempt's": (1, {"attempt": 2}),
    "the grant is another attempt's": (2, {"attempt": 2}),
    "the end is of another epoch": (1, {"epoch": 2}),
    "the grant is of another epoch": (2, {"epoch": 2}),
    "all of it is of another epoch": (0, {"epoch": 2}),
    "it began when nobody knows": (0, {"time": 0.0}),
    "it was granted when nobody knows": (2, {"time": 0.0}),
    "it failed": (1, {"data": {"exit_code": "EXECUTION_FAILED"}}),
    "it began without a lease": (0, {"data": {"site": "lyon"}}),
}


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("nearly", NEARLY)
def test_what_is_nearly_a_short_life_goes_the_longer_way(nearly: str, cut: int) -> None:
    events = lives(1)
    at, changed = NEARLY[nearly]
    life = [event for event in events if "package" in event]
    life[at] |= changed
    if at == 0 and "epoch" in changed:
        life = [event | changed for event in life]
    job = [event for event in events if "package" not in event]
    short, long, joined = both([job, life[:cut], *([life[cut:]] if cut < 3 else [])])
    assert short_ones(joined[-1]) == []
    assert (kept(short), counted(short)) == (kept(long), counted(long))
    short.close()
    long.close()


def test_a_life_whose_job_was_accepted_meanwhile_counts_with_that() -> None:
    events = lives(1)
    begun, *ends = [event for event in events if "package" in event]
    registered = next(event for event in events if event["type"] == "JobRegistered")
    accepted = registered | {"n": 900, "seen": 900, "type": "JobAccepted", "time": START - 5.0, "data": {}}
    short, long, joined = both([[registered], [begun], [accepted], ends])
    assert [short_ones(one) for one in joined] == [[], [(1, "RUNNING", False)], [], []]
    assert (kept(short), counted(short)) == (kept(long), counted(long))
    short.close()
    long.close()
