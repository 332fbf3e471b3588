"""Between which positions of the book events are looked for, by what a query says of their position."""

from __future__ import annotations

import pytest

from pilotage.adapters.journals.queries import bounds
from pilotage.book.query import parse


@pytest.mark.parametrize(
    "text, expected",
    [
        ("position=5", (4, 5)),
        ("position in (5, 9)", (4, 9)),
        ("position>5", (5, None)),
        ("position>=5", (4, None)),
        ("position<5", (3, 4)),
        ("position<=5", (3, 5)),
        ("position>=5 and position<9", (4, 8)),
        ("position<9 and position<=6 and position<20", (3, 6)),
        ("position!=5", (3, None)),
        ("job=j1", (3, None)),
        ("position=5 or position=9", (3, None)),
    ],
)
def test_only_the_positions_that_can_match_are_looked_at(text: str, expected: tuple[int, int | None]) -> None:
    assert bounds(parse(text), after=3) == expected


def test_what_was_seen_is_not_looked_at_again() -> None:
    assert bounds(parse("position>=5 and position<=20"), after=9) == (9, 20)
