"""`if`, `elif`, `else`, `endif` of submit descriptions: the few conditions that HTCondor itself allows."""

from __future__ import annotations

import re
from collections.abc import Mapping

VERSION = (25, 0, 0)  # the HTCondor whose submit language is spoken here
_VERSION_TEST = re.compile(r"version\s*(==|!=|>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+){1,3})", re.IGNORECASE)
_DEFINED = re.compile(r"defined(?:\s+(\S+))?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")


def holds(text: str, table: Mapping[str, str]) -> bool | None:
    """Whether a condition, its macros already expanded, is true; None where it is none that HTCondor understands."""
    condition = text.strip()
    if condition.startswith("!"):
        truth = _holds(condition[1:].strip(), table)
        return None if truth is None else not truth
    return _holds(condition, table)


def _holds(condition: str, table: Mapping[str, str]) -> bool | None:
    lower = condition.lower()
    if lower in ("true", "yes", "t"):
        return True
    if lower in ("false", "no", "f"):
        return False
    if _NUMBER.fullmatch(condition):
        return float(condition) != 0
    if (asked := _DEFINED.fullmatch(condition)) is not None:
        name = asked[1] or ""
        return bool(_NUMBER.fullmatch(name) or table.get(name.lower()))
    if (found := _VERSION_TEST.fullmatch(condition)) is not None:
        wanted = tuple(int(part[:9]) for part in found[2].split("."))[:3]
        have = VERSION[: len(wanted)]
        return {
            "==": have == wanted,
            "!=": have != wanted,
            ">=": have >= wanted,
            "<=": have <= wanted,
            ">": have > wanted,
            "<": have < wanted,
        }[found[1]]
    return None
