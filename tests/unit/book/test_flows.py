"""What slices of statistics say together, and how they are stored."""

from __future__ import annotations

import pytest

from pilotage.book.query import Target, parse
from pilotage.book.query.errors import QueryError
from pilotage.book.rows.rows import StatisticRow
from pilotage.book.rows.sketches import BINS, ENTRY, Sketch, added, bin_of, packed, read_sketch, stored, unpacked
from pilotage.book.statistics.statistics import flows
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import State

_ORDER = list(State)
_READY, _DONE = _ORDER.index(State.READY), _ORDER.index(State.DONE)
_PAIR = _READY * 16 + _DONE


def _entry(state: int) -> int:
    return (ENTRY * 16 + state) * BINS


def _times(counts: dict[float, int]) -> Sketch:
    return Sketch(
        {_PAIR * BINS + bin_of(seconds): count for seconds, count in counts.items()},
        {_PAIR: sum(seconds * count for seconds, count in counts.items())},
    )


def _row(sketch: Sketch, *, site: str = "s", number: int = 1) -> StatisticRow:
    return StatisticRow(width_seconds=10, slice=number, site=site, activity="a", sketch=packed(sketch))


def test_slices_of_a_site_are_added_up_and_sites_are_told_in_order() -> None:
    rows = [
        _row(Sketch({_entry(_DONE): 60}, {}), site="t"),
        _row(Sketch({_entry(_READY): 3, _entry(_DONE): 4}, {})),
        _row(Sketch({_entry(_READY): -3, _entry(_DONE): 2}, {}), number=2),
    ]
    first, second = flows(rows, window="1m")
    assert (first.site, first.activity, first.window) == ("s", "a", "1m")
    assert (first.entries, first.per_second, first.intervals) == ({"DONE": 6}, {"DONE": 0.1}, {})
    assert (second.site, second.entries, second.per_second) == ("t", {"DONE": 60}, {"DONE": 1.0})
    assert flows(rows[:1], window="1h")[0].per_second == {"DONE": 60 / 3600}


@pytest.mark.parametrize(
    "counts, median, p95",
    [({5.0: 1}, 5.0, 5.0), ({1.0: 1, 9.0: 1}, 1.0, 9.0), ({1.0: 19, 9.0: 1}, 1.0, 1.0), ({1.0: 18, 9.0: 2}, 1.0, 9.0)],
)
def test_an_interval_is_told_by_its_mean_and_its_quantiles(counts: dict[float, int], median: float, p95: float) -> None:
    [flow] = flows([_row(_times(counts))], window="1m")
    interval = flow.intervals["READY-DONE"]
    assert interval.count == sum(counts.values())
    assert interval.mean_seconds == pytest.approx(sum(at * count for at, count in counts.items()) / interval.count)
    assert interval.median_seconds == pytest.approx(median, rel=0.05)
    assert interval.p95_seconds == pytest.approx(p95, rel=0.05)


def test_equal_sketches_are_equal_bytes_however_they_came_about() -> None:
    one = stored(None, [Sketch({7: 1, 3: 2}, {1: 0.5}), Sketch({3: -2, 5: 1}, {0: 2.0})])
    assert one == packed(Sketch({7: 1, 5: 1}, {0: 2.0})) == packed(Sketch({5: 1, 7: 1}, {0: 2.0}))
    assert read_sketch(one) == Sketch({5: 1, 7: 1}, {0: 2.0})
    assert list(read_sketch(one).counts) == [5, 7]
    again = stored(unpacked(one), [Sketch({7: 1}, {0: 1.0})])
    assert read_sketch(again) == Sketch({5: 1, 7: 2}, {0: 3.0})
    grown = stored(unpacked(again), [Sketch({2: 1}, {})])
    assert list(read_sketch(grown).counts) == [2, 5, 7]


def test_a_sketch_that_others_are_added_to_leaves_them_as_they_are() -> None:
    first = Sketch({7: 1}, {0: 1.0})
    total = added(None, [first, Sketch({7: 2, 8: 1}, {0: 0.5, 1: 4.0})])
    assert total == Sketch({7: 3, 8: 1}, {0: 1.5, 1: 4.0})
    assert first == Sketch({7: 1}, {0: 1.0})


def _asked(text: str, known: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """For which names of packages a query asks, and of which jobs."""
    asked: list[tuple[str, str]] = []

    def named(job: str, name: str) -> PackageId | None:
        asked.append((job, name))
        found = known.get((job, name))
        return PackageId(*map(int, found.split("."))) if found else None

    parse(text, target=Target.PACKAGES, named=named)
    return asked


@pytest.mark.parametrize(
    "text, asked",
    [
        ("package = first", [("", "first")]),
        ("job = j and package = first", [("j", "first")]),
        ("job = j and package in (first, 1.2.3)", [("j", "first")]),
        ("(job = j or state = DONE) and package = first", [("", "first")]),
        ("job in (j, k) and package = first", [("", "first")]),
        ("job != j and package = first", [("", "first")]),
        ("job = j and job = k and package = first", [("", "first")]),
        ("job = j and state = DONE", []),
    ],
)
def test_a_package_is_called_by_its_name_in_the_one_job_that_a_query_is_about(
    text: str, asked: list[tuple[str, str]]
) -> None:
    assert _asked(text, {("", "first"): "1.1.1", ("j", "first"): "1.1.2"}) == asked


def test_a_name_that_nobody_has_is_told() -> None:
    with pytest.raises(QueryError, match="second"):
        _asked("job = j and package = second", {})
