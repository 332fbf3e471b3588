"""What the engine knows of the latencies of pilots, by site; it outlives a site that is removed and comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from pilotage.engine.state.sites import AttemptState, PilotRequest, SiteState
from pilotage.forecast.history import KnownLatency, LatencyHistory, Submitter
from pilotage.forecast.pilot_records import (
    WITHDRAWN_REASONS,
    PilotRecord,
    is_test,
    learn_from,
    request_number,
    shape_of,
    shape_of_pilots,
)
from pilotage.model.events.payloads import SiteLatencies
from pilotage.model.site import Site

_decode = msgspec.json.Decoder(SiteLatencies).decode

RECORD_SECONDS = 900.0
"""Shortest time between two records of a site; it doubles with each, up to an hour: every record stays in the book for ever."""
RECORD_SECONDS_MAX = 3600.0


class KnownLatencies:
    """The latencies of one site, and when they were last recorded."""

    __slots__ = ("history", "record_scheduled", "recorded", "recorded_at", "records")

    def __init__(self) -> None:
        """Start with none."""
        self.history = LatencyHistory()
        self.recorded: SiteLatencies | None = None
        self.recorded_at = -math.inf
        self.records = 0  # of this engine
        self.record_scheduled = False  # something new is not recorded yet, and a timer is set

    @property
    def next_record_at(self) -> float:
        """The earliest time for the next record."""
        return self.recorded_at + min(RECORD_SECONDS * 2.0 ** min(self.records, 8), RECORD_SECONDS_MAX)

    def adopt(self, record: SiteLatencies) -> None:
        """Continue from a record."""
        self.recorded = record
        if self.history.encoded() != record.learned and (found := LatencyHistory.decoded(record.learned)) is not None:
            self.history = found


class PilotLatencies:
    """The latencies of the pilots of all sites."""

    __slots__ = ("_by_site",)

    def __init__(self) -> None:
        """Start with none."""
        self._by_site: dict[str, KnownLatencies] = {}

    def at(self, site: str) -> KnownLatencies:
        """Those of a site."""
        found = self._by_site.get(site)
        if found is None:
            found = self._by_site[site] = KnownLatencies()
        return found

    def known(self, site: SiteState, *, now: float) -> KnownLatency | None:
        """The latency of a pilot requested now (wall-clock time); None where too few pilots have started there."""
        return self.at(site.name).history.distribution(
            now=now,
            user="",
            shape=shape_of_pilots(site.site),
            queued_since=[each.requested_at for each in site.requests.values() if not each.contacted],
        )

    # --- pilots ---

    def pilot_started(self, site: SiteState, request: PilotRequest, *, at: float) -> None:
        """A pilot made contact for the first time."""
        submitted = None if request.submitted_at is None else request.submitted_at - request.requested_at
        self.at(site.name).history.started(
            _submitter(site, request.key),
            at=at,
            latency_seconds=at - request.requested_at,
            submission_seconds=submitted,
        )

    def pilot_ended(self, site: SiteState, request: PilotRequest, *, reason: str, at: float) -> None:
        """A pilot ended that never made contact."""
        history, waited = self.at(site.name).history, at - request.requested_at
        if reason in WITHDRAWN_REASONS:
            history.withdrawn(_submitter(site, request.key), at=at, waited_seconds=waited)
        else:
            history.fault(_submitter(site, request.key), at=at, waited_seconds=waited)

    # --- bound attempts, whose batch jobs are pilots that serve one package ---

    def attempt_started(self, attempt: AttemptState, *, owner: str, at: float) -> None:
        """The batch job of a bound attempt made contact."""
        submitted = attempt.queued_at - attempt.created_at if attempt.queued_at else None
        self.at(attempt.site.name).history.started(
            Submitter(owner, shape_of(attempt.demand)),
            at=at,
            latency_seconds=at - attempt.created_at,
            submission_seconds=submitted,
        )

    def attempt_ended(self, attempt: AttemptState, *, owner: str, at: float, is_fault: bool) -> None:
        """The batch job of a bound attempt ended, or was withdrawn, before it made contact."""
        history, waited = self.at(attempt.site.name).history, at - attempt.created_at
        submitter = Submitter(owner, shape_of(attempt.demand))
        if is_fault:
            history.fault(submitter, at=at, waited_seconds=waited)
        else:
            history.withdrawn(submitter, at=at, waited_seconds=waited)

    # --- records ---

    def record_of(self, name: str, site: SiteState | None, *, through: int) -> SiteLatencies:
        """What is known of a site, for the book; requests from a number on are not part of it. It may be removed by now."""
        history = self.at(name).history
        requests = site.requests.values() if site is not None else ()
        open_numbers = (request_number(each.key, site=name) for each in requests if not each.contacted)
        return SiteLatencies(
            starts=history.starts(),
            learned=history.encoded(),
            through=through,
            unanswered=tuple(sorted(number for number in open_numbers if number is not None)),
        )

    def restore(self, site: str, recorded: str) -> None:
        """Continue from the last record of a site in the book."""
        if recorded:
            try:
                self.at(site).adopt(_decode(recorded))
            except msgspec.DecodeError:
                return

    def restore_pilots(self, name: str, site: Site | None, rows: Iterable[PilotRecord]) -> bool:
        """Add the pilots that ended or started after the last record of a site; says whether there were any.

        What pilots of a site asked for that is no longer configured is not known.
        """
        known = self.at(name)
        record = known.recorded
        found = learn_from(
            known.history,
            rows,
            site=name,
            shape=shape_of_pilots(site) if site is not None else "",
            through=record.through if record is not None else 0,
            unanswered=frozenset(record.unanswered) if record is not None else (),
        )
        return found > 0

    def durable(self) -> list[tuple[str, str]]:
        """The last record of each site."""
        return sorted((name, known.recorded.learned) for name, known in self._by_site.items() if known.recorded)


def _submitter(site: SiteState, key: str) -> Submitter:
    return Submitter("", shape_of_pilots(site.site), is_test(key, site=site.name))
