"""Where faults are shown: at the text that they are about, or at the nearest thing above it that has a place."""

from __future__ import annotations

import pytest

from pilotage.language.boutiques.values import mark_at, shown
from pilotage.language.text.here_documents import ends_evenly, joined_lines
from pilotage.language.text.tree import NOWHERE, Mark, Node, Report
from pilotage.language.text.yaml import read_tree

TEXT = b"a: {b: [one, two]}\nc: three\n"


@pytest.fixture
def tree() -> Node:
    found, report = read_tree(TEXT, file="a.yaml")
    assert found is not None
    assert not report.errors
    return found


@pytest.mark.parametrize(
    "path, mark",
    [
        ((), (1, 1)),
        (("c",), (2, 4)),
        (("a", "b"), (1, 8)),
        (("a", "b", 0), (1, 9)),
        (("a", "b", 1), (1, 14)),
        (("a", "b", 2), (1, 8)),  # there are two
        (("a", "b", "x"), (1, 8)),
        (("a", "x", 0), (1, 4)),
        (("c", 0), (2, 4)),
    ],
)
def test_a_path_leads_to_its_mark_or_to_the_nearest_above(
    tree: Node, path: tuple[str | int, ...], mark: tuple[int, int]
) -> None:
    found = mark_at(tree, *path)
    assert (found.line, found.column) == mark


@pytest.mark.parametrize(
    "mark, text, expected",
    [
        (Mark(1, 1), "two", Mark(1, 14)),
        (Mark(1, 1), "three", Mark(2, 4)),
        (Mark(1, 9), "one", Mark(1, 9)),
        (Mark(1, 10), "one", Mark(1, 10)),  # it stands before
        (Mark(1, 1), "nowhere", Mark(1, 1)),
        (Mark(1, 1), "", Mark(1, 1)),
        (NOWHERE, "two", NOWHERE),
    ],
)
def test_a_text_is_found_from_a_mark_on(mark: Mark, text: str, expected: Mark) -> None:
    report = Report("a.yaml")
    report.lines = TEXT.decode().splitlines()
    assert report.found(mark, text) == expected


@pytest.mark.parametrize(
    "value, text",
    [("a", "'a'"), ("\x07", "'\\x07'"), (7, "7"), ("x" * 78, repr("x" * 78)), ("x" * 79, "'" + "x" * 76 + "...")],
)
def test_a_value_is_shown_short_and_on_one_line(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("backslashes", range(6))
def test_a_last_line_goes_on_where_an_odd_number_of_backslashes_ends_it(backslashes: int) -> None:
    body = "text" + "\\" * backslashes
    assert ends_evenly(body) == (backslashes in (0, 2, 4))
    assert ends_evenly(body + "\n") == (backslashes in (0, 2, 4))
    assert len(joined_lines([body, "more"])) == (2 if backslashes in (0, 2, 4) else 1)
