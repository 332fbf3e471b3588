"""Attempts that are counted together, in arrays, count as they do one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pilotage.book.rows.fast_rows import Lives
from pilotage.book.rows.sketches import (
    BINS,
    ENTRY,
    FINE_SECONDS,
    NEVER,
    SMALLEST,
    STATES,
    Sketch,
    bin_of,
    middle_of,
)
from pilotage.book.statistics.counting import SliceCounts, count_lives, count_together
from pilotage.model.states import State

_ORDER = list(State)
_SUBMITTED, _WAITING, _READY, _SCHEDULED, _RUNNING, _DONE = (
    _ORDER.index(state)
    for state in (State.SUBMITTED, State.WAITING, State.READY, State.SCHEDULED, State.RUNNING, State.DONE)
)
Times = Mapping[int, float]
Place = tuple[int, int]


def _one_by_one(attempts: Iterable[tuple[int, Times, int]]) -> dict[Place, Sketch]:
    """What each attempt of a group adds, or takes back where its factor is -1; nothing that is 0."""
    counts: dict[Place, Counter[int]] = {}
    sums: dict[Place, dict[int, float]] = {}
    for group, times, factor in attempts:
        for later, at in times.items():
            if later < 2:
                continue
            place = int(at) // FINE_SECONDS, group
            counted, summed = counts.setdefault(place, Counter()), sums.setdefault(place, {})
            counted[(ENTRY * 16 + later) * BINS] += factor
            for earlier in (state for state in times if state < later):
                seconds = at - times[earlier]
                counted[(earlier * 16 + later) * BINS + bin_of(seconds)] += factor
                pair = earlier * 16 + later
                summed[pair] = summed.get(pair, 0.0) + (factor * seconds if seconds >= SMALLEST else 0.0)
    made = {
        place: Sketch(
            {code: count for code, count in counts[place].items() if count},
            {pair: round(seconds, 6) for pair, seconds in sums[place].items() if abs(seconds) > 1e-9},
        )
        for place in counts
    }
    return {place: sketch for place, sketch in made.items() if sketch.counts}


def _together(found: Iterable[SliceCounts]) -> dict[Place, Sketch]:
    made = {
        (number, group): Sketch(
            {code: count for code, count in counts.items() if count},
            {pair: round(seconds, 6) for pair, seconds in sums.items() if abs(seconds) > 1e-9},
        )
        for number, group, counts, sums in found
    }
    return {place: sketch for place, sketch in made.items() if sketch.counts}


def _row(times: Times) -> list[float]:
    return [times.get(state, NEVER) for state in range(STATES)]


def _counted(attempts: Sequence[tuple[int, Times]], known: Mapping[int, Times] | None = None) -> dict[Place, Sketch]:
    known = known or {}
    return _together(
        count_together(
            [group for group, _ in attempts],
            [each for _, times in attempts for each in _row(times)],
            known_at=list(known),
            known=[each for times in known.values() for each in _row(times)],
        )
    )


def _leased(start: float, *, end: float = 0.0) -> dict[int, float]:
    times = {_SUBMITTED: 100.0, _WAITING: 101.5, _READY: start, _RUNNING: start}
    return {**times, _DONE: end} if end else times


_SCHEDULED_LATE = {_SUBMITTED: 100.0, _WAITING: 100.0, _READY: 103.0, _SCHEDULED: 104.0, _RUNNING: 119.5, _DONE: 140.0}
_ATTEMPTS: dict[str, list[tuple[int, Times]]] = {
    "leased": [(0, _leased(110.0)), (1, _leased(112.0, end=125.0)), (0, _leased(119.9, end=120.0))],
    "scheduled": [(0, _SCHEDULED_LATE), (2, _SCHEDULED_LATE)],
    "both": [(0, _leased(110.0, end=115.0)), (1, _SCHEDULED_LATE)],
    "alike but scheduled": [(0, {**_leased(110.0, end=130.0), _SCHEDULED: 110.0})],
    "not begun": [(0, {_SUBMITTED: 100.0, _WAITING: 101.0}), (0, {_SUBMITTED: 90.0, _READY: 95.0})],
    "backwards": [(0, {_SUBMITTED: 100.0, _READY: 90.0, _RUNNING: 90.0005})],
}


@pytest.mark.parametrize("name", _ATTEMPTS)
def test_many_attempts_count_as_one_by_one(name: str) -> None:
    attempts = _ATTEMPTS[name]
    assert _counted(attempts) == _one_by_one((group, times, 1) for group, times in attempts)


@pytest.mark.parametrize(
    "now, before",
    [
        (_leased(110.0, end=125.0), _leased(110.0)),
        (_SCHEDULED_LATE, {_SUBMITTED: 100.0, _WAITING: 100.0, _READY: 103.0}),
        (_leased(110.0, end=125.0), {**_leased(110.0), _RUNNING: 111.0, _READY: 109.0}),
        (_SCHEDULED_LATE, {**_SCHEDULED_LATE, _DONE: 150.0}),
        (_SCHEDULED_LATE, _SCHEDULED_LATE),
        ({**_leased(110.0), _RUNNING: 112.0}, _leased(110.0)),
    ],
)
def test_what_was_counted_before_is_not_counted_again_and_what_was_wrong_is_taken_back(
    now: Times, before: Times
) -> None:
    other = _leased(111.0, end=133.0)
    found = _counted([(1, other), (0, now)], {1: before})
    assert found == _one_by_one([(1, other, 1), (0, now, 1), (0, before, -1)])


def test_attempts_that_bring_nothing_new_count_for_nothing() -> None:
    assert _counted([(0, {_SUBMITTED: 1.0})]) == {}


@pytest.mark.parametrize("known", [(100.0, 100.0), (100.0, 101.5), (NEVER, 100.0), (100.0, NEVER), (NEVER, NEVER)])
def test_short_lives_count_as_one_by_one(known: tuple[float, float]) -> None:
    def life(site: str, created_at: float, granted_at: float = 0.0) -> Any:
        more = {"finished_at": granted_at, "granted_at": granted_at}
        return SimpleNamespace(activity="a", site=site, created_at=created_at, **more)

    began = [life("x", 110.0), life("x", 110.0), life("y", 111.0), life("x", 125.0)]
    granted = [life("x", 110.0, 118.0), life("y", 111.0, 131.0), life("y", 90.0, 131.5)]
    at_first = {state: at for state, at in zip((_SUBMITTED, _WAITING), known, strict=True) if at != NEVER}
    groups = {"x": 0, "y": 1}
    expected = []
    for lives_of, before in ((began, False), (granted, True)):
        for each in lives_of:
            group, times = groups[each.site], {**at_first, _READY: each.created_at, _RUNNING: each.created_at}
            expected.append((group, {**times, _DONE: each.granted_at} if before else times, 1))
            expected += [(group, times, -1)] if before else []
    lives = Lives(cast("Any", began), cast("Any", granted))
    assert [group[0] for group in lives.groups] == ["x", "y"]
    assert _together(count_lives(lives, known)) == _one_by_one(expected)


def test_a_bin_is_ten_per_cent_wide_and_begins_at_a_millisecond() -> None:
    assert [bin_of(seconds) for seconds in (-1.0, 0.0, 0.000999, 0.001, 0.00105, 0.00111)] == [0, 0, 0, 1, 1, 2]
    assert bin_of(1e300) == BINS - 1
    for seconds in (0.0012, 0.5, 1.0, 77.0, 86_400.0):
        assert middle_of(bin_of(seconds)) == pytest.approx(seconds, rel=0.05)
    assert middle_of(0) == 0.0
