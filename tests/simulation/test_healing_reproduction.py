"""The experiment of figure 8, run again: what copies of late packages are worth, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from pilotage.engine.healing.phase_times import PhaseSamples
from pilotage.engine.healing.replication import Copy, LatePackage, Surroundings
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.sites.healing_experiment import ACTIVITIES, LONG, SHORT, HealedActivity, WorldName, world_of
from pilotage.simulator.runs.comparison import mean_with_interval
from pilotage.simulator.runs.healing import HealingRun, Policy, figures_of, run_all, run_healing
from pilotage.simulator.runs.replication_policies import LongestTimeToEnd, SlowerThanMean
from tests.kit.command_line import in_an_empty_folder, refused, run

SPEED_UP_MIN = 2.0
WASTE_MAX = EngineSettings().incidents.waste_max
LONGER_MAX = 0.01


def pairs(world: WorldName, activity: HealedActivity, policy: Policy, *, count: int) -> list[HealingRun]:
    return run_all([world], [activity], seeds=range(1, count + 1), policies=["off", policy])


@pytest.mark.parametrize("activity, count", [(SHORT, 5), (LONG, 3)], ids=["short", "long"])
def test_jobs_with_stalled_transfers_end_in_less_than_half_the_time(activity: HealedActivity, count: int) -> None:
    _, healed = figures_of(pairs("blocked", activity, EngineSettings().healing, count=count))
    assert healed.speed_up >= SPEED_UP_MIN
    assert healed.waste_most <= WASTE_MAX
    assert healed.slot_time < 1.0


def test_the_process_of_figure_7_is_as_good_as_the_paper_says_and_within_its_budget() -> None:
    _, healed = figures_of(pairs("blocked", SHORT, "paper", count=5))
    assert healed.speed_up >= 2.6
    assert healed.waste_most <= WASTE_MAX


def test_where_no_attempt_is_late_healing_makes_nothing_longer() -> None:
    # `make bench` has the same over fifty seeds, and for the long packages.
    runs = pairs("calm", SHORT, EngineSettings().healing, count=12)
    [_, healed] = figures_of(runs)
    assert healed.longer_high is not None
    assert healed.longer_high <= LONGER_MAX


def test_a_seed_gives_the_same_run_and_another_gives_another() -> None:
    first, again, other = (run_healing("blocked", SHORT, "predictive", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.makespan_seconds != other.makespan_seconds


def test_the_worlds_differ_only_in_what_makes_attempts_late() -> None:
    calm, measured, blocked = (world_of(name, SHORT) for name in ("calm", "measured", "blocked"))
    assert calm.packages == measured.packages == blocked.packages
    for smooth, uneven, stalling in zip(calm.sites, measured.sites, blocked.sites, strict=True):
        assert replace(uneven, speed=None) == smooth
        assert replace(stalling, stall_probability=0.0) == uneven


def test_figures_of_equal_runs_show_no_difference() -> None:
    assert mean_with_interval([]) == (None, None, None)
    assert mean_with_interval([3.0]) == (3.0, None, None)
    assert mean_with_interval([0.0, 0.0]) == (0.0, 0.0, 0.0)


# --- the policies of others -------------------------------------------------------------------------------------------

NOWHERE = Surroundings(latency_seconds=0.0, rest_seconds=0.0)


def times(*application_seconds: float, inputs_seconds: float = 100.0) -> PhaseSamples:
    found = PhaseSamples()
    for seconds in application_seconds:
        found.add(
            (
                PhaseTimes(phase="inputs", started_at=0.0, seconds=inputs_seconds),
                PhaseTimes(phase="application", started_at=inputs_seconds, seconds=seconds),
            )
        )
    return found


def stuck(number: int, seconds: float, *, copies: int = 1) -> LatePackage:
    """A package whose attempts have fetched inputs for so long."""
    return LatePackage(number, tuple(Copy(each, "north", True, 1, 0.0, seconds) for each in range(1, copies + 1)))


def test_who_runs_longer_than_the_mean_by_half_gets_one_copy() -> None:
    policy, known = SlowerThanMean(1.5), times(90.0, 100.0, 110.0)
    packages = [stuck(1, 299.0), stuck(2, 301.0), stuck(3, 400.0), stuck(4, 900.0, copies=2)]
    assert [each.number for each in policy.treatments(known, packages, NOWHERE)] == [3, 2]
    assert policy.look_after(known, phase=2, before=100.0) == pytest.approx(200.0)


def test_the_longest_time_to_the_end_goes_first_and_few_copies_run_at_once() -> None:
    policy, known = LongestTimeToEnd(slots=20), times(90.0, 100.0, 100.0, 110.0)
    packages = [stuck(number, 150.0 + 10.0 * number) for number in range(1, 6)]
    assert [each.number for each in policy.treatments(known, packages, NOWHERE)] == [5, 4]
    with_one = [*packages, stuck(9, 900.0, copies=2)]
    assert [each.number for each in policy.treatments(known, with_one, NOWHERE)] == [5]


def test_an_attempt_that_progresses_as_others_do_is_not_slow() -> None:
    policy, known = LongestTimeToEnd(slots=20), times(90.0, 100.0, 100.0, 110.0)
    usual = LatePackage(1, (Copy(1, "north", True, 2, 100.0, 95.0),))
    assert policy.treatments(known, [usual], NOWHERE) == []
    assert policy.look_after(known, phase=1, before=0.0) == pytest.approx(100.0)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    monkeypatch.setattr(
        "pilotage.model.sites.healing_experiment.ACTIVITIES", tuple(replace(each, packages=20) for each in ACTIVITIES)
    )


@pytest.mark.usefixtures("few")
def test_the_command_tells_and_draws_every_policy_in_every_world(tmp_path: Path) -> None:
    result = run("reproduce", "healing", "--repetitions", "2", "--svg", "healing.svg", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["runs"]) == 2 * 2 * 5 * 2
    assert {(each["world"], each["activity"], each["policy"]) for each in found["figures"]} == {
        (world, activity.name, policy)
        for world in ("measured", "blocked")
        for activity in ACTIVITIES
        for policy in get_args(Policy)
    }
    drawing = (tmp_path / "healing.svg").read_text()
    assert drawing.count("<rect") == 1 + 5 + 2 * 2 * 5 * 2
    assert all(policy in drawing for policy in get_args(Policy))


@pytest.mark.usefixtures("few")
def test_the_table_of_one_world_shows_what_copies_cost() -> None:
    text = run("reproduce", "healing", "--repetitions", "2", "--world", "calm").stdout
    assert "measured" not in text
    assert all(word in text for word in ("calm", "off", "paper", "predictive", "slower-than-mean", "late", "waste"))


@pytest.mark.parametrize("option, value", [("--repetitions", "0"), ("--world", "sunny"), ("--seed", "-1")])
def test_what_is_no_repetition_or_world_is_refused(option: str, value: str) -> None:
    assert "Invalid value" in refused("reproduce", "healing", option, value)
