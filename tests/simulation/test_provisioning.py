"""What a forecast saves: behind a slow queue fewer pilots are requested and fewer core hours wasted, and the job is done nearly as early."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from msgspec.structs import replace

from pilotage.engine.state.sites import PilotRequest
from pilotage.model.events import payloads
from pilotage.model.settings.engine import Provisioning
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import SiteWorld, Times, WorldFile
from pilotage.service.core import Core
from pilotage.service.messages import Outbox
from pilotage.simulator.runs.figures import RunFigures
from pilotage.simulator.runs.run import JobSimulation, usual_settings
from pilotage.simulator.world.assembly import START
from pilotage.simulator.world.randomness import distribution_of
from tests.simulation.test_forecast import subject

PILOTS_MAX = 100
QUEUE = Times(distribution="log-normal", median_seconds=600.0, sigma=0.8)
LYON = SiteEntry(name="lyon", kind="slurm", slots=1, pilots_max=PILOTS_MAX, idle_seconds=300.0)
SEEDS = range(8)
NOISE = 0.06


class Known(JobSimulation):
    """A run whose service has seen pilots start there before; counts those that are requested."""

    requested = 0
    withdrawn = 0

    def start(self, now: float) -> Core:
        """A core that knows a hundred starts of yesterday."""
        core = super().start(now)
        state, chance = core.engine.state, random.Random(7)
        site = state.sites.by_name["lyon"]
        for _ in range(100):
            request = PilotRequest("", site)
            request.requested_at = START - 86_400.0
            latency_seconds = distribution_of(QUEUE).draw(chance)
            state.latencies.pilot_started(site, request, at=request.requested_at + latency_seconds)
        return core

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Count requests and withdrawals."""
        for one in outbox.events:
            match one.data:
                case payloads.PilotRequested(native_id=None):
                    self.requested += 1
                case payloads.PilotEnded(reason="withdrawn"):
                    self.withdrawn += 1
                case _:
                    pass
        super().stepped(core, outbox)


def run(provisioning: Provisioning, seed: int, *, packages: int = 300) -> tuple[RunFigures, Known]:
    world = WorldFile(sites=(SiteWorld(name="lyon", queue=QUEUE),))
    settings = replace(usual_settings(world), provisioning=provisioning)
    made = Known(subject(LYON, packages=packages, run_time="90 s", world=world), seed=seed, settings=settings)
    return made.run(), made


def test_fewer_pilots_do_the_work_nearly_as_early_and_waste_less() -> None:
    ways: tuple[Provisioning, ...] = ("all", "forecast")
    runs = {how: [run(how, seed) for seed in SEEDS] for how in ways}
    assert all(figures.outcome == "finished" for each in runs.values() for figures, _ in each)
    requested = {how: mean(made.requested for _, made in each) for how, each in runs.items()}
    idle = {how: mean(figures.sites["lyon"].idle_seconds for figures, _ in each) for how, each in runs.items()}
    took = {how: mean(figures.makespan_seconds or 0.0 for figures, _ in each) for how, each in runs.items()}
    assert requested["all"] >= PILOTS_MAX
    assert requested["forecast"] < 0.85 * requested["all"]
    assert idle["forecast"] < 0.9 * idle["all"]
    assert took["forecast"] < (1.1 + NOISE) * took["all"]


def test_work_that_is_nearly_done_requests_no_pilot_that_comes_too_late() -> None:
    few, made = run("forecast", 1, packages=10)
    every, asked = run("all", 1, packages=10)
    assert made.requested < asked.requested == 10
    assert few.makespan_seconds == pytest.approx(every.makespan_seconds, rel=0.5)
