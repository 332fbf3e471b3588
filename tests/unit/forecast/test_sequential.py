from __future__ import annotations

import numpy as np
import pytest

from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.sequential import PILOTS_MAX, SequentialSubmission, sequential_submission

FAULT = np.inf


def probes(seed: int = 4, count: int = 400, fault_ratio: float = 0.068) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    submissions = drawn.gamma(4.0, 1.5, count)
    latencies = submissions + 150.0 + drawn.lognormal(5.9, 0.9, count)
    return np.where(drawn.random(count) < fault_ratio, FAULT, latencies), submissions


def submission() -> SequentialSubmission:
    latencies, submissions = probes()
    return sequential_submission(latencies_seconds=latencies, submissions_seconds=submissions)


@pytest.mark.parametrize("pilots", [1, 3, 150, 10_000])
def test_the_distribution_is_that_of_a_million_simulated_submissions(pilots: int) -> None:
    found = submission()
    drawn = np.random.default_rng(5)
    campaigns = 1_000_000 // pilots
    submitted = drawn.choice(found.submissions_seconds, (campaigns, pilots)).cumsum(axis=1)
    rest = found.rest.started.times_seconds
    starts = (submitted + drawn.choice(rest, submitted.shape)).ravel()
    starts[drawn.random(len(starts)) < found.fault_ratio] = FAULT
    times = np.quantile(starts, np.linspace(0.01, 0.9, 25))
    seen = np.searchsorted(np.sort(starts), times, side="right") / len(starts)
    latency = found.latency(pilots=pilots)
    assert np.abs(latency.at(times) - seen).max() < 0.003
    assert latency.fault_ratio == pytest.approx(found.fault_ratio)


def test_the_distribution_up_to_a_horizon_is_the_same_as_the_whole() -> None:
    found = submission()
    times = np.arange(200.0, 2000.0, 37.0)
    whole = found.latency(pilots=2000).at(times)
    part = found.latency(pilots=2000, horizon_seconds=2000.0).at(times)
    assert np.abs(whole - part).max() < 1e-4


def test_fixed_submissions_start_pilots_one_by_one_exactly() -> None:
    found = sequential_submission(latencies_seconds=[110.0, 110.0], submissions_seconds=[10.0, 10.0])
    latency = found.latency(pilots=4, horizon_seconds=200.0)
    assert 4 * latency.at([109.0, 110.0, 119.0, 120.0, 130.0, 140.0, 200.0]) == pytest.approx([0, 1, 1, 2, 3, 4, 4])
    ranks = found.rank_probabilities(pilots=4, at_seconds=[110.0, 130.0])
    assert ranks[:, 0] == pytest.approx([1, 0, 0, 0], abs=1e-7)
    assert ranks[:, 1] == pytest.approx([1, 1, 1, 0], abs=1e-7)


def test_submissions_that_take_no_time_are_simultaneous() -> None:
    found = sequential_submission(latencies_seconds=[100.0, 200.0, FAULT], submissions_seconds=[0.0, 0.0, 0.0])
    assert found.latency(pilots=50, horizon_seconds=300.0).at([99.0, 100.0, 250.0]) == pytest.approx([0, 1 / 3, 2 / 3])
    assert found.expected_makespan(work_seconds=5000.0, pilots=50) == pytest.approx(
        float(expected_makespan(found.rest, work_seconds=5000.0, pilots=50)), abs=0.1
    )


def test_ranks_average_to_the_distribution_of_all_and_vary_less_than_equal_pilots() -> None:
    found = submission()
    at = np.array([400.0, 900.0, 1500.0])
    ranks = found.rank_probabilities(pilots=600, at_seconds=at)
    ratio = found.latency(pilots=600, horizon_seconds=1500.0).at(at)
    assert ranks.mean(axis=0) == pytest.approx(ratio, abs=2e-3)
    assert ((ranks * (1 - ranks)).sum(axis=0) < 600 * ratio * (1 - ratio)).all()
    assert (np.diff(ranks, axis=0) <= 1e-9).all()


def test_many_ranks_average_to_the_distribution_of_all() -> None:
    found = submission()
    at = np.array([500.0, 5000.0, 30_000.0, 1e9])
    ranks = found.rank_probabilities(pilots=10_000, at_seconds=at)
    assert ranks.shape == (10_000, 4)
    assert ranks.mean(axis=0) == pytest.approx(found.latency(pilots=10_000, horizon_seconds=1e9).at(at), abs=1e-3)
    assert (np.diff(ranks, axis=0) <= 1e-3).all()


def test_a_far_horizon_costs_no_accuracy_nearby() -> None:
    found = submission()
    near = found.latency(pilots=50, horizon_seconds=400.0).at(300.0)
    assert found.latency(pilots=50, horizon_seconds=1e9).at(300.0) == pytest.approx(near, abs=1e-3)


def test_the_makespan_falls_to_its_limit_and_the_smallest_number_near_it_is_found() -> None:
    found = submission()
    limit, pilots = found.makespan_limit(work_seconds=39_600.0)
    assert limit == pytest.approx(found.expected_makespan(work_seconds=39_600.0, pilots=PILOTS_MAX))
    assert found.expected_makespan(work_seconds=39_600.0, pilots=pilots) <= limit + 1.0
    assert found.expected_makespan(work_seconds=39_600.0, pilots=pilots - 1) > limit + 1.0
    spans = [found.expected_makespan(work_seconds=39_600.0, pilots=n) for n in (10, 25, 50, 100, 200)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] > limit


def test_pilots_after_the_end_are_not_submitted() -> None:
    found = sequential_submission(latencies_seconds=[110.0, 110.0], submissions_seconds=[10.0, 10.0])
    # Pilots start at 110, 120, …: by 180 they have worked for 70 + 60 + … + 10 seconds.
    end = found.expected_makespan(work_seconds=280.0, pilots=100)
    assert end == pytest.approx(180.0, abs=0.1)
    assert found.submitted(pilots=100, makespan_seconds=184.0) == 18
    assert found.submitted(pilots=5, makespan_seconds=end) == 5


def test_a_fault_before_its_submission_counts_as_a_fault_alone() -> None:
    found = sequential_submission(latencies_seconds=[110.0, 120.0, FAULT], submissions_seconds=[10.0, 20.0, np.nan])
    assert found.fault_ratio == pytest.approx(1 / 3)
    assert found.mean_submission_seconds == 15.0
    assert found.rest.started.times_seconds.tolist() == [100.0, 100.0]


def test_the_solution_of_a_number_of_pilots_is_used_again_where_it_reaches_as_far() -> None:
    found = submission()
    first = found.latency(pilots=50, horizon_seconds=2000.0)
    assert found.latency(pilots=50, horizon_seconds=1500.0) is first
    longer = found.latency(pilots=50, horizon_seconds=2500.0)
    assert longer is not first
    assert longer.started.horizon_seconds >= 2500.0
    assert found.latency(pilots=51, horizon_seconds=2000.0) is not longer
    assert found.latency(pilots=50, horizon_seconds=100.0) is not longer  # its steps are too long for that
    assert found.expected_makespan(work_seconds=39_600.0, pilots=50) == submission().expected_makespan(
        work_seconds=39_600.0, pilots=50
    )
