from __future__ import annotations

import numpy as np
import pytest

from pilotage.forecast import conditioning
from pilotage.forecast.conditioning import (
    NO_DRIFT,
    USUAL_DRIFT,
    ConditionedPilots,
    ObservedPilots,
    Today,
    learn_today,
    possible_days,
)
from pilotage.forecast.latency import LatencyDistribution, empirical_latency

QUEUED = np.inf
NOW = 300.0


def history(fault_ratio: float = 0.1, seed: int = 8) -> LatencyDistribution:
    drawn = np.random.default_rng(seed)
    latencies = 100.0 + drawn.lognormal(5.0, 0.8, 200)
    return empirical_latency(np.where(drawn.random(200) < fault_ratio, np.inf, latencies))


def seen(starts: list[float], *, queued: int, submitted: float = 0.0) -> ObservedPilots:
    started = np.array([*starts, *[QUEUED] * queued])
    return ObservedPilots(NOW, np.full(len(started), submitted), started)


def conditioned(
    observed: ObservedPilots, latency: LatencyDistribution, drift: object = USUAL_DRIFT
) -> ConditionedPilots:
    return ConditionedPilots(observed, learn_today(latency, observed, drift=drift))  # type: ignore[arg-type]


def test_on_a_day_like_the_history_the_queued_pilots_follow_its_conditional_distribution() -> None:
    latency = history()
    found = conditioned(seen([150.0, 200.0], queued=8), latency, NO_DRIFT)
    at = np.array([400.0, 900.0, 1e6])
    waited = float(latency.at(NOW))
    ratio = (latency.at(at) - waited) / (1 - waited)
    assert found.mean(at) == pytest.approx(2 + 8 * ratio)
    assert found.sd(at) == pytest.approx(np.sqrt(8 * ratio * (1 - ratio)))
    assert found.probability_at_least(3, at) == pytest.approx(1 - (1 - ratio) ** 8)


def test_the_past_is_what_was_seen() -> None:
    found = conditioned(seen([150.0, 200.0], queued=8), history())
    assert found.mean([100.0, 150.0, 300.0]).tolist() == [0.0, 1.0, 2.0]
    assert found.sd([100.0, 300.0]).tolist() == [0.0, 0.0]


def test_quick_starts_speak_for_a_quick_day_and_slow_ones_for_a_slow_one() -> None:
    latency = history()
    quick = learn_today(latency, seen([105.0, 110.0, 115.0, 120.0, 125.0, 130.0], queued=0), drift=USUAL_DRIFT)
    slow = learn_today(latency, seen([260.0, 270.0, 280.0, 285.0, 290.0, 295.0], queued=4), drift=USUAL_DRIFT)
    assert (quick.weights * quick.factors).sum() < 0.9
    assert (slow.weights * slow.factors).sum() > 1.1
    assert slow.started(600.0) @ slow.weights < quick.started(600.0) @ quick.weights


def test_many_missing_starts_are_taken_for_faults() -> None:
    latency = empirical_latency([100.0, 110.0, 120.0, 130.0, 140.0] * 10)
    found = conditioned(seen([120.0, 125.0], queued=8), latency)
    assert found.mean([1e6])[0] < 5.0


def test_days_that_differ_add_to_the_spread() -> None:
    days = Today(np.array([100.0]), np.ones(2), np.array([0.0, 1.0]), np.full(2, 0.5))
    observed = ObservedPilots(0.0, np.zeros(10), np.full(10, QUEUED))
    found = ConditionedPilots(observed, days)
    assert (found.mean([200.0])[0], found.sd([200.0])[0]) == pytest.approx((5.0, 5.0))
    assert found.probability_at_least(10, [200.0])[0] == pytest.approx(0.5)


def test_a_pilot_that_has_waited_starts_no_sooner_than_now() -> None:
    days = Today(np.array([100.0, 200.0]), np.array([1.0, 2.0]), np.array([0.0, 0.5]), np.full(2, 0.5))
    chance = np.linspace(0.01, 0.99, 50)[:, None]
    like_before = days.start_latencies(np.zeros(50, dtype=np.int64), chance, np.array([150.0]))
    assert np.unique(like_before).tolist() == [200.0]
    slow = days.start_latencies(np.ones(50, dtype=np.int64), chance, np.array([250.0]))
    # A quarter had started by then; a third of the others start at 400, the rest are faults.
    assert np.unique(slow).tolist() == [400.0, np.inf]
    assert np.isfinite(slow).mean() == pytest.approx(1 / 3, abs=0.02)


def test_possible_days_are_on_average_as_the_history() -> None:
    latency = history()
    days = possible_days(latency, drift=USUAL_DRIFT)
    assert days.weights.sum() == pytest.approx(1.0)
    assert (days.weights * days.factors).sum() == pytest.approx(1.0, abs=0.01)
    assert (days.weights * days.fault_ratios).sum() == pytest.approx(latency.fault_ratio, abs=0.02)


def test_the_expected_number_as_steps_has_the_work_done_below_it() -> None:
    found = conditioned(seen([150.0, 200.0], queued=8), history())
    steps = found.available()
    fine = np.arange(0.0, 2000.0, 0.5)
    assert steps.area(2000.0) == pytest.approx(float(found.mean(fine).sum() * 0.5), rel=0.01)


def test_pilots_that_are_submitted_later_wait_from_then_on() -> None:
    latency = empirical_latency([100.0, 100.0, 100.0])
    observed = ObservedPilots(NOW, np.array([0.0, 500.0]), np.array([100.0, QUEUED]))
    found = conditioned(observed, latency, NO_DRIFT)
    assert found.mean([599.0, 600.0]).tolist() == [1.0, 2.0]


def test_many_pilots_submitted_at_different_times_are_grouped() -> None:
    latency = history()
    observed = ObservedPilots(NOW, np.linspace(0.0, 299.0, 5000), np.full(5000, QUEUED))
    found = conditioned(observed, latency, NO_DRIFT)
    waited = latency.at(NOW - observed.submitted_seconds)
    later = latency.at(600.0 - observed.submitted_seconds)
    assert found.mean([600.0])[0] == pytest.approx(float(((later - waited) / (1 - waited)).sum()), rel=0.01)


def test_learning_today_makes_up_for_much_of_what_the_history_does_not_know() -> None:
    drawn = np.random.default_rng(15)
    latency = history()
    at = np.arange(300.0, 1500.0, 20.0)
    plain: list[float] = []
    ours: list[float] = []
    oracle: list[float] = []
    for _ in range(60):
        factor, ratio = np.exp(drawn.normal(0, 0.4)), drawn.beta(0.8, 7.2)
        starts = factor * (100.0 + drawn.lognormal(5.0, 0.8, 100))
        starts[drawn.random(100) < ratio] = np.inf
        truth = (starts[:, None] <= at).sum(axis=0)
        observed = ObservedPilots(NOW, np.zeros(100), np.where(starts <= NOW, starts, QUEUED))
        many = factor * (100.0 + drawn.lognormal(5.0, 0.8, 5000))
        real = empirical_latency(np.where(np.arange(5000) < 5000 * ratio, np.inf, many))
        for errors, model in ((plain, latency), (oracle, real)):
            errors.append(np.abs(conditioned(observed, model, NO_DRIFT).mean(at) - truth).mean() / 100)
        ours.append(np.abs(conditioned(observed, latency).mean(at) - truth).mean() / 100)
    assert np.mean(ours) - np.mean(oracle) < 0.7 * (np.mean(plain) - np.mean(oracle))


def test_the_makespan_is_where_the_area_below_the_expected_number_is_the_work() -> None:
    found = conditioned(seen([150.0, 200.0], queued=8), history())
    fine = np.arange(0.0, 4000.0, 0.25)
    areas = np.cumsum(found.mean(fine)) * 0.25
    for work in (50.0, 900.0, 5000.0, 12_000.0):
        assert found.makespan(work) == pytest.approx(float(fine[np.searchsorted(areas, work)]), rel=0.002)


def test_the_makespan_of_a_fixed_latency_counts_the_started_and_the_queued() -> None:
    latency = empirical_latency([400.0, 400.0])
    found = conditioned(seen([150.0], queued=3), latency, NO_DRIFT)
    assert found.makespan(100.0) == pytest.approx(250.0)  # before now
    assert found.makespan(250.0) == pytest.approx(400.0)
    assert found.makespan(650.0) == pytest.approx(500.0)
    assert found.makespan(1e6) == pytest.approx(400.0 + (1e6 - 250.0) / 4)


def test_work_that_no_pilot_will_do_is_never_done() -> None:
    nothing = ObservedPilots(NOW, np.zeros(0), np.zeros(0))
    assert conditioned(nothing, history()).makespan(1.0) == np.inf
    gone = Today(np.array([100.0]), np.ones(1), np.ones(1), np.ones(1))
    assert ConditionedPilots(seen([], queued=4), gone).makespan(1.0) == np.inf


def test_pilots_submitted_one_by_one_are_learned_from_in_groups_as_well_as_each_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = np.random.default_rng(21)
    latency = history()
    submitted = np.linspace(0.0, 290.0, 400)
    starts = submitted + 1.5 * (100.0 + drawn.lognormal(5.0, 0.8, 400))
    observed = ObservedPilots(NOW, submitted, np.where(starts <= NOW, starts, QUEUED))
    grouped = learn_today(latency, observed, drift=USUAL_DRIFT)
    monkeypatch.setattr(conditioning, "_LEARNED_GROUPS_MAX", 1000)
    exact = learn_today(latency, observed, drift=USUAL_DRIFT)
    assert grouped.weights @ grouped.factors == pytest.approx(exact.weights @ exact.factors, rel=0.01)
    assert grouped.weights @ grouped.fault_ratios == pytest.approx(exact.weights @ exact.fault_ratios, abs=0.01)


def test_the_same_history_gives_the_same_day_each_time() -> None:
    latency, observed = history(), seen([150.0, 200.0], queued=8)
    first, again = (learn_today(latency, observed, drift=USUAL_DRIFT) for _ in range(2))
    other = learn_today(history(), observed, drift=USUAL_DRIFT)
    assert first.weights.tolist() == again.weights.tolist() == other.weights.tolist()
    assert len(learn_today(latency, observed, drift=NO_DRIFT).weights) == 1
