"""How long a job was held, from the events of the book: that time counts as waited for nowhere, whoever asks after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from pilotage.book.registers import Register
from pilotage.book.rows import EventRow, JobRow, keys_of


class _Said(msgspec.Struct, frozen=True):
    message: str = ""


_said = msgspec.json.Decoder(_Said)


class Hold(msgspec.Struct, frozen=True):
    """A job was held, or released, at a time of the clock."""

    at: float
    held: bool
    why: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job was held in all until it was last released, when that was, and since when it is held again, if it is."""

    seconds: float = 0.0
    released_at: float | None = None
    since: float | None = None
    why: str = ""  # as it was last said


def holds_in(job: JobRow, own_events: Callable[[JobRow], Iterable[EventRow]]) -> tuple[Hold, ...]:
    """When a job was held and released, in order, by the events about itself; of one that never was nothing is read."""
    if Register.HOLD not in keys_of(job):
        return ()
    rows = [row for row in own_events(job) if row.type in ("Held", "Released")]
    return tuple(Hold(row.time, row.type == "Held", _said.decode(row.data).message) for row in rows)


def held_time(holds: Sequence[Hold], *, after: float) -> Held:
    """How a job was held, as far as it was so after a time."""
    seconds, released_at, since, why = 0.0, None, None, ""
    for hold in holds:
        why = hold.why
        if hold.held:
            since = hold.at if since is None else since
        else:
            released_at = hold.at
            if since is not None:
                seconds += max(0.0, hold.at - max(since, after))
            since = None
    return Held(seconds=seconds, released_at=released_at, since=since, why=why)
