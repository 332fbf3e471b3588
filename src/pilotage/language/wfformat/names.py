"""Names on both sides: ids that WfFormat allows, files inside the job's tree, and what a job may be called."""

from __future__ import annotations

import re

from pilotage.language.text.paths import STATE_FOLDER, tidy_name

OWN_SYSTEM = "pilotage"

_TASK_CHARACTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
_FILE_CHARACTERS = _TASK_CHARACTERS | frozenset("/:")
_CODED = re.compile(r"(?:#[0-9a-f]{2})+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_NOT_IN_JOB_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_JOB_NAME_MAX = 200
_COUNTER = re.compile(r"(?<=.)_(?:ID)?[0-9]+\Z")
_UP = "up"


def task_id(name: str) -> str:
    """A package's name in the characters that WfFormat allows for ids; others as `#` and their UTF-8 bytes."""
    return _coded(name, _TASK_CHARACTERS)


def file_id(name: str) -> str:
    """A file's name in the characters that WfFormat allows for ids of files."""
    return _coded(name, _FILE_CHARACTERS)


def _coded(name: str, allowed: frozenset[str]) -> str:
    if allowed.issuperset(name):
        return name
    return "".join(
        c if c in allowed else "".join(f"#{byte:02x}" for byte in c.encode("utf-8", "surrogatepass")) for c in name
    )


def decoded(written: str) -> str:
    """The name that `task_id` or `file_id` wrote; a text that neither can have written stays as it is."""
    if "#" not in written:
        return written
    try:
        return _CODED.sub(
            lambda found: bytes.fromhex(found[0].replace("#", "")).decode("utf-8", "surrogatepass"), written
        )
    except UnicodeDecodeError:
        return written


def braces_doubled(text: str) -> str:
    """A text as a template that stands for itself."""
    return text.replace("{", "{{").replace("}", "}}") if "{" in text or "}" in text else text


def is_url(name: str) -> bool:
    """Whether a file is named by a URL."""
    return _URL.match(name) is not None


def name_in_tree(name: str) -> str:
    """A file's name inside the job's tree: as it is where it can be, else without its root and with `up` for `..`.

    Empty where it names no file at all.
    """
    parts = [part for part in _URL.sub("", name, count=1).split("/") if part not in ("", ".")]
    inside = tidy_name("/".join(parts)) if parts else ""
    if inside == ".." or inside.startswith("../"):
        inside = "/".join(_UP if part == ".." else part for part in inside.split("/"))
    if inside == STATE_FOLDER or inside.startswith(f"{STATE_FOLDER}/"):
        inside = inside[1:]
    return "" if inside == "." else inside


def job_name(name: str) -> str:
    """What a job may be called that comes nearest to a name."""
    if _JOB_NAME.fullmatch(name):
        return name
    near = _NOT_IN_JOB_NAME.sub("-", name).strip("-._+")
    return near[:_JOB_NAME_MAX] or "workflow"


def without_counter(name: str) -> str:
    """A task's name without the number that tells it from others of its kind: `mProject_ID0000007` is an `mProject`."""
    return _COUNTER.sub("", name)


class FreeNames:
    """Gives out names so that no two are the same: a second `a` becomes `a-2`."""

    def __init__(self) -> None:
        """All names are free."""
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
            found = f"{name}-{number}"
        self._taken.add(found)
        return found
