from __future__ import annotations

import heapq

import numpy as np
import pytest

from pilotage.forecast.completion import (
    Application,
    makespan_distribution,
    makespans,
    sequential_starts,
    starts_of,
    uniforms,
)
from pilotage.forecast.conditioning import NO_DRIFT, USUAL_DRIFT, Drift, possible_days
from pilotage.forecast.fit import MeasuredRun, fit_modelled, fit_work
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.sequential import sequential_submission


def application(
    work: float = 1000.0,
    *,
    packages: int | None = None,
    start_cost: float = 0.0,
    speeds: tuple[float, ...] = (1.0,),
    lifetime: float = np.inf,
    work_sd: float = 0.0,
) -> Application:
    return Application(
        work_seconds=work,
        work_sd=work_sd,
        packages=packages,
        start_cost_seconds=start_cost,
        speeds=speeds,
        lifetime_seconds=lifetime,
    )


def unconditioned(latency: LatencyDistribution, pilots: int, drift: Drift = NO_DRIFT) -> np.ndarray:
    return starts_of(
        possible_days(latency, drift=drift),
        pilots=pilots,
        queued_since_seconds=np.zeros(pilots),
        now_seconds=-1.0,
        started_seconds=np.zeros(0),
    )


def history() -> LatencyDistribution:
    drawn = np.random.default_rng(11)
    return empirical_latency(np.where(drawn.random(300) < 0.068, np.inf, 150.0 + drawn.lognormal(5.9, 0.9, 300)))


def greedy(starts: np.ndarray, count: int, seconds: float) -> float:
    """The end of the last of equal packages, each taken by the pilot that is free first: an oracle."""
    free = [float(each) for each in starts if np.isfinite(each)]
    heapq.heapify(free)
    end = 0.0
    for _ in range(count):
        taken = heapq.heappop(free)
        end = max(end, taken + seconds)
        heapq.heappush(free, taken + seconds)
    return end


def test_a_fixed_latency_gives_the_papers_makespan_without_spread() -> None:
    found = makespan_distribution(application(39_600.0), unconditioned(empirical_latency([150.0, 150.0]), 50))
    expected = 150.0 + 39_600.0 / 50
    assert (found.low_seconds, found.median_seconds, found.high_seconds, found.mean_seconds) == pytest.approx(
        [expected] * 4
    )


def test_the_mean_is_near_the_papers_and_the_interval_holds_nine_runs_of_ten() -> None:
    latency = history()
    found = makespan_distribution(application(39_600.0), unconditioned(latency, 50))
    assert found.mean_seconds == pytest.approx(
        float(expected_makespan(latency, work_seconds=39_600.0, pilots=50)), rel=0.02
    )
    drawn = np.random.default_rng(12)
    known = latency.started.times_seconds
    starts = drawn.choice(known, (4000, 50))
    starts[drawn.random((4000, 50)) < latency.fault_ratio] = np.inf
    simulated = makespans(application(39_600.0), starts)
    inside = (simulated >= found.low_seconds) & (simulated <= found.high_seconds)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    assert found.median_seconds == pytest.approx(float(np.median(simulated)), rel=0.01)


def test_whole_packages_end_as_a_greedy_queue_would() -> None:
    drawn = np.random.default_rng(13)
    starts = drawn.uniform(0.0, 500.0, (30, 7))
    starts[:, 0] = np.where(drawn.random(30) < 0.3, np.inf, starts[:, 0])
    found = makespans(application(4000.0, packages=25), starts)
    assert found == pytest.approx([greedy(row, 25, 160.0) for row in starts])


def test_a_start_cost_delays_the_work_of_every_pilot() -> None:
    starts = np.array([[0.0, 100.0]])
    assert makespans(application(300.0, start_cost=50.0), starts)[0] == pytest.approx(250.0)


def test_slow_hosts_take_longer() -> None:
    starts = np.zeros((1, 1))
    assert makespans(application(300.0, speeds=(0.5,)), starts)[0] == pytest.approx(600.0)
    mixed = makespans(application(40_000.0, speeds=(0.5, 1.5)), np.zeros((200, 40)))
    assert mixed.mean() == pytest.approx(1000.0, rel=0.02)
    assert mixed.std() > 10.0


def test_pilots_that_end_leave_work_undone() -> None:
    starts = np.array([[0.0, 0.0]])
    assert makespans(application(300.0, lifetime=200.0), starts)[0] == pytest.approx(150.0)
    assert makespans(application(500.0, lifetime=200.0), starts)[0] == np.inf
    # In whole packages of 75 s each pilot finishes two within its life.
    assert makespans(application(300.0, packages=4, lifetime=200.0), starts)[0] == pytest.approx(150.0)
    assert makespans(application(375.0, packages=5, lifetime=200.0), starts)[0] == np.inf


def test_where_many_runs_never_end_neither_does_the_interval() -> None:
    latency = empirical_latency([100.0, np.inf])
    found = makespan_distribution(application(1000.0), unconditioned(latency, 2))
    assert found.never_share == pytest.approx(0.25, abs=0.02)  # both pilots are faults
    assert 600.0 < found.mean_seconds < 1100.0  # of the runs that end
    assert np.isinf(found.high_seconds)
    assert found.low_seconds == pytest.approx(600.0)


def test_days_that_may_differ_widen_the_interval() -> None:
    latency = history()
    narrow = makespan_distribution(application(39_600.0), unconditioned(latency, 50))
    wide = makespan_distribution(application(39_600.0), unconditioned(latency, 50, USUAL_DRIFT))
    assert wide.high_seconds - wide.low_seconds > 2 * (narrow.high_seconds - narrow.low_seconds)
    assert wide.mean_seconds == pytest.approx(narrow.mean_seconds, rel=0.03)


def test_work_that_varies_from_run_to_run_widens_the_interval_and_keeps_its_median() -> None:
    found = makespans(application(10_000.0, work_sd=0.3), np.zeros((1001, 10)))
    assert np.median(found) == pytest.approx(1000.0)
    assert np.log(found).std() == pytest.approx(0.3, rel=0.02)
    packages = makespans(application(10_000.0, packages=10, work_sd=0.3), np.zeros((1001, 10)))
    assert packages == pytest.approx(found)


def test_what_has_started_counts_from_its_start() -> None:
    days = possible_days(empirical_latency([100.0, 100.0]), drift=NO_DRIFT)
    starts = starts_of(
        days,
        pilots=2,
        queued_since_seconds=np.array([50.0]),
        now_seconds=120.0,
        started_seconds=np.array([90.0]),
    )
    assert np.unique(starts[:, 0]).tolist() == [90.0]
    assert np.unique(starts[:, 1]).tolist() == [150.0]


def test_sequential_runs_have_the_papers_mean() -> None:
    drawn = np.random.default_rng(14)
    submissions = drawn.gamma(4.0, 1.5, 300)
    submission = sequential_submission(
        latencies_seconds=submissions + 150.0 + drawn.lognormal(5.9, 0.9, 300), submissions_seconds=submissions
    )
    starts = sequential_starts(submission, possible_days(submission.rest, drift=NO_DRIFT), pilots=100)
    found = makespan_distribution(application(39_600.0), starts)
    assert found.mean_seconds == pytest.approx(
        submission.expected_makespan(work_seconds=39_600.0, pilots=100), rel=0.02
    )


def test_numbers_are_spread_evenly_down_each_column_and_always_the_same() -> None:
    found = uniforms(101, 7, stream=1)
    assert np.sort(found, axis=0) == pytest.approx(np.tile(((np.arange(101) + 0.5) / 101)[:, None], 7))
    assert (found == uniforms(101, 7, stream=1)).all()
    assert not (found == uniforms(101, 7, stream=2)).all()
    assert np.abs(np.corrcoef(found.T) - np.eye(7)).max() < 0.35


def campaign(seed: int, packages: int | None) -> float:
    """The work fitted to 19 runs like the paper's, with 25 to 150 pilots and 1,093 probes of the same distribution."""
    drawn = np.random.default_rng(seed)
    variance = np.log1p((766.0 / 617.0) ** 2)

    def latencies(count: int) -> np.ndarray:
        found = 150.0 + drawn.lognormal(np.log(617.0) - variance / 2, np.sqrt(variance), count)
        return np.where(drawn.random(count) < 0.068, np.inf, found)

    started = empirical_latency(latencies(1093)).started
    return fit_work(
        [
            MeasuredRun(
                started.scaled(float(pilots)),
                float(makespans(application(39_600.0, packages=packages), latencies(pilots)[None, :])[0]),
            )
            for pilots in np.linspace(25, 150, 19).round().astype(int)
        ]
    ).work_seconds


def test_the_papers_fit_finds_work_that_splits_and_overstates_work_in_packages() -> None:
    assert np.mean([campaign(seed, None) for seed in range(30)]) == pytest.approx(39_600.0, rel=0.02)
    assert 1.03 < np.mean([campaign(seed, 450) for seed in range(15)]) / 39_600.0 < 1.08


@pytest.mark.parametrize("near", [0.9, 1.0, 1.2])
def test_work_is_found_by_any_model_of_makespans(near: float) -> None:
    pilots = np.array([10.0, 20.0, 50.0])

    def modelled(work: float) -> np.ndarray:
        return np.asarray(150.0 + work / pilots + (work / 40_000.0) ** 1.5)

    found = fit_modelled(modelled, measured_seconds=modelled(39_600.0), near_seconds=near * 39_600.0)
    assert found.work_seconds == pytest.approx(39_600.0, rel=0.005)
    assert found.mean_error_seconds < 10.0
