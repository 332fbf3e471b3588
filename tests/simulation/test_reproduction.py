"""The experiment of the pilot-job paper, run again: what the simulator, the model and the command make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pilotage.app.forecasts.reproduction import SimulatedRun, draw_campaign, reproduce
from pilotage.model.sites.experiment import PAPER_EXPERIMENT, PilotExperiment
from pilotage.simulator.runs.experiment import run_pilots, run_probes
from tests.kit.command_line import in_an_empty_folder, refused, run

FEW = replace(PAPER_EXPERIMENT, pilots=(40, 120), probes=116)


def simulated(experiment: PilotExperiment, *, seed: int) -> list[SimulatedRun]:
    found = []
    for number in range(len(experiment.pilots)):
        probes = run_probes(experiment, run=number, seed=seed)
        run_of = run_pilots(experiment, run=number, packages=experiment.packages, seed=seed)
        found.append(
            SimulatedRun(
                pilots=run_of.pilots,
                makespan_seconds=run_of.makespan_seconds,
                packages_makespan_seconds=run_of.makespan_seconds,
                starts_seconds=run_of.starts_seconds,
                probe_latencies_seconds=[each.latency_seconds for each in probes],
                probe_submissions_seconds=[each.submission_seconds for each in probes],
                probe_known_at_seconds=[each.known_at_seconds for each in probes],
            )
        )
    return found


def test_the_probes_have_the_latencies_and_faults_of_the_paper() -> None:
    many = replace(PAPER_EXPERIMENT, pilots=(25,), probes=20_000)
    latencies = np.array([each.latency_seconds for each in run_probes(many, run=0, seed=1)])
    started = latencies[np.isfinite(latencies)]
    assert started.mean() == pytest.approx(767.0, rel=0.02)
    assert started.std() == pytest.approx(766.0, rel=0.1)
    assert started.min() >= 150.0
    assert np.isinf(latencies).mean() == pytest.approx(0.068, abs=0.006)


def test_probes_of_the_paper_are_shared_out_among_its_runs() -> None:
    counts = [PAPER_EXPERIMENT.probes_of(number) for number in range(19)]
    assert sum(counts) == 1093
    assert set(counts) == {57, 58}
    assert (PAPER_EXPERIMENT.pilots[0], PAPER_EXPERIMENT.pilots[-1]) == (25, 150)


def test_probes_that_are_submitted_one_after_the_other_tell_how_long_that_took() -> None:
    slow = replace(PAPER_EXPERIMENT, pilots=(25,), probes=500, submission_seconds=5.0)
    probes = run_probes(slow, run=0, seed=1)
    took = np.array([each.submission_seconds for each in probes])
    assert 4.0 < took.mean() < 12.0  # some wait for the one before
    assert all(each.latency_seconds > each.submission_seconds + 150.0 for each in probes)


def test_a_run_takes_hardly_longer_than_its_pilots_would_on_paper_and_replaces_no_fault() -> None:
    one = replace(PAPER_EXPERIMENT, pilots=(60,))
    found = run_pilots(one, run=0, packages=3960, seed=3)
    starts = np.sort(found.starts_seconds)
    on_paper = min((39_600.0 + starts[:count].sum()) / count for count in range(1, len(starts) + 1))
    assert on_paper <= found.makespan_seconds <= 1.02 * on_paper
    stuck = run_pilots(replace(one, fault_ratio=0.5, work_seconds=500_000.0), run=0, packages=450, seed=3)
    assert 18 <= len(stuck.starts_seconds) <= 42


def test_a_seed_gives_the_same_runs_and_another_gives_others() -> None:
    first, again, other = (run_pilots(FEW, run=1, packages=450, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.makespan_seconds != other.makespan_seconds
    assert run_probes(FEW, run=1, seed=1) == run_probes(FEW, run=1, seed=1)


def test_whole_packages_are_taken_for_more_work_by_the_paper_and_not_by_the_full_model() -> None:
    drawn = [draw_campaign(PAPER_EXPERIMENT, seed=1, number=number) for number in range(8)]
    bias = {name: np.mean([each[name] for each in drawn]) / 39_600.0 - 1.0 for name in drawn[0]}
    assert abs(bias["divisible_paper"]) < 0.02
    assert bias["packages_paper"] > 0.03
    assert abs(bias["packages_full"]) < 0.025


def test_a_burst_in_the_hour_before_misleads_the_share_of_faults_and_not_the_ratio_now() -> None:
    experiment = replace(FEW, probes=480, burst_runs=2)
    assert not FEW.has_burst(1)
    runs = [
        each
        for seed in range(4)
        for each in reproduce(experiment, simulated(experiment, seed=seed), campaigns=0, seed=seed).runs
    ]
    assert np.mean([each.fault_ratio for each in runs]) > 0.12
    assert np.mean([each.fault_ratio_now for each in runs]) < 0.11
    assert np.mean([each.pilots_error_now for each in runs]) < np.mean([each.pilots_error for each in runs])


def test_pilots_submitted_one_after_the_other_are_modelled_by_equation_5() -> None:
    experiment = replace(FEW, submission_seconds=6.0)
    found = reproduce(experiment, simulated(experiment, seed=1), campaigns=1, seed=1)
    for each in found.runs:
        assert each.modelled == pytest.approx(each.simulated, rel=0.15)
        assert each.pilots_error < 0.08
    assert abs(found.spread["packages_full"].bias) < 0.15


def told(*arguments: str) -> dict[str, Any]:
    result = run("reproduce", "pilots", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    monkeypatch.setattr("pilotage.model.sites.experiment.PAPER_EXPERIMENT", FEW)


@pytest.mark.usefixtures("short")
def test_the_command_tells_runs_fits_and_campaigns() -> None:
    found = told("--campaigns", "2")
    assert [each["n"] for each in found["runs"]] == [40, 120]
    assert set(found["fitted"]) == set(found["spread"]) == {"divisible_paper", "packages_paper", "packages_full"}
    assert found["campaigns"] == 2
    assert found["work_seconds"] == 39_600.0
    assert 0.0 < found["engine_excess"] < 0.03
    for each in found["runs"]:
        assert each["modelled"] == pytest.approx(each["simulated"], rel=0.15)
    text = run("reproduce", "pilots", "--campaigns", "0").stdout
    assert all(word in text for word in ("40", "120", "fitted work", "whole packages", "full"))
    assert "campaigns" not in text


@pytest.mark.usefixtures("short")
def test_the_command_gives_the_same_answer_again() -> None:
    assert told("--campaigns", "1", "--bursts", "--submission", "3") == told(
        "--campaigns", "1", "--bursts", "--submission", "3"
    )


@pytest.mark.parametrize("option, value", [("--campaigns", "-1"), ("--submission", "-1"), ("--seed", "x")])
def test_what_is_no_number_is_refused(option: str, value: str) -> None:
    assert "Invalid value" in refused("reproduce", "pilots", option, value)
