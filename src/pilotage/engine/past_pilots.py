"""Pilots of the past, from the rows of the book: which have ended for certain, and whose rows may leave the book."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.engine.retry.policy import UNHEARD
from pilotage.forecast.pilot_records import is_counted, request_number
from pilotage.model.events.payloads import SiteLatencies

_ATTEMPT_KEY = re.compile(r"([^:]+):\d+\.\d+\.\d+:\d+")  # of a bound attempt: its job comes first
_decode = msgspec.json.Decoder(SiteLatencies).decode


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


def removable_pilots(
    pilots: Iterable[PilotRow], sites: Iterable[SiteRow], *, live_jobs: Mapping[str, float], before: float
) -> list[str]:
    """The pilots and requests whose rows may leave the book, by name.

    A request and its pilots leave together: when all have ended, before a time and before any job that is still in the live
    book came, or, for a bound attempt, when its job has left; and when what they taught is part of the record of their site.
    """
    records = {row.site: record for row in sites if (record := _record_of(row)) is not None}
    earliest = min(live_jobs.values(), default=math.inf)
    families: dict[str, list[PilotRow]] = {}
    for row in pilots:
        families.setdefault(row.request or row.pilot, []).append(row)
    return sorted(
        row.pilot
        for key, family in families.items()
        if _ended_before(family, before)
        and _served_no_live_job(key, family, live_jobs, earliest)
        and _is_learned(key, family, records)
        for row in family
    )


def _ended_before(family: Collection[PilotRow], before: float) -> bool:
    return all(row.ended_at is not None and max(row.ended_at, row.updated_at) < before for row in family)


def _served_no_live_job(
    key: str, family: Collection[PilotRow], live_jobs: Mapping[str, float], earliest: float
) -> bool:
    bound = _ATTEMPT_KEY.fullmatch(key)
    if bound is not None:
        return bound[1] not in live_jobs
    return all((row.ended_at or 0.0) < earliest for row in family)


def _is_learned(key: str, family: Collection[PilotRow], records: Mapping[str, SiteLatencies]) -> bool:
    """Whether the outcome of a request is part of the record of its site, or none: only numbered requests teach from rows."""
    return all(
        request_number(key, site=row.site) is None
        or (
            (record := records.get(row.site)) is not None
            and is_counted(key, site=row.site, through=record.through, unanswered=record.unanswered)
        )
        for row in family
        if row.site
    )


def _record_of(row: SiteRow) -> SiteLatencies | None:
    try:
        return _decode(row.latencies) if row.latencies else None
    except msgspec.DecodeError:
        return None
