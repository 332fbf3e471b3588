"""What healing costs where nothing is late: its share of CPU, one cycle in a big job, and whether it makes jobs longer.

Run with `python -m bench.healing`. Times are CPU time; the makespans are virtual, and the same everywhere.
"""

from __future__ import annotations

import argparse
import gc
import time

import msgspec

from bench.figures import Figures
from bench.yard import JOB, Log, Yard
from pilotage.engine.decisions.healing import heal_jobs
from pilotage.model.settings.engine import EngineSettings, Healing
from pilotage.model.sites.healing_experiment import ACTIVITIES
from pilotage.service.server import settle_down
from pilotage.simulator.runs.healing import figures_of, run_all

PACKAGES, PILOTS, SITES = 20_000, 2_000, 20
PAIRS = 7
BIG, BIG_PILOTS, BIG_SITES, BIG_DONE = 10**6, 10_000, 100, 30_000
SEEDS = 50
USUAL = EngineSettings().healing
SHARE_MAX, CYCLE_MILLISECONDS_MAX, LONGER_MAX = 2.0, 50.0, 1.0


def calm_yard(healing: Healing, *, packages: int, pilots: int, sites: int) -> Yard:
    """A job of which no attempt is late."""
    yard = Yard(packages=packages, pilots=pilots, sites=sites, journal=Log())
    yard.settings = msgspec.structs.replace(yard.settings, healing=healing)
    return yard


def seconds_of(healing: Healing) -> float:
    """The CPU time of the job."""
    yard = calm_yard(healing, packages=PACKAGES, pilots=PILOTS, sites=SITES)
    gc.collect()
    settle_down()
    started = time.process_time()
    yard.run()
    return time.process_time() - started


def cpu_share(pairs: int) -> float:
    """By how many hundredths healing makes the job more expensive: the least of each, in alternating order."""
    took: dict[Healing, list[float]] = {"off": [], USUAL: []}
    for number in range(pairs):
        order: list[Healing] = ["off", USUAL]
        for healing in order if number % 2 else reversed(order):
            took[healing].append(seconds_of(healing))
    return 100.0 * (min(took[USUAL]) / min(took["off"]) - 1.0)


def cycle_milliseconds() -> float:
    """The CPU time of one cycle in a job of a million packages, of which ten thousand run and many have ended since the last one."""
    yard = calm_yard(USUAL, packages=BIG, pilots=BIG_PILOTS, sites=BIG_SITES)
    yard.run(done=BIG_DONE)
    state = yard.engine.state
    state.pending.to_heal[state.jobs.by_id[JOB]] = None
    started = time.process_time()
    heal_jobs(state)
    return 1e3 * (time.process_time() - started)


def main() -> None:
    """Print every figure with its bound; exit code 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="pairs of runs without stragglers (default %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of measurements of CPU (default %(default)s)")
    asked = parser.parse_args()
    figures = Figures()
    print(f"{PACKAGES:,} packages on {PILOTS:,} pilots, {asked.pairs} alternating pairs without and with healing")
    figures.show("CPU of healing", cpu_share(asked.pairs), "% more", bound=SHARE_MAX)
    print(f"{BIG:,} packages on {BIG_PILOTS:,} pilots")
    figures.show("a cycle", cycle_milliseconds(), "ms CPU", bound=CYCLE_MILLISECONDS_MAX)
    print(f"without stragglers, {asked.seeds} pairs of runs with the same seeds: the mean makespan, upper end of 95 %")
    for found in figures_of(run_all(["calm"], ACTIVITIES, seeds=range(1, asked.seeds + 1), policies=["off", USUAL])):
        if found.policy == USUAL:
            assert found.longer_high is not None
            figures.show(f"{found.activity} packages", 100.0 * found.longer_high, "% longer", bound=LONGER_MAX)
    figures.done()


if __name__ == "__main__":
    main()
