"""What the forecast of the end of a running job costs the engine: a job of lines and a merge, among several sites.

Times are CPU seconds, the best of a few. A service with a thousand open jobs forecasts each of them once a minute.
"""

from __future__ import annotations

import time
from statistics import mean

from bench.figures import Figures
from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import JobState
from pilotage.language import plan_of, shapes_of
from pilotage.language.folder import MemoryFolder
from pilotage.language.load import load
from pilotage.model.events.payloads import JobRegistered
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Factors, PackagesWorld, SiteWorld, Times, WorldFile
from pilotage.service.core import Core
from pilotage.service.messages import Outbox
from pilotage.simulator.runs.run import JOB, JobSimulation, Subject, usual_settings
from pilotage.simulator.world.assembly import START

DOCUMENTS = {
    "one stage": """pilotage: 1
job: sweep
stages:
  - each: {n: 1..2000}
    lines: [{packages: [{binaries: [{run: 'simulate {n}', run_time: 600 s}]}]}]
""",
    "lines and a merge": """pilotage: 1
job: lines
stages:
  - each: {n: 1..1000}
    lines:
      - packages:
          - binaries: [{run: 'make {n}', run_time: 300 s, outputs: ['a{n}.txt']}]
          - binaries: [{run: 'look {n}', run_time: 100 s}]
  - lines: [{packages: [{binaries: [{run: 'merge', run_time: 400 s, inputs: ['a*.txt']}]}]}]
""",
}
SITES = (
    SiteEntry(name="lyon", kind="slurm", slots=4, pilots_max=12),
    SiteEntry(name="nice", kind="slurm", slots=10, pilots_max=4, speed=1.5),
)
WORLD = WorldFile(
    sites=tuple(
        SiteWorld(name=each.name, queue=Times(distribution="exponential", mean_seconds=900.0)) for each in SITES
    ),
    packages=PackagesWorld(run_time_factor=Factors(distribution="log-normal", median=1.0, sigma=0.4)),
)
EVERY_SECONDS = 300.0
"""Virtual time between two measurements: all times of a run count alike, from the first start of a pilot to the last package."""
FORECASTS = 5
REPEATS = 12
A_MINUTE = 1000


class Measured(JobSimulation):
    """A run in which forecasts are made, again and again."""

    def __init__(self, subject: Subject) -> None:
        """Nothing is measured yet."""
        super().__init__(subject, seed=1, settings=usual_settings(WORLD))
        self.seconds: list[float] = []  # of one forecast, at different times
        self._measured_at = START

    def start(self, now: float) -> Core:
        """A core that forecasts."""
        return Core(self.new_engine(now))

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Measure from time to time."""
        engine = core.engine
        job = engine.state.jobs.by_id.get(JOB)
        if job is not None and self.schedule.now - self._measured_at >= EVERY_SECONDS:
            self._measured_at = self.schedule.now
            if engine.state.forecasts.expectation(job) is not None:
                self.seconds.append(min(_forecast_seconds(engine, job) for _ in range(REPEATS)))
        super().stepped(core, outbox)


def _forecast_seconds(engine: Engine, job: JobState) -> float:
    started = time.process_time()
    for _ in range(FORECASTS):
        engine.state.forecasts.expectation(job)
    return (time.process_time() - started) / FORECASTS


def measured(document: str) -> list[float]:
    """CPU seconds of one forecast of a job, at different times of a run."""
    loaded = load(document.encode(), file="job.yaml", folder=MemoryFolder({})).job()
    registered = JobRegistered(owner="ada", name="job", stages=shapes_of(loaded.expansion))
    subject = Subject(plan=plan_of(loaded.expansion), registered=registered, sites=SITES, world=WORLD)
    run = Measured(subject)
    run.run()
    return run.seconds


def main() -> None:
    """Measure and print every figure."""
    figures = Figures()
    print("forecasts of the ends of jobs")
    for name, document in DOCUMENTS.items():
        seconds = measured(document)
        figures.show(f"one forecast, {name}", 1000.0 * mean(seconds), "ms", bound=1.2)
        figures.show(f"  the slowest of {len(seconds)}", 1000.0 * max(seconds), "ms", bound=2.0)
        figures.show(f"1,000 a minute, {name}", 100.0 * A_MINUTE * mean(seconds) / 60.0, "% of a core", bound=2.0)
    figures.done()


if __name__ == "__main__":
    main()
