"""Patterns against a matcher that tries every way."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from pilotage.language.folder import MemoryFolder
from pilotage.language.text.patterns import can_both_match, is_pattern, literal, matches, matching

PIECES = ["a", "b", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "[a-", "]", "[", "-", "!", "]a]", "\n", "."]
patterns = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
names = st.lists(st.sampled_from(["a", "b", "/", "-", "]", "[", "*", "!", "\n", "."]), max_size=6).map("".join)


def naive(pattern: str, name: str) -> bool:
    """By the words of the reference, one character after the other."""
    if not pattern:
        return not name
    if pattern.startswith("**"):
        after = pattern.lstrip("*")
        if after.startswith("/"):
            below = (name[k + 1 :] for k in range(len(name)) if name[k] == "/")
            return naive(after[1:], name) or any(naive(after[1:], rest) for rest in below)
        return any(naive(after, name[k:]) for k in range(len(name) + 1))
    if pattern[0] == "*":
        end = name.find("/") if "/" in name else len(name)
        return any(naive(pattern[1:], name[k:]) for k in range(end + 1))
    takes, after = one_character(pattern)
    return bool(name) and takes(name[0]) and naive(after, name[1:])


def one_character(pattern: str) -> tuple[Callable[[str], bool], str]:
    """Which character a pattern takes next, and what follows."""
    if pattern[0] == "?":
        return lambda c: c != "/", pattern[1:]
    negated = pattern[:2] == "[!"
    start = 2 if negated else 1
    end = pattern.find("]", start + 1)
    if pattern[0] == "[" and end > 0:
        named = members(pattern[start:end])
        return lambda c: c != "/" and (c in named) is not negated, pattern[end + 1 :]
    return lambda c: c == pattern[0], pattern[1:]


def members(inner: str) -> set[str]:
    found: set[str] = set()
    i = 0
    while i < len(inner):
        if inner[i + 1 : i + 2] == "-" and i + 2 < len(inner) and inner[i] <= inner[i + 2]:
            found.update(map(chr, range(ord(inner[i]), ord(inner[i + 2]) + 1)))
            i += 3
        else:
            found.add(inner[i])
            i += 1
    return found


@given(patterns, names)
@example("[--a]", "-")
@example("[a--]", "a")
@example("[]a]", "]")
@example("[!]a]", "b")
@example("[z-a]", "-")
@example("[[:x]", "[")
@example("**a*b", "a/ab")
@example("*a*b", "aab")
@example("*a**/b", "aa/b")
@example("**/a**", "x/a")
def test_matching_is_that_of_the_naive_matcher(pattern: str, name: str) -> None:
    assert matches(pattern, name) == naive(pattern, name)
    assert matching(pattern, [name]) == ([0] if naive(pattern, name) else [])


@given(names)
def test_a_literal_matches_itself(name: str) -> None:
    assert matches(literal(name), name)


@given(names, names)
def test_a_literal_matches_nothing_else(name: str, other: str) -> None:
    assert matches(literal(name), other) == (name == other)


@given(patterns, patterns, names)
def test_patterns_that_match_one_name_can_both_match(left: str, right: str, name: str) -> None:
    if naive(left, name) and naive(right, name):
        assert can_both_match(left, right)


@given(patterns, patterns)
def test_whether_both_can_match_does_not_depend_on_the_order(left: str, right: str) -> None:
    assert can_both_match(left, right) == can_both_match(right, left)


@example("[a-**[ab]", "/")
@given(patterns, names)
def test_whether_both_can_match_is_exact_for_a_name(pattern: str, name: str) -> None:
    assert can_both_match(pattern, literal(name)) == naive(pattern, name)


parts = st.sampled_from(["a", "b", "ab", "x.y", "c"])
trees = st.lists(st.lists(parts, min_size=1, max_size=3).map("/".join), max_size=6)
segments = st.sampled_from(["*", "**", "a", "a*", "?b", "[ab]", "x.*", "*b", "a**", "**b", "***"])


@given(trees, st.lists(segments, min_size=1, max_size=3).map("/".join))
def test_a_search_finds_the_files_that_match(files: list[str], pattern: str) -> None:
    # A name that is a folder of another file is no file.
    real = {file for file in files if not any(other.startswith(f"{file}/") for other in files)}
    found = MemoryFolder(real).glob(pattern)
    assert found == sorted(file for file in real if naive(pattern, file))


@given(names)
def test_only_three_characters_make_a_pattern(name: str) -> None:
    assert is_pattern(name) == bool(set(name) & set("*?["))
