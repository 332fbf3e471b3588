"""What a ledger remembers beside its protocol saves time and nothing else: without it, a batch comes to the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows.ledger import Ledger, begun_packages, cached_streams
from pilotage.book.rows.rows import EventRow, JobRow, PilotRow, SiteRow, StageRow, StreamRow, TagRow
from tests.kit.memory_ledger import Book, MemoryBook, SqliteBook
from tests.kit.short_lives import START, Teller, batches_of, counted

PROTOCOL = {name for name in vars(Ledger) if not name.startswith("_")}
ROWS = (EventRow, JobRow, PilotRow, SiteRow, StageRow, StreamRow, TagRow)
OFFERED: dict[type[Book], set[str]] = {
    MemoryBook: {"cached_streams", "begun_packages"},
    SqliteBook: {"begun_packages"},
}
"""What these ledgers offer beside the protocol."""


class BareLedger:
    """A ledger of which only the protocol is seen."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        if name not in PROTOCOL:
            raise AttributeError(name)
        return getattr(self._ledger, name)


def bare(make: Callable[[], Book]) -> Book:
    book = make()
    book.ledger = cast("Ledger", BareLedger(book.ledger))
    return book


def kept(book: Book) -> dict[str, Any]:
    return {"packages": book.packages(), **{kind.__name__: book.rows(kind) for kind in ROWS}}


def test_the_protocol_names_nothing_that_only_saves_time() -> None:
    assert PROTOCOL & {"cached_streams", "begun_packages"} == set()
    book = bare(MemoryBook)
    assert (cached_streams(book.ledger), begun_packages(book.ledger)) == (None, {})


@pytest.mark.parametrize("make", OFFERED)
def test_what_a_ledger_remembers_is_used(make: Callable[[], Book]) -> None:
    book = make()
    assert {name for name in ("cached_streams", "begun_packages") if hasattr(book.ledger, name)} == OFFERED[
        cast("type[Book]", make)
    ]
    teller = Teller(random.Random(3))
    teller.calm = 0.0
    events = teller.tell(2)
    book.take([event for event in events if "package" not in event])
    book.take([next(event for event in events if "package" in event)])
    assert len(begun_packages(book.ledger)) == 1
    cached = cached_streams(book.ledger)
    assert cached is None if make is SqliteBook else cached is not None and cached.last_numbers["service"]
    book.close()


@pytest.mark.parametrize("make", OFFERED)
@given(seed=st.integers(0, 2**32), packages=st.integers(1, 20))
def test_a_ledger_that_remembers_nothing_comes_to_the_same_rows(
    make: Callable[[], Book], seed: int, packages: int
) -> None:
    chance = random.Random(seed)
    events = Teller(chance).tell(packages)
    one, other = make(), bare(make)
    try:
        for batch in batches_of(chance, list(events)):
            first, second = one.take(batch, received=START), other.take(batch, received=START)
            assert first.receipt == second.receipt
            assert kept(one) == kept(other)
        assert counted(one) == counted(other)
    finally:
        one.close()
        other.close()
