"""Where a page goes on: only a place that a package, job or event can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.app.state_folder import SystemClock
from pilotage.book.query import Cursor, CursorError, Target, encode_cursor, parse
from pilotage.model.events.events import COUNTER_MAX
from pilotage.model.settings.settings import QuerySettings
from pilotage.reading.access import Principal
from pilotage.reading.queries import BookReader
from tests.kit.sqlite_books import opened

ANN = Principal(user="ann", scopes=frozenset({"book.read"}))
LAST = 999_999_999


@pytest.mark.parametrize("key", [("j", LAST, LAST, LAST), ("j", 0, 0, 0)])
def test_a_page_of_packages_goes_on_after_any_package(tmp_path: Path, key: tuple[str, int, int, int]) -> None:
    with opened(tmp_path) as journal:
        reader = BookReader(journal, clock=SystemClock(), settings=QuerySettings())
        cursor = encode_cursor(parse("job=j"), Target.PACKAGES, Cursor(key=key, now=1.0))
        assert not reader.packages(ANN, "job=j", cursor=cursor, limit=10).items


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("number", [-1, LAST + 1])
def test_a_number_that_no_package_has_is_refused(tmp_path: Path, place: int, number: int) -> None:
    parts = [1, 1, 1]
    parts[place] = number
    with opened(tmp_path) as journal:
        reader = BookReader(journal, clock=SystemClock(), settings=QuerySettings())
        cursor = encode_cursor(parse("job=j"), Target.PACKAGES, Cursor(key=("j", *parts), now=1.0))
        with pytest.raises(CursorError, match="was not made here"):
            reader.packages(ANN, "job=j", cursor=cursor, limit=10)


def test_a_page_of_events_goes_on_after_any_position_and_no_other_number(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        reader = BookReader(journal, clock=SystemClock(), settings=QuerySettings())

        def after(position: int) -> object:
            cursor = encode_cursor(
                parse("job=j", target=Target.EVENTS), Target.EVENTS, Cursor(key=(position,), now=1.0)
            )
            return reader.events(ANN, "job=j", cursor=cursor, limit=10).items

        assert (after(0), after(COUNTER_MAX)) == ([], [])
        for position in (-1, COUNTER_MAX + 1):
            with pytest.raises(CursorError, match="was not made here"):
                after(position)
