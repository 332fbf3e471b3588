"""What is believed of an activity at a site, and how two beliefs are compared."""

from __future__ import annotations

import math
from itertools import product

import msgspec
import pytest

from pilotage.engine.selection.rolling import microseconds
from pilotage.engine.selection.thompson import Arm, Arms, Evidence, is_quicker, log_rate
from pilotage.model.settings.engine import SelectionSettings

_HALF_LIFE = 1024.0
_SETTINGS = msgspec.convert({"thompson_half_life_seconds": _HALF_LIFE}, SelectionSettings)


def _digamma(shape: float) -> float:
    shift = 0.0
    while shape < 20.0:
        shift -= 1.0 / shape
        shape += 1.0
    return shift + math.log(shape) - 1 / (2 * shape) - 1 / (12 * shape**2) + 1 / (120 * shape**4)


def _trigamma(shape: float) -> float:
    shift = 0.0
    while shape < 20.0:
        shift += 1.0 / shape**2
        shape += 1.0
    return shift + 1 / shape + 1 / (2 * shape**2) + 1 / (6 * shape**3) - 1 / (30 * shape**5)


@pytest.mark.parametrize("successes, failures", list(product((0.0, 1.0, 7.5, 100.0), (0.0, 2.0, 50.0))))
def test_a_rate_is_drawn_from_both_beliefs(successes: float, failures: float) -> None:
    mean = log_rate(successes, failures, 30.0, 0.0)
    expected = 2 * _digamma(1 + successes) - _digamma(2 + successes + failures) - math.log(30.0)
    assert mean == pytest.approx(expected, abs=0.02)
    deviation = log_rate(successes, failures, 30.0, 1.0) - mean
    exact = 2 * _trigamma(1 + successes) - _trigamma(2 + successes + failures)
    assert deviation**2 == pytest.approx(exact, rel=0.03)
    assert log_rate(successes, failures, 30.0, -2.0) == pytest.approx(mean - 2 * deviation)


_FIGURES = [(0.0, 0.0, 0.0), (3.0, 1.0, 200.0), (50.0, 0.0, 900.0), (1.0, 20.0, 10.0)]


@pytest.mark.parametrize("one, other", list(product(_FIGURES, _FIGURES)))
def test_the_quicker_of_two_is_as_probable_as_two_draws_make_it(
    one: tuple[float, float, float], other: tuple[float, float, float]
) -> None:
    arms = [
        Arm(Evidence(activity="a", successes=each[0], failures=each[1], seconds=each[2], at=5.0))
        for each in (one, other)
    ]
    prior = (_SETTINGS.thompson_prior_seconds + one[2] + other[2]) / (1.0 + one[0] + other[0])
    means = [log_rate(good, bad, prior + seconds, 0.0) for good, bad, seconds in (one, other)]
    variances = [
        (log_rate(good, bad, prior + seconds, 1.0) - mean) ** 2
        for (good, bad, seconds), mean in zip((one, other), means, strict=True)
    ]
    share = 0.5 * math.erfc((means[1] - means[0]) / math.sqrt(2 * sum(variances)))
    assert is_quicker(arms[0], arms[1], 5.0, share - 1e-6, _SETTINGS) is True
    assert is_quicker(arms[0], arms[1], 5.0, share + 1e-6, _SETTINGS) is False


def test_evidence_loses_half_of_its_weight_in_a_half_life() -> None:
    arm = Arm(Evidence(activity="a", successes=8.0, failures=4.0, seconds=100.0, at=10.0))
    assert arm.figures(10.0, _HALF_LIFE) == arm.figures(11.0, _HALF_LIFE) == (8.0, 4.0, 100.0)
    assert arm.figures(11.5, _HALF_LIFE)[0] < 8.0
    assert arm.figures(10.0 + _HALF_LIFE, _HALF_LIFE) == pytest.approx((4.0, 2.0, 50.0))
    assert arm.figures(10.0 + 2 * _HALF_LIFE, _HALF_LIFE) == pytest.approx((2.0, 1.0, 25.0))


def test_what_is_under_way_counts_with_its_age_and_without_an_end() -> None:
    arm = Arm(Evidence(activity="a", seconds=10.0))
    for since in (100.0, 130.0):
        arm.began(microseconds(since))
    assert arm.underway == 2
    assert arm.figures(0.0, _HALF_LIFE) == (0.0, 0.0, 10.0), "a clock that runs backwards"
    assert arm.figures(0.5, math.inf) == (0.0, 0.0, 10.0)
    assert arm.figures(140.0, math.inf) == (0.0, 0.0, 60.0)
    arm.left(100.0)
    assert (arm.underway, arm.figures(140.0, math.inf)) == (1, (0.0, 0.0, 20.0))
    arm.left(130.0)
    arm.left(130.0)
    assert (arm.underway, arm.figures(140.0, math.inf)) == (0, (0.0, 0.0, 10.0))
    arm.recount([139.0, 138.0])
    assert (arm.underway, arm.figures(140.0, math.inf)) == (2, (0.0, 0.0, 13.0))


@pytest.mark.parametrize("now", [10.0, 10.9, 500.0])
def test_a_success_is_its_end_and_its_leaving_in_one(now: float) -> None:
    evidence = Evidence(activity="a", successes=2.0, failures=1.0, seconds=30.0, at=9.9)
    long, short = Arm(evidence), Arm(evidence)
    for arm in (long, short):
        arm.began(microseconds(8.0))
        arm.began(microseconds(9.0))
    long.left(9.0)
    long.ended(now, now - 9.0, succeeded=True, half_life=_HALF_LIFE)
    short.succeeded(9.0, microseconds(9.0), now, _HALF_LIFE)
    assert short.evidence == long.evidence
    assert short.figures(now + 1, _HALF_LIFE) == long.figures(now + 1, _HALF_LIFE)
    assert short.underway == long.underway == 1


def test_an_end_adds_to_what_is_left_of_the_evidence() -> None:
    arm = Arm(Evidence(activity="a", successes=8.0, failures=4.0, seconds=100.0, at=0.0))
    arm.ended(_HALF_LIFE, 7.0, succeeded=False, half_life=_HALF_LIFE)
    assert arm.evidence == Evidence(activity="a", successes=4.0, failures=3.0, seconds=57.0, at=_HALF_LIFE)
    arm.ended(_HALF_LIFE, -3.0, succeeded=True, half_life=_HALF_LIFE)
    assert arm.evidence == Evidence(activity="a", successes=5.0, failures=3.0, seconds=57.0, at=_HALF_LIFE)
    early = Arm(Evidence(activity="a"))
    early.succeeded(5.0, microseconds(5.0), 0.0, _HALF_LIFE)
    assert (early.evidence.successes, early.evidence.seconds, early.underway) == (1.0, 0.0, 0)


def test_a_site_remembers_the_activities_that_were_used_latest() -> None:
    settings = msgspec.convert({"thompson_activities_max": 2}, SelectionSettings)
    arms = Arms(settings, [Evidence(activity="a", successes=1.0), Evidence(activity="b")])
    assert [each.activity for each in arms.evidence()] == ["a", "b"]
    assert arms.of("a") is arms.of("a") is arms.peek("a")
    assert [each.activity for each in arms.evidence()] == ["b", "a"]
    assert arms.peek("x").evidence == Evidence(activity="x")
    assert [each.activity for each in arms.evidence()] == ["b", "a"], "to look uses nothing"
    arms.of("a").began(0)
    arms.of("c")
    assert [each.activity for each in arms.evidence()] == ["a", "c"]
    arms.of("d")
    assert [each.activity for each in arms.evidence()] == ["a", "d"], "what has something under way stays"
    arms.of("d").began(0)
    arms.of("e")
    assert [each.activity for each in arms.evidence()] == ["a", "d", "e"]


def test_what_is_under_way_is_counted_anew() -> None:
    arms = Arms(_SETTINGS, [Evidence(activity="a"), Evidence(activity="b")])
    arms.of("a").began(0)
    arms.recount([("b", 1.0), ("b", 2.0), ("c", 3.0)])
    assert [(each, arms.peek(each).underway) for each in "abc"] == [("a", 0), ("b", 2), ("c", 1)]
    assert arms.of("c").figures(4.0, math.inf) == (0.0, 0.0, 1.0)
