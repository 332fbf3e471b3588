from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotage.app.forecasts.source import Source
from pilotage.app.forecasts.tables import read_observed
from tests.kit.command_line import in_an_empty_folder, refused, run

FIXED = "latency_seconds,submission_seconds\n150,10\n150,10\n"
MIXED = "latency_seconds\n100\n200\n300\ninf\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    (tmp_path / "fixed.csv").write_text(FIXED)
    (tmp_path / "mixed.csv").write_text(MIXED)


def told(*words: str) -> Any:
    result = run("forecast", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def text(*words: str) -> str:
    result = run("forecast", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_available_pilots_follow_the_latencies() -> None:
    found = told("pilots", "--latencies", "mixed.csv", "-n", "8", "--at", "50,200,1e4", "--at-least", "4")
    assert found["fault_ratio"] == pytest.approx(0.25)
    assert [each["t"] for each in found["points"]] == [50.0, 200.0, 10_000.0]
    assert [each["mean"] for each in found["points"]] == pytest.approx([0.0, 4.0, 6.0])
    assert [each["sd"] for each in found["points"]] == pytest.approx([0.0, 2**0.5, 1.5**0.5])
    assert [each["p_at_least"] for each in found["points"]] == pytest.approx([0.0, 163 / 256, 0.9727020263671875])


def test_how_far_the_mean_may_be_off_follows_from_the_number_of_latencies(tmp_path: Path) -> None:
    found = told("pilots", "--latencies", "mixed.csv", "-n", "8", "--at", "50,200")
    assert [each["mean_sd"] for each in found["points"]] == pytest.approx([0.0, 8 * (0.25 / 4) ** 0.5])
    assert "± 2.00" in text("pilots", "--latencies", "mixed.csv", "-n", "8", "--at", "200")
    found = told("pilots", "--latencies", "fixed.csv", "-n", "8", "--sequential", "--at", "200")
    assert [each["mean_sd"] for each in found["points"]] == [None]


def test_how_likely_a_number_is_is_told_only_where_it_was_asked_for() -> None:
    found = told("pilots", "--latencies", "mixed.csv", "-n", "8", "--at", "200")
    assert [each["p_at_least"] for each in found["points"]] == [None]
    assert "at least" not in text("pilots", "--latencies", "mixed.csv", "-n", "8", "--at", "200")


def test_sequential_pilots_start_one_by_one_and_stop_at_the_end_of_the_work() -> None:
    words = ("pilots", "--latencies", "fixed.csv", "-n", "100", "--sequential", "--at", "150,200")
    assert [each["mean"] for each in told(*words)["points"]] == pytest.approx([1.0, 6.0])
    found = told(*words, "--work", "300")
    assert found["submitted"] == 22  # the pilots from 150 s on have done it soon after 220 s
    assert [each["mean"] for each in found["points"]] == pytest.approx([1.0, 6.0])


def test_in_the_full_model_pilots_differ_by_rank() -> None:
    words = ("pilots", "--latencies", "fixed.csv", "-n", "100", "--sequential", "--at", "200", "--at-least", "6")
    assert told(*words)["points"][0]["sd"] == pytest.approx((100 * 0.06 * 0.94) ** 0.5)
    point = told(*words, "--model", "full")["points"][0]
    assert (point["sd"], point["p_at_least"]) == pytest.approx((0.0, 1.0), abs=1e-3)


def test_the_makespan_of_a_fixed_latency_is_exact() -> None:
    found = told("makespan", "--latencies", "fixed.csv", "--work", "39600", "-n", "25,50,150")
    assert [each["mean"] for each in found["makespan"]] == [150 + 39600 / n for n in (25, 50, 150)]
    assert found["limit"] == 150.0
    assert all(each[name] is None for each in found["makespan"] for name in ("median", "low", "high"))


def test_the_limit_of_sequential_submission_is_that_of_ten_thousand_pilots() -> None:
    found = told("makespan", "--latencies", "fixed.csv", "--work", "280", "-n", "10000,5", "--sequential")
    assert found["limit"] == pytest.approx(found["makespan"][0]["mean"]) == pytest.approx(220.0, abs=0.1)
    assert 5 < found["limit_n"] <= 8
    assert "within a second" in text("makespan", "--latencies", "fixed.csv", "--work", "280", "-n", "5", "--sequential")


def test_the_recommended_number_is_the_smallest_that_is_near_the_best() -> None:
    found = told("recommend", "--latencies", "fixed.csv", "--work", "39600", "--within", "0.1", "--at-most", "1000")
    assert found["best"] == pytest.approx(150 + 39.6)
    assert found["makespan"] <= 1.1 * found["best"]
    assert 150 + 39600 / (found["n"] - 1) > 1.1 * found["best"]
    assert "pilots: " in text("recommend", "--latencies", "fixed.csv", "--work", "39600")


def test_the_work_is_fitted_to_runs_with_latencies_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("n,makespan_seconds,latencies\n10,250,fixed.csv\n20,200,\n")
    (tmp_path / "late.csv").write_text("latency_seconds\n150\n150\n")
    found = told("fit", "--runs", "runs.csv", "--latencies", "late.csv")
    assert found["work_seconds"] == pytest.approx(1000.0)
    assert found["mean_error_seconds"] == pytest.approx(0.0, abs=1e-6)
    assert "runs.csv:3: the run names no file" in refused("forecast", "fit", "--runs", "runs.csv")


def test_the_score_is_the_papers_error_and_the_shares_inside_its_bands(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("t,n_available\n50,0\n200,4\n200,6\n1e4,1\n")
    found = told("score", "--latencies", "mixed.csv", "--measured", "n.csv", "-n", "8")
    assert found["error"] == pytest.approx((0 + 0 + 2 + 5) / 4 / 8)
    assert (found["within_sd"], found["within_3_sd"]) == (0.5, 0.75)
    assert found["n_estimated"] is False


def test_an_unknown_number_of_pilots_is_estimated_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("t,n_available\n200,4\n1e4,6\n")
    result = run("forecast", "score", "--latencies", "mixed.csv", "--measured", "n.csv", "--json")
    found = json.loads(result.stdout)
    assert (found["n"], found["n_estimated"], found["error"]) == (8, True, 0.0)
    assert "say -n" in result.stderr


def test_both_figures_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("t,n_available\n50,0\n200,4\n1e3,6\n")
    (tmp_path / "runs.csv").write_text("n,makespan_seconds\n10,250\n20,200\n")
    words = ("plot", "--latencies", "mixed.csv", "-n", "8", "--measured", "n.csv", "--runs", "runs.csv", "--svg", "x")
    assert told(*words) == {"files": ["x-pilots.svg", "x-makespan.svg"]}
    pilots = (tmp_path / "x-pilots.svg").read_text()
    assert "n = 8, 4 probes, \N{GREEK SMALL LETTER RHO} = 25.0 %, error 0.0 %" in pilots
    for line in ("mean", "sd", "sd3", "limit", "measured"):
        assert f'<polyline class="{line}"' in pilots
    makespans = (tmp_path / "x-makespan.svg").read_text()
    assert makespans.count('<path class="cross-measured"') == 3  # one is in the legend
    assert makespans.count('<path class="cross-modelled"') == 3


def test_nothing_to_draw_is_refused() -> None:
    assert "nothing to draw" in refused("forecast", "plot", "--latencies", "mixed.csv")


BAD_LATENCIES = {
    "empty": ("", "bad.csv:1: is empty"),
    "header only": ("latency_seconds\n", "bad.csv:1: has no latency"),
    "one row": ("latency_seconds\n100\n", "bad.csv:2: has one latency only"),
    "all faults": (
        "latency_seconds\ninf\n\ninf\n",
        "bad.csv:2: none of 3 pilots started: every row from here to line 4",
    ),
    "negative": (
        "latency_seconds\n100\n-1\n",
        "bad.csv:3: latency_seconds is out of range; expected 0 to 1,000,000,000",
    ),
    "not a number": ("latency_seconds\n100\nnan\n", "bad.csv:3: latency_seconds is out of range"),
    "a word": ("latency_seconds\n100\nsoon\n", "bad.csv:3: latency_seconds is no number, got 'soon'"),
    "an underscore": ("latency_seconds\n100\n1_0\n", "bad.csv:3: latency_seconds is no number"),
    "minus infinity": ("latency_seconds\n100\n-inf\n", "bad.csv:3: latency_seconds is out of range"),
    "a million columns": ("latency_seconds" + ",x" * 10**6 + "\n100\n", "bad.csv:1: has 1,000,001 columns"),
    "a row of a million columns": ("latency_seconds\n100\n" + "1," * 10**6 + "\n", "bad.csv:3: has 1,000,001 columns"),
    "a long cell": ("latency_seconds\n100\n" + "1" * 10**6 + "\n", "bad.csv:3: is no CSV: field larger"),
    "another header": ("latency\n100\n", "bad.csv:1: has no column latency_seconds"),
    "a near name": ("latency_second\n100\n", "did you mean 'latency_seconds'?"),
    "a column twice": ("latency_seconds,latency_seconds\n1,2\n", "bad.csv:1: has the column latency_seconds twice"),
    "a short row": ("latency_seconds,submission_seconds\n1,1\n2\n", "bad.csv:3: has 1 columns; expected 2"),
    "no submission": ("latency_seconds,submission_seconds\n1,1\n2,\n", "bad.csv:3: submission_seconds is no number"),
    "a late submission": ("latency_seconds,submission_seconds\n5,1\n2,3\n", "bad.csv:3: the submission takes longer"),
    "an open quote": ('latency_seconds\n"1\n2\n', "bad.csv:3: is no CSV"),
}


@pytest.mark.parametrize("case", BAD_LATENCIES)
def test_bad_latencies_are_refused_with_their_line(tmp_path: Path, case: str) -> None:
    content, expected = BAD_LATENCIES[case]
    (tmp_path / "bad.csv").write_text(content)
    assert expected in refused("forecast", "makespan", "--latencies", "bad.csv", "--work", "100", "-n", "3")


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"latency_seconds\n1\n\xff\n")
    told_error = refused("forecast", "makespan", "--latencies", "bad.csv", "--work", "100", "-n", "3")
    assert "bad.csv:3: is no text" in told_error


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "0", "--work", "1"),
        ("-n", "5", "--work", "0"),
        ("-n", "5", "--work", "nan"),
        ("-n", "5", "--work", "inf"),
        ("-n", "5", "--work", "-3"),
        ("-n", "1000001", "--work", "3"),
        ("-n", "5,", "--work", "3"),
        ("-n", "20000", "--work", "3", "--sequential"),
        ("-n", "200000", "--work", "3", "--model", "full"),
    ],
)
def test_bad_numbers_are_refused(words: tuple[str, ...]) -> None:
    assert refused("forecast", "makespan", "--latencies", "fixed.csv", *words)


def test_sequential_submission_needs_its_times() -> None:
    said = refused("forecast", "makespan", "--latencies", "mixed.csv", "--work", "9", "-n", "3", "--sequential")
    assert "mixed.csv:1: has no column submission_seconds" in said


def test_work_is_refused_where_it_would_cut_nothing() -> None:
    words = ("pilots", "--latencies", "fixed.csv", "-n", "3", "--at", "9", "--work", "9")
    assert "say --sequential" in refused("forecast", *words)


@pytest.mark.parametrize(
    "content, expected",
    [
        ("n,makespan_seconds\n0,5\n", "bad.csv:2: n is no count"),
        ("n,makespan_seconds\n2.5,5\n", "bad.csv:2: n is no count"),
        ("n,makespan_seconds\n2,0\n", "bad.csv:2: makespan_seconds is out of range; expected more than 0"),
        ("n,makespan_seconds\n", "bad.csv:1: has no run"),
    ],
)
def test_bad_runs_are_refused_with_their_line(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    assert expected in refused("forecast", "fit", "--runs", "bad.csv", "--latencies", "mixed.csv")


def test_an_error_is_told_to_programs_too(tmp_path: Path) -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pilotage",
            "forecast",
            "makespan",
            "--latencies",
            "none.csv",
            "--work",
            "1",
            "-n",
            "1",
            "--json",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "none.csv" in json.loads(result.stdout)["error"]["message"]


def test_help_loads_neither_numpy_nor_the_forecasts() -> None:
    program = (
        "import sys\nfrom pilotage.cli import main\n"
        "try:\n    main(['forecast', 'pilots', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith(('numpy', 'pilotage.forecast', 'pilotage.app.f'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# --- given what has started -------------------------------------------------------------------------------------------


def observed(tmp_path: Path, rows: str = "0,100\n0,\n0,\n") -> tuple[str, ...]:
    (tmp_path / "o.csv").write_text("submitted_seconds,started_seconds\n" + rows)
    return ("--now", "150", "--observed", "o.csv")


def test_the_forecast_goes_on_from_what_has_started(tmp_path: Path) -> None:
    given = observed(tmp_path)
    found = told("pilots", "--latencies", "mixed.csv", "-n", "4", "--at", "50,150,400", "--at-least", "2", *given)
    assert [each["mean"] for each in found["points"]][:2] == [0.0, 1.0]
    assert 1.0 < found["points"][2]["mean"] < 4.0
    assert 0.0 < found["points"][2]["p_at_least"] < 1.0
    span = told("makespan", "--latencies", "mixed.csv", "-n", "3,4", "--work", "600", *given)["makespan"]
    assert 150 < span[1]["mean"] < span[0]["mean"] < 700
    full = told("makespan", "--latencies", "mixed.csv", "-n", "3", "--work", "600", "--model", "full", *given)
    point = full["makespan"][0]
    assert point["low"] <= point["median"] <= point["high"] <= 700.0  # the pilot that runs does it alone by then
    assert full["limit"] <= 250.0


def test_what_starts_after_now_is_not_known_yet(tmp_path: Path) -> None:
    words = ("pilots", "--latencies", "mixed.csv", "-n", "3", "--at", "400")
    later = told(*words, *observed(tmp_path, "0,100\n0,200\n0,\n"))
    assert later == told(*words, *observed(tmp_path))


@pytest.mark.parametrize(
    "rows, expected",
    [
        ("", "o.csv:1: has no pilot"),
        ("100,50\n", "o.csv:2: the pilot started before it was submitted"),
        (",50\n", "o.csv:2: submitted_seconds is no number"),
        ("0,inf\n", "o.csv:2: started_seconds is out of range"),
    ],
)
def test_bad_observations_are_refused_with_their_line(tmp_path: Path, rows: str, expected: str) -> None:
    given = observed(tmp_path, rows)
    assert expected in refused("forecast", "pilots", "--latencies", "mixed.csv", "-n", "3", "--at", "9", *given)


def test_fewer_pilots_than_were_submitted_are_refused(tmp_path: Path) -> None:
    said = refused("forecast", "pilots", "--latencies", "mixed.csv", "-n", "2", "--at", "9", *observed(tmp_path))
    assert "expected at least 3 pilots, got 2" in said


def test_now_needs_what_was_observed() -> None:
    assert "belong together" in refused(
        "forecast", "pilots", "--latencies", "mixed.csv", "-n", "2", "--at", "9", "--now", "5"
    )


# --- the full model ---------------------------------------------------------------------------------------------------


def test_the_full_model_tells_a_median_and_an_interval() -> None:
    words = ("makespan", "--latencies", "mixed.csv", "--work", "5000", "-n", "20", "--model", "full")
    point = told(*words)["makespan"][0]
    assert point["low"] < point["median"] < point["high"]
    assert told(*words) == told(*words)
    costly = told(*words, "--start-cost", "100", "--packages", "20", "--speeds", "0.5,1")
    assert costly["makespan"][0]["median"] > point["median"] + 100
    assert costly["limit"] == pytest.approx(100 + 100 + 250)
    assert "nine of ten" in run("forecast", *words).stdout


def test_work_that_outlives_the_pilots_never_ends() -> None:
    words = (
        "makespan",
        "--latencies",
        "mixed.csv",
        "--work",
        "5000",
        "-n",
        "20",
        "--model",
        "full",
        "--lifetime",
        "100",
    )
    point = told(*words)["makespan"][0]
    assert point["mean"] is point["median"] is point["high"] is None
    assert "never" in text(*words)


@pytest.mark.parametrize("option", ["--packages", "--start-cost", "--speeds", "--work-sd", "--lifetime"])
def test_what_the_paper_does_not_know_is_refused_in_its_model(option: str) -> None:
    said = refused("forecast", "makespan", "--latencies", "mixed.csv", "--work", "5", "-n", "2", option, "5")
    assert f"the paper's model knows no {option}" in said


def test_runs_that_never_end_have_a_share_and_the_mean_is_that_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "half.csv").write_text("latency_seconds\n" + "100\ninf\n" * 20)
    words = ("makespan", "--latencies", "half.csv", "--work", "1000", "-n", "1,2", "--model", "full")
    one, two = told(*words)["makespan"]
    assert one["never"] == pytest.approx(0.5, abs=0.06)
    assert two["never"] == pytest.approx(0.25, abs=0.06)
    assert one["mean"] == pytest.approx(1100.0, rel=0.05)
    assert "with 1 pilot the work is never done in" in text(*words)


def test_more_available_pilots_than_there_were_are_refused(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("t,n_available\n10,3\n20,200\n")
    words = ("forecast", "score", "--latencies", "mixed.csv", "--measured", "n.csv", "-n", "5")
    assert (
        "n.csv: more pilots were available than there were; expected at most 5, as -n says, got 200 at 20 s"
        in refused(*words)
    )


def test_a_file_that_a_run_names_in_vain_is_refused_with_the_line_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("n,makespan_seconds,latencies\n5,1000,absent.csv\n")
    assert "runs.csv:2: absent.csv: no such file" in refused("forecast", "fit", "--runs", "runs.csv")


def test_pilots_that_are_still_queued_count(tmp_path: Path) -> None:
    (tmp_path / "queued.csv").write_text("latency_seconds,censored_at_seconds\n100,\n,200\n300,\n,\n")
    found = told("pilots", "--latencies", "queued.csv", "-n", "8", "--at", "100,300")
    assert [each["mean"] for each in found["points"]] == pytest.approx([2.0, 5.0])
    # Greenwood: of 4 at risk one starts, then of 2 one.
    variances = (0.75**2 / 12, 0.375**2 * (1 / 12 + 1 / 2))
    assert [each["mean_sd"] for each in found["points"]] == pytest.approx([8 * each**0.5 for each in variances])
    (tmp_path / "both.csv").write_text("latency_seconds,censored_at_seconds\n100,50\n")
    assert "both.csv:2: has both" in refused("forecast", "pilots", "--latencies", "both.csv", "-n", "8", "--at", "1")


def test_the_score_counts_the_pilots_that_were_submitted_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("t,n_available\n150,1\n200,17\n")
    words = ("score", "--latencies", "fixed.csv", "--measured", "n.csv", "-n", "100", "--sequential", "--work", "300")
    found = told(*words)
    assert (found["n"], found["submitted"]) == (100, 22)
    assert found["error"] == pytest.approx(11 / 2 / 22)


def test_sequential_pilots_go_on_being_submitted_from_now_on(tmp_path: Path) -> None:
    source = Source("fixed.csv", sequential=True)
    (tmp_path / "o.csv").write_text("submitted_seconds,started_seconds\n0,140\n")
    seen = source.observed(read_observed("o.csv", now_seconds=150.0), pilots=4)
    assert seen.submitted_seconds.tolist() == [0.0, 150.0, 160.0, 170.0]
    assert Source("fixed.csv", sequential=False).observed(seen, pilots=5).submitted_seconds[-1] == 150.0


# --- past runs --------------------------------------------------------------------------------------------------------


OF_PACKAGES = (
    "makespan",
    "--latencies",
    "fixed.csv",
    "--work",
    "4800",
    "--packages",
    "80",
    "-n",
    "20",
    "--model",
    "full",
)


def past_runs(*, factor: float, campaigns: int = 4) -> str:
    rows = [
        f"{name},{n},{n * each},{factor * (150.0 + 60.0 * each):.1f}"
        for name in range(campaigns)
        for n in (10, 20, 40)
        for each in (1, 2, 4)
    ]
    return "\n".join(["campaign,n,packages,makespan_seconds", *rows, ""])


def test_past_runs_correct_the_full_model_and_tell_how_far_it_may_be_off(tmp_path: Path) -> None:
    words = OF_PACKAGES
    plain = told(*words)["makespan"][0]
    for factor in (1.0, 1.8):
        (tmp_path / "past.csv").write_text(past_runs(factor=factor))
        found = told(*words, "--past-runs", "past.csv")["makespan"][0]
        assert found["median"] == pytest.approx(factor * (150.0 + 4 * 60.0), rel=0.12)
        assert found["low"] < found["median"] < found["mean"] < found["high"]
        assert set(found) == set(plain)


def test_past_runs_of_pilots_submitted_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "past.csv").write_text(past_runs(factor=2.0))
    words = OF_PACKAGES
    found, plain = (told(*words, "--sequential", *more)["makespan"][0] for more in (("--past-runs", "past.csv"), ()))
    assert found["median"] > 1.2 * plain["median"]


@pytest.mark.parametrize(
    "table, line",
    [
        ("n,packages,makespan_seconds\n", 1),
        ("n,makespan_seconds\n1,2\n", 1),
        ("n,packages,makespan_seconds\n1,0,5\n", 2),
        ("n,packages,makespan_seconds\n1,4,5\n2,4,0\n", 3),
        ("n,packages,makespan_seconds\n1,4,nan\n", 2),
    ],
)
def test_a_bad_table_of_past_runs_is_refused_with_its_line(tmp_path: Path, table: str, line: int) -> None:
    (tmp_path / "past.csv").write_text(table)
    words = OF_PACKAGES
    assert f"past.csv:{line}" in refused("forecast", *words, "--past-runs", "past.csv")


def test_past_runs_need_packages_and_the_full_model(tmp_path: Path) -> None:
    (tmp_path / "past.csv").write_text(past_runs(factor=1.0))
    words = ("makespan", "--latencies", "fixed.csv", "--work", "4800", "-n", "20", "--past-runs", "past.csv")
    assert "--model full" in refused("forecast", *words)
    assert "--packages" in refused("forecast", *words, "--model", "full")
