"""What must hold whichever way a site is picked, through the whole engine: little is wasted, work moves, nobody is stuck."""

from __future__ import annotations

import sys

import msgspec
import pytest

from pilotage.engine.selection import SelectionSettings
from pilotage.model.settings.engine import EngineSettings, Policy
from pilotage.model.site import SiteMode
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Factors, SiteWorld, Spell, Times, WorldFile
from pilotage.model.states import Reason
from pilotage.simulator.runs.comparison import POLICIES
from pilotage.simulator.runs.figures import RunFigures
from pilotage.simulator.runs.run import JobSimulation, usual_settings
from pilotage.simulator.trials.definition import make_world
from pilotage.simulator.trials.trial import simulate
from tests.simulation.test_forecast import subject

WASTED_MAX = 0.03
HOLE = Factors(value=6000.0)  # a minute of work fails there within 10 ms
NEVER = Times(value_seconds=20 * 86_400.0)
every_policy = pytest.mark.parametrize("policy", POLICIES)
both_modes = pytest.mark.parametrize("mode", ["pilots", "bound"])


def entry(name: str, mode: SiteMode) -> SiteEntry:
    slots, pilots = (10, 4) if mode == "pilots" else (1, 1)
    return SiteEntry(name=name, kind="slurm", mode=mode, slots=slots, pilots_max=pilots, job_throttle=10.0)


def run(mode: SiteMode, policy: Policy, *sites: SiteWorld, packages: int, seed: int) -> RunFigures:
    world = WorldFile(sites=sites)
    of = subject(*(entry(each.name, mode) for each in sites), packages=packages, run_time="60 s", world=world)
    settings = usual_settings(world, EngineSettings(selection=SelectionSettings(policy=policy)))
    return JobSimulation(of, seed=seed, settings=settings).run()


@every_policy
@both_modes
def test_little_is_wasted_on_a_site_where_everything_fails_at_once(
    mode: SiteMode, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    reasons: tuple[Reason, ...] = ("platform-failure", "application-error")
    for reason in reasons:
        hole = SiteWorld(name="hole", speed=HOLE, failure_probability=1.0, failure_reason=reason)
        for seed in (1, 2):
            figures = run(mode, policy, hole, SiteWorld(name="good"), packages=1000, seed=seed)
            assert (figures.outcome, figures.done) == ("finished", 1000)
            assert figures.sites["hole"].granted == 0
            told.append((figures.attempts - figures.done) / figures.attempts)
    with capsys.disabled():
        shares = ", ".join(f"{100 * each:.2f} %" for each in told)
        sys.stdout.write(f"\n{mode}, {policy}: in vain {shares}\n")
    assert 0 < max(told) < WASTED_MAX


@every_policy
@both_modes
def test_work_leaves_a_site_whose_queue_does_not_move(mode: SiteMode, policy: Policy) -> None:
    stuck = SiteWorld(name="stuck", queue=NEVER)
    figures = run(mode, policy, stuck, SiteWorld(name="quick"), packages=200, seed=1)
    assert (figures.outcome, figures.done) == ("finished", 200)
    assert figures.sites["quick"].granted == 200
    assert figures.makespan_seconds is not None
    assert figures.makespan_seconds < 3 * 3600.0


@every_policy
@both_modes
def test_no_site_is_left_for_ever_for_what_befell_all_of_them(mode: SiteMode, policy: Policy) -> None:
    # Each is a black hole for an hour, one after another, and for a while all of them are: whoever slept is tried again.
    sites = [
        SiteWorld(name=name, black_holes=(Spell(begins_seconds=600.0 * number, lasts_seconds=3600.0),))
        for number, name in enumerate(("a", "b", "c"))
    ]
    figures = run(mode, policy, *sites, packages=300, seed=1)
    assert (figures.outcome, figures.done) == ("finished", 300)


@every_policy
def test_in_any_world_a_policy_keeps_every_promise_and_chooses_the_same_again(policy: Policy) -> None:
    # The checkers look at each event: one set for a site, nothing to one that sleeps, scores within their bounds, no package
    # without a reason to wait, and everything ends.
    for seed in (3, 14):
        world = make_world(seed)
        selection = msgspec.structs.replace(world.settings.selection, policy=policy)
        world = msgspec.structs.replace(world, settings=msgspec.structs.replace(world.settings, selection=selection))
        result = simulate(world)
        assert result.violation is None, (seed, result.violation)
        assert simulate(world).event_hash == result.event_hash
