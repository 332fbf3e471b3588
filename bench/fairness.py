"""How unequal jobs fare that share sites: the spread of their slowdowns, by expected slowdown and first come, first served.

The slowdown of a job is how long it took beside others by how long it takes alone at the same sites, as in "Workflow Fairness
Control on Online and Non-clairvoyant Distributed Computing Platforms" (Ferreira da Silva, Glatard, Desprez, Euro-Par 2013),
whose workloads the first three resemble. Time is virtual; the engine, the core and the agents' exchange are the real ones. No
document says how long anything takes, unless a line says so. `--seeds N` takes more seeds, `--json` prints every number.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.market import Market, MarketJob
from pilotage.model.settings.engine import EngineSettings, Order
from pilotage.simulator.world.randomness import Fixed, LogNormal

SEEDS = 10
ORDERS: tuple[Order, Order] = ("first-come", "slowdown")
RESAMPLES = 2000
TRACE = "swf/CTC-SP2-1996-3.1-cln.first20000.swf.gz"
TRACE_JOBS = 30
TRACE_LOAD = 0.9
TRACE_WIDTH_MAX = 40
SLOTS = 40  # two sites with five pilots of four slots each, which queue for 30 s

Workload = Callable[[int], list[MarketJob]]


# --- what is submitted ------------------------------------------------------------------------------------------------


def identical(_seed: int) -> list[MarketJob]:
    """Three equal jobs of 100 packages of about five minutes, two minutes apart, of three users."""
    time = LogNormal(median=300.0, sigma=0.5)
    return [
        MarketJob(job=f"gate{n}", owner=f"user{n}", at_seconds=120.0 * n, stages=(100,), run_time=time)
        for n in range(3)
    ]


def short_among_long(seed: int) -> list[MarketJob]:
    """The same, and after ten minutes a job of 10 packages of half a minute."""
    time = LogNormal(median=30.0, sigma=0.5)
    return [*identical(seed), MarketJob(job="short", owner="user3", at_seconds=600.0, stages=(10,), run_time=time)]


def different(seed: int) -> list[MarketJob]:
    """Four sorts of jobs in an order by chance, about a minute apart: wide and long, wide and quick, in six stages, small."""
    sorts = [
        ("gate", (100,), 1000.0),
        ("field", (122,), 60.0),
        ("sorteo", (1, 80, 1, 80, 1, 1), 300.0),
        ("bloch", (25,), 45.0),
    ]
    chance = random.Random(f"different/{seed}")
    chance.shuffle(sorts)
    at, found = 0.0, []
    for number, (job, stages, seconds) in enumerate(sorts):
        run_time = LogNormal(median=seconds, sigma=0.5)
        found.append(MarketJob(job=job, owner=f"user{number}", at_seconds=at, stages=stages, run_time=run_time))
        at += chance.expovariate(1 / 60.0)
    return found


def one_user_many_jobs(seed: int) -> list[MarketJob]:
    """A user submits 20 jobs of 30 packages within ten minutes, five others one of 30 each; of users, all jobs of each together."""
    chance = random.Random(f"users/{seed}")
    time = LogNormal(median=120.0, sigma=0.5)
    found = [
        MarketJob(job=f"many{n}", owner="many", at_seconds=30.0 * n, stages=(30,), run_time=time) for n in range(20)
    ]
    for number in range(5):
        at = chance.uniform(0.0, 600.0)
        found.append(MarketJob(job=f"one{number}", owner=f"one{number}", at_seconds=at, stages=(30,), run_time=time))
    return found


def traced(seed: int, *, estimates: bool = False) -> list[MarketJob]:
    """30 jobs in a row of the CTC SP2, from a place by chance: their users, widths and run times, and when they came.

    A job of n processors is one of n packages, at most 40. Times between arrivals are stretched by one factor, so that the work
    would take nine tenths of the slots. With estimates, documents say the run times as the trace has them.
    """
    rows = _trace()
    first = random.Random(f"trace/{seed}").randrange(len(rows) - TRACE_JOBS)
    chosen = rows[first : first + TRACE_JOBS]
    work = sum(width * seconds for _, seconds, width, _ in chosen)
    span = max(1.0, chosen[-1][0] - chosen[0][0])
    stretch = work / (SLOTS * TRACE_LOAD) / span
    return [
        MarketJob(
            job=f"job{number}",
            owner=f"user{user}",
            at_seconds=(at - chosen[0][0]) * stretch,
            stages=(width,),
            run_time=Fixed(seconds),
            estimate_seconds=seconds if estimates else 0.0,
        )
        for number, (at, seconds, width, user) in enumerate(chosen)
    ]


def traced_with_estimates(seed: int) -> list[MarketJob]:
    """The same, where documents say how long packages take."""
    return traced(seed, estimates=True)


def _trace() -> list[tuple[float, float, int, int]]:
    """When, how long, how wide and whose: the jobs of the trace that ran for a minute or more."""
    path = Path(os.environ["PILOTAGE_REFERENCE_DATA"]) / TRACE
    found = []
    with gzip.open(path, "rt", encoding="latin-1") as lines:
        for line in lines:
            if not line.startswith(";"):
                fields = line.split()
                at, seconds, width, user = float(fields[1]), float(fields[3]), int(fields[4]), int(fields[11])
                if seconds >= 60.0 and width > 0:
                    found.append((at, seconds, min(width, TRACE_WIDTH_MAX), user))
    return found


WORKLOADS: dict[str, Workload] = {
    "identical": identical,
    "short among long": short_among_long,
    "different": different,
    "one user, many jobs": one_user_many_jobs,
    "trace": traced,
    "trace, estimated": traced_with_estimates,
}


# --- what comes of it -------------------------------------------------------------------------------------------------


def settings_for(order: Order) -> EngineSettings:
    """As a service has them, with fewer exchanges."""
    return EngineSettings(interval_seconds=300.0, fairness=order)


def slowdowns(groups: Sequence[Sequence[MarketJob]], seed: int) -> dict[Order, list[float]]:
    """The slowdown of each group of jobs, from the first submission to the end of the last, by the order in which jobs go."""
    alone = [_lasted(group, Market(group, seed=seed, settings=settings_for("first-come")).run()) for group in groups]
    found: dict[Order, list[float]] = {}
    for order in ORDERS:
        jobs = [each for group in groups for each in group]
        took = Market(jobs, seed=seed, settings=settings_for(order)).run()
        found[order] = [_lasted(group, took) / least for group, least in zip(groups, alone, strict=True)]
    return found


def _lasted(jobs: Sequence[MarketJob], took: Mapping[str, float]) -> float:
    return max(each.at_seconds + took[each.job] for each in jobs) - min(each.at_seconds for each in jobs)


def groups_of(workload: Workload, seed: int) -> list[list[MarketJob]]:
    """What is compared: jobs, or where one user has many, users."""
    groups: dict[str, list[MarketJob]] = {}
    for each in workload(seed):
        groups.setdefault(each.owner if workload is one_user_many_jobs else each.job, []).append(each)
    return list(groups.values())


def ratio_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """How many times less, over all seeds, with a 95 % interval by resampling the seeds (percentile bootstrap)."""
    numbers = np.array([before, after])
    chance = np.random.default_rng(0)
    drawn = numbers[:, chance.integers(0, len(before), size=(RESAMPLES, len(before)))].mean(axis=2)
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return float(numbers[0].mean() / numbers[1].mean()), float(low), float(high)


def measured(workload: Workload, seeds: int) -> dict[str, dict[Order, list[float]]]:
    """By measure and order, for each seed."""
    found: dict[str, dict[Order, list[float]]] = {name: {order: [] for order in ORDERS} for name in MEASURES}
    for seed in range(seeds):
        for order, each in slowdowns(groups_of(workload, seed), seed).items():
            for name, measure in MEASURES.items():
                found[name][order].append(measure(each))
    return found


MEASURES: dict[str, Callable[[Sequence[float]], float]] = {
    "standard deviation": statistics.pstdev,
    "largest": max,
    "mean": statistics.fmean,
}


def main() -> None:
    """Print every workload, each measure by both orders, and how many times less."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    told: dict[str, object] = {}
    if not asked.json:
        print(f"slowdowns of jobs, {asked.seeds} seeds; first come, first served → largest expected slowdown first")
    for name, workload in WORKLOADS.items():
        if asked.only and name != asked.only:
            continue
        if workload in (traced, traced_with_estimates) and "PILOTAGE_REFERENCE_DATA" not in os.environ:
            print(f"{name}: PILOTAGE_REFERENCE_DATA does not say where the trace is; left out")
            continue
        found = told[name] = measured(workload, asked.seeds)
        if asked.json:
            continue
        print(f"{name}: {(workload.__doc__ or '').splitlines()[0]}")
        for measure, by_order in found.items():
            before, after = (by_order[order] for order in ORDERS)
            ratio, low, high = ratio_of(before, after)
            spread = f"{statistics.fmean(before):8.2f} → {statistics.fmean(after):6.2f}"
            print(f"  {measure:<20}{spread}   {ratio:6.2f} times less [{low:.2f}, {high:.2f}]")
    if asked.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
