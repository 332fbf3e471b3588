"""How many short packages should share a batch job: the size that the engine chooses, beside every fixed one.

Run with `python -m bench.grain`; `--write` puts the table into docs/explanation/grouping.md. Nothing here is measured by a
clock: the same version of pilotage prints the same figures on every machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pilotage.engine.decisions import binding, healing
from pilotage.model.jobs.plan import Template
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import PackagesWorld, SiteWorld, Times, WorldFile
from pilotage.simulator.runs.run import JobSimulation, Subject
from pilotage.simulator.world.jobs import big_job, plan_of, registration

PACKAGES, RUN_SECONDS, QUEUE_SECONDS = 10_000, 2.0, 30.0
SITES, SLOTS = ("one", "two", "three"), 16
"""Each site runs so many of our batch jobs at once."""
SIZES = (1, 8, 12, 16, 24, 32, 64, 105, 160, 209)
AUTOMATIC, MOST = 0, 1000
WORLDS = {
    "fixed": (Times(value_seconds=QUEUE_SECONDS), Times(value_seconds=RUN_SECONDS)),
    "varying": (
        Times(distribution="log-normal", median_seconds=QUEUE_SECONDS, sigma=0.7),
        Times(distribution="log-normal", median_seconds=RUN_SECONDS, sigma=0.5),
    ),
}
"""Queue and run times."""
THROTTLES = {"few": 0.0, "usual": 2.0}
"""Job throttles: with 0 a site may have one batch job of ours; there are as many sites as slots then."""
RATIO_MAX = 1.1  # the engine may take so much longer than the best fixed size
SETUPS = (("fixed", "usual"), ("fixed", "few"), ("varying", "usual"))
"""The worlds that are run, each with a throttle."""
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "grouping.md"
_MARKS = ("<!-- figures of bench.grain -->", "<!-- end of figures -->")


class Cell(NamedTuple):
    """One run."""

    world: str
    throttle: str
    size: int  # 0: chosen by the engine
    seed: int
    packages: int = PACKAGES


class Outcome(NamedTuple):
    """What it came to."""

    makespan_seconds: float
    batch_jobs: int


def subject_of(cell: Cell) -> Subject:
    """What is simulated."""
    queue, run_time = WORLDS[cell.world]
    throttle = THROTTLES[cell.throttle]
    names = SITES if throttle else tuple(f"{name}-{slot}" for name in SITES for slot in range(1, SLOTS + 1))
    running_max = SLOTS if throttle else 1
    sites = tuple(SiteEntry(name=name, kind="slurm", mode="bound", slots=1, job_throttle=throttle) for name in names)
    world = WorldFile(
        sites=tuple(SiteWorld(name=name, queue=queue, running_max=running_max) for name in names),
        packages=PackagesWorld(run_time=run_time),
    )
    job = big_job("short", packages=cell.packages, stages=1, template=Template(activity="short"))
    return Subject(plan=plan_of(job, seed=0), registered=registration(job), sites=sites, world=world)


def outcome_of(cell: Cell) -> Outcome:
    """Run a cell."""
    settings = EngineSettings(group_packages_max=MOST if cell.size != 1 else 1)
    simulation = JobSimulation(subject_of(cell), seed=cell.seed, settings=settings)
    with _fixed(cell.size):
        figures = simulation.run()
    if figures.makespan_seconds is None:
        raise ValueError(f"{cell} did not end")
    return Outcome(figures.makespan_seconds, len(simulation.starts_seconds))


@contextmanager
def _fixed(size: int) -> Iterator[None]:
    """Let groups have a fixed size, and stay as they are; 0: as the engine decides."""
    if not size:
        yield
        return

    sized = patch.object(binding, "packages_each", lambda _state, queue, *_: min(size, queue.ready))
    with sized, patch.object(healing, "grain_degrees", lambda *_: []):
        yield


class Row(NamedTuple):
    """One world: the size that the engine chose, beside the best fixed one and one batch job for each package."""

    world: str
    throttle: str
    automatic: Outcome
    best_size: int
    best: Outcome
    single: Outcome

    @property
    def ratio(self) -> float:
        """How much longer it takes than with the best size."""
        return self.automatic.makespan_seconds / self.best.makespan_seconds


def compare(world: str, throttle: str, outcomes: dict[int, Outcome]) -> Row:
    """The row of a world from the outcomes by size."""
    fixed = {size: each for size, each in outcomes.items() if size != AUTOMATIC}
    best = min(fixed, key=lambda size: (fixed[size].makespan_seconds, size))
    return Row(world, throttle, outcomes[AUTOMATIC], best, fixed[best], fixed[1])


def table(rows: Sequence[Row]) -> str:
    """The table of the page."""
    lines = [
        "| queue and packages | batch jobs at once | automatic | best fixed size | longer than that | one each |",
        "|---|---|---|---|---|---|",
    ]
    for each in rows:
        rooms = f"{len(SITES) * SLOTS} sites with one each" if each.throttle == "few" else "job throttle 2"
        times = "30 s and 2 s" if each.world == "fixed" else "medians of 30 s and 2 s, spread"
        lines.append(
            f"| {times} | {rooms} | {_told(each.automatic)} | {each.best_size}: {_told(each.best)} "
            f"| {100.0 * (each.ratio - 1.0):.1f} % | {_told(each.single)} |"
        )
    return "\n".join(lines)


def _told(outcome: Outcome) -> str:
    return f"{outcome.makespan_seconds:.0f} s, {outcome.batch_jobs:,} batch jobs"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all sizes in all worlds, side by side where there are cores for it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the worlds (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    asked = parser.parse_args(arguments)
    every = [Cell(*setup, size, asked.seed) for setup in SETUPS for size in (AUTOMATIC, *SIZES)]
    found: dict[tuple[str, str], dict[int, Outcome]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for cell, outcome in zip(every, pool.map(outcome_of, every), strict=True):
            found.setdefault((cell.world, cell.throttle), {})[cell.size] = outcome
            print(f"{cell.world} {cell.throttle} {cell.size or 'automatic'}: {_told(outcome)}", flush=True)
    rows = [compare(world, throttle, outcomes) for (world, throttle), outcomes in found.items()]
    told = table(rows)
    print(told)
    if asked.write:
        before, _, rest = PAGE.read_text("utf-8").partition(_MARKS[0])
        PAGE.write_text(f"{before}{_MARKS[0]}\n\n{told}\n\n{_MARKS[1]}{rest.partition(_MARKS[1])[2]}", "utf-8")
    if any(each.ratio > RATIO_MAX for each in rows):
        parser.exit(1, f"a job takes more than {RATIO_MAX} times as long as with the best size\n")


if __name__ == "__main__":
    main()
