"""Jobs that really run, and what a later plan makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in, wait_until

DOUBLE = """\
pilotage: 1
job: JOB
software:
  - {id: double, version: "1.2", infrastructures: [{name: any, run: [sh, -c, 'cat "$0" "$0" > "$1"']}]}
stages:
  - each: {raw: "*.raw"}
    software: double
    arguments: ["{raw}", "{raw.stem}.dat"]
    inputs: ["{raw}"]
    outputs: ["{raw.stem}.dat"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path), "TZ": "EAST-5:30"}) as place:
        yield place


def write(place: Path, *sizes_kib: int) -> None:
    for size_kib in sizes_kib:
        (place / f"{size_kib}.raw").write_bytes(b"a" * size_kib * 1024)


def test_a_plan_knows_from_two_runs_what_inputs_of_another_size_lead_to(place: Place, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(DOUBLE.replace("JOB", "first"))
    for sizes_kib in ((1, 2, 3, 4), (100, 200, 300, 400)):
        write(tmp_path, *sizes_kib)
        assert place.run("run", "job.yaml").returncode == 0
    for each in tmp_path.glob("*.raw"):
        each.unlink()
    write(tmp_path, 1000)
    for job, basis in (("first", "activity"), ("second", "software")):
        (tmp_path / "job.yaml").write_text(DOUBLE.replace("JOB", job))
        [planned] = place.told("plan", "job.yaml")["listed"]
        told = planned["estimate"]
        assert (told["basis"], told["runs"]) == (basis, 8)
        assert (told["input_bytes"], told["output_bytes"]) == (1_024_000, 2_048_000)
        assert told["scratch_bytes"] == pytest.approx(3_072_000, rel=0.05)  # written in blocks
        assert told["memory_bytes"] > 0
        assert planned["expected_end_at"] - planned["expected_start_at"] == pytest.approx(told["run_seconds"], abs=1e-3)
    shown = place.run("plan", "job.yaml", "--all").stdout
    assert "1.95 MiB" in shown
    assert "Z to " in shown
    place.run("run", "job.yaml")
    assert (tmp_path / "1000.dat").stat().st_size == 2_048_000


GATED = """\
pilotage: 1
job: gated
stages:
  - each: {n: 1..2}
    shell: echo {n} > $PILOTAGE_FOLDER/started-{n}; test -e $PILOTAGE_FOLDER/open || read line < $PILOTAGE_FOLDER/go
"""


def test_a_job_that_ran_before_has_expected_times_from_its_first_package_on(place: Place, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GATED)
    os.mkfifo(tmp_path / "go")
    (tmp_path / "open").touch()
    place.run("run", "job.yaml", "--slots", "1")
    for each in ("open", "started-1", "started-2"):
        (tmp_path / each).unlink()
    job = place.told("run", "job.yaml", "--fresh", "--detach")["job"]
    wait_until(lambda: list(tmp_path.glob("started-*")), "the first package to run")
    running, waiting = (place.told("explain", f"{job}/1.{each}.1") for each in (1, 2))
    assert (running["expected_start_at"], running["utc_offset"]) == (None, "+05:30")
    assert running["expected_end_at"] > running["started_at"]
    assert waiting["expected_end_at"] > waiting["expected_start_at"] > running["started_at"]
    assert "expected to start 2" in place.run("explain", f"{job}/1.2.1").stdout
    assert "expected to end 2" in place.run("status", f"{job}/1.1.1").stdout


def test_the_status_of_a_package_tells_when_it_ran_by_the_clocks_of_its_node_too(place: Place, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("pilotage: 1\njob: j\nstages:\n  - run: 'true'\n")
    assert place.run("run", "job.yaml").returncode == 0
    for command in ("status", "explain"):
        assert "+05:30 at the node)" in place.run(command, "j/1.1.1").stdout
