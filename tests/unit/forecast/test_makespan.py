from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize

from pilotage.forecast.fit import MeasuredRun, fit_work, model_error, share_within
from pilotage.forecast.latency import empirical_latency
from pilotage.forecast.makespan import (
    expected_makespan,
    expected_work_left,
    makespan_limit_seconds,
    pilots_within,
)
from pilotage.model.errors import PilotageError

FAULT = np.inf


def test_with_a_fixed_latency_the_makespan_is_the_latency_and_the_work_of_each_pilot() -> None:
    latency = empirical_latency([150.0, 150.0, 150.0])
    found = expected_makespan(latency, work_seconds=39_600.0, pilots=[25, 50, 150])
    assert found.tolist() == [150.0 + 39_600.0 / n for n in (25, 50, 150)]
    assert makespan_limit_seconds(latency) == 150.0


def test_faults_leave_the_work_to_the_pilots_that_start() -> None:
    latency = empirical_latency([100.0, 100.0, 100.0, FAULT])
    assert expected_makespan(latency, work_seconds=750.0, pilots=10) == pytest.approx(100.0 + 750.0 / 7.5)


def test_the_makespan_solves_the_equation_on_the_steps_exactly() -> None:
    drawn = np.random.default_rng(2)
    latency = empirical_latency(np.where(drawn.random(500) < 0.1, FAULT, 50.0 + drawn.exponential(600.0, 500)))
    for pilots in (1, 7, 300):
        found = float(expected_makespan(latency, work_seconds=20_000.0, pilots=pilots))
        steps = latency.started.times_seconds
        inside = np.concatenate([[0.0], steps[steps < found], [found]])
        middles = (inside[1:] + inside[:-1]) / 2
        area = float((latency.at(middles) * np.diff(inside)).sum())
        assert pilots * area == pytest.approx(20_000.0, rel=1e-12)
        assert expected_work_left(
            latency, work_seconds=20_000.0, pilots=pilots, at_seconds=[0.0, found, 2 * found]
        ) == pytest.approx([20_000.0, 0.0, 0.0], abs=1e-6)


def test_exponential_latencies_give_the_closed_form() -> None:
    mean, lower, work, pilots = 600.0, 150.0, 39_600.0, 50
    quantiles = (np.arange(200_000) + 0.5) / 200_000
    latency = empirical_latency(lower - mean * np.log1p(-quantiles))

    def short_of(time: float) -> float:
        x = time - lower
        return float(x - mean * -np.expm1(-x / mean) - work / pilots)

    exact = optimize.brentq(short_of, lower, 1e5)
    assert expected_makespan(latency, work_seconds=work, pilots=pilots) == pytest.approx(exact, rel=1e-5)
    area, _ = integrate.quad(lambda t: -np.expm1(-(t - lower) / mean), lower, exact)
    assert area == pytest.approx(work / pilots)


def test_the_smallest_number_of_pilots_within_a_makespan_is_found() -> None:
    latency = empirical_latency([100.0, 200.0, 300.0, FAULT])
    for reach in (150.0, 260.0, 777.0):
        found = pilots_within(latency, work_seconds=5000.0, makespan_seconds=reach, pilots_max=10_000)
        assert found is not None
        assert expected_makespan(latency, work_seconds=5000.0, pilots=found) <= reach
        assert found == 1 or expected_makespan(latency, work_seconds=5000.0, pilots=found - 1) > reach
    assert pilots_within(latency, work_seconds=5000.0, makespan_seconds=100.0, pilots_max=10_000) is None
    assert pilots_within(latency, work_seconds=5000.0, makespan_seconds=150.0, pilots_max=99) is None


def test_the_fitted_work_has_the_least_sum_of_squares() -> None:
    drawn = np.random.default_rng(3)
    latency = empirical_latency(150.0 + drawn.lognormal(6.0, 0.9, 1000))
    pilots = np.repeat([25, 50, 75, 150], 5)
    exact = expected_makespan(latency, work_seconds=39_600.0, pilots=pilots)
    measured = exact + drawn.normal(0.0, 200.0, len(pilots))
    runs = [MeasuredRun(latency.started.scaled(float(n)), float(m)) for n, m in zip(pilots, measured, strict=True)]

    def squares(work: float) -> float:
        return float(((expected_makespan(latency, work_seconds=work, pilots=pilots) - measured) ** 2).sum())

    oracle = optimize.minimize_scalar(squares, bounds=(1e3, 1e6), method="bounded", options={"xatol": 1e-3})
    found = fit_work(runs)
    assert squares(found.work_seconds) <= oracle.fun * (1 + 1e-9)
    assert found.work_seconds == pytest.approx(oracle.x, rel=1e-4)
    modelled = expected_makespan(latency, work_seconds=found.work_seconds, pilots=pilots)
    assert found.makespans_seconds == pytest.approx(modelled)
    assert found.mean_error_seconds == pytest.approx(float(np.abs(modelled - measured).mean()))


def test_the_run_with_fewest_pilots_counts_most() -> None:
    latency = empirical_latency([0.0, 0.0])
    runs = [MeasuredRun(latency.started.scaled(n), m) for n, m in ((1.0, 1000.0), (100.0, 0.1))]
    assert fit_work(runs).work_seconds == pytest.approx(1000.0, rel=1e-3)


def test_one_run_is_explained_exactly() -> None:
    latency = empirical_latency([100.0, 200.0])
    found = fit_work([MeasuredRun(latency.started.scaled(10.0), 500.0)])
    assert found.work_seconds == 10.0 * (0.5 * 100.0 + 300.0)
    assert found.mean_error_seconds == 0.0


def test_runs_shorter_than_any_latency_are_refused() -> None:
    latency = empirical_latency([100.0, 200.0])
    with pytest.raises(PilotageError, match="no run lasted longer"):
        fit_work([MeasuredRun(latency.started, 50.0)])


def test_the_error_of_the_model_is_relative_to_the_number_of_pilots() -> None:
    assert model_error(modelled=[10.0, 20.0], measured=[12.0, 20.0], pilots=50) == pytest.approx(0.02)


def test_samples_on_the_edge_of_a_band_are_inside() -> None:
    assert share_within(modelled=[10.0, 10.0], measured=[12.0, 13.0], distances=[2.0, 2.0]) == 0.5
