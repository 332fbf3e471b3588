"""File-name patterns: `*` and `?` within one folder, `**` across folders, `[abc]`, `[!abc]`.

Besides matching, an expansion must know whether two patterns *can* match the same name: a stage with the input
`done-*.dat` waits for a stage with the output `done-{run}-*`, before any of these files exists.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple

_SPECIAL = frozenset("*?[")
_STARS = frozenset({"*", "**", "**/"})
_FIRST_SPECIAL = re.compile(r"[*?\[]")
_RUN_OF_STARS = re.compile(r"\*+")

# Limits of the caches: a number of patterns, and none that is long.
_KEPT_MAX = 4096
_KEPT_LENGTH_MAX = 256


class _Shape(NamedTuple):
    """The fixed parts of a pattern: the prefix and the suffix of all matching names.

    `stars` is `*` or `**` if all stars are of that kind and only the prefix and suffix are fixed; `folders` tells whether
    there is a slash between the first and the last star.
    """

    prefix: str
    suffix: str
    stars: Literal["none", "*", "**", "mixed"]
    folders: bool


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern rather than the name of one file."""
    return not _SPECIAL.isdisjoint(name)


def literal(name: str) -> str:
    """A pattern that matches only this text."""
    return "".join(f"[{c}]" if c in _SPECIAL else c for c in name)


def literal_prefix(pattern: str) -> str:
    """The text before the first special character: all matching names begin with it."""
    first = _FIRST_SPECIAL.search(pattern)
    return pattern[: first.start()] if first else pattern


def literal_suffix(pattern: str) -> str:
    """The text after the last special character: all matching names end with it."""
    last = max(pattern.rfind("*"), pattern.rfind("?"), pattern.rfind("["))
    if last < 0:
        return pattern
    last = max(last, pattern.rfind("]"))
    suffix = pattern[last + 1 :]
    # The slash of `**/` is part of it, and optional.
    return suffix[1:] if suffix.startswith("/") and pattern[max(last - 1, 0) : last + 1] == "**" else suffix


def pattern_expression(pattern: str) -> str:
    """A regular expression for a full match of a pattern.

    A star takes the shortest match after which the following text fits, if the next star can take the rest. So a name that
    does not match costs no exponential backtracking.
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
    if not is_pattern(pattern):
        return pattern == name
    simple = _prefix_and_suffix(pattern)
    if simple is None:
        return _compiled(pattern).fullmatch(name) is not None
    prefix, suffix = simple
    return (
        name.startswith(prefix)
        and name.endswith(suffix)
        and len(name) >= len(prefix) + len(suffix)
        and name.find("/", len(prefix), len(name) - len(suffix)) < 0
    )


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
    """Whether all names certainly have this prefix and suffix and no folder in between; counts over all names at once."""
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
    """Whether some name matches both patterns: decided by prefix and suffix if possible, else by a product search."""
    if not is_pattern(left):
        return matches(right, left)
    if not is_pattern(right):
        return matches(left, right)
    # Only a set can be empty.
    if left == right and "[" not in left:
        return True
    one, other = _shape(left), _shape(right)
    if not _ends_agree(one, other):
        return False
    if one.stars == "mixed" or other.stars == "mixed":
        return _walk(left, right)
    # Now the name made of the longer prefix, the parts between the stars of one pattern, those of the other, and the longer
    # suffix matches both, unless a `*` of one would have to match a slash of the other.
    if one.stars == other.stars:
        if one.stars == "**" or ("/" not in left and "/" not in right):
            return True
        return _agree_in_every_folder(left, right)
    across, within = (one, other) if one.stars == "**" else (other, one)
    if across.folders or "/" in _beyond(across, within):
        return _walk(left, right)
    return True


def _ends_agree(one: _Shape, other: _Shape) -> bool:
    """Whether the prefixes and the suffixes are compatible."""
    return (one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)) and (
        one.suffix.endswith(other.suffix) or other.suffix.endswith(one.suffix)
    )


def _beyond(one: _Shape, other: _Shape) -> str:
    """The part of one pattern's prefix and suffix that the stars of the other must match."""
    reached = max(len(one.suffix) - len(other.suffix), 0)
    return one.prefix[len(other.prefix) :] + one.suffix[:reached]


def _agree_in_every_folder(left: str, right: str) -> bool:
    """Whether two patterns without `**` can match the same name: compare them folder by folder."""
    ours, theirs = left.split("/"), right.split("/")
    return len(ours) == len(theirs) and all(map(can_both_match, ours, theirs))


def _shape(pattern: str) -> _Shape:
    return _kept_shape(pattern) if len(pattern) <= _KEPT_LENGTH_MAX else _shape_of(pattern)


def _shape_of(pattern: str) -> _Shape:
    prefix, suffix = literal_prefix(pattern), literal_suffix(pattern)
    middle = pattern[len(prefix) : len(pattern) - len(suffix)]
    # If stars enclose the variable part, a `?` between them can match any character.
    if "[" in middle or "]" in middle or not (middle.startswith("*") and middle.endswith("*")):
        return _Shape(prefix, suffix, "mixed", folders=True)
    kinds = {"*" if len(run) == 1 else "**" for run in _RUN_OF_STARS.findall(middle)}
    if len(kinds) == 1 and "**/" not in pattern:
        return _Shape(prefix, suffix, "*" if kinds == {"*"} else "**", folders="/" in middle)
    return _Shape(prefix, suffix, "mixed", folders=True)


_kept_shape = lru_cache(maxsize=_KEPT_MAX)(_shape_of)


def _walk(left: str, right: str) -> bool:
    """Whether some name matches both patterns: a search over the product of the two.

    Steps only go forward in both patterns, so only the states of the next few positions of the left one are kept.
    """
    if len(left) <= _KEPT_LENGTH_MAX and len(right) <= _KEPT_LENGTH_MAX:
        a, b, share_a_character = _kept_steps(left), _kept_steps(right), _kept_share_a_character
    else:
        a, b, share_a_character = _steps(left), _steps(right), lru_cache(maxsize=_KEPT_MAX)(_share_a_character)
    ahead: list[set[int]] = [{0}, set(), set(), set()]
    for i in range(len(a) + 1):
        here, waiting = set[int](), list(ahead[0])
        step = a[i] if i < len(a) else ""
        while waiting:
            j = waiting.pop()
            if j in here:
                continue
            here.add(j)
            other = b[j] if j < len(b) else ""
            if step == "**/":
                ahead[1].add(j)
                ahead[3].add(j)
                continue
            if other == "**/":
                waiting += [j + 1, j + 3]
                continue
            # A star may match nothing; otherwise it stays while the other side consumes a character.
            if step in _STARS:
                ahead[1].add(j)
            if other in _STARS:
                waiting.append(j + 1)
            if step and other and share_a_character(step, other):
                after = j if other in _STARS else j + 1
                waiting.append(after) if step in _STARS else ahead[1].add(after)
        if i == len(a):
            return len(b) in here
        ahead = [*ahead[1:], set()]
    return False


def _steps(pattern: str) -> tuple[str, ...]:
    """The tokens, with each `**/` followed by what it means if it matches something: any text, and a slash."""
    return tuple(step for token in _tokens(pattern) for step in ((token, "**", "/") if token == "**/" else (token,)))


_kept_steps = lru_cache(maxsize=_KEPT_MAX)(_steps)


def _compiled(pattern: str) -> re.Pattern[str]:
    return _kept_compiled(pattern) if len(pattern) <= _KEPT_LENGTH_MAX else _compile(pattern)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern_expression(pattern), re.DOTALL)


_kept_compiled = lru_cache(maxsize=_KEPT_MAX)(_compile)


def _tokens(pattern: str) -> tuple[str, ...]:
    tokens: list[str] = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**", i):
            end = i
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # `**/` also matches zero folders, so its slash is part of it.
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
    """The content of a set as in a regular expression; `z-a` is three characters."""
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
    """Whether both tokens can match the same character; two sets are compared at the characters they name."""
    fixed = [token for token in (left, right) if len(token) == 1 and token not in _STARS and token != "?"]
    if len(fixed) == 2:
        return left == right
    one, other = _one_character(left), _one_character(right)
    # If two sets overlap, they share the end of a range, a neighbour of one, or an ordinary letter.
    ends = (chr(min(max(ord(c) + by, 1), 0x10FFFF)) for c in left + right for by in (-1, 0, 1))
    candidates = fixed or chain(map(chr, range(1, 0x250)), ends)
    return any(one.fullmatch(c) and other.fullmatch(c) for c in candidates)


_kept_share_a_character = lru_cache(maxsize=_KEPT_MAX)(_share_a_character)


def _one_character(token: str) -> re.Pattern[str]:
    """The regular expression of the characters that a token matches."""
    if token.startswith("**"):
        return re.compile(".", re.DOTALL)
    return re.compile(_expression("?" if token == "*" else token))


def _prefix_and_suffix(pattern: str) -> tuple[str, str] | None:
    """Prefix and suffix of a pattern with a single `*` and no other special character; otherwise None."""
    if pattern.count("*") != 1 or "?" in pattern or "[" in pattern:
        return None
    prefix, _, suffix = pattern.partition("*")
    return prefix, suffix
