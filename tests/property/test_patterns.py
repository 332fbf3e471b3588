"""Patterns against a matcher that tries every way."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from hypothesis import example, given
from hypothesis import strategies as st

from pilotage.language.expansion.producers import PatternIndex
from pilotage.language.folder import MemoryFolder
from pilotage.language.text.patterns import (
    can_both_match,
    is_pattern,
    literal,
    literal_prefix,
    literal_suffix,
    matches,
    matching,
)

Made = tuple[str, int, int]  # a pattern, its package, its stage
Round = tuple[list[Made], list[tuple[str, int, int | None]]]

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


# A pattern that is partly used up; in the first place, whether it stands within a `**/` that took something already.
Rest = tuple[bool, str]
CHARACTERS = sorted({chr(max(ord(c) + by, 1)) for c in "ab/*?[]-!\n." for by in (-1, 0, 1)})


@lru_cache(maxsize=4096)
def rests(rest: Rest, character: str) -> frozenset[Rest]:
    """What may be left of a pattern after it took a character."""
    within, pattern = rest
    if not pattern:
        return frozenset()
    if pattern.startswith("**"):
        after = pattern.lstrip("*")
        if not after.startswith("/"):
            return frozenset({(False, pattern)}) | rests((False, after), character)
        taken = {(True, pattern)} | ({(False, after[1:])} if character == "/" else set())
        return frozenset(taken) if within else frozenset(taken) | rests((False, after[1:]), character)
    if pattern[0] == "*":
        stay = {(False, pattern)} if character != "/" else set()
        return frozenset(stay) | rests((False, pattern[1:]), character)
    takes, after = one_character(pattern)
    return frozenset({(False, after)} if takes(character) else ())


def naive_both(left: str, right: str) -> bool:
    """Try every character, on every pair of what can be left of the two patterns."""
    seen: set[tuple[Rest, Rest]] = set()
    waiting: list[tuple[Rest, Rest]] = [((False, left), (False, right))]
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        one, other = pair
        if all(not within and naive(pattern, "") for within, pattern in pair):
            return True
        waiting += [(x, y) for c in CHARACTERS for x in rests(one, c) for y in rests(other, c)]
    return False


everyday = st.lists(st.sampled_from(["a", "b", "ab", "/", "*", "**", "?"]), max_size=7).map("".join)


@given(st.one_of(patterns, everyday), st.one_of(patterns, everyday))
@example("ab*ba", "aba")
@example("ab*ba", "*bab*")
@example("a/b*", "*/bc")
@example("a/b*", "**/bc")
@example("a/b*", "**b/bc")
@example("a/**", "a/*")
@example("a/b/**", "a/*")
@example("a/b**", "*/bb")
@example("**a/b**", "*b*")
@example("*a*b", "**a/b**")
@example("*a/b*", "**a**")
@example("a**/b", "ab")
@example("a**/b", "*/b")
@example("**/b", "*b")
@example("[!-]*", "[--.]*")
@example("[/]*", "[/]*")
@example("[/]*", "**")
@example("[/]*", "a*")
@example("a*?", "?*a")
@example("*]a", "*a")
def test_whether_both_can_match_is_that_of_the_naive_walk(left: str, right: str) -> None:
    assert can_both_match(left, right) == naive_both(left, right)


@given(patterns, names)
@example("**/a", "a")
@example("a**/", "a")
@example("[]a", "[]a")
def test_a_name_begins_and_ends_as_its_pattern(pattern: str, name: str) -> None:
    if naive(pattern, name):
        assert name.startswith(literal_prefix(pattern))
        assert name.endswith(literal_suffix(pattern))


# Short of specials at the ends, so that many patterns have an end in common.
framed = st.tuples(st.sampled_from(["", "a", "a-", "ba"]), everyday, st.sampled_from(["", ".a", "b.a"])).map("".join)
made = st.lists(st.tuples(st.one_of(patterns, framed), st.integers(0, 9), st.integers(0, 3)), max_size=12)
asked = st.tuples(st.one_of(patterns, framed), st.integers(0, 4), st.none() | st.integers(0, 3))


@given(st.lists(st.tuples(made, st.lists(asked, max_size=3)), max_size=3))
def test_the_makers_of_a_pattern_are_those_of_a_naive_search(rounds: list[Round]) -> None:
    index = PatternIndex()
    known: list[Made] = []
    for some, questions in rounds:
        for pattern, package, stage in some:
            index.add([(pattern, package)], stage=stage)
        known += some
        assert bool(index) == bool(known)
        for pattern, before, only in questions:
            naively = {p for text, p, s in known if s < before and only in (None, s) and naive_both(text, pattern)}
            assert index.makers_of(pattern, before_stage=before, stage=only) == sorted(naively)


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
