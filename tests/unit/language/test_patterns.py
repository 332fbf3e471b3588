from __future__ import annotations

import pytest

from pilotage.language.text.patterns import can_both_match, literal, literal_prefix, literal_suffix, matches, matching


@pytest.mark.parametrize(
    "pattern, name, verdict",
    [
        ("sim-*.dat", "sim-1.dat", True),
        ("sim-*.dat", "sim-.dat", True),
        ("sim-*.dat", "sim-a/b.dat", False),
        ("sim-*.dat", "xsim-1.dat", False),
        ("**/*.dat", "a.dat", True),
        ("**/*.dat", "x/y/a.dat", True),
        ("x/**", "x/y/z", True),
        ("x/**", "x", False),
        ("?", "a", True),
        ("?", "/", False),
        ("[abc]", "b", True),
        ("[!abc]", "b", False),
        ("[!abc]", "/", False),
        ("[a-c]x", "bx", True),
        ("[]]", "]", True),
        ("[", "[", True),
        ("a[", "a[", True),
        ("[!]", "[!]", True),
        ("*", "line\nbreak", True),
        ("*.dat", "日本 'x' \"y\".dat", True),
        ("[à-ü]", "é", True),
        ("a.b", "axb", False),
        ("(a|b)", "a", False),
        ("^a$", "a", False),
        ("\\d", "1", False),
    ],
)
def test_a_pattern_matches_or_not(pattern: str, name: str, *, verdict: bool) -> None:
    assert matches(pattern, name) is verdict


@pytest.mark.parametrize("name", ["*", "[x]", "a?b", "]", "[!", "**/"])
def test_special_characters_of_a_value_are_literal(name: str) -> None:
    assert matches(literal(name), name)
    assert not matches(literal(name), name + "x")


@pytest.mark.parametrize(
    "left, right, verdict",
    [
        ("done-*.dat", "done-1-*", True),
        ("done-*.dat", "todo-*", False),
        ("a*", "*b", True),
        ("a?", "ab", True),
        ("[ab]x", "[bc]x", True),
        ("[ab]x", "[cd]x", False),
        ("[あ-お]", "[お-ん]", True),
        ("[あ-う]", "[え-ん]", False),
        ("[一-十]", "[丁]", True),
        ("[!a]", "[!b]", True),
        ("*", "a/b", False),
        ("**", "a/b", True),
        ("**/b", "a/b", True),
        ("**/b", "ab", False),
        ("x/**/y", "x/y", True),
        ("", "", True),
        ("*", "", True),
        ("a", "", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("*_01.nii.gz", "*_01.nii.gz", True),
        ("*_01.nii.gz", "*_02.nii.gz", False),
        ("*_1.nii.gz", "sub-*_run-1.nii.gz", False),
        ("*-1.nii.gz", "sub-*_run-1.nii.gz", True),
        ("a/b*", "*/bc", True),
        ("a/b*", "*/c", False),
        ("a/b/*", "a/*", False),
        ("a/b/**", "a/*", False),
        ("a/**", "a/*.dat", True),
        ("a**b", "a/*/b", True),
        ("a*b", "a/**/b", False),
        ("[/]*", "[/]*", False),
    ],
)
def test_whether_two_patterns_can_meet(left: str, right: str, *, verdict: bool) -> None:
    assert can_both_match(left, right) is verdict
    assert can_both_match(right, left) is verdict


@pytest.mark.parametrize("pattern", ["*a" * 30 + "*b", "**a" * 30 + "**b", "?*" * 20 + "b", "*a?" * 12 + "**b"])
def test_many_stars_do_not_make_a_mismatch_slow(pattern: str) -> None:
    assert not matches(pattern, "a" * 400)


@pytest.mark.parametrize(
    "pattern, prefix, suffix",
    [
        ("name", "name", "name"),
        ("a]b", "a]b", "a]b"),
        ("sim-*.dat", "sim-", ".dat"),
        ("a[bc]d?e", "a", "e"),
        ("a[b*]c", "a", "c"),
        ("a*/b", "a", "/b"),
        ("a**/b", "a", "b"),
        ("a***/b", "a", "b"),
        ("*", "", ""),
    ],
)
def test_the_fixed_ends_of_a_pattern(pattern: str, prefix: str, suffix: str) -> None:
    assert literal_prefix(pattern) == prefix
    assert literal_suffix(pattern) == suffix


def test_long_patterns_are_compared_as_short_ones_are() -> None:
    long = "x" * 1000
    assert can_both_match(f"{long}*?b", f"*{long}[ab]b")
    assert not can_both_match(f"{long}*?b", f"*{long}[ab]c")
    assert matches(f"?{long}*", f"x{long}")
    assert not matches(f"?{long}*", long)


def test_matching_gives_positions_in_order() -> None:
    names = ["a-1", "b-1", "a-/x", "a-", "xa-1"]
    assert matching("a-*", names) == [0, 3]
    assert matching("[ab]-*", names) == [0, 1, 3]
    assert matching("aa*aa", ["aaa", "aaaa"]) == [1]
