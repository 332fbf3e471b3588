"""What a provenance script said, as values by which records are found."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.provenance.script_results import DEPTH_MAX, TEXT_MAX, result_object, result_values


@pytest.mark.parametrize(
    "said, values",
    [
        ({"lines": 10, "ratio": 0.5, "ok": True, "none": None}, [("lines", "10"), ("ratio", "0.5"), ("ok", "true")]),
        ({"fit": {"chi2": 1.5, "names": ["a", "b"]}}, [("fit.chi2", "1.5"), ("fit.names", "a"), ("fit.names", "b")]),
        ({"text": "x" * TEXT_MAX, "long": "x" * (TEXT_MAX + 1)}, [("text", "x" * TEXT_MAX)]),
        ({"": "no name"}, []),
    ],
)
def test_values_have_names_with_dots_and_are_texts(said: dict[str, Any], values: list[tuple[str, str]]) -> None:
    assert list(result_values(said)) == values


def test_what_lies_deeper_than_anybody_would_name_is_left_out() -> None:
    said: dict[str, Any] = {"x": 1}
    for _ in range(DEPTH_MAX - 1):
        said = {"x": said}
    assert list(result_values(said)) == [(".".join("x" * DEPTH_MAX), "1")]
    assert list(result_values({"x": said})) == []


@pytest.mark.parametrize("text", [None, "", "[1]", "{", '{"a":' * 100_000])
def test_what_is_no_object_says_nothing(text: str | None) -> None:
    assert result_object(text) is None
