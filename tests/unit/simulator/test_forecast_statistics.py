"""What many runs come to: means, medians, intervals and differences, also where some do not finish; and the drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

import numpy as np
import pytest

from pilotage.model.errors import PilotageError
from pilotage.model.settings.engine import EngineSettings
from pilotage.simulator.runs.charts import chart_of
from pilotage.simulator.runs.comparison import difference_of, makespan_of, summary_of, variants_of
from pilotage.simulator.runs.figures import RunFigures, SiteFigures

SVG = "{http://www.w3.org/2000/svg}"


def runs(makespans: Sequence[float | None]) -> list[RunFigures]:
    return [
        RunFigures(
            seed=seed,
            outcome="unfinished" if each is None else "finished",
            holds=0,
            makespan_seconds=each,
            done=10,
            failed=0,
            attempts=12,
            failures={"preempted": 2} if seed % 2 else {},
            sites={"lyon": SiteFigures(core_seconds=100.0, wasted_core_seconds=25.0, queue_seconds=30.0, attempts=12)},
        )
        for seed, each in enumerate(makespans)
    ]


def test_the_usual_figures() -> None:
    found = makespan_of([float(each) for each in range(1, 102)])
    assert (found.mean_seconds, found.median_seconds) == (51.0, 51.0)
    assert (found.low_seconds, found.high_seconds) == (6.0, 96.0)
    half = 1.959964 * float(np.std(range(1, 102), ddof=1)) / 101**0.5
    assert found.mean_low_seconds == pytest.approx(51 - half)
    assert found.mean_high_seconds == pytest.approx(51 + half)


def test_a_run_that_does_not_finish_is_longer_than_all_others() -> None:
    found = makespan_of([10.0, None, 20.0, 30.0, 40.0])
    assert (found.mean_seconds, found.median_seconds) == (25.0, 30.0)
    assert found.high_seconds is None
    assert makespan_of([10.0, None, None]).median_seconds is None
    assert makespan_of([None]).mean_seconds is None


def test_one_run_has_no_interval() -> None:
    found = makespan_of([10.0])
    assert (found.mean_seconds, found.mean_low_seconds, found.low_seconds) == (10.0, None, 10.0)


def test_averages_are_over_all_runs() -> None:
    found = summary_of("best", runs([10.0, 20.0, None, 30.0]))
    assert (found.runs, found.finished, found.unfinished) == (4, 3, 1)
    assert found.failures == {"preempted": 1.0}
    assert found.wasted_share == 0.25
    assert found.sites["lyon"].seconds["queue"] == 30.0
    assert found.phases["queue"] == 30.0


def test_differences_are_taken_seed_by_seed() -> None:
    chance = np.random.default_rng(1)
    luck = chance.normal(10_000, 3_000, size=60)
    first = summary_of("a", runs([float(each) for each in luck]))
    other = summary_of("b", runs([float(each) - 100 + float(chance.normal(0, 50)) for each in luck]))
    found = difference_of(first, other)
    assert found.mean_seconds == pytest.approx(-100, abs=25)
    assert found.low_seconds is not None
    assert found.high_seconds is not None
    # Side by side the two could not be told apart: the luck of a seed is thirty times as large.
    assert -125 < found.low_seconds < found.high_seconds < -75
    assert found.is_clear
    assert found.shorter_share is not None
    assert found.shorter_share > 0.9


def test_a_difference_says_nothing_of_seeds_that_one_of_the_two_did_not_finish() -> None:
    found = difference_of(summary_of("a", runs([10.0, 20.0, None])), summary_of("b", runs([11.0, None, 5.0])))
    assert (found.pairs, found.mean_seconds, found.low_seconds) == (1, 1.0, None)
    assert not found.is_clear


def test_the_same_runs_give_the_same_interval() -> None:
    first, other = summary_of("a", runs([1.0, 5.0, 2.0])), summary_of("b", runs([2.0, 3.0, 9.0]))
    assert difference_of(first, other) == difference_of(first, other)


def test_the_interval_of_a_difference_covers_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        first = summary_of("a", runs([0.0] * 40))
        other = summary_of("b", runs([float(each) for each in chance.normal(5, 10, size=40)]))
        found = difference_of(first, other)
        assert found.low_seconds is not None
        assert found.high_seconds is not None
        covered += found.low_seconds <= 5 <= found.high_seconds
    assert 178 <= covered <= 199  # 95 % of 200 are 190, with a deviation of 3; a bootstrap is a little too sure


def test_a_drawing_has_a_row_for_each_variant_and_every_run() -> None:
    summaries = [
        summary_of("weighted-random", runs([100.0, 200.0, 300.0])),
        summary_of("<b>", runs([90.0, None, 250.0])),
    ]
    root = ET.fromstring(chart_of("a & b", summaries, [difference_of(*summaries)]))
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert {"a & b", "weighted-random", "<b>", "1 of 3 runs not over"} <= set(words)
    dots = [each for each in root.iter(f"{SVG}circle") if each.get("class") == "run"]
    assert len(dots) == 1 + 3 + 2  # one of the legend
    width = float(root.attrib["width"])
    assert all(0 < float(dot.attrib["cx"]) < width for dot in dots)


def test_equal_runs_can_be_drawn() -> None:
    for seconds, dots in (([60.0], 1), ([60.0, 60.0], 2), ([None, None], 0)):
        root = ET.fromstring(chart_of("job", [summary_of("a", runs(seconds))], []))
        places = [float(each.attrib["cx"]) for each in root.iter(f"{SVG}circle") if each.get("class") == "run"]
        assert len(places) == 1 + dots  # one of the legend
        assert all(0 <= place <= float(root.attrib["width"]) for place in places)


def test_variants_are_all_combinations() -> None:
    found = variants_of(["slots_factor=1,2", "flood_packages=5,50"], EngineSettings())
    assert [(each.settings.selection.slots_factor, each.settings.flood_packages) for each in found] == [
        (1, 5),
        (1, 50),
        (2, 5),
        (2, 50),
    ]
    assert found[0].name == "slots_factor=1 flood_packages=5"
    assert [each.name for each in variants_of([], EngineSettings())] == ["as it is"]


def test_the_order_of_jobs_can_be_compared() -> None:
    found = variants_of(["fairness=slowdown,first-come"], EngineSettings())
    assert [(each.name, each.settings.fairness) for each in found] == [
        ("fairness=slowdown", "slowdown"),
        ("fairness=first-come", "first-come"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "slots_factor",
        "slots_factor=",
        "slots_factor=1,1",
        "slots_factor=x",
        "slot_factor=1",
        "selection=worst",
        "fairness=last-come",
        "unfit_seconds=-1",
    ],
)
def test_what_cannot_be_compared_is_refused(text: str) -> None:
    with pytest.raises(PilotageError):
        variants_of([text], EngineSettings())


def test_each_name_is_compared_once() -> None:
    with pytest.raises(PilotageError, match="once"):
        variants_of(["slots_factor=1,2", "slots_factor=3"], EngineSettings())
