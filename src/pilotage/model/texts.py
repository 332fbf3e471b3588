"""Makes texts and numbers from outside fit for events, and formats times and sizes for people."""

from __future__ import annotations

import math
import re
import shlex
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeVar

import msgspec

TEXT_MAX = 16_384
"""Characters of a message."""
NAME_MAX = 256
"""Characters of the name of a node, a batch job, an owner and the like."""
FAILURE_CHARACTERS_MAX = 300
"""Characters of a failure's message in a line with others."""
REASON_MAX = 64
"""Characters of a reason."""
REPLICAS_MAX = 1000
"""Further attempts of one package that may be requested in one epoch."""
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def clipped(text: str, most: int = TEXT_MAX) -> str:
    """A text that is valid UTF-8 and not too long; a cut is marked at its end."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def named(text: str, *, most: int = NAME_MAX, otherwise: str) -> str:
    """The same for a text that must not be empty."""
    return clipped(text, most) or otherwise


def amount(value: float | None) -> float | None:
    """A non-negative number of seconds, or None if it is none."""
    return None if value is None or not math.isfinite(value) else max(0.0, value)


def moment(seconds: float | None) -> str:
    """A time for people, in UTC, to the second; empty for None."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


_OFFSET = re.compile(r"([+-])([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


def offset_minutes(text: str) -> int | None:
    """Minutes east of UTC from a text such as `+02:00`; None if it is none."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    minutes = 60 * int(found[2]) + int(found[3])
    return -minutes if found[1] == "-" else minutes


def node_moment(seconds: float | None, *, utc_offset: str) -> str:
    """A time for people, in UTC, and by the clocks of a node with an offset from it, if that differs."""
    minutes = offset_minutes(utc_offset)
    if seconds is None or not minutes:
        return moment(seconds)
    there = datetime.fromtimestamp(seconds, timezone(timedelta(minutes=minutes)))
    return f"{moment(seconds)} ({there:%Y-%m-%d %H:%M:%S}{utc_offset} at the node)"


def size_text(size_bytes: int) -> str:
    """A number of bytes for people."""
    for factor, unit in _SIZES:
        if size_bytes >= factor:
            many = size_bytes / factor
            return f"{many:.3g} {unit}" if many < 999.5 else f"{many:.0f} {unit}"
    return f"{size_bytes} B"


def sizes_apart(one_bytes: int, other_bytes: int) -> tuple[str, str]:
    """Two different numbers of bytes for people; exact if they would look the same."""
    texts = size_text(one_bytes), size_text(other_bytes)
    return texts if texts[0] != texts[1] else (f"{one_bytes:,} bytes", f"{other_bytes:,}")


def check_sha256(text: str) -> None:
    """Raise ValueError unless decoding and encoding the text gives the same text again.

    Nearly every attempt stages files, and a regular expression is slower; its `$` also allows a line break at the end.
    """
    try:
        if len(text) == 64 and bytes.fromhex(text).hex() == text:
            return
    except ValueError:
        pass
    raise ValueError("a sha256 is 64 hexadecimal digits, in small letters")


def words_of_failure(message: str | None) -> str:
    """The first line of an attempt's failure message, to follow its reason."""
    first = (message or "").strip().partition("\n")[0]
    return f": {first[:FAILURE_CHARACTERS_MAX]}" if first else ""


def after_a_stop(job: str, activity: str) -> str:
    """How to go on with a stopped activity: programs of the folder and the document are those of the submission."""
    again = f"pilotage retry {job} --activity {shlex.quote(activity)}"
    return f"mend the cause, then: {again}; if that was a program of the folder or the document, run it again: pilotage run"


# Structs that change often: their fields are set as fast as those of a class with slots.

Changing = TypeVar("Changing", bound=msgspec.Struct)


def changes_often(kind: type[Changing]) -> type[Changing]:
    """Set the fields of a struct without checking each time whether the garbage collector must track it from then on.

    The check takes five times as long as the assignment. It is useless for a struct that the collector never tracks
    (`gc=False`), and for one that is tracked from the beginning, because it is created with a field that may be part of a cycle.
    """
    type.__setattr__(kind, "__setattr__", object.__setattr__)
    type.__setattr__(kind, "__delattr__", object.__delattr__)  # both, or Python uses the slow path for either
    return kind
