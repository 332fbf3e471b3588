"""One job among sites that behave as a world says: what a person could work out on paper must come out."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.engine.forecasts import Forecasts
from pilotage.engine.state.jobs import JobState
from pilotage.language import plan_of, shapes_of
from pilotage.language.folder import MemoryFolder
from pilotage.language.load import load
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import JobRegistered
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import (
    ActivityWorld,
    Change,
    Factors,
    FaultBurst,
    PackagesWorld,
    SiteWorld,
    Spell,
    Times,
    WorldFile,
)
from pilotage.simulator.runs.figures import RunFigures
from pilotage.simulator.runs.run import JobSimulation, Subject, usual_settings

LYON = SiteEntry(name="lyon", kind="slurm", slots=10, pilots_max=1)
NICE = SiteEntry(name="nice", kind="slurm", slots=10, pilots_max=1)
QUEUE = Times(value_seconds=60.0)
OVERHEAD_SECONDS = 3.0  # a package waits at most so long for the service, and what it decides


def subject(*sites: SiteEntry, packages: int = 40, run_time: str = "600 s", world: WorldFile | None = None) -> Subject:
    estimate = f", run_time: {run_time}" if run_time else ""
    text = (
        f"pilotage: 1\njob: sweep\nstages:\n  - each: {{n: 1..{packages}}}\n"
        f"    lines: [{{packages: [{{binaries: [{{run: 'simulate {{n}}'{estimate}}}]}}]}}]\n"
    )
    loaded = load(text.encode(), file="job.yaml", folder=MemoryFolder({})).job()
    registered = JobRegistered(owner="ada", name="sweep", stages=shapes_of(loaded.expansion))
    return Subject(
        plan=plan_of(loaded.expansion),
        registered=registered,
        sites=sites,
        world=world or worlds(*(s.name for s in sites)),
    )


def worlds(*names: str, packages: PackagesWorld = PackagesWorld(), **site: object) -> WorldFile:  # noqa: B008 # frozen
    one = SiteWorld(name="", queue=QUEUE)
    changed = msgspec.structs.replace(one, **site)
    return WorldFile(sites=tuple(msgspec.structs.replace(changed, name=name) for name in names), packages=packages)


def run(of: Subject, seed: int = 0) -> RunFigures:
    return JobSimulation(of, seed=seed, settings=usual_settings(of.world)).run()


def test_rounds_of_packages_follow_each_other_after_the_queue() -> None:
    figures = run(subject(LYON))
    assert figures.outcome == "finished"
    assert figures.makespan_seconds == pytest.approx(60 + 4 * 600, abs=4 * OVERHEAD_SECONDS)
    assert (figures.done, figures.failed, figures.attempts) == (40, 0, 40)
    there = figures.sites["lyon"]
    assert there.application_seconds == pytest.approx(40 * 600)
    assert there.batch_jobs == 1
    assert there.queue_seconds == pytest.approx(60, abs=1)
    assert figures.wasted_share == 0


def test_nothing_is_forecast_within_a_run_where_nobody_would_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def forecast(_of: Forecasts, job: JobState) -> None:
        pytest.fail(f"the end of {job.id} was forecast")

    monkeypatch.setattr(Forecasts, "expectation", forecast)
    assert run(subject(LYON)).outcome == "finished"


def test_the_speed_of_a_site_scales_the_estimates() -> None:
    twice = msgspec.structs.replace(LYON, speed=2.0)
    assert run(subject(twice)).makespan_seconds == pytest.approx(60 + 4 * 300, abs=4 * OVERHEAD_SECONDS)


def test_the_world_knows_the_speed_of_hosts_better_than_the_entry_of_the_site() -> None:
    world = worlds("lyon", speed=Factors(value=0.5))
    assert run(subject(LYON, world=world)).makespan_seconds == pytest.approx(60 + 4 * 1200, abs=4 * OVERHEAD_SECONDS)


def test_without_an_estimate_the_world_says_how_long_a_package_runs_and_an_activity_of_its_own_goes_first() -> None:
    usual = worlds("lyon", packages=PackagesWorld(run_time=Times(value_seconds=100.0)))
    assert run(subject(LYON, run_time="", world=usual)).makespan_seconds == pytest.approx(460, abs=4 * OVERHEAD_SECONDS)
    own = ActivityWorld(name="simulate", run_time=Times(value_seconds=200.0))
    named = worlds("lyon", packages=PackagesWorld(activities=(own,)))
    assert run(subject(LYON, world=named)).makespan_seconds == pytest.approx(860, abs=4 * OVERHEAD_SECONDS)


def test_one_seed_is_one_run_and_another_seed_is_another() -> None:
    packages = PackagesWorld(run_time_factor=Factors(distribution="log-normal", median=1.0, sigma=0.5))
    of = subject(LYON, NICE, world=worlds("lyon", "nice", packages=packages, failure_probability=0.1))
    first, again, other = run(of, 3), run(of, 3), run(of, 4)
    assert first == again
    assert first.makespan_seconds != other.makespan_seconds


def test_packages_take_the_same_work_whatever_the_settings() -> None:
    packages = PackagesWorld(run_time_factor=Factors(distribution="log-normal", median=1.0, sigma=0.5))
    of = subject(LYON, NICE, world=worlds("lyon", "nice", packages=packages))
    usual = usual_settings(of.world, EngineSettings(healing="off"))  # copies are work of their own
    selection = msgspec.structs.replace(usual.selection, slots_factor=3.0)
    other = msgspec.structs.replace(usual, selection=selection)
    took = [
        sum(site.core_seconds for site in JobSimulation(of, seed=5, settings=settings).run().sites.values())
        for settings in (usual, other)
    ]
    assert took[0] == pytest.approx(took[1])


def test_failures_are_counted_wasted_and_tried_again() -> None:
    figures = run(subject(LYON, packages=200, world=worlds("lyon", failure_probability=0.2)))
    assert figures.done == 200
    failed = figures.failures["platform-failure"]
    assert 25 <= failed <= 80  # 200 · 0.2 / 0.8 = 50, with a deviation of 8
    assert figures.attempts == 200 + failed
    assert figures.sites["lyon"].failed == failed
    assert 0.02 < figures.wasted_share < 0.25


def test_failures_by_the_hour_strike_long_packages_more() -> None:
    world = worlds("lyon", failures_per_hour=0.5)
    short = run(subject(LYON, packages=100, run_time="60 s", world=world))
    long = run(subject(LYON, packages=100, run_time="3600 s", world=world))
    assert sum(short.failures.values()) < 10 < sum(long.failures.values())


def test_an_hour_is_an_hour_also_where_hosts_are_slow() -> None:
    slow, fast = (
        sum(
            run(subject(LYON, packages=100, world=worlds("lyon", failures_per_hour=0.5, speed=speed))).failures.values()
        )
        for speed in (Factors(value=0.25), Factors(value=4.0))
    )
    # An attempt runs for 40 minutes or for 2.5: it fails with 28 % or with 2 %.
    assert slow > 20
    assert fast < 10


def test_only_so_many_batch_jobs_run_at_once() -> None:
    four = msgspec.structs.replace(LYON, slots=1, pilots_max=4)
    free, narrow = (run(subject(four, packages=8, world=worlds("lyon", running_max=most))) for most in (None, 1))
    assert free.makespan_seconds == pytest.approx(60 + 2 * 600, abs=10)
    assert narrow.makespan_seconds is not None
    assert narrow.makespan_seconds > 8 * 600


def test_a_node_that_goes_down_takes_everything_along() -> None:
    figures = run(subject(LYON, run_time="3600 s", world=worlds("lyon", node_failures_per_hour=0.3)), seed=1)
    assert figures.done == 40
    assert figures.sites["lyon"].batch_jobs > 1
    assert figures.sites["lyon"].wasted_core_seconds > 0


def test_a_pilot_that_never_comes_is_asked_for_again() -> None:
    seeds = [
        run(subject(LYON, packages=10, world=worlds("lyon", pilot_failure_probability=0.5)), seed) for seed in range(5)
    ]
    assert all(each.done == 10 for each in seeds)
    assert any(each.sites["lyon"].batch_jobs > 1 for each in seeds)


def test_stragglers_hold_the_end_up() -> None:
    world = worlds("lyon", straggler_probability=1.0, straggler_factor=Factors(value=5.0))
    assert run(subject(LYON, packages=10, world=world)).makespan_seconds == pytest.approx(60 + 3000, abs=10)


def test_an_attempt_that_stalls_fetches_its_inputs_for_many_times_the_usual_time() -> None:
    packages = PackagesWorld(setup=Times(value_seconds=20.0), inputs=Times(value_seconds=100.0))
    world = worlds("lyon", packages=packages, stall_probability=1.0, stall_factor=Factors(value=10.0))
    figures = JobSimulation(
        subject(LYON, packages=10, world=world), seed=0, settings=usual_settings(world, EngineSettings(healing="off"))
    ).run()
    usual = 20 + 100 + 600
    assert figures.makespan_seconds == pytest.approx(60 + 11 * usual, abs=10)
    site = figures.sites["lyon"]
    assert site.setup_seconds == pytest.approx(10 * 20.0)
    assert site.inputs_seconds == pytest.approx(10 * (100.0 + 10 * usual))


def test_a_world_with_stalls_leaves_everything_else_as_it_was() -> None:
    packages = PackagesWorld(
        setup=Times(distribution="uniform", low_seconds=5.0, high_seconds=50.0),
        inputs=Times(distribution="exponential", mean_seconds=30.0),
    )
    off = EngineSettings(healing="off")
    calm, stalling = (worlds("lyon", packages=packages, stall_probability=share) for share in (0.0, 0.3))
    before, after = (
        JobSimulation(subject(LYON, packages=10, world=world), seed=0, settings=usual_settings(world, off)).run()
        for world in (calm, stalling)
    )
    assert after.sites["lyon"].setup_seconds == before.sites["lyon"].setup_seconds
    assert after.sites["lyon"].inputs_seconds > before.sites["lyon"].inputs_seconds + 600.0


def test_nothing_runs_during_an_outage() -> None:
    world = worlds("lyon", outages=(Spell(begins_seconds=300.0, lasts_seconds=7200.0),))
    figures = run(subject(LYON, packages=10, world=world))
    assert figures.done == 10
    assert figures.makespan_seconds is not None
    assert figures.makespan_seconds > 7500 + 600
    assert figures.sites["lyon"].wasted_core_seconds == pytest.approx(10 * 240, rel=0.05)


def test_outages_come_again() -> None:
    every = Times(value_seconds=500.0)
    world = worlds("lyon", outage_every=every, outage_lasts=Times(value_seconds=1000.0))
    of = msgspec.structs.replace(subject(LYON, packages=10, world=world), horizon_seconds=20_000.0)
    assert run(of).outcome == "unfinished"  # 600 s of work never fit into 500 s
    assert run(of).makespan_seconds is None


def test_a_black_hole_is_told_by_its_failures_and_the_work_is_done_elsewhere() -> None:
    hole = SiteWorld(name="nice", queue=QUEUE, black_holes=(Spell(),))
    world = WorldFile(sites=(SiteWorld(name="lyon", queue=QUEUE), hole))
    figures = run(subject(LYON, NICE, world=world))
    assert figures.sites["nice"].granted == 0
    assert figures.sites["nice"].failed > 0
    assert figures.sites["lyon"].granted == figures.done


def test_a_site_that_drifts_becomes_slower() -> None:
    world = worlds("lyon", drift=(Change(after_seconds=1000.0, speed=0.5),))
    assert run(subject(LYON, world=world)).makespan_seconds == pytest.approx(60 + 2 * 600 + 2 * 1200, abs=12)


def test_a_site_that_drifts_may_begin_to_fail() -> None:
    world = worlds("lyon", drift=(Change(after_seconds=1000.0, failure_probability=0.5),))
    figures = run(subject(LYON, packages=60, world=world))
    assert figures.failures["platform-failure"] > 10


def test_a_queue_that_drifts_becomes_longer() -> None:
    world = worlds("lyon", drift=(Change(after_seconds=0.0, queue=10.0),))
    assert run(subject(LYON, world=world)).makespan_seconds == pytest.approx(600 + 4 * 600, abs=12)


def test_bound_attempts_queue_one_by_one() -> None:
    bound = msgspec.structs.replace(LYON, mode="bound", job_throttle=1000.0)
    figures = run(subject(bound, packages=5))
    assert figures.sites["lyon"].batch_jobs == 5
    assert figures.makespan_seconds == pytest.approx(60 + 600, abs=10)


def test_a_doomed_package_fails_wherever_it_runs_and_the_rest_is_done() -> None:
    world = worlds("lyon", packages=PackagesWorld(doomed_probability=0.05))
    figures = run(subject(LYON, packages=100, world=world))
    assert set(figures.failures) == {"application-error"}
    assert 0 < figures.failed < 20
    assert figures.done + figures.failed == 100


def test_a_job_of_which_half_fails_goes_on_without_a_hold() -> None:
    world = worlds("lyon", "nice", packages=PackagesWorld(doomed_probability=0.5))
    figures = run(subject(LYON, NICE, packages=100, run_time="60 s", world=world))
    assert figures.holds == 0
    assert figures.outcome == "finished"
    assert 30 < figures.failed < 70
    assert figures.done + figures.failed == 100


def test_what_still_runs_at_the_horizon_is_not_in_vain() -> None:
    of = msgspec.structs.replace(subject(LYON, packages=10, run_time="3600 s"), horizon_seconds=1800.0)
    figures = run(of)
    assert figures.outcome == "unfinished"
    assert figures.sites["lyon"].core_seconds > 10_000
    assert figures.wasted_share == 0


def test_a_job_that_fits_nowhere_is_refused() -> None:
    of = subject(LYON)
    large = tuple(
        msgspec.structs.replace(each, demand=msgspec.structs.replace(each.demand, gpus=4)) for each in of.plan.templates
    )
    with pytest.raises(PilotageError, match="the job cannot be run"):
        run(msgspec.structs.replace(of, plan=msgspec.structs.replace(of.plan, templates=large)))


def test_pilots_that_are_accepted_one_after_the_other_start_so() -> None:
    four = msgspec.structs.replace(LYON, slots=1, pilots_max=4)
    world = worlds("lyon", submission=Times(value_seconds=100.0))
    figures = run(subject(four, packages=4, world=world))
    assert figures.sites["lyon"].queue_seconds == pytest.approx(160 + 260 + 360 + 460, abs=4)
    assert figures.makespan_seconds == pytest.approx(460 + 600, abs=10)


def test_pilots_that_start_in_a_burst_of_faults_end_at_once_and_others_do_not() -> None:
    burst = FaultBurst(begins_seconds=0.0, lasts_seconds=1000.0)
    figures = run(subject(LYON, packages=10, world=worlds("lyon", fault_bursts=(burst,))))
    assert figures.done == 10
    assert figures.makespan_seconds is not None
    assert figures.makespan_seconds > 1000 + 600
    over = worlds("lyon", fault_bursts=(FaultBurst(begins_seconds=100.0, lasts_seconds=1000.0),))
    assert run(subject(LYON, packages=10, world=over)).makespan_seconds == pytest.approx(660, abs=10)


def test_a_pilot_that_is_stuck_is_not_replaced_where_all_pilots_are_wanted() -> None:
    many = msgspec.structs.replace(LYON, slots=1, pilots_max=100)
    of = subject(many, packages=400, world=worlds("lyon", stuck_probability=0.3))
    settings = usual_settings(of.world, EngineSettings(provisioning="all"))
    figures = JobSimulation(of, seed=0, settings=settings).run()
    assert figures.done == 400
    assert 55 <= figures.sites["lyon"].batch_jobs <= 85
