"""How good forecasts were: errors by the time left, intervals, and calibration."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist

import pytest

from pilotage.forecast.score import PastForecast, calibration, score_of


def forecast(median: float, low: float, high: float, *, ended: float) -> PastForecast:
    """A forecast made at 1,000, with seconds from then."""
    return PastForecast(1000.0, 1000.0 + median, 1000.0 + low, 1000.0 + high, 1000.0 + ended)


def test_an_error_is_by_the_time_that_was_left() -> None:
    late, early = forecast(120.0, 90.0, 200.0, ended=100.0), forecast(50.0, 40.0, 60.0, ended=100.0)
    assert [late.error, early.error] == pytest.approx([0.2, -0.5])
    assert [late.inside, early.inside] == [True, False]
    found = score_of([late, early])
    assert found is not None
    assert (found.forecasts, found.inside) == (2, 0.5)
    assert found.mean_absolute_error == pytest.approx(0.35)
    assert found.bias == pytest.approx(-0.15)


def test_nothing_has_no_score() -> None:
    assert score_of([]) is None


@pytest.mark.parametrize("ended, place", [(100.0, 0.5), (50.0, 0.05), (300.0, 0.95)])
def test_the_recorded_quantiles_are_where_they_were(ended: float, place: float) -> None:
    assert forecast(100.0, 50.0, 300.0, ended=ended).place == pytest.approx(place)


def test_forecasts_that_know_their_error_are_on_the_diagonal_and_bold_ones_below() -> None:
    random, z = Random(2), NormalDist().inv_cdf(0.95)

    def made(width: float) -> list[PastForecast]:
        low, high = 100.0 * math.exp(-z * width), 100.0 * math.exp(z * width)
        return [forecast(100.0, low, high, ended=100.0 * random.lognormvariate(0.0, 0.4)) for _ in range(4000)]

    for nominal, observed in calibration(made(0.4)):
        assert observed == pytest.approx(nominal, abs=0.03)
    for nominal, observed in calibration(made(0.1))[2:-1]:
        assert observed < nominal
