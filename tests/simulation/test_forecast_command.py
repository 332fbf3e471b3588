"""`pilotage simulate JOB.yaml`: what it prints, draws and refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pilotage.model.settings.engine import EngineSettings
from tests.kit.command_line import in_an_empty_folder, refused, run

JOB = """pilotage: 1
job: sweep
stages:
  - each: {n: 1..20}
    run: simulate {n}
    run_time: 10 min
"""
SITES = """pilotage: 1
sites:
  - {name: lyon, kind: slurm, slots: 5, pilots_max: 1}
  - {name: nice, kind: slurm, slots: 5, pilots_max: 1, speed: 0.5}
"""
WORLD = """pilotage: 1
sites:
  - {name: lyon, queue: 60, failure_probability: 0.1}
  - {name: nice, queue: {distribution: exponential, mean: 5 min}}
packages:
  run_time_factor: {distribution: log-normal, median: 1, sigma: 0.3}
"""
WORKLOAD = "".join(f" {n} {n} {10 * n} 100 1 -1 -1 1 7200 -1 1 1 1 -1 2 1 -1 -1\n" for n in range(1, 9))


@pytest.fixture(autouse=True)
def _with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    for name, text in {"job.yaml": JOB, "sites.yaml": SITES, "world.yaml": WORLD, "log.swf": WORKLOAD}.items():
        (tmp_path / name).write_text(text)


def told(*arguments: str) -> dict[str, Any]:
    result = run("simulate", "job.yaml", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_people_read_how_long_it_takes_and_where_the_time_goes() -> None:
    lines = run("simulate", "job.yaml", "--world", "world.yaml", "--runs", "5").stdout.splitlines()
    assert lines[0] == "sweep: 20 packages at 2 sites, 5 runs"
    text = "\n".join(lines)
    assert all(
        word in text
        for word in ("median", "mean", "nine runs of ten", "lyon", "nice", "wasted", "normal approximation")
    )


def test_programs_read_the_same_and_the_same_again() -> None:
    first = told("--world", "world.yaml", "--runs", "4")
    assert first == told("--world", "world.yaml", "--runs", "4", "--sites", "sites.yaml")
    (variant,) = first["variants"]
    assert (variant["runs"], variant["finished"], len(variant["makespans"])) == (4, 4, 4)
    assert variant["makespan"]["low_seconds"] <= variant["makespan"]["median_seconds"]
    assert set(variant["sites"]) == {"lyon", "nice"}
    assert set(variant["phases"]) == {"queue", "setup", "inputs", "application", "outputs", "idle"}


def test_a_longer_series_begins_with_the_shorter_one() -> None:
    few, many = told("--world", "world.yaml", "--runs", "2"), told("--world", "world.yaml", "--runs", "4")
    assert many["variants"][0]["makespans"][:2] == few["variants"][0]["makespans"]


def test_what_is_compared_is_a_table_and_a_drawing(tmp_path: Path) -> None:
    result = run("simulate", "job.yaml", "--world", "world.yaml", "--runs", "3", "--compare", "slots_factor=1,3")
    assert "slots_factor=3" in result.stdout
    assert "percentile bootstrap" in result.stdout
    assert result.stdout.endswith("drawn in simulation.svg\n")
    ET.fromstring((tmp_path / "simulation.svg").read_text())
    found = told("--runs", "2", "--compare", "slots_factor=1,3", "--svg", "other.svg")
    assert (tmp_path / "other.svg").exists()
    assert found["differences"][0]["beside"] == "slots_factor=1"


def test_ways_of_choosing_sites_are_compared_or_refused_by_an_engine_without_a_choice() -> None:
    arguments = ("--runs", "2", "--compare", "selection=weighted-random,best,thompson,uniform")
    if "selection" in EngineSettings.__struct_fields__:
        found = told(*arguments)
        assert [each["variant"] for each in found["variants"]] == ["weighted-random", "best", "thompson", "uniform"]
    else:
        assert "one way of choosing sites" in refused("simulate", "job.yaml", *arguments)


def test_a_world_that_was_fitted_can_be_kept_and_used_again() -> None:
    fitted = told("--world-from", "nice=log.swf", "--runs", "3", "--save-world", "kept.yaml")
    assert "nice" in Path("kept.yaml").read_text()
    assert "lyon" not in Path("kept.yaml").read_text()
    assert told("--world", "kept.yaml", "--runs", "3")["variants"] == fitted["variants"]


def test_a_trace_without_a_site_holds_for_all() -> None:
    told("--world-from", "log.swf", "--runs", "1", "--save-world", "kept.yaml")
    kept = Path("kept.yaml").read_text()
    assert "lyon" in kept
    assert "nice" in kept


def test_without_sites_this_computer_is_simulated_and_that_is_said() -> None:
    Path("sites.yaml").unlink()
    result = run("simulate", "job.yaml", "--runs", "1")
    assert "1 site, 1 run" in result.stdout
    assert "only this computer" in result.stderr


def test_it_is_said_which_times_nobody_knows() -> None:
    Path("job.yaml").write_text(JOB.replace("    run_time: 10 min\n", ""))
    assert "the run time of simulate is unknown" in run("simulate", "job.yaml", "--runs", "1").stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("job.yaml", "--seed", "3"), "random worlds"),
        (("job.yaml", "--svg", "x.svg"), "--compare"),
        (("--runs", "3"), "name its document"),
        (("job.yaml", "--sites", "none.yaml"), "no such file"),
        (("job.yaml", "--world", "job.yaml"), "job.yaml:2:1"),
        (("job.yaml", "--world-from", "paris=log.swf"), "no site is called 'paris'"),
        (("job.yaml", "--world-from", "gone.swf"), "cannot be read"),
        (("job.yaml", "--world-from", "job.yaml"), "not a trace of a known format"),
        (("job.yaml", "--compare", "speed=1,2"), "cannot be compared"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("simulate", *arguments)


def test_sites_are_chosen_as_a_service_in_this_folder_would() -> None:
    Path("job.yaml").write_text(JOB.replace("1..20", "1..4"))  # more would fill both sites, whichever is chosen first
    compared = told("--world", "world.yaml", "--runs", "3", "--compare", "selection=weighted-random,first")
    usual, first = compared["variants"]
    assert usual["sites"] != first["sites"]
    Path("pilotage.toml").write_text('[selection]\npolicy = "first"\n')
    (as_set,) = told("--world", "world.yaml", "--runs", "3")["variants"]
    assert as_set["sites"] == first["sites"]


def test_each_run_has_its_own_luck_in_the_choice_of_sites() -> None:
    Path("sites.yaml").write_text(SITES.replace(", speed: 0.5", "").replace("slots: 5", "slots: 20"))
    Path("world.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, queue: 60}\n  - {name: nice, queue: 60}\n")
    found = {
        each["variants"][0]["sites"]["lyon"]["attempts"] for each in (told("--runs", str(n)) for n in (1, 2, 3, 4))
    }
    assert len(found) > 1  # nothing else is left to chance


def test_a_number_of_the_choice_of_sites_can_be_compared_within_its_bounds() -> None:
    assert len(told("--runs", "1", "--compare", "failure=-1,-0.5")["variants"]) == 2
    assert "from 0 to 1" in refused("simulate", "job.yaml", "--compare", "black_hole_share=0.5,2")
