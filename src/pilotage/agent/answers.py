"""What an answer of the server means for the events of a batch: only what it says plainly is believed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pilotage.agent.http_client import Answer

RETRY_AFTER_MAX_SECONDS = 3600.0


class Refusal(NamedTuple):
    """One event of a batch that the server will not have."""

    batch_index: int
    code: str
    message: str


class Taken(NamedTuple):
    """Every event of the batch is durable at the server, but for the refused ones."""

    position: int
    refused: list[Refusal]
    parked: int = 0  # how many are of jobs that are not registered yet


class TooMuch(NamedTuple):
    """Nothing was kept; the same events may be taken in smaller batches, and one that is not taken alone is refused."""

    code: str
    message: str


class NotNow(NamedTuple):
    """Nothing is known to be kept: send the same again later."""

    reason: str
    retry_after_seconds: float
    denied: bool = False  # the token is the reason: later alone does not help


def judge(answer: Answer, *, count: int, now_seconds: float | None = None) -> Taken | TooMuch | NotNow:
    """What an answer to a batch of that many events means; what is not understood means "not now"."""
    value = _object(answer.body)
    if answer.status in (200, 409, 422):
        taken = _taken(value, count=count)
        if taken is not None and (answer.status == 200 or taken.refused):
            return taken
    code, message = _error(value)
    if answer.status == 413:
        return TooMuch("too_large", message or "the server finds this too large")
    # Another program on that address also answers 400; only our server says why in this form.
    if answer.status in (400, 409, 422) and code:
        return TooMuch(code, message)
    return NotNow(
        _reason(answer, code=code, message=message),
        _seconds(answer.retry_after, now_seconds=now_seconds),
        denied=answer.status in (401, 403),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _taken(value: dict[str, Any], *, count: int) -> Taken | None:
    position, told = _count(value.get("position")), value.get("refused")
    if position is None or not isinstance(told, list):
        return None
    refused: dict[int, Refusal] = {}
    for each in told:
        index = _count(each.get("index")) if isinstance(each, dict) else None
        if index is None or index >= count or index in refused:
            return None
        refused[index] = Refusal(index, str(each.get("code", "refused")), str(each.get("message", "")))
    return Taken(position, [refused[index] for index in sorted(refused)], _count(value.get("parked")) or 0)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error(value: dict[str, Any]) -> tuple[str, str]:
    error = value.get("error")
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("code", "")), str(error.get("message", ""))


def _reason(answer: Answer, *, code: str, message: str) -> str:
    told = ": ".join(part for part in (code, message) if part)
    if 300 <= answer.status < 400:
        told = told or f"redirected to {answer.location or 'nowhere'}; name the server itself"
    elif answer.status == 200:
        told = "the answer is not that of a pilotage server"
    elif answer.status in (401, 403) and not told:
        told = "the token is missing, wrong or not allowed to log events"
    return f"HTTP {answer.status}" + (f": {told}" if told else "")


def _seconds(retry_after: str, *, now_seconds: float | None) -> float:
    """How long a Retry-After header asks to wait, in seconds or as a date; 0 where it says nothing we understand."""
    text = retry_after.strip()
    if not text:
        return 0.0
    if text.isdigit():
        seconds = float(text[:9])
    else:
        from email.utils import mktime_tz, parsedate_tz

        moment = parsedate_tz(text)
        if moment is None:
            return 0.0
        seconds = mktime_tz(moment) - (time.time() if now_seconds is None else now_seconds)
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)
