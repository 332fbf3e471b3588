"""File-name patterns as documents have them: `*` and `?` within one folder, `**` across folders, `[abc]`, `[!abc]`.

The service matches the same patterns with the same meaning; here they are said again for an older Python. A name is
tried in one walk, which holds every place of the pattern that it may have come to: no pattern costs more than their
lengths multiplied.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_SPECIAL = frozenset("*?[")
_ESCAPED = re.compile(r"\[([*?\[])\]")  # one special character that stands for itself


class _Step(NamedTuple):
    """A place in a pattern: which characters lead on from it, and whether it may be left, or stayed at, without one."""

    expression: re.Pattern[str] | None = None  # of one character that is consumed
    stays: bool = False  # having consumed it, the walk is where it was: a star
    leads_on: tuple[int, ...] = ()  # how far on the walk is as well, without a character


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern rather than the name of one file."""
    return not _SPECIAL.isdisjoint(name)


def fixed_folder(pattern: str) -> str:
    """The folder that everything which matches a pattern lies in, as far as the pattern says so; empty: that of the package."""
    folders = []
    for part in pattern.split("/")[:-1]:
        name = _ESCAPED.sub(r"\1", part)
        if is_pattern(_ESCAPED.sub("", part)):
            break
        folders.append(name)
    return "/".join(folders)


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern."""
    if not is_pattern(pattern):
        return pattern == name
    steps = _steps(pattern)
    here = _with_what_follows({0}, steps)
    for character in name:
        reached = set()
        for place in here:
            step = steps[place] if place < len(steps) else _END
            if step.expression is not None and step.expression.fullmatch(character):
                reached.add(place if step.stays else place + 1)
        here = _with_what_follows(reached, steps)
        if not here:
            return False
    return len(steps) in here


def _with_what_follows(places: set[int], steps: tuple[_Step, ...]) -> set[int]:
    found, waiting = set(places), list(places)
    while waiting:
        place = waiting.pop()
        for distance in steps[place].leads_on if place < len(steps) else ():
            if place + distance not in found:
                found.add(place + distance)
                waiting.append(place + distance)
    return found


@lru_cache(maxsize=256)
def _steps(pattern: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**", i):
            end = i
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # `**/` also matches no folder at all, so its slash belongs to it.
            folders = pattern.startswith("/", end)
            across = _Step(_ANY, stays=True, leads_on=(1,))
            steps += [_Step(leads_on=(1, 3)), across, _Step(re.compile("/"))] if folders else [across]
            i = end + 1 if folders else end
            continue
        token = _token_at(pattern, i)
        steps.append(_Step(_WITHIN, stays=True, leads_on=(1,)) if token == "*" else _Step(_one_character(token)))
        i += len(token)
    return tuple(steps)


def _token_at(pattern: str, start: int) -> str:
    """A set where there is a whole one, else one character."""
    if pattern[start] == "[":
        end = pattern.find("]", start + 3 if pattern[start + 1 : start + 2] == "!" else start + 2)
        if end > 0:
            return pattern[start : end + 1]
    return pattern[start]


def _one_character(token: str) -> re.Pattern[str]:
    if token == "?":
        return _WITHIN
    if len(token) == 1:
        return re.compile(re.escape(token))
    negated = token.startswith("[!")
    members = _members(token[2:-1] if negated else token[1:-1])
    return re.compile(f"(?!/)[{'^' if negated else ''}{members}]", re.DOTALL)


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


_ANY = re.compile(".", re.DOTALL)
_WITHIN = re.compile("[^/]")
_END = _Step()
