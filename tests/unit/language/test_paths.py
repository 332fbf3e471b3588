from __future__ import annotations

import pytest

from pilotage.language.text.names import outside, tidy_name, tidy_names, why_outside


@pytest.mark.parametrize(
    "name, tidy",
    [
        ("a", "a"),
        ("./a", "a"),
        ("a//b", "a/b"),
        ("a/./b", "a/b"),
        ("a/../b", "b"),
        ("//a", "/a"),
        ("/a/", "/a"),
        ("", ""),
    ],
)
def test_each_file_has_one_spelling(name: str, tidy: str) -> None:
    assert tidy_name(name) == tidy
    assert tidy_names([name]) == [tidy]
    assert tidy_names(["plain", name]) == ["plain", tidy]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../a",
        "a/../../b",
        "a/..",
        ".",
        "./",
        "a/",
        "/a",
        "//a",
        "a\0b",
        ".pilotage",
        ".pilotage/x",
        "a/../.pilotage/b",
        "./.pilotage",
        ".pilotage-staged",
        ".pilotage-staged/x",
        "./a/../.pilotage-staged/x",
        "a\n",
    ],
)
def test_what_cannot_be_an_output_is_told_why(name: str) -> None:
    assert why_outside(name)
    assert [refused for refused, _ in outside(["fine", name, "good/too"])] == [name]


@pytest.mark.parametrize(
    "name", ["a", "a/b", "a/../b", "...", "..a", "a..b", ".hidden", "a\nb", "~", "-rf", "x/.pilotage"]
)
def test_names_inside_the_tree_are_fine(name: str) -> None:
    assert why_outside(name) == ""
    assert outside([name]) == []


def test_a_newline_does_not_hide_a_bad_name() -> None:
    assert [name for name, _ in outside(["a\nb", "b\n../c", "../d\ne", "f\n"])] == ["../d\ne", "f\n"]


def test_untouched_names_are_the_same_list() -> None:
    names = ["a", "b/c"]
    assert tidy_names(names) is names
