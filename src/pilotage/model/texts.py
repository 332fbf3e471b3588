"""Texts and numbers from outside, made such that an event can carry them, and times and sizes for people."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

TEXT_MAX = 16_384
"""Characters of a message."""
NAME_MAX = 256
"""Characters of the name of a node, a batch system's job, an owner and the like."""
FAILURE_CHARACTERS_MAX = 300
"""Characters of what a failure said, where it is told in a line with others."""
REASON_MAX = 64
"""Characters of a reason."""
REPLICAS_MAX = 1000
"""Further attempts of one package that may be asked for in one epoch."""
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clipped(text: str, most: int = TEXT_MAX) -> str:
    """A text that can be written as UTF-8 and is not too long; where something is left out, its end says so."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def named(text: str, *, most: int = NAME_MAX, otherwise: str) -> str:
    """The same for what must not be empty."""
    return clipped(text, most) or otherwise


def amount(value: float | None) -> float | None:
    """A number of seconds that is not negative, or None where it is none."""
    return None if value is None or not math.isfinite(value) else max(0.0, value)


def moment(seconds: float | None) -> str:
    """A point in time for people, in UTC, to the second; empty for None."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def size_text(size_bytes: int) -> str:
    """A number of bytes as people say it."""
    for factor, unit in _SIZES:
        if size_bytes >= factor:
            many = size_bytes / factor
            return f"{many:.3g} {unit}" if many < 999.5 else f"{many:.0f} {unit}"
    return f"{size_bytes} B"


def sizes_apart(one_bytes: int, other_bytes: int) -> tuple[str, str]:
    """Two numbers of bytes that differ, as people say them; where they would sound the same, to the byte."""
    told = size_text(one_bytes), size_text(other_bytes)
    return told if told[0] != told[1] else (f"{one_bytes:,} bytes", f"{other_bytes:,}")


def check_sha256(text: str) -> None:
    """Raise ValueError unless bytes come out as the very text that went in.

    Nearly every attempt stages files, and a pattern takes longer to say so; its `$` lets the end of a line pass besides.
    """
    try:
        if len(text) == 64 and bytes.fromhex(text).hex() == text:
            return
    except ValueError:
        pass
    raise ValueError("a sha256 is 64 hexadecimal digits, in small letters")


def words_of_failure(message: str | None) -> str:
    """What an attempt said of its failure, to be added to its reason: the first line, which is for people."""
    first = (message or "").strip().partition("\n")[0]
    return f": {first[:FAILURE_CHARACTERS_MAX]}" if first else ""


# Values that change often: structs whose fields are set as fast as those of a class with slots.

Changing = TypeVar("Changing", bound=msgspec.Struct)


def changes_often(kind: type[Changing]) -> type[Changing]:
    """Have the fields of a struct set without asking each time whether the garbage collector is to look at it from then on.

    Asking takes five times as long as setting. It is in vain for a struct that the collector never looks at (`gc=False`), and
    for one that it looks at from the beginning, because it is made with something that may be part of a circle.
    """
    type.__setattr__(kind, "__setattr__", object.__setattr__)
    type.__setattr__(kind, "__delattr__", object.__delattr__)  # both, or Python takes the long way for either
    return kind
