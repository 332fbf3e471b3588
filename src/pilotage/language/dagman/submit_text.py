"""Writing values so that HTCondor reads them back: VARS lines and submit commands."""

from __future__ import annotations

import re
from collections.abc import Mapping

_UNSAYABLE = re.compile(r"[\n\r]|^\s|\s$|^\"|^$|\\$")


def protected(text: str) -> str:
    """A text in which no macro is looked for."""
    return text.replace("$", "$(DOLLAR)")


def variable(name: str, value: str) -> str:
    """`name="value"` as VARS takes it."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{quoted}"'


def command(name: str, value: str) -> str:
    """One line of a submit description."""
    return f"{name} = {value}\n"


def is_sayable(text: str) -> bool:
    """Whether a text can be the value of a submit command."""
    return _UNSAYABLE.search(text) is None


def is_listable(name: str) -> bool:
    """Whether a file's name can stand in a list with commas."""
    return is_sayable(name) and "," not in name


def environment(variables: Mapping[str, str]) -> str:
    """The variables in the new syntax, double quotes around them included."""
    words = []
    for name, value in variables.items():
        word = f"{name}={value}"
        words.append("'" + word.replace("'", "''") + "'" if re.search(r"[\s']", word) else word)
    return '"' + " ".join(words).replace('"', '""') + '"'


def size(count_bytes: int) -> str:
    """A size in the largest unit that says it exactly, at least in kilobytes, rounded up."""
    for unit, factor in (("GB", 1024**3), ("MB", 1024**2)):
        if count_bytes and count_bytes % factor == 0:
            return f"{count_bytes // factor} {unit}"
    return f"{-(-count_bytes // 1024)} KB"
