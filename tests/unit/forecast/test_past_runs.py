from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pilotage.forecast.fit import PastRun, PastRuns


def runs(
    *,
    seed: int,
    campaigns: int = 8,
    each: int = 12,
    level: float = 0.0,
    slope: float = 0.0,
    between: float = 0.0,
    within: float = 0.1,
) -> list[PastRun]:
    drawn = np.random.default_rng(seed)
    found = []
    for campaign in range(campaigns):
        shift, pilots = drawn.normal(0.0, between), int(2 ** drawn.integers(2, 9))
        for _ in range(each):
            packages = pilots * int(2 ** drawn.integers(0, 5))
            log = level + slope * np.log(pilots / 32) + shift + drawn.normal(0.0, within)
            found.append(PastRun(f"c{campaign}", pilots, packages, 1000.0, float(1000.0 * np.exp(log))))
    return found


def test_forecasts_that_were_right_are_left_as_they_are() -> None:
    found = PastRuns(runs(seed=1)).correction(pilots=32, packages=128)
    assert found.factor == pytest.approx(1.0, abs=0.05)
    assert 0.1 <= found.log_sd < 0.25


def test_a_factor_that_all_runs_have_is_applied() -> None:
    assert PastRuns(runs(seed=2, level=np.log(1.7))).correction(pilots=32, packages=128).factor == pytest.approx(
        1.7, rel=0.05
    )


def test_what_many_pilots_cost_is_learned_and_carried_on() -> None:
    found = PastRuns(runs(seed=3, slope=0.4))
    assert found.correction(pilots=512, packages=1024).factor == pytest.approx(16**0.4, rel=0.15)
    assert found.correction(pilots=4, packages=16).factor == pytest.approx((1 / 8) ** 0.4, rel=0.15)


def test_what_the_runs_of_a_campaign_share_widens_the_forecast_of_a_new_one() -> None:
    alike = PastRuns(runs(seed=4)).correction(pilots=32, packages=128)
    apart = PastRuns(runs(seed=4, between=0.5)).correction(pilots=32, packages=128)
    assert apart.log_sd > 2 * alike.log_sd


def test_nine_of_ten_new_runs_are_inside_its_interval() -> None:
    inside = []
    for seed in range(40):
        past = runs(seed=seed, slope=0.3, between=0.3, within=0.3, campaigns=7, each=8)
        new, known = past[-1], [run for run in past if run.campaign != past[-1].campaign]
        factor, log_sd = PastRuns(known).correction(pilots=new.pilots, packages=new.packages)
        inside.append(abs(np.log(new.makespan_seconds / 1000.0 / factor)) <= 1.645 * log_sd)
    assert 0.82 <= np.mean(inside) <= 1.0


def test_a_single_campaign_teaches_how_much_runs_vary_and_no_factor() -> None:
    past = runs(seed=6, campaigns=1, each=30, level=0.4, within=0.2)
    found = PastRuns(past).correction(pilots=past[0].pilots, packages=past[0].packages)
    assert found.factor == 1.0
    assert found.log_sd > 0.4
    one = PastRuns(past[:1]).correction(pilots=past[0].pilots, packages=past[0].packages)
    assert (one.factor, one.log_sd > 0.4) == (1.0, True)


def test_a_slope_of_one_campaign_alone_is_hardly_carried_over() -> None:
    drawn = np.random.default_rng(7)
    past = [
        PastRun(name, 16, 16 * each, 1000.0, float(1000.0 * each**slope * np.exp(drawn.normal(0.0, 0.1))))
        for name, slope in (("a", 0.6), ("b", 0.0), ("c", -0.6))
        for each in (1, 2, 4, 8, 16) * 3
    ]
    found = PastRuns(past)
    assert found.correction(pilots=16, packages=256).factor == pytest.approx(1.0, abs=0.25)
    assert found.correction(pilots=16, packages=256).log_sd > 2 * 0.1


def test_of_many_campaigns_the_last_ones_count() -> None:
    before = [replace(run, campaign=f"before-{run.campaign}") for run in runs(seed=8, campaigns=20, each=2, level=-1.0)]
    found = PastRuns([*before, *runs(seed=9, campaigns=30, each=2, level=0.5)]).correction(pilots=32, packages=64)
    assert found.factor == pytest.approx(np.exp(0.5), rel=0.05)
