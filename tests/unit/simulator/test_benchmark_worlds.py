"""The worlds of the benchmarks are put together as every simulated world is, and what happens in them stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench
from bench.market import Market, MarketJob
from bench.yard import Folded, Log, Yard
from pilotage.model.settings.engine import EngineSettings
from pilotage.simulator.world.randomness import Uniform

PARTS = ("BatchSystem(", "Network(", "Driver(", "FaultBox(", "AgentContext(")


def test_no_benchmark_connects_the_parts_of_a_world_itself() -> None:
    sources = {path.name: path.read_text("utf-8") for path in Path(bench.__path__[0]).glob("*.py")}
    assert {name: part for name, text in sources.items() for part in PARTS if part in text} == {}


@pytest.mark.parametrize("journal", [Log, Folded])
def test_a_big_job_on_many_pilots_gives_the_same_events_at_the_same_times(journal: type[Log]) -> None:
    kept = journal()
    yard = Yard(packages=60, pilots=8, sites=2, journal=kept)
    assert yard.run() == 396
    assert kept.count == 219
    assert yard.schedule.now == pytest.approx(1_000_529.2618708677)


def test_jobs_that_share_sites_take_as_long_as_before() -> None:
    run_time = Uniform(low=30.0, high=90.0)
    jobs = [
        MarketJob(job=f"j{n}", owner=f"u{n % 2}", at_seconds=100.0 * n, stages=(20, 5), run_time=run_time)
        for n in range(4)
    ]
    took = Market(jobs, seed=3, settings=EngineSettings()).run()
    assert took == pytest.approx({"j0": 187.849901, "j1": 137.754914, "j2": 178.217673, "j3": 161.164381})
