"""Sites that misbehave beside good ones: little is wasted on a black hole, and work leaves a queue that does not move."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from pilotage.engine.selection import SelectionSettings
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site, SiteMode
from pilotage.simulator.trials.definition import SiteSketch, World
from pilotage.simulator.trials.trial import Result, simulate
from pilotage.simulator.world.behaviour import Habits, SiteHabits
from pilotage.simulator.world.jobs import JobSketch, LineSketch, StageSketch
from pilotage.simulator.world.randomness import Fixed

WASTED_MAX = 0.03
PACKAGES = 1000
DEFAULTS = SelectionSettings()
SOON = Fixed(5.0)
NEVER = Fixed(30 * 86_400.0)
HOLE = SiteHabits(speed=Fixed(6000.0), failures={"platform-failure": 1.0})  # 60 s of work are 10 ms there
SLY = SiteHabits(speed=Fixed(6000.0), failures={"application-error": 1.0})  # it looks as if the work were to blame


def sketch(
    name: str, *, mode: SiteMode = "pilots", queue: Fixed = SOON, habits: SiteHabits | None = None
) -> SiteSketch:
    site = Site(name=name, mode=mode, capacity=Capacity(cores_hundredths=1000), pilots_max=4, job_throttle=10.0)
    return SiteSketch(site=site, queue=queue, running_max=40, habits=habits or SiteHabits())


def world(
    *sites: SiteSketch, packages: int = PACKAGES, seed: int = 1, selection: SelectionSettings = DEFAULTS
) -> World:
    lines = LineSketch(count=packages, templates=(0,))
    job = JobSketch(job="j1", templates=(Template(activity="run"),), stages=(StageSketch(lines=(lines,)),))
    return World(
        seed=seed,
        sites=sites,
        jobs=(job,),
        packages=Habits(application_seconds=Fixed(60.0)),
        settings=EngineSettings(selection=selection, seed=seed),
        faults_seconds=0.0,
    )


def attempts(result: Result) -> Counter[str]:
    """How many attempts were made at each site."""
    made: Counter[str] = Counter()
    for line in result.last_events:
        if " AttemptCreated " in line:
            made[line.split('"site":"')[1].split('"')[0]] += 1
    return made


def run(about: World) -> Result:
    result = simulate(about, trace=True, check_every=500)
    assert result.violation is None, result.violation
    return result


# Which policy it is makes no difference here: with two sites that are both full, each of them fills what room there is. What
# is wasted is what is on trial before the first failure is heard, and one canary each time that the hole is woken.


@pytest.mark.parametrize("mode", ["pilots", "bound"])
@pytest.mark.parametrize("hole", [HOLE, SLY], ids=["platform", "application"])
def test_little_is_wasted_on_a_site_where_everything_fails_at_once(
    mode: SiteMode, hole: SiteHabits, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = (sketch("hole", mode=mode, habits=hole), sketch("good", mode=mode))
    made = attempts(run(world(*sites)))
    with capsys.disabled():
        sys.stdout.write(f"\n{mode}: {made['hole']} of {made.total()} attempts went into the hole\n")
    assert 0 < made["hole"] < WASTED_MAX * made.total()


def test_without_a_trial_and_without_patience_much_more_is_wasted() -> None:
    sites = (sketch("hole", habits=HOLE), sketch("good"))
    rash = SelectionSettings(trial_room=0, hibernation_seconds=0.0)
    made = attempts(run(world(*sites, selection=rash)))
    assert made["hole"] > WASTED_MAX * made.total()


@pytest.mark.parametrize("mode", ["pilots", "bound"])
def test_work_leaves_a_site_whose_queue_does_not_move(mode: SiteMode, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(world(sketch("stuck", mode=mode, queue=NEVER), sketch("quick", mode=mode), packages=200))
    made = attempts(result)
    with capsys.disabled():
        sys.stdout.write(f"\n{mode}: {made['quick']} attempts at the quick site, {result.virtual_seconds:.0f} s\n")
    assert made["quick"] >= 200
    assert result.virtual_seconds < 2 * 86_400.0


def test_the_same_seed_gives_the_same_choices_and_another_seed_others() -> None:
    sites = (sketch("a"), sketch("b"), sketch("c"))
    hashes = {simulate(world(*sites, packages=50, seed=seed)).event_hash for seed in (1, 1, 1)}
    assert len(hashes) == 1
    made = {tuple(sorted(attempts(run(world(*sites, packages=50, seed=seed))).items())) for seed in range(1, 6)}
    assert len(made) > 1
