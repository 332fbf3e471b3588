"""Names and counts in words: what a job may be called, names that differ from one another, URLs, plurals."""

from __future__ import annotations

import re

JOB_NAME_CHARACTERS_MAX = 200
JOB_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{JOB_NAME_CHARACTERS_MAX - 1}}}")

_NOT_IN_JOB_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def job_name_like(text: str, *, otherwise: str) -> str:
    """What a job may be called that comes nearest to a text; `otherwise` where nothing of it is left."""
    if JOB_NAME.fullmatch(text):
        return text
    near = _NOT_IN_JOB_NAME.sub("-", text).strip("-._+")[:JOB_NAME_CHARACTERS_MAX]
    return near.rstrip("-._+") or otherwise


def is_url(name: str) -> bool:
    """Whether a file is named by a URL."""
    return _SCHEME.match(name) is not None


def without_scheme(name: str) -> str:
    """A URL without its `https://`; any other name as it is."""
    return _SCHEME.sub("", name, count=1)


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 package`, `1,000 packages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


class FreeNames:
    """Gives out names so that no two are the same: a second `a` becomes `a-2`."""

    def __init__(self, *, separator: str = "-") -> None:
        """All names are free; the separator stands before the number."""
        self._separator = separator
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Keep a name from being given out for another."""
        self._taken.add(name)

    def take(self, name: str) -> str:
        """The wanted name, or the nearest one that is free."""
        found = name
        while found in self._taken:
            number = self._next.get(name, 2)
            self._next[name] = number + 1
            found = f"{name}{self._separator}{number}"
        self._taken.add(found)
        return found
