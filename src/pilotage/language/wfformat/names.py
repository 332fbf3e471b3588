"""Names on both sides: ids that WfFormat allows, and files inside the job's tree."""

from __future__ import annotations

import re

from pilotage.language.text.names import without_scheme
from pilotage.language.text.paths import STATE_FOLDER, tidy_name

OWN_SYSTEM = "pilotage"

_TASK_CHARACTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
_FILE_CHARACTERS = _TASK_CHARACTERS | frozenset("/:")
_CODED = re.compile(r"(?:#[0-9a-f]{2})+")
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


def name_in_tree(name: str) -> str:
    """A file's name inside the job's tree: as it is where it can be, else without its root and with `up` for `..`.

    Empty where it names no file at all.
    """
    parts = [part for part in without_scheme(name).split("/") if part not in ("", ".")]
    inside = tidy_name("/".join(parts)) if parts else ""
    if inside == ".." or inside.startswith("../"):
        inside = "/".join(_UP if part == ".." else part for part in inside.split("/"))
    if inside == STATE_FOLDER or inside.startswith(f"{STATE_FOLDER}/"):
        inside = inside[1:]
    return "" if inside == "." else inside


def without_counter(name: str) -> str:
    """A task's name without the number that tells it from others of its kind: `mProject_ID0000007` is an `mProject`."""
    return _COUNTER.sub("", name)
