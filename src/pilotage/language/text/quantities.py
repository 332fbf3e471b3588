"""Numbers with units: `2 GiB`, `90s`, `1:30:00`, `2-12:00:00`. An unknown unit is rejected."""

from __future__ import annotations

import re

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "pib": 2**50,
}
_SECONDS = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
    "week": 604800.0,
    "weeks": 604800.0,
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-5][0-9])(?::([0-5][0-9]))?")

# Larger values could not be read back from their canonical form, and no computer has them.
_BYTES_MAX = 10**18
_SECONDS_MAX = 10.0**15

BYTES_FORM = "a size such as 500 MB or 2 GiB"
SECONDS_FORM = "a time such as 90s, 10 min, 2h, 1d or 1:30:00"


def parse_bytes(text: str) -> int | None:
    """A size in bytes, or None; `K`, `M`, `G`, `T` alone are binary units, as in batch systems."""
    found = _QUANTITY.fullmatch(text.strip())
    factor = _BYTES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        return None
    whole, _, fraction = found[1].partition(".")
    # Exact: a float would lose bytes of a petabyte.
    size = int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
    return size if size <= _BYTES_MAX else None


def parse_seconds(text: str) -> float | None:
    """A duration in seconds, or None; also `H:MM:SS` and `D-HH:MM:SS`, as in batch systems."""
    text = text.strip()
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, first, second, third = (int(group) if group else 0 for group in clock.groups())
        hours, minutes, seconds = (first, second, third) if clock[4] or clock[1] else (0, first, second)
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if _NUMBER.fullmatch(text):
        # A number without a unit, with all digits, as in the canonical form of `0.1234567 min`.
        return _within(float(text))
    found = _QUANTITY.fullmatch(text)
    factor = _SECONDS.get(found[2].lower()) if found else None
    return _within(float(found[1]) * factor) if found and factor is not None else None


def _within(seconds: float) -> float | None:
    return seconds if seconds <= _SECONDS_MAX else None
