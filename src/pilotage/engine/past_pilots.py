"""Which pilots of the past have ended for certain, from the rows of the book."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pilotage.book.rows.rows import PilotRow
from pilotage.engine.retry.policy import UNHEARD


class EndedPilots(msgspec.Struct, frozen=True, kw_only=True):
    """The pilots that have ended for certain: their end was reported, or their rows have left the book.

    A pilot is in the book before it gets its first attempt, and stays until what it served is sealed.
    """

    known: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    def __contains__(self, pilot: str) -> bool:
        """Whether a pilot has ended for certain."""
        return pilot in self.ended or pilot not in self.known


def ended_pilots(pilots: Iterable[PilotRow]) -> EndedPilots:
    """Pilots whose end was reported, by themselves or by the batch system, for the pilot or for its request.

    After a pilot was given up, a report of the batch system was recorded for the request only if attempts of the pilot were
    still awaited; the pilot itself may have reported by then, which no event shows.
    """
    known = list(pilots)
    rows = [row for row in known if row.ended_at is not None]
    over = {row.pilot: row.ended_at or 0.0 for row in rows if row.requested_at is not None}
    ended = frozenset(
        row.pilot for row in rows if row.reason != UNHEARD or over.get(row.request or "", -1.0) >= (row.ended_at or 0.0)
    )
    return EndedPilots(known=frozenset(row.pilot for row in known), ended=ended)
