"""`pilotage forecast score JOB`: the forecasts in a real book, compared with the ends of their jobs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pilotage.client.finding import TOKEN_FILE
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import ForecastMade, ForecastScored
from tests.kit.command_line import in_an_empty_folder, refused, run
from tests.kit.events import START, Stream, a_short_job
from tests.kit.sqlite_books import keep, opened


def forecasts(by: Stream, job: str, *seconds: tuple[float, float, float, float]) -> list[Event]:
    """Forecasts made some seconds after the start: low, median and high, in seconds after the start, too."""
    return [
        by.event(
            ForecastMade(
                low_at=START + low,
                median_at=START + median,
                high_at=START + high,
                mean_at=START + median,
                packages=3,
                number=number,
            ),
            job=job,
            time=START + at,
        )
        for number, (at, low, median, high) in enumerate(seconds, 1)
    ]


def outcome(by: Stream, job: str, *, at: float, how: Any = "done") -> Event:
    return by.event(ForecastScored(ended_at=START + at, outcome=how, forecasts=1), job=job, time=START + at)


@pytest.fixture(autouse=True)
def _book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    with opened(tmp_path / ".pilotage") as journal:
        for job, rows, end in (
            ("j1", [(0.0, 500.0, 800.0, 1500.0), (500.0, 700.0, 750.0, 800.0)], (1000.0, "done")),
            ("j2", [(0.0, 50.0, 100.0, 200.0)], (100.0, "failed")),
            ("j3", [(0.0, 50.0, 100.0, 200.0)], (10.0, "cancelled")),
            ("j4", [(0.0, 50.0, 100.0, 200.0)], None),
            ("j5", [], None),
        ):
            by = Stream(stream=f"{job}-service")
            events = [*a_short_job(job, stream=by), *forecasts(by, job, *rows)]
            if end is not None:
                events.append(outcome(by, job, at=end[0], how=end[1]))
            keep(journal, events)
    (tmp_path / ".pilotage" / TOKEN_FILE).write_text("token\n")


def told(*words: str) -> Any:
    result = run("forecast", "score", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_each_forecast_of_a_job_is_compared_with_its_end() -> None:
    found = told("j1")
    [job] = found["jobs"]
    first, second = job["forecasts"]
    assert (first["left_seconds"], first["error"], first["inside"]) == (1000.0, pytest.approx(-0.2), True)
    assert (second["left_seconds"], second["error"], second["inside"]) == (500.0, pytest.approx(-0.5), False)
    assert (found["forecasts"], found["inside"], found["nominal"]) == (2, 0.5, 0.9)
    assert found["mean_absolute_error"] == pytest.approx(0.35)
    assert [(each["from_share"], each["forecasts"]) for each in found["parts"]] == [(0.0, 1), (0.5, 1)]


def test_all_jobs_count_and_those_without_an_end_are_named() -> None:
    found = told("--all")
    assert [each["job"] for each in found["jobs"]] == ["j1", "j2"]
    assert {each["job"]: each["why"] for each in found["unscored"]} == {
        "j3": "it was cancelled",
        "j4": "it is not over",
    }
    assert found == told("j1", "j2", "j3", "j4")


def test_it_is_told_in_words() -> None:
    result = run("forecast", "score", "j1", "j5")
    assert result.exit_code == 0
    assert "2 forecasts of 1 job" in result.output
    assert "35.0 % of the time left" in result.output
    assert "too early" in result.output
    assert "not scored: j5: it has no forecast" in result.output
    assert "no forecast of a job that is over" in run("forecast", "score", "j4").output


def test_the_drawing_has_both_panels_and_every_forecast(tmp_path: Path) -> None:
    result = run("forecast", "score", "j1", "j2", "--plot", "score.svg")
    assert result.exit_code == 0, result.output
    drawn = ET.parse(tmp_path / "score.svg").getroot()
    circles = [each.get("class") for each in drawn.iter() if each.tag.endswith("circle")]
    assert circles.count("dot") == 19
    assert circles.count("inside") - 1 == 2  # and one in the legend
    assert circles.count("outside") - 1 == 1


@pytest.mark.parametrize(
    "words, why",
    [
        (("j1", "--all"), "name jobs, or say --all"),
        (("j1", "--latencies", "x.csv"), "leave --latencies, --site and --measured out"),
        ((), "Missing option '--measured'"),
        (("--latencies", "x.csv"), "Missing option '--measured'"),
        (("--latencies", "x.csv", "--measured", "y.csv", "--plot", "z"), "pilotage forecast plot"),
        (("nothing",), "nothing"),
    ],
)
def test_a_question_that_is_none_is_refused(words: tuple[str, ...], why: str) -> None:
    assert why in refused("forecast", "score", *words)
