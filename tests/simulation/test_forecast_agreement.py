"""`pilotage simulate JOB` and the forecasts of the engine agree where both can answer: in worlds without failures."""

from __future__ import annotations

from statistics import median

import pytest

from pilotage.language import plan_of, shapes_of
from pilotage.language.folder import MemoryFolder
from pilotage.language.load import load
from pilotage.model.events.payloads import ForecastMade, ForecastScored, JobRegistered
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Factors, PackagesWorld, SiteWorld, Times, WorldFile
from pilotage.service.core import Core
from pilotage.service.messages import Outbox
from pilotage.simulator.runs.run import JobSimulation, Subject, usual_settings
from pilotage.simulator.world.assembly import START

SWEEP = """pilotage: 1
job: sweep
stages:
  - each: {n: 1..COUNT}
    lines: [{packages: [{binaries: [{run: 'simulate {n}', run_time: 600 s}]}]}]
"""
LINES = """pilotage: 1
job: lines
stages:
  - each: {n: 1..60}
    lines:
      - packages:
          - binaries: [{run: 'make {n}', run_time: 300 s, outputs: ['a{n}.txt']}]
          - binaries: [{run: 'look {n}', run_time: 100 s}]
  - lines: [{packages: [{binaries: [{run: 'merge', run_time: 400 s, inputs: ['a*.txt']}]}]}]
"""
LYON = SiteEntry(name="lyon", kind="slurm", slots=10, pilots_max=1)
FAST = SiteEntry(name="nice", kind="slurm", slots=10, pilots_max=1, speed=2.0)
MANY = SiteEntry(name="lyon", kind="slurm", slots=4, pilots_max=12)
HERE = SiteEntry(name="here", kind="local", slots=4)

VARIED = PackagesWorld(run_time_factor=Factors(distribution="log-normal", median=1.0, sigma=0.3))


def queue(name: str, seconds: float, *, varied: bool = False) -> SiteWorld:
    times = Times(distribution="exponential", mean_seconds=seconds) if varied else Times(value_seconds=seconds)
    return SiteWorld(name=name, queue=times)


WORLDS: dict[str, tuple[str, tuple[SiteEntry, ...], WorldFile]] = {
    "waves of equal packages": (SWEEP.replace("COUNT", "95"), (LYON,), WorldFile(sites=(queue("lyon", 60.0),))),
    "lines, and a merge of all": (LINES, (LYON,), WorldFile(sites=(queue("lyon", 60.0),))),
    "two sites, one of them twice as fast": (
        SWEEP.replace("COUNT", "200"),
        (LYON, FAST),
        WorldFile(sites=(queue("lyon", 60.0), queue("nice", 60.0))),
    ),
    "pilots that start one by one": (
        SWEEP.replace("COUNT", "400"),
        (MANY,),
        WorldFile(sites=(queue("lyon", 600.0, varied=True),)),
    ),
    "packages that differ, on this computer": (
        SWEEP.replace("COUNT", "80"),
        (HERE,),
        WorldFile(sites=(queue("here", 0.0),), packages=VARIED),
    ),
}


SEEDS = 9
BY_CHANCE = ("pilots that start one by one", "packages that differ, on this computer")
"""Worlds in which runs differ by more than that: there the medians over the runs are compared."""
KNOWN_SHARE = 0.35
"""Of the makespan: the forecasts from then on are compared."""


class _Recorded(JobSimulation):
    """A run whose forecasts are kept."""

    def __init__(self, subject: Subject, *, seed: int) -> None:
        super().__init__(subject, seed=seed, settings=usual_settings(subject.world))
        self.forecasts: list[tuple[float, ForecastMade]] = []
        self.outcomes: list[ForecastScored] = []

    def start(self, now: float) -> Core:
        return Core(self.new_engine(now))

    def stepped(self, core: Core, outbox: Outbox) -> None:
        for one in outbox.events:
            if isinstance(one.data, ForecastMade):
                self.forecasts.append((one.event.time, one.data))
            elif isinstance(one.data, ForecastScored):
                self.outcomes.append(one.data)
        super().stepped(core, outbox)


def subject_of(text: str, sites: tuple[SiteEntry, ...], world: WorldFile) -> Subject:
    loaded = load(text.encode(), file="job.yaml", folder=MemoryFolder({})).job()
    registered = JobRegistered(owner="ada", name="job", stages=shapes_of(loaded.expansion))
    return Subject(plan=plan_of(loaded.expansion), registered=registered, sites=sites, world=world)


@pytest.mark.parametrize("name", WORLDS)
def test_the_forecast_and_the_simulation_agree(name: str) -> None:
    subject = subject_of(*WORLDS[name])
    runs = [_Recorded(subject, seed=seed) for seed in range(SEEDS)]
    found = [run.run() for run in runs]
    assert all(each.outcome == "finished" for each in found)
    makespans = [each.makespan_seconds or 0.0 for each in found]
    simulated = median(makespans)
    firsts = []
    for run, makespan in zip(runs, makespans, strict=True):
        # From here on some packages have finished and some pilots have started: then more is known than the document says.
        known = START + KNOWN_SHARE * makespan
        first = [each for at, each in run.forecasts if at <= known][-1]
        firsts.append(first.median_at - START)
        if name not in BY_CHANCE:
            for each in (first, *(each for at, each in run.forecasts if at > known)):
                assert abs(each.median_at - START - makespan) <= 0.1 * makespan
        assert [each.outcome for each in run.outcomes] == ["done"]
        assert run.outcomes[0].forecasts == len(run.forecasts)
        assert run.outcomes[0].ended_at - START == pytest.approx(makespan, abs=1.0)
    assert abs(median(firsts) - simulated) <= 0.1 * simulated


def test_what_the_document_estimates_is_forecast_from_the_beginning() -> None:
    run = _Recorded(subject_of(*WORLDS["waves of equal packages"]), seed=0)
    makespan = run.run().makespan_seconds or 0.0
    _, first = run.forecasts[0]
    assert first.basis == "document"
    assert abs(first.median_at - START - makespan) <= 0.1 * makespan
    assert first.low_at - START < makespan < first.high_at - START


def test_where_attempts_fail_and_are_repeated_most_intervals_hold_the_end() -> None:
    failing = SiteWorld(
        name="lyon", queue=Times(value_seconds=60.0), failure_probability=0.35, failure_reason="preempted"
    )
    subject = subject_of(SWEEP.replace("COUNT", "120"), (LYON,), WorldFile(sites=(failing,)))
    held = count = 0
    for seed in range(SEEDS):
        run = _Recorded(subject, seed=seed)
        end = START + (run.run().makespan_seconds or 0.0)
        known = [each for at, each in run.forecasts if at - START < 0.8 * (end - START)]
        held += sum(each.low_at <= end <= each.high_at for each in known)
        count += len(known)
    assert held / count > 0.7


def test_every_package_waits_in_the_queue_of_a_bound_site_whose_room_grows() -> None:
    bound = SiteEntry(name="lyon", kind="slurm", slots=10, mode="bound")
    document = SWEEP.replace("COUNT", "600").replace("600 s", "100 s")
    run = _Recorded(subject_of(document, (bound,), WorldFile(sites=(queue("lyon", 2400.0),))), seed=0)
    end = START + (run.run().makespan_seconds or 0.0)
    # Before, nothing is known of the queue.
    errors = [
        abs(each.median_at - end) / (end - at) for at, each in run.forecasts if 0.1 < (at - START) / (end - START) < 0.9
    ]
    assert median(errors) < 0.35
