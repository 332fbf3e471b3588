"""Levels: thresholds between clusters of degrees, as a search over all partitions finds them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.healing.levels import (
    DEFAULT_THRESHOLDS,
    DEGREES_MAX,
    FITTED_MIN,
    LEVELS_MAX,
    LOWEST_THRESHOLD,
    DegreeHistory,
    thresholds_of,
)

DEGREES = st.lists(st.integers(0, 1000).map(lambda each: each / 1000), min_size=2, max_size=12)


def _spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((each - mean) ** 2 for each in values)


def _best(values: list[float], clusters: int) -> float:
    ordered = sorted(values)
    return min(
        sum(_spread(ordered[start:end]) for start, end in zip((0, *cuts), (*cuts, len(ordered)), strict=True))
        for cuts in combinations(range(1, len(ordered)), clusters - 1)
    )


@given(DEGREES)
def test_the_clusters_are_those_with_the_least_spread(degrees: list[float]) -> None:
    if len(set(degrees)) < 2:
        assert thresholds_of(degrees) == DEFAULT_THRESHOLDS
        return
    found = thresholds_of(degrees)
    clusters = len(found) + 1
    assert 2 <= clusters <= min(LEVELS_MAX, len(set(degrees)))
    assert list(found) == sorted(found)
    if min(found) > LOWEST_THRESHOLD:  # none was raised: each degree is in its cluster
        parts: dict[int, list[float]] = {}
        for each in degrees:
            parts.setdefault(sum(each >= limit for limit in found), []).append(each)
        assert sum(map(_spread, parts.values())) == pytest.approx(_best(degrees, clusters), abs=1e-9)
    if clusters > 2:
        assert _best(degrees, clusters - 1) > 0.1 * _spread(degrees) - 1e-9


def test_clear_clusters_are_told_apart() -> None:
    found = thresholds_of([0.0] * 40 + [0.5] * 20 + [0.9] * 20)
    assert [round(each, 3) for each in found] in ([0.25, 0.7], [0.25])
    assert thresholds_of([0.02] * 30 + [0.04] * 30) == (LOWEST_THRESHOLD,)


def test_the_default_thresholds_hold_until_enough_is_known() -> None:
    history = DegreeHistory()
    for number in range(FITTED_MIN - 1):
        history.add(number / FITTED_MIN)
        assert history.thresholds == DEFAULT_THRESHOLDS
    assert [history.level(each) for each in (0.0, 0.29, 0.3, 0.7, 0.9)] == [1, 1, 2, 3, 4]
    history.add(1.0)
    assert history.thresholds != DEFAULT_THRESHOLDS
    assert 2 <= history.level(1.0) <= LEVELS_MAX


def test_a_history_is_bounded_and_goes_on_from_what_was_stored() -> None:
    history = DegreeHistory()
    for number in range(3 * DEGREES_MAX):
        history.add((number * 7919 % 1000) / 1000)
    history.ended(61.0)
    learned = history.learned()
    again = DegreeHistory(learned.degrees, learned.seconds)
    assert len(learned.degrees) == DEGREES_MAX
    assert (again.degrees, again.durations) == (history.degrees, history.durations)
    assert all(abs(one - other) < 0.2 for one, other in zip(again.thresholds, history.thresholds, strict=False))
