"""What an attempt that ended well left in its folder though no output declares it: told once for each kind of name.

A file that nobody declared is gone with the folder, and whoever wrote the document may have wanted it. A job of many packages
would tell the same of each, so a pilot tells it of few packages of a stage: those whose files are called otherwise than
what it told before, apart from their numbers.
"""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REASON = "undeclared-files"
KEEPING = "outputs: "
NAMES_MAX = 5
"""So many files of an attempt are named."""
KINDS_MAX = 3
"""So many packages of a stage are told of, each for other names."""
_STAGES_MAX = 1000
_NAME_CHARACTERS_MAX = 200
_DIGITS = re.compile("[0-9]+")
_CACHES = frozenset({"__pycache__"})  # what Python writes beside the modules of a package


class Undeclared:
    """What was told by one pilot; slots may ask at once."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], set[tuple[str, ...]]] = {}  # by job and stage

    def look(self, ref: Mapping[str, Any], work: Mapping[str, Any], manifest: Any, removed: Iterable[str]) -> list[str]:
        """The files that an attempt left behind and that are to be told of, in order; mostly there are none."""
        known = {each["name"] for each in work.get("inputs", ())}
        left = [name for name in removed if name not in known]
        if not left:
            return []
        known = {each["name"] for each in manifest or ()}
        left = sorted(name for name in left if name not in known and _is_a_result(name))
        return left if left and self._is_news(ref, left) else []

    def _is_news(self, ref: Mapping[str, Any], left: Sequence[str]) -> bool:
        kind = tuple(_DIGITS.sub("0", name) for name in left[:NAMES_MAX])
        stage = (ref["job"], ref["package"].partition(".")[0])
        with self._lock:
            if len(self._told) >= _STAGES_MAX:
                self._told.clear()
            told = self._told.setdefault(stage, set())
            if kind in told or len(told) >= KINDS_MAX:
                return False
            told.add(kind)
            return True


def told(left: Sequence[str]) -> dict[str, str]:
    """What a success says of the files that it left behind; the second line is what would keep them, as JSON."""
    named = [name for name in left if len(name) <= _NAME_CHARACTERS_MAX][:NAMES_MAX]
    others = len(left) - len(named)
    more = f" and {others} more" if named and others else f"{others} files" if others else ""
    message = f"it left behind {', '.join(named)}{more}: no output declares {'it' if len(left) == 1 else 'them'}"
    if named:
        message += f"\n{KEEPING}{json.dumps(named, ensure_ascii=False)}"
    return {"reason": REASON, "exit_message": message}


def _is_a_result(name: str) -> bool:
    """Whether somebody may have wanted a file: not a folder, nothing hidden, no cache, nothing that cannot be written as text."""
    if name.endswith("/") or not name.isprintable():
        return False
    return not any(part.startswith(".") or part in _CACHES for part in name.split("/"))
