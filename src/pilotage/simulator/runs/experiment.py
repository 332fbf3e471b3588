"""Runs the experiment of the pilot-job paper in virtual time: pilots through the production engine, probes beside it.

A fault is a pilot that never leaves the queue, as in the paper: the engine waits for it and requests no other. A probe that is a
fault ends at once, so that its time is known.
"""

from __future__ import annotations

import math

import msgspec

from pilotage.model.exchange.reports import AnyReport, Submitted
from pilotage.model.jobs.plan import Template
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.experiment import PilotExperiment
from pilotage.model.sites.world import SiteWorld, WorldFile
from pilotage.simulator.runs.run import JobSimulation, Subject, usual_settings
from pilotage.simulator.world.assembly import SiteSetup, pilot_failure_probability
from pilotage.simulator.world.batch_system import BatchSystem
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultInjector, Faults
from pilotage.simulator.world.jobs import big_job, plan_of, registration
from pilotage.simulator.world.randomness import Dice, distribution_of

SITE = "grid"
_HORIZON_SECONDS = 1e7


class PilotRun(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: its makespan, and when each pilot started that started before the end."""

    pilots: int
    makespan_seconds: float
    starts_seconds: tuple[float, ...]


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: what its submission and its latency took, and when the latter was known; a fault has an infinite latency."""

    submission_seconds: float
    latency_seconds: float
    known_at_seconds: float


def run_pilots(experiment: PilotExperiment, *, run: int, packages: int, seed: int) -> PilotRun:
    """Simulate one run, by its number from 0 on: its pilots, and the work in equal packages."""
    pilots = experiment.pilots[run]
    template = Template(activity="simulate", run_seconds=experiment.work_seconds / packages)
    job = big_job("experiment", packages=packages, stages=1, template=template)
    world = WorldFile(
        sites=(
            SiteWorld(
                name=SITE,
                submission=experiment.submission,
                queue=experiment.latency,
                stuck_probability=experiment.fault_ratio,
            ),
        )
    )
    subject = Subject(
        plan=plan_of(job, seed=0),
        registered=registration(job),
        sites=(SiteEntry(name=SITE, kind="slurm", slots=1, pilots_max=pilots),),
        world=world,
        horizon_seconds=_HORIZON_SECONDS,
    )
    # The paper submits all its pilots at once, and cancels none.
    settings = msgspec.structs.replace(usual_settings(world), provisioning="all")
    simulation = JobSimulation(subject, seed=_seed_of(seed, run), settings=settings)
    figures = simulation.run()
    if figures.makespan_seconds is None:
        raise ValueError(f"run {run} did not end: none of {pilots} pilots started")
    return PilotRun(
        pilots=pilots, makespan_seconds=figures.makespan_seconds, starts_seconds=tuple(simulation.starts_seconds)
    )


def run_probes(experiment: PilotExperiment, *, run: int, seed: int) -> list[Probe]:
    """Submit the probes of a run to its batch system, evenly over the hour before, and wait for all of them."""
    setup = SiteSetup(
        site=Site(name=SITE),
        queue=distribution_of(experiment.latency),
        submission=distribution_of(experiment.submission),
        pilot_failure_probability=experiment.fault_ratio,
        fault_bursts=(
            (
                experiment.burst.begins_seconds,
                math.inf if experiment.burst.lasts_seconds is None else experiment.burst.lasts_seconds,
                experiment.burst.probability,
            ),
        )
        if experiment.has_burst(run)
        else (),
    )
    probes = _Probes(setup, Dice(_seed_of(seed, run)))
    count = experiment.probes_of(run)
    for number in range(count):
        probes.schedule.at(experiment.probe_window_seconds * number / count, probes.submit, f"probe-{number}")
    probes.schedule.run(until=_HORIZON_SECONDS)
    return probes.found


def _seed_of(seed: int, run: int) -> int:
    return 1000 * seed + run


class _Probes:
    """Probes at one batch system."""

    def __init__(self, setup: SiteSetup, dice: Dice) -> None:
        self.schedule = Schedule()
        self.found: list[Probe] = []
        self._setup = setup
        self._chance = dice.stream("probes")
        self._asked_at: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._batch = BatchSystem(
            setup.site,
            schedule=self.schedule,
            injector=FaultInjector(Faults(), dice),
            dice=dice,
            queue=setup.queue,
            submission=setup.submission,
            report=self._on_report,
        )

    def submit(self, key: str) -> None:
        self._asked_at[key] = self.schedule.now
        self._batch.submit(key, self._launch)

    def _on_report(self, report: AnyReport) -> None:
        if isinstance(report, Submitted):
            self._took[report.key] = self.schedule.now - self._asked_at[report.key]

    def _launch(self, name: str) -> _Ended:
        now, key = self.schedule.now, name.rpartition(".")[0]
        is_fault = self._chance.random() < pilot_failure_probability(self._setup, now)
        latency_seconds = math.inf if is_fault else now - self._asked_at[key]
        self.found.append(
            Probe(submission_seconds=self._took[key], latency_seconds=latency_seconds, known_at_seconds=now)
        )
        self.schedule.after(0.0, self._batch.ended, name)
        return _Ended()


class _Ended:
    """A probe has nothing to do."""

    def kill(self) -> None:
        """Do nothing: it has ended."""
