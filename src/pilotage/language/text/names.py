"""Names of jobs and files, unique names, URLs, plurals."""

from __future__ import annotations

import posixpath
import re

JOB_NAME_CHARACTERS_MAX = 200
JOB_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{JOB_NAME_CHARACTERS_MAX - 1}}}")

_NOT_IN_JOB_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def job_name_like(text: str, *, otherwise: str) -> str:
    """A valid job name made from a text; `otherwise` if nothing of it remains."""
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
    """Makes names unique: a second `a` becomes `a-2`."""

    def __init__(self, *, separator: str = "-") -> None:
        """`separator` goes before the number."""
        self._separator = separator
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Mark a name as used."""
        self._taken.add(name)

    def take(self, name: str) -> str:
        """The wanted name, or the next free one with a number."""
        found = name
        while found in self._taken:
            number = self._next.get(name, 2)
            self._next[name] = number + 1
            found = f"{name}{self._separator}{number}"
        self._taken.add(found)
        return found


# File names in a job's tree: one spelling for each file, and none outside the tree.

STATE_FOLDER = ".pilotage"
_OWN_FOLDERS = {
    STATE_FOLDER: "is where pilotage keeps its own state",
    ".pilotage-staged": "is where pilotage keeps outputs that have no name yet",
}

# Parts of names that need normalizing or are not allowed, in a text with a newline before and after each name.
_SUSPICIOUS = ("//", "..", "\0", "\n/", "/\n", "\n\n", "\n./", "/./", "/.\n", "\n.\n", f"\n{STATE_FOLDER}")


def _all_plain(names: list[str]) -> bool:
    """Whether no name needs normalizing or checking; searches a million names at once."""
    joined = "\n" + "\n".join(names) + "\n"
    return not any(sign in joined for sign in _SUSPICIOUS)


def tidy_names(names: list[str]) -> list[str]:
    """The names without `./`, `//` and `a/../`; the same list if there is nothing to do."""
    if not names or _all_plain(names):
        return names
    return [tidy_name(name) for name in names]


def tidy_name(name: str) -> str:
    """The normalized spelling of a name."""
    if "/" not in name or "\0" in name:
        return name
    tidy = posixpath.normpath(name)
    return tidy[1:] if tidy.startswith("//") else tidy


def outside(names: list[str]) -> list[tuple[str, str]]:
    """The names that cannot be outputs, each with the reason."""
    if not names or _all_plain(names):
        return []
    return [(name, reason) for name in names if (reason := why_outside(name))]


def why_outside(name: str) -> str:
    """Why a name cannot be an output of a job, or an empty text."""
    if not name:
        return "it is empty"
    if "\0" in name:
        return "it contains a NUL character"
    if name.startswith("/"):
        return "it is absolute"
    tidy = tidy_name(name)
    if tidy == ".." or tidy.startswith("../"):
        return "it leads out of the job's tree"
    if tidy == "." or name.endswith("/"):
        return "it names a folder"
    if name.endswith("\n"):
        return "it ends with a line break"
    return why_own(tidy)


def why_own(tidy: str) -> str:
    """Why pilotage reserves a name for itself, or an empty text."""
    folder = tidy.partition("/")[0]
    return f"{folder} {_OWN_FOLDERS[folder]}" if folder in _OWN_FOLDERS else ""


def first_own(names: list[str]) -> tuple[str, str] | None:
    """The first name that pilotage reserves for itself, with the reason; searches a million names at once."""
    if f"\n{STATE_FOLDER}" not in "\n" + "\n".join(names):
        return None
    return next(((name, reason) for name in names if (reason := why_own(name))), None)
