"""What the one writer remembers between transactions is what is stored: a book that forgets it all comes to the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows.rows import EventRow, JobRow, Row, StageRow, StatisticRow, StreamRow, TagRow
from pilotage.book.rows.sketches import Sketch, read_sketch
from tests.kit.histories import START, Scheduler
from tests.kit.memory_ledger import SqliteBook
from tests.kit.shown import cut, delivered
from tests.kit.standing import WireEvent

KINDS: tuple[type[Row], ...] = (JobRow, StageRow, StreamRow, EventRow, TagRow)


def counted(book: SqliteBook) -> dict[tuple[Any, ...], Sketch]:
    """What each slice counts, and its sums of seconds."""
    return {
        (row.width_seconds, row.slice, row.site, row.activity): read_sketch(row.sketch)
        for row in book.rows(StatisticRow)
    }


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_book_that_remembers_nothing_comes_to_the_same(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    remembering, forgetting = SqliteBook(), SqliteBook()
    for batch in cut(chance, delivered(chance, Scheduler(chance, jobs=2).run(steps).events)):
        forgetting.cache.clear()
        received = START + chance.choice((-100_000.0, 0.0, 0.0, 0.0, 200.0, 200_000.0))  # old slices are forgotten
        assert remembering.take(batch, received=received).receipt == forgetting.take(batch, received=received).receipt
        for kind in KINDS:
            assert remembering.rows(kind) == forgetting.rows(kind)
        assert remembering.packages() == forgetting.packages()
        slices, others = counted(remembering), counted(forgetting)
        assert {key: one.counts for key, one in slices.items()} == {key: one.counts for key, one in others.items()}
        for key, one in slices.items():  # the last digits of sums depend on the order they were added in
            assert one.sums == pytest.approx(others[key].sums, rel=1e-6, abs=1e-4)
    remembering.close()
    forgetting.close()


def registered(job: str) -> WireEvent:
    data = {"owner": "ada", "name": "n", "stages": [{"items": 3, "templates": [{"lines": 1, "activities": ["sim"]}]}]}
    return {
        "source": "service", "stream": "s", "n": 1, "type": "JobRegistered", "time": START, "job": job, "data": data,
    }  # fmt: skip


def test_what_is_remembered_is_not_changed_by_who_asks() -> None:
    book = SqliteBook()
    book.take([registered("j")])
    [row] = book.ledger.jobs(["j"])
    row.owner = "eve"
    assert [row.owner for row in book.ledger.jobs(["j"])] == ["ada"]
    book.close()


def test_a_slice_that_was_forgotten_is_counted_anew() -> None:
    book = SqliteBook()
    first = registered("a")
    book.take([first], received=START)
    book.take([first | {"job": "b", "n": 2, "time": START + 1e6}], received=START + 1e6)
    assert {row.slice * row.width_seconds > START for row in book.rows(StatisticRow)} == {True}
    book.take([first | {"job": "c", "n": 3}], received=START)  # by a clock that was set back
    assert {row.slice * row.width_seconds > START for row in book.rows(StatisticRow)} == {True, False}
    book.close()


def test_a_row_that_grew_large_is_read_again() -> None:
    book = SqliteBook()
    first = registered("j")
    tagged = first | {"n": 2, "type": "Tagged", "data": {"name": "notes", "value": "x" * 10_000}}
    renamed = first | {"n": 3, "seen": 1, "type": "OwnerSet", "data": {"owner": "bob"}}
    for event in (first, tagged, renamed):
        book.take([event])
    assert (book.job("j").owner, "x" * 10_000 in book.job("j").tags) == ("bob", True)
    [row] = book.ledger.jobs(["j"])
    assert row == book.job("j")
    book.close()
