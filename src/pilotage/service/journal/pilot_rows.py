"""Which rows of pilots may leave the book."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.forecast.pilot_records import is_counted, request_number
from pilotage.model.events.payloads import SiteLatencies

_ATTEMPT_KEY = re.compile(r"([^:]+):\d+\.\d+\.\d+:\d+")  # of a bound attempt: its job comes first
_decode = msgspec.json.Decoder(SiteLatencies).decode


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
