"""A watermark and ranges remember exactly which numbers of a stream were heard."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.book.rows import streams
from pilotage.book.rows.rows import StreamRow
from pilotage.book.rows.streams import ReceivedNumbers

numbers = st.one_of(st.integers(1, 30), st.integers(1, 2**53 - 1))


def row(**values: object) -> StreamRow:
    return StreamRow(stream_id=1, source="agent", stream="node1", **values)  # type: ignore[arg-type] # test shorthand


def remembered(packed: StreamRow) -> tuple[int, list[list[int]]]:
    return packed.watermark, json.loads(packed.ahead)


@given(st.lists(numbers), st.integers(0, 5))
def test_a_number_is_new_once_whatever_the_order_and_however_often_the_row_is_stored(
    said: list[int], every: int
) -> None:
    heard, known = ReceivedNumbers(row()), set[int]()
    for at, n in enumerate(said):
        assert heard.add(n) == (n not in known)
        known.add(n)
        if every and at % every == 0:
            heard = ReceivedNumbers(heard.packed())
    watermark, ranges = remembered(heard.packed())
    assert all(n in known for n in range(1, min(watermark, 100) + 1))
    assert watermark + 1 not in known
    assert sum(last - first + 1 for first, last in ranges) + watermark == len(known)
    flat = [edge for each in ranges for edge in each]
    assert flat == sorted(flat)
    for (_, last), (first, _) in itertools.pairwise(ranges):
        assert first > last + 1, "neighbouring ranges are one"
    assert all(watermark + 1 < first for first, _ in ranges)


@given(st.permutations(range(1, 12)))
def test_when_every_gap_is_filled_only_the_watermark_is_left(order: list[int]) -> None:
    heard = ReceivedNumbers(row())
    assert all(heard.add(n) for n in order)
    assert remembered(heard.packed()) == (11, [])
    assert not any(heard.add(n) for n in order)


def test_only_what_is_new_makes_a_row_that_must_be_written() -> None:
    heard = ReceivedNumbers(row(watermark=3, ahead="[[5, 6]]"))
    assert not heard.add(2)
    assert not heard.add(6)
    assert heard.changed is False
    assert heard.add(4)
    assert bool(heard.changed)
    assert remembered(heard.packed()) == (6, [])


def test_of_a_stream_of_nothing_but_holes_the_oldest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RANGES_MAX", 3)
    heard = ReceivedNumbers(row())
    for n in (3, 5, 7):
        assert heard.add(n)
    assert heard.add(8), "the range grows"
    assert heard.add(10)
    assert remembered(heard.packed()) == (3, [[5, 5], [7, 8], [10, 10]])
    assert heard.forgotten == 2
    assert not heard.add(2), "the oldest hole was given up"
    assert heard.add(4), "a hole is filled"
    assert remembered(heard.packed()) == (5, [[7, 8], [10, 10]])
