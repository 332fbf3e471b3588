"""File-name patterns: `*` and `?` within one folder, `**` across folders, `[abc]`, `[!abc]`.

Besides matching, the language must know whether two patterns *can* match one name: a stage that takes `done-*.dat`
waits for a stage that will make `done-{run}-*`, before any of these names exists.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SPECIAL = frozenset("*?[")
_STARS = frozenset({"*", "**", "**/"})


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern rather than the name of one file."""
    return not _SPECIAL.isdisjoint(name)


def literal(name: str) -> str:
    """A pattern that matches exactly this text."""
    return "".join(f"[{c}]" if c in _SPECIAL else c for c in name)


@lru_cache(maxsize=4096)
def pattern_expression(pattern: str) -> str:
    """The regular expression, for a full match, of a pattern.

    A star is left at the first place where what follows it fits, wherever the next star can take up the rest: a name
    that does not match must not cost every way of sharing it out between the stars.
    """
    tokens = _tokens(pattern)
    stars = [i for i, token in enumerate(tokens) if token in _STARS]
    written: list[str] = []
    for start, end in zip([0, *stars], [*stars, len(tokens)], strict=True):
        run = "".join(map(_expression, tokens[start:end]))
        last = end == len(tokens)
        first = tokens[start] if start < end else ""
        if not last and (first == "*" or (first == "**" and tokens[end] == "**")) and tokens[end] != "**/":
            lazy = "[^/]*?" if first == "*" else ".*?"
            run = f"(?>{lazy}{''.join(map(_expression, tokens[start + 1 : end]))})"
        written.append(run)
    return "".join(written)


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern."""
    return _compiled(pattern).fullmatch(name) is not None


def matching(pattern: str, names: list[str]) -> list[int]:
    """The positions of the names that match, in order."""
    simple = _prefix_and_suffix(pattern)
    if simple is None:
        match = _compiled(pattern).fullmatch
        return [i for i, name in enumerate(names) if match(name)]
    prefix, suffix = simple
    shortest = len(prefix) + len(suffix)
    if _all_match(names, prefix, suffix):
        return list(range(len(names)))
    first, last = len(prefix), len(suffix)
    return [
        i
        for i, name in enumerate(names)
        if name.startswith(prefix)
        and name.endswith(suffix)
        and len(name) >= shortest
        and name.find("/", first, len(name) - last) < 0
    ]


def _all_match(names: list[str], prefix: str, suffix: str) -> bool:
    """Whether every name surely begins and ends so, with no folder in between: counted over all names at once."""
    count = len(names)
    joined = "\n" + "\n".join(names) + "\n"
    folders = count * (prefix.count("/") + suffix.count("/"))
    return (
        joined.count("\n") == count + 1
        and joined.count("\n" + prefix) == count + (not prefix)
        and joined.count(suffix + "\n") == count + (not suffix)
        and joined.count("/") == folders
        and min(map(len, names), default=0) >= len(prefix) + len(suffix)
    )


def can_both_match(left: str, right: str) -> bool:
    """Whether there is a name that both patterns match: a walk over the product of the two."""
    a, b = _steps(left), _steps(right)
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        if (i, j) in seen:
            continue
        seen.add((i, j))
        if i == len(a) and j == len(b):
            return True
        if i < len(a) and a[i] == "**/":
            waiting += [(i + 1, j), (i + 3, j)]
            continue
        if j < len(b) and b[j] == "**/":
            waiting += [(i, j + 1), (i, j + 3)]
            continue
        # A star may match nothing; otherwise it stays while the other side consumes a character.
        if i < len(a) and a[i] in _STARS:
            waiting.append((i + 1, j))
        if j < len(b) and b[j] in _STARS:
            waiting.append((i, j + 1))
        if i < len(a) and j < len(b) and _share_a_character(a[i], b[j]):
            waiting.append((i if a[i] in _STARS else i + 1, j if b[j] in _STARS else j + 1))
    return False


@lru_cache(maxsize=4096)
def _steps(pattern: str) -> tuple[str, ...]:
    """The tokens, with each `**/` followed by what it stands for unless it matches nothing: anything, and a slash."""
    return tuple(step for token in _tokens(pattern) for step in ((token, "**", "/") if token == "**/" else (token,)))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern_expression(pattern), re.DOTALL)


@lru_cache(maxsize=4096)
def _tokens(pattern: str) -> tuple[str, ...]:
    tokens: list[str] = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**", i):
            end = i
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # `**/` also matches no folder at all, so its slash belongs to it.
            folders = pattern.startswith("/", end)
            tokens.append("**/" if folders else "**")
            i = end + 1 if folders else end
            continue
        if pattern[i] == "[":
            end = pattern.find("]", i + 3 if pattern[i + 1 : i + 2] == "!" else i + 2)
            if end > 0:
                tokens.append(pattern[i : end + 1])
                i = end + 1
                continue
        tokens.append(pattern[i])
        i += 1
    return tuple(tokens)


def _expression(token: str) -> str:
    if token == "**/":
        return "(?:.*/)?"
    if token == "**":
        return ".*"
    if token == "*":
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) > 1:
        inner = token[1:-1]
        negated = inner.startswith("!")
        members = _members(inner.removeprefix("!"))
        return f"(?!/)[^{members}]" if negated else f"(?!/)[{members}]"
    return re.escape(token)


def _members(inner: str) -> str:
    """What stands between the brackets of a set, as a regular expression has it; `z-a` is three characters."""
    written = []
    i = 0
    while i < len(inner):
        last = inner[i + 2] if inner[i + 1 : i + 2] == "-" and i + 2 < len(inner) else ""
        if last and inner[i] <= last:
            written.append(f"{re.escape(inner[i])}-{re.escape(last)}")
            i += 3
        else:
            written.append(re.escape(inner[i]))
            i += 1
    return "".join(written)


def _share_a_character(left: str, right: str) -> bool:
    """Whether one character can be consumed by both tokens; two sets are compared over the characters they name."""
    if left in ("**", "**/") or right in ("**", "**/"):
        return True
    anything = ("*", "?")
    if left in anything or right in anything:
        other = right if left in anything else left
        return other != "/"
    if len(left) == 1 and len(right) == 1:
        return left == right
    if len(left) == 1 or len(right) == 1:
        character, members = (left, right) if len(left) == 1 else (right, left)
        return re.fullmatch(_expression(members), character) is not None
    one, other_set = re.compile(_expression(left)), re.compile(_expression(right))
    # Where two sets meet, they meet at the end of a range of one of them, or right beside one; or in plain letters.
    ends = {chr(min(max(ord(c) + by, 1), 0x10FFFF)) for c in left + right for by in (-1, 0, 1)}
    return any(one.fullmatch(c) and other_set.fullmatch(c) for c in {*ends, *map(chr, range(1, 0x250))})


@lru_cache(maxsize=4096)
def _prefix_and_suffix(pattern: str) -> tuple[str, str] | None:
    """The fixed ends of a pattern with a single `*` and nothing else special."""
    if pattern.count("*") != 1 or "?" in pattern or "[" in pattern:
        return None
    prefix, _, suffix = pattern.partition("*")
    return prefix, suffix
