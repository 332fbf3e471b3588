"""Which word of a command says what is run: its program, or the script that an interpreter reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

_INTERPRETER = re.compile(r"(?:ba|da|k|z)?(sh|python|perl|ruby|Rscript|node)[0-9.]*\Z")
_TEXTS = {  # by interpreter: options followed by a text or a module name, not by a file
    "sh": frozenset("c"),
    "python": frozenset("cm"),
    "perl": frozenset("eE"),
    "ruby": frozenset("e"),
    "Rscript": frozenset("e"),
    "node": frozenset("ep"),
}


def script_position(words: Sequence[str]) -> int | None:
    """The index of a command's program, or of the file that its interpreter reads; None if it reads a text."""
    program = _INTERPRETER.match(words[0].rpartition("/")[2]) if words else None
    if program is None:
        return 0 if words else None
    options = list(takewhile(lambda word: word.startswith("-"), words[1:]))
    texts = [word for word in options if not word.startswith("--") and not _TEXTS[program[1]].isdisjoint(word)]
    return len(options) + 1 if not texts and len(options) + 1 < len(words) else None
