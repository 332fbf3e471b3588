"""The values of a query: reads each kind from text or JSON, and writes it in a canonical form.

A time is seconds since 1970 in UTC, to the microsecond, or stays relative (`Ago`) until it is resolved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from pilotage.book.query.attributes import EXIT_CODES, SOURCES, STATES, Kind
from pilotage.book.query.errors import QueryPlace, shown
from pilotage.model.errors import near_name
from pilotage.model.events.events import JOB_ID, parse_dotted
from pilotage.model.jobs.layout import PackageId, parse_path


class Ago(msgspec.Struct, frozen=True, tag="ago"):
    """A time so many seconds before now."""

    seconds: float


Value = str | int | float | bool | Ago
"""Text, a count, seconds since 1970, yes or no, or a relative time."""

KEYWORDS = frozenset({"and", "or", "not", "in", "within", "all"})
COUNT_MAX = 2**63 - 1
REASON_MAX = 64
DAY_SECONDS = 86_400.0

# Without the year 9999: a float near its end rounds into a year that Python's calendar does not have.
TIME_MAX = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_AGO_SECONDS_MAX = 100 * 366 * DAY_SECONDS

TIME_FORM = "a time such as 2024-05-01, 2024-05-01T10:00, 2024-05-01T10:00:00+02:00, now or 2h ago"
WITHIN_FORM = "within START..END, within 2h or within 2024-05-01"

_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([smhdw])", re.IGNORECASE)
_AGO = re.compile(r"(\S+)\s+ago", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)([Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,19}")
_BARE = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_:@/+-]|\.(?!\.))*")
_FLAGS = {"yes": True, "true": True, "no": False, "false": False}
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def read_value(kind: Kind, raw: object, place: QueryPlace) -> Value:
    """Read a value of a kind from a text, or a number or truth value of JSON; an error states the expected form."""
    return _READERS[kind](raw, place)


def _read_text(raw: object, place: QueryPlace) -> str:
    if not isinstance(raw, str):
        raise place.error("not a value for this attribute", expected="text", got=shown(raw))
    if "\0" in raw or any("\ud800" <= character <= "\udfff" for character in raw):
        raise place.error("this text cannot occur in the book", expected="text without NUL or lone surrogates")
    return raw


def _read_choice(choices: tuple[str, ...], what: str, *, raw: object, place: QueryPlace) -> str:
    known = {choice.lower(): choice for choice in choices}
    text = raw if isinstance(raw, str) else ""
    found = known.get(text.lower())
    if found is None:
        near = near_name(text[:40].lower(), known)
        hint = f"did you mean {known[near]}?" if near else f"one of {', '.join(choices)}"
        raise place.error(f"no such {what}: {shown(raw)}", next_step=hint)
    return found


def _read_state(raw: object, place: QueryPlace) -> str:
    return _read_choice(STATES, "state", raw=raw, place=place)


def _read_exit_code(raw: object, place: QueryPlace) -> str:
    return _read_choice(EXIT_CODES, "exit code", raw=raw, place=place)


def _read_source(raw: object, place: QueryPlace) -> str:
    return _read_choice(SOURCES, "source", raw=raw, place=place)


def _read_reason(raw: object, place: QueryPlace) -> str:
    text = _read_text(raw, place)
    if not 1 <= len(text) <= REASON_MAX:
        raise place.error("not a reason", expected=f"1 to {REASON_MAX} characters, such as upstream", got=shown(raw))
    return text


def _read_job(raw: object, place: QueryPlace) -> str:
    if not isinstance(raw, str) or not JOB_ID.fullmatch(raw):
        expected = "1 to 64 letters, digits, dots, hyphens and underscores, beginning with a letter or digit"
        raise place.error("not a job id", expected=expected, got=shown(raw))
    return raw


def _read_package(raw: object, place: QueryPlace) -> str:
    job, found = read_package(raw)
    if found is None:
        raise place.by_name("not a package", expected="stage.line.number such as 1.2.1, or 001/002/001", got=shown(raw))
    if job:
        next_step = (
            f"a path with a job must be alone after `package =`; otherwise write name=… and package={found.dotted}"
        )
        raise place.error(f"{shown(raw)} names a job too", next_step=next_step)
    return found.dotted


def read_package(raw: object) -> tuple[str, PackageId | None]:
    """The job's name, if a DØ path begins with one, and the package; None if malformed."""
    text = raw if isinstance(raw, str) else ""
    dotted = parse_dotted(text)
    if dotted:
        return "", dotted
    found = parse_path(text)
    if found is None or min(found.stage, found.line, found.number) < 1:
        return "", None
    parts = text.rsplit("/", 3)
    return (parts[0] if len(parts) == 4 else ""), found


def _read_flag(raw: object, place: QueryPlace) -> bool:
    found = raw if isinstance(raw, bool) else _FLAGS.get(raw.lower()) if isinstance(raw, str) else None
    if found is None:
        raise place.error("not a truth value", expected="yes or no", got=shown(raw))
    return found


def _read_count(raw: object, place: QueryPlace) -> int:
    number = int(raw) if isinstance(raw, str) and _COUNT.fullmatch(raw) else raw
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= COUNT_MAX:
        raise place.error("not a count", expected=f"a whole number from 0 to {COUNT_MAX}", got=shown(raw))
    return number


def _read_time(raw: object, place: QueryPlace) -> float | Ago:
    found = _time_of(raw)
    if found is None:
        relative = isinstance(raw, str) and _DURATION.fullmatch(raw)
        hint = f"write {raw} ago for a time, or within {raw} for all since then" if relative else ""
        raise place.error("not a time", expected=TIME_FORM, got=shown(raw), next_step=hint)
    if not isinstance(found, Ago) and not 0 <= found <= TIME_MAX:
        raise place.error("a time outside the calendar", expected="a time from 1970 to the year 9998", got=shown(raw))
    return found


def _time_of(raw: object) -> float | Ago | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        # A huge integer does not fit into a float, and neither it nor NaN is in range.
        return round(float(raw), 6) if 0 <= raw <= TIME_MAX else math.inf
    if not isinstance(raw, str):
        return None
    text = raw.strip()
    if text.lower() == "now":
        return Ago(0.0)
    if ago := _AGO.fullmatch(text):
        seconds = read_duration(ago[1])
        return None if seconds is None else Ago(seconds)
    if _SECONDS.fullmatch(text):
        return round(float(text), 6)
    return _calendar_time(text)


def _calendar_time(text: str) -> float | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    zone = (found[3] or "Z").upper().replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{zone}")
        # Whole microseconds first: the difference of two floats would not be read back as the same.
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) / 1_000_000
    except (ValueError, OverflowError):
        return None


def is_date(raw: object) -> bool:
    """Tell whether a time is only a day."""
    return isinstance(raw, str) and _DATE.fullmatch(raw.strip()) is not None


def is_duration(raw: object) -> bool:
    """Tell whether a text has the form of a duration, such as `2h`."""
    return isinstance(raw, str) and _DURATION.fullmatch(raw) is not None


def read_duration(text: str) -> float | None:
    """The seconds of `30s`, `5m`, `2h`, `7d` or `1w`, at most a hundred years; None if malformed."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    seconds = round(float(found[1]) * _UNITS[found[2].lower()], 3)
    return seconds if seconds <= _AGO_SECONDS_MAX else None


def write_duration(seconds: float) -> str:
    """A duration in the largest unit with a whole number: `90m`, `2h`."""
    for unit, size in _UNITS.items():
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def write_time(value: float | Ago) -> str:
    """The canonical text of a time: `2024-05-01T00:00:00Z`, `now` or `2h ago`."""
    if isinstance(value, Ago):
        return f"{write_duration(value.seconds)} ago" if value.seconds else "now"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
    return moment.replace(tzinfo=None).isoformat() + "Z"


def write_text(text: str) -> str:
    """The canonical text of a string: bare if possible, else quoted and escaped."""
    if _BARE.fullmatch(text) and text.lower() not in KEYWORDS:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    hidden = not character.isprintable() and ord(character) <= 0xFFFF
    return f"\\u{ord(character):04x}" if hidden else character


def write_value(kind: Kind, value: Value) -> str:
    """The canonical text of a value; reading it gives the same value."""
    if kind is Kind.FLAG:
        return "yes" if value else "no"
    if kind is Kind.TIME and isinstance(value, int | float | Ago):
        return write_time(value)
    return write_text(value) if isinstance(value, str) else str(value)


def plain_value(kind: Kind, value: Value) -> str | int | float | bool:
    """The JSON form of a value: times as text, everything else as it is."""
    if kind is Kind.TIME and not isinstance(value, str):
        return write_time(value)
    return str(value) if isinstance(value, Ago) else value


_READERS: dict[Kind, Callable[[object, QueryPlace], Value]] = {
    Kind.TEXT: _read_text,
    Kind.STATE: _read_state,
    Kind.EXIT_CODE: _read_exit_code,
    Kind.SOURCE: _read_source,
    Kind.REASON: _read_reason,
    Kind.TIME: _read_time,
    Kind.COUNT: _read_count,
    Kind.FLAG: _read_flag,
    Kind.JOB: _read_job,
    Kind.PACKAGE: _read_package,
}
