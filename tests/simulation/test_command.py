"""`pilotage simulate`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotage.simulator.trials.definition import make_world
from pilotage.simulator.trials.trial import simulate
from tests.kit.command_line import in_an_empty_folder, refused, run

# Sixteen packages of a minute each on one core cannot be over within two minutes.
IMPOSSIBLE = {
    "seed": 1,
    "sites": [{"site": {"name": "lyon"}}],
    "jobs": [
        {
            "job": "job-1",
            "templates": [{"activity": "sim"}],
            "stages": [{"lines": [{"count": 16, "templates": [0]}]}],
        }
    ],
    "faults": {"message_lost": 0.1},
    "faults_seconds": 60,
    "horizon_seconds": 120,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


def test_one_seed_is_one_line_and_the_faults() -> None:
    expected = simulate(make_world(2))
    result = run("simulate", "--seed", "2")
    first, probabilities, second, third = result.stdout.splitlines()
    assert first.startswith("seed 2: ok, ")
    assert first.endswith(expected.event_hash[:16])
    assert probabilities.startswith("  probabilities: ")
    assert second == "1 world, 0 with a violation"
    assert third.startswith("faults: ")
    assert result.exit_code == 0


def test_many_seeds_follow_each_other_and_json_is_for_programs() -> None:
    result = run("simulate", "--seeds", "2", "--from", "5", "--json")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["seed"] for each in told] == [5, 6]
    assert all(each["violation"] is None for each in told)


def test_a_trace_has_every_event() -> None:
    expected = simulate(make_world(2))
    lines = run("simulate", "--seed", "2", "--trace").stdout.splitlines()
    assert len(lines) == expected.events + 4
    [registered] = [line for line in lines if "JobRegistered" in line]
    assert all("SiteLatencies" in line for line in lines[: lines.index(registered)])  # what was learned earlier


def test_a_violation_ends_with_1_and_says_how_to_see_it_again() -> None:
    Path("world.json").write_text(json.dumps(IMPOSSIBLE))
    result = run("simulate", "--world", "world.json")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("seed 1: VIOLATION finishing, 16 packages")
    assert "  message_lost 0.1" in lines
    [shrunk] = [line for line in lines if line.startswith("{")]
    assert "message_lost" not in shrunk  # it was not the cause
    Path("smaller.json").write_text(shrunk)
    assert run("simulate", "--world", "smaller.json").exit_code == 1
    assert "1 world, 1 with a violation" in lines


def test_a_file_that_is_no_world_is_refused_by_what_is_wrong_with_it() -> None:
    Path("world.json").write_text(json.dumps(IMPOSSIBLE | {"weather": "fine"}))
    told = refused("simulate", "--world", "world.json")
    assert "world.json: is not a world" in told
    assert "weather" in told


def test_a_world_that_is_saved_is_run_again_as_it_was() -> None:
    first = run("simulate", "--seed", "2", "--save-world", "two.json")
    again = run("simulate", "--world", "two.json")
    assert (again.exit_code, again.stdout) == (0, first.stdout)


def test_a_world_that_was_written_by_hand_is_made_complete() -> None:
    Path("world.json").write_text(json.dumps(IMPOSSIBLE))
    run("simulate", "--world", "world.json", "--save-world", "complete.json")
    told = json.loads(Path("complete.json").read_text())
    assert (told["complete"], told["faults"]["message_lost"], told["faults"]["black_hole"]) == (True, 0.1, 0.0)


def test_a_saved_world_that_lacks_a_field_of_today_is_refused_and_not_filled_in() -> None:
    run("simulate", "--seed", "2", "--save-world", "two.json")
    told = json.loads(Path("two.json").read_text())
    del told["sites"][1]["site"]["speed"]
    Path("two.json").write_text(json.dumps(told))
    said = refused("simulate", "--world", "two.json")
    assert "two.json: is not a world: Object missing field `speed`" in said
    assert "at `$.sites[1].site`" in said


def test_only_one_world_is_saved() -> None:
    assert "a single world" in refused("simulate", "--seeds", "2", "--save-world", "two.json")
