"""A notice: its number, its form as a CloudEvent, and the pause before a retry."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from pilotage.book.rows.tables import NoticeRow

Number = tuple[int, int]
"""The number of a notice: the position of the last event of its batch, and its number within the batch."""

START: Number = (0, 0)
"""Before every notice."""

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 300.0

_NUMBER = re.compile(r"([0-9]{1,16})\.([0-9]{1,9})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_encode = msgspec.json.Encoder().encode


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice. `source` and `id` identify it, so that a receiver recognises a duplicate."""

    id: str
    source: str
    type: str
    subject: str
    time: float
    data: msgspec.Raw


def number_text(number: Number) -> str:
    """A number as text: `1042.3`."""
    return f"{number[0]}.{number[1]}"


def read_number(text: str) -> Number | None:
    """Parse a number; None if malformed."""
    found = _NUMBER.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def number_of(row: NoticeRow) -> Number:
    """The number of a row."""
    return row.position, row.part


def notice_of(row: NoticeRow, *, base_url: str) -> Notice:
    """A stored notice as it is sent; `base_url` is the address of the service."""
    subject = f"jobs/{row.job}/packages/{row.package}" if row.package else f"jobs/{row.job}"
    return Notice(
        id=number_text(number_of(row)),
        source=f"{base_url}/v1/subscriptions/{row.subscription}",
        type=row.type,
        subject=subject,
        time=row.time,
        data=msgspec.Raw(row.data.encode()),
    )


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A notice in the structured JSON form of CloudEvents 1.0."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    data: msgspec.Raw


def cloud_event(notice: Notice) -> CloudEvent:
    """A notice as CloudEvents 1.0 has it."""
    return CloudEvent(
        specversion="1.0",
        id=notice.id,
        source=notice.source,
        type=notice.type,
        subject=notice.subject,
        time=time_text(notice.time),
        datacontenttype="application/json",
        data=notice.data,
    )


def cloud_event_body(notice: Notice) -> bytes:
    """The body of a webhook; always the same bytes for the same notice."""
    return _encode(cloud_event(notice))


def time_text(seconds: float) -> str:
    """A time in UTC, by RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def data_of(notice: Notice) -> dict[str, Any]:
    """The decoded data of a notice."""
    found = msgspec.json.decode(notice.data)
    return found if isinstance(found, dict) else {}


def retry_seconds(attempts: int, *, chance: float) -> float:
    """The pause after so many failures in a row; `chance`, from 0 to 1, spreads the receivers.

    It doubles from one second to five minutes, and is drawn from the upper half of that.
    """
    whole = min(RETRY_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), RETRY_SECONDS_MAX)
    return whole * (0.5 + 0.5 * chance)


def plain(text: str, *, length_max: int = 200) -> str:
    """A foreign text on one line: without control characters, and shortened."""
    line = _CONTROLS.sub(" ", text[: length_max + 1]).strip()
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"
