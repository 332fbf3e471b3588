from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.agent.attempt.files import fixed_folder, is_pattern, matches
from pilotage.language.text import patterns as language

ALPHABET = "ab/*?[]!-\n."


@given(pattern=st.text(ALPHABET, max_size=10), name=st.text(ALPHABET, max_size=10))
def test_the_agent_matches_as_the_language_does(pattern: str, name: str) -> None:
    assert is_pattern(pattern) == language.is_pattern(pattern)
    assert matches(pattern, name) == language.matches(pattern, name)


@st.composite
def _related(draw: st.DrawFn) -> tuple[str, str]:
    """A name, and a pattern that is made out of it."""
    name = draw(st.text("ab/.é", max_size=12))
    pattern = ""
    for character in name:
        how = draw(st.integers(0, 6))
        pattern += {0: "*", 1: "?", 2: f"[{character}a]", 3: "**", 4: "**/", 5: "[!b]"}.get(how, character)
    return pattern, name


@given(_related())
def test_the_agent_agrees_where_names_are_likely_to_match(pair: tuple[str, str]) -> None:
    pattern, name = pair
    assert matches(pattern, name) == language.matches(pattern, name)


@pytest.mark.parametrize("pattern", ["a*" * 30 + "b", "**/" * 20 + "b", "*a" * 25])
def test_a_pattern_of_many_stars_is_quick(pattern: str) -> None:
    assert not matches(pattern, "a" * 200 + "/c")


@pytest.mark.parametrize(
    "pattern, folder",
    [
        ("plots/*.png", "plots"),
        ("a/b/c-[12]/x", "a/b"),
        ("*.png", ""),
        ("run-*/plots/x.png", ""),
        ("plots/**", "plots"),
        ("**/x", ""),
        ("a[[]1]/x-?.dat", "a[1]"),
        ("a[*]/b[?]/*", "a*/b?"),
    ],
)
def test_the_folder_that_a_pattern_tells_of(pattern: str, folder: str) -> None:
    assert fixed_folder(pattern) == folder
