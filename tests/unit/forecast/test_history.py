"""What a site has taught about the latencies of its pilots: from which starts, for which hour, with which faults."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pilotage.forecast.history import HOURS, LatencyHistory, Submitter, bin_of, hour_of_week, seconds_of
from pilotage.forecast.latency import empirical_latency

MINE, OTHER, PROBE = Submitter("", "8 cores"), Submitter("ada", "1 core"), Submitter("", "8 cores", True)
HOUR = 3600.0
NOW = 1_700_000_000.0 - 1_700_000_000.0 % HOUR


def history(
    *, starts: int = 0, of: Submitter = MINE, seconds: float = 100.0, at: float = NOW - 9 * HOUR
) -> LatencyHistory:
    made = LatencyHistory()
    for _ in range(starts):
        made.started(of, at=at, latency_seconds=seconds, submission_seconds=seconds / 4)
    return made


def test_fewer_than_thirty_starts_make_no_distribution() -> None:
    made = history(starts=29)
    assert made.distribution(now=NOW, user="", shape="8 cores") is None
    made.started(MINE, at=NOW, latency_seconds=100.0)
    found = made.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert (found.basis, found.starts, found.hour) == ("user and shape", 30, None)
    assert made.starts() == made.starts("", "8 cores") == 30


def test_too_few_of_a_user_and_shape_leave_all_of_the_site_then_the_probes() -> None:
    made = history(starts=20)
    for _ in range(20):
        made.started(OTHER, at=NOW, latency_seconds=900.0)
    for _ in range(25):
        made.started(PROBE, at=NOW, latency_seconds=30.0)
    found = made.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert (found.basis, found.starts) == ("site", 40)
    few = history(starts=20)
    for _ in range(10):
        few.started(PROBE, at=NOW, latency_seconds=30.0)
    found = few.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert (found.basis, found.starts) == ("probes", 30)


def test_the_distribution_is_that_of_the_measured_latencies_within_the_relative_error() -> None:
    drawn = np.random.default_rng(4)
    latencies = 150.0 + drawn.lognormal(6.0, 1.0, 2000)
    made = LatencyHistory()
    for latency in latencies:
        made.started(MINE, at=NOW - 50 * HOUR, latency_seconds=float(latency))
    found = made.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    exact = empirical_latency(latencies)
    for share in (0.05, 0.5, 0.95):
        at = float(np.quantile(latencies, share))
        assert exact.at(at * 0.979) <= found.latency.at(at) <= exact.at(at * 1.021)
    assert found.latency.fault_ratio == pytest.approx(0.0)


def test_faults_of_long_ago_count_by_their_ratio_and_those_of_the_last_hour_as_they_are_now() -> None:
    made = history(starts=90)
    for _ in range(10):
        made.fault(MINE, at=NOW - 9 * HOUR)
    long_ago = made.distribution(now=NOW, user="", shape="8 cores")
    assert long_ago is not None
    assert long_ago.latency.fault_ratio == pytest.approx(0.1)
    for minute in range(60):
        made.fault(MINE, at=NOW - HOUR + 60.0 * minute + 61.0)
    now = made.distribution(now=NOW, user="", shape="8 cores")
    assert now is not None
    assert now.latency.fault_ratio > 0.9
    later = made.distribution(now=NOW + 2 * HOUR, user="", shape="8 cores")
    assert later is not None
    assert later.latency.fault_ratio == pytest.approx(70 / 160)


def test_little_in_the_last_hour_hardly_moves_a_ratio_that_is_well_known() -> None:
    made = history(starts=950)
    for _ in range(50):
        made.fault(MINE, at=NOW - 9 * HOUR)
    made.started(MINE, at=NOW - 60.0, latency_seconds=100.0)
    found = made.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert found.latency.fault_ratio == pytest.approx(0.05, abs=0.05)


def test_an_hour_of_the_week_with_enough_starts_has_a_distribution_of_its_own() -> None:
    made = history(starts=300, at=NOW + 100.0 - 10 * HOUR)
    for _ in range(200):
        made.started(MINE, at=NOW + 900.0 - HOURS * HOUR, latency_seconds=800.0)
    busy = made.distribution(now=NOW + 1800.0, user="", shape="8 cores")
    assert busy is not None
    assert (busy.hour, busy.starts) == (hour_of_week(NOW), 200)
    assert busy.latency.at(700.0) == 0.0
    calm = made.distribution(now=NOW + HOUR, user="", shape="8 cores")
    assert calm is not None
    assert (calm.hour, calm.starts) == (None, 500)


def test_pilots_that_are_still_queued_or_were_withdrawn_make_latencies_longer() -> None:
    made = history(starts=50)
    for _ in range(50):
        made.started(MINE, at=NOW - 9 * HOUR, latency_seconds=1000.0)
    before = made.distribution(now=NOW, user="", shape="8 cores")
    queued = made.distribution(now=NOW, user="", shape="8 cores", queued_since=[NOW - 500.0] * 50)
    assert before is not None
    assert queued is not None
    assert before.latency.at(500.0) == pytest.approx(1 / 2)
    assert queued.latency.at(500.0) == pytest.approx(1 / 3)
    for _ in range(50):
        made.withdrawn(MINE, at=NOW, waited_seconds=500.0)
    withdrawn = made.distribution(now=NOW, user="", shape="8 cores")
    assert withdrawn is not None
    assert withdrawn.latency.at(500.0) == pytest.approx(1 / 3)


def test_submissions_and_the_rest_of_latencies_are_known_apart() -> None:
    found = history(starts=40).distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert found.submission is not None
    assert found.submission.mean_submission_seconds == pytest.approx(25.0, rel=0.02)
    assert found.submission.rest.lower_bound_seconds == pytest.approx(75.0, rel=0.02)
    unmeasured = LatencyHistory()
    for _ in range(40):
        unmeasured.started(MINE, at=NOW, latency_seconds=100.0)
    found = unmeasured.distribution(now=NOW, user="", shape="8 cores")
    assert found is not None
    assert found.submission is None


def test_an_answer_stays_the_same_until_something_new_is_known() -> None:
    made = history(starts=40)
    first = made.distribution(now=NOW, user="", shape="8 cores")
    assert made.distribution(now=NOW + 30.0, user="", shape="8 cores") is first
    made.fault(MINE, at=NOW + 31.0)
    assert made.distribution(now=NOW + 32.0, user="", shape="8 cores") is not first


def test_the_size_is_bounded_whatever_was_seen() -> None:
    drawn = np.random.default_rng(5)
    made = LatencyHistory()
    for number in range(60_000):
        shape = f"{number % 50} cores"
        at = NOW + 400.0 * number
        seconds = float(drawn.lognormal(6.0, 2.0))
        made.started(Submitter("ada", shape), at=at, latency_seconds=seconds, submission_seconds=seconds / 9)
    assert made.starts() == 60_000
    assert len(made.encoded()) < 100_000
    again = LatencyHistory.decoded(made.encoded())
    assert again is not None
    assert (again.starts(), again.encoded()) == (60_000, made.encoded())


@pytest.mark.parametrize("text", ["", "{}", "[[],", "[[[]],[]]", '[[["","",false,0,[0,[-1,1],[],[],[]],{}]],[]]'])
def test_a_text_that_is_no_history_is_not_read(text: str) -> None:
    assert LatencyHistory.decoded(text) is None


def test_bins_are_in_order_and_within_the_error_at_both_ends() -> None:
    assert bin_of(0.0) == bin_of(0.009) == 0
    assert seconds_of(bin_of(1e12)) == pytest.approx(1e7, rel=0.05)
    assert bin_of(0.01) == 1


def test_whoever_holds_a_history_does_not_load_numpy() -> None:
    told = "import sys, pilotage.forecast.history as h; h.LatencyHistory(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], check=False).returncode == 0
