"""The latencies of the pilots of a site, from the book: what was recorded, and the pilots that came after it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.forecast.history import Basis, LatencyHistory
from pilotage.forecast.pilot_records import learn_from
from pilotage.model.events.payloads import SiteLatencies
from pilotage.reading.views import View

PILOTS_READ_MAX = 10_000
"""Pilots of a site that are read beside its record: those of the last hour, unless the service never recorded any."""

_decode = msgspec.json.Decoder(SiteLatencies).decode


class StepsView(View, frozen=True, kw_only=True):
    """The probability to have started by some times, as a step function: 0 before the first."""

    seconds: list[float]
    started: list[float]


class SiteLatencyView(View, frozen=True, kw_only=True):
    """The latency of the next pilots of a site, and what it is made of; no latency where too few have started.

    `submissions` are times from the request of a pilot to its native id, `rest` the latency after that.
    """

    site: str
    known_starts: int
    basis: Basis | None = None
    starts: int = 0  # that the latency is made of
    hour_of_week: int | None = None  # in UTC, 0 is the first of Thursday; None: all hours count
    latency: StepsView | None = None
    submissions: list[float] | None = None
    rest: StepsView | None = None


def history_of(row: SiteRow | None, pilots: Sequence[PilotRow], *, site: str) -> LatencyHistory:
    """Everything that the book knows of the latencies of a site."""
    record = None
    if row is not None and row.latencies:
        try:
            record = _decode(row.latencies)
        except msgspec.DecodeError:
            record = None
    history = (LatencyHistory.decoded(record.learned) if record is not None else None) or LatencyHistory()
    learn_from(
        history,
        pilots,
        site=site,
        shape=history.latest_submitter("").shape,
        through=record.through if record is not None else 0,
        unanswered=frozenset(record.unanswered) if record is not None else (),
    )
    return history


def site_latency(
    row: SiteRow | None, pilots: Sequence[PilotRow], *, site: str, user: str, now: float
) -> SiteLatencyView:
    """The latency of a pilot that is requested now, as the latest ones of the service or of a user were."""
    history = history_of(row, pilots, site=site)
    submitter = history.latest_submitter(user)
    answered = {each.request for each in pilots if each.started_at is not None}
    known = history.distribution(
        now=now,
        user=submitter.user,
        shape=submitter.shape,
        queued_since=sorted(
            each.requested_at
            for each in pilots
            if each.requested_at is not None and each.ended_at is None and each.pilot not in answered
        ),
    )
    if known is None:
        return SiteLatencyView(site=site, known_starts=history.starts())
    apart = known.submission
    return SiteLatencyView(
        site=site,
        known_starts=history.starts(),
        basis=known.basis,
        starts=known.starts,
        hour_of_week=known.hour,
        latency=StepsView(
            seconds=known.latency.started.times_seconds.tolist(), started=known.latency.started.values.tolist()
        ),
        submissions=apart.submissions_seconds.tolist() if apart is not None else None,
        rest=StepsView(seconds=apart.rest.started.times_seconds.tolist(), started=apart.rest.started.values.tolist())
        if apart is not None
        else None,
    )
