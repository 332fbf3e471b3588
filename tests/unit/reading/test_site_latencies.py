"""What the book knows of the latencies of a site."""

from __future__ import annotations

import msgspec

from pilotage.book.rows.rows import PilotRow, SiteRow
from pilotage.forecast.history import LatencyHistory, Submitter, hour_of_week
from pilotage.model.events.payloads import SiteLatencies
from pilotage.reading.latencies import history_of, site_latency

NOW = 1_700_000_000.0
WEEK_SECONDS = 168 * 3600.0


def recorded(history: LatencyHistory, *, through: int = 0) -> SiteRow:
    record = SiteLatencies(starts=history.starts(), learned=history.encoded(), through=through)
    return SiteRow(site="lyon", latencies=msgspec.json.encode(record).decode())


def known(*, starts: int, of: Submitter, at: float, seconds: float = 100.0) -> LatencyHistory:
    made = LatencyHistory()
    for _ in range(starts):
        made.started(of, at=at, latency_seconds=seconds)
    return made


def test_the_hour_of_the_week_is_told_where_only_it_counts() -> None:
    history = known(starts=200, of=Submitter("", "small"), at=NOW - WEEK_SECONDS, seconds=0.0)
    found = site_latency(recorded(history), [], site="lyon", user="ada", now=NOW)
    assert (found.basis, found.starts, found.hour_of_week) == ("user and shape", 200, hour_of_week(NOW))
    later = site_latency(recorded(history), [], site="lyon", user="ada", now=NOW + 7200.0)
    assert (later.starts, later.hour_of_week) == (200, None)


def test_at_a_bound_site_the_latest_attempts_of_the_user_count() -> None:
    history = known(starts=40, of=Submitter("ada", "small"), at=NOW - 9e5, seconds=100.0)
    history.add(known(starts=40, of=Submitter("bob", "small"), at=NOW - 8e5, seconds=900.0))
    row = recorded(history)
    for user, seconds in (("ada", 100.0), ("bob", 900.0)):
        found = site_latency(row, [], site="lyon", user=user, now=NOW)
        assert found.basis == "user and shape"
        assert found.latency is not None
        assert abs(found.latency.seconds[0] - seconds) <= 0.02 * seconds
    assert site_latency(row, [], site="lyon", user="eve", now=NOW).basis == "site"


def test_pilots_that_are_still_queued_count_as_censored() -> None:
    history = known(starts=30, of=Submitter("", "small"), at=NOW - 9e5)
    history.add(known(starts=30, of=Submitter("", "small"), at=NOW - 9e5, seconds=5000.0))
    row = recorded(history, through=5)
    queued = [PilotRow(pilot=f"lyon-{n}", site="lyon", requested_at=NOW - 3000.0) for n in range(10, 40)]
    calm = site_latency(row, [], site="lyon", user="", now=NOW).latency
    busy = site_latency(row, queued, site="lyon", user="", now=NOW).latency
    assert calm is not None
    assert busy is not None
    assert calm.started[0] == 0.5
    assert busy.started[0] < 0.35


def test_a_record_that_cannot_be_read_is_as_none() -> None:
    rows = [PilotRow(pilot="lyon-3", site="lyon", requested_at=NOW - 9.0, ended_at=NOW, reason="failed")]
    for text in ("", "{", '{"starts": 1, "learned": "?"}'):
        history = history_of(SiteRow(site="lyon", latencies=text), rows, site="lyon")
        assert history.starts() == 0
        assert history.revision == 1
