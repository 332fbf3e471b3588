"""How long an application takes, as a distribution: pilots that start late, differ in speed, end, and take whole packages.

The paper's model knows a mean, and work that can be split as one likes. Here many possible runs are followed, each with a start
of every pilot. The numbers that stand for chance are computed from their places: the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.conditioning import Today
from pilotage.forecast.sequential import SequentialSubmission
from pilotage.forecast.steps import Floats

_CELLS_MAX = 600_000  # runs times pilots
_RUNS_MIN, _RUNS_MAX = 101, 1001
_HALVINGS = 50


@dataclass(frozen=True)
class Application:
    """What is to be done, and what a pilot can do of it.

    The work is in seconds of a host of speed 1. A pilot first spends `start_cost_seconds`, then works at the speed of its
    host, one of `speeds`, and ends `lifetime_seconds` after its start. Work comes in equal packages, each done by
    one pilot; without `packages`, it can be split as one likes. The logarithm of the work varies from run to run with
    `work_sd`; its median stays.
    """

    work_seconds: float
    work_sd: float
    packages: int | None
    start_cost_seconds: float
    speeds: tuple[float, ...]
    lifetime_seconds: float


@dataclass(frozen=True)
class MakespanDistribution:
    """The makespan: mean, median and an interval that holds nine runs of ten; infinite where too many runs never end."""

    mean_seconds: float
    median_seconds: float
    low_seconds: float
    high_seconds: float


def makespan_distribution(application: Application, starts_seconds: Floats) -> MakespanDistribution:
    """The makespan over possible runs, as rows of starts, one for each pilot."""
    found = np.sort(makespans(application, starts_seconds))
    low, median, high = (float(found[round(share * (len(found) - 1))]) for share in (0.05, 0.5, 0.95))
    return MakespanDistribution(float(found.mean()), median, low, high)


def makespans(application: Application, starts_seconds: Floats) -> Floats:
    """When each possible run is over; infinite where its pilots end before."""
    runs, pilots = starts_seconds.shape
    speeds = np.array(application.speeds)
    if len(speeds) > 1:
        speeds = speeds[(uniforms(runs, pilots, stream=1) * len(speeds)).astype(np.int64)]
    ready = starts_seconds + application.start_cost_seconds
    life = max(application.lifetime_seconds - application.start_cost_seconds, 0.0)
    work = application.work_seconds * _work_factors(runs, sd=application.work_sd)
    if application.packages is None:
        return _divisible(work, ready, speeds, life)
    return _in_packages(work, application.packages, ready, np.broadcast_to(speeds, ready.shape), life)


def run_count(pilots: int) -> int:
    """How many possible runs are followed: fewer where there are many pilots, whose chances even out."""
    return min(max(_CELLS_MAX // max(pilots, 1), _RUNS_MIN), _RUNS_MAX)


def starts_of(
    today: Today, *, pilots: int, queued_since_seconds: Floats, now_seconds: float, started_seconds: Floats
) -> Floats:
    """Possible starts of pilots: known ones, and of queued ones by how long they have waited; rows are runs.

    A pilot that is submitted later has a submission after now.
    """
    runs = run_count(pilots)
    chance = uniforms(runs, len(queued_since_seconds), stream=2)
    waits = today.start_latencies(_days(today, runs), chance, now_seconds - queued_since_seconds)
    known = np.broadcast_to(started_seconds, (runs, len(started_seconds)))
    return np.concatenate([known, queued_since_seconds + waits], axis=1)


def sequential_starts(submission: SequentialSubmission, today: Today, *, pilots: int) -> Floats:
    """Possible starts of pilots that are submitted one after the other (pilot-job-model, section 2.5); rows are runs.

    The possible days are of G, the rest of the latency after the submission.
    """
    runs = run_count(pilots)
    times = np.sort(submission.submissions_seconds)
    places = (uniforms(runs, pilots, stream=3) * len(times)).astype(np.int64)
    submitted = np.cumsum(times[places], axis=1)
    return submitted + today.start_latencies(
        _days(today, runs), uniforms(runs, pilots, stream=2), np.full(pilots, -1.0)
    )


def _days(today: Today, runs: int) -> NDArray[np.int64]:
    """The day of each run: as many runs of each as it is likely."""
    found = np.searchsorted(np.cumsum(today.weights), (np.arange(runs) + 0.5) / runs * (1.0 - 1e-12))
    return np.minimum(found, len(today.weights) - 1)


def uniforms(rows: int, columns: int, *, stream: int) -> Floats:
    """Numbers between 0 and 1 that are spread evenly down every column (a Latin hypercube), the same at every call."""
    cells = np.arange(rows * columns, dtype=np.uint64).reshape(rows, columns)
    order = np.argsort(_mixed(cells + np.uint64(stream << 40)), axis=0)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(rows)[:, None], axis=0)
    return (ranks + 0.5) / rows


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look as if drawn, one for each number (the finaliser of SplitMix64)."""
    found = numbers * np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def _work_factors(runs: int, *, sd: float) -> Floats:
    """Factors on the work of each run: log-normal with median 1."""
    normal = NormalDist()
    drawn = np.array([normal.inv_cdf(float(each)) for each in uniforms(runs, 1, stream=4)[:, 0]])
    return np.exp(sd * drawn)


def _divisible(work: Floats, ready: Floats, speeds: Floats, life: float) -> Floats:
    def done(at: Floats) -> Floats:
        spent = np.clip(at[:, None] - ready, 0.0, life)
        found: Floats = (spent * speeds).sum(axis=1)
        return found

    return _first_time(done, ready, work, slowest=float(np.min(speeds)))


def _in_packages(work: Floats, packages: int, ready: Floats, speeds: Floats, life: float) -> Floats:
    each = work[:, None] / packages / speeds
    # A pilot takes no package that it could not finish.
    most = np.floor(life / each + 1e-9)

    def taken(at: Floats) -> Floats:
        return np.clip(np.floor((at[:, None] - ready) / each + 1e-9) + 1.0, 0.0, most)

    every = np.full(len(ready), float(packages))
    last = _first_time(lambda at: taken(at).sum(axis=1), ready, every, slowest=float(1.0 / each.max()))
    ends = np.where(np.isfinite(ready), ready, 0.0) + taken(np.where(np.isfinite(last), last, 0.0)) * each
    busy = taken(np.where(np.isfinite(last), last, 0.0)) > 0.0
    return np.where(np.isfinite(last), np.where(busy, ends, 0.0).max(axis=1), np.inf)


def _first_time(done: Callable[[Floats], Floats], ready: Floats, wanted: Floats, *, slowest: float) -> Floats:
    """The first times at which as much is done as is wanted; infinite where it never is."""
    first = ready.min(axis=1)
    high = np.where(np.isfinite(first), first, 0.0) + wanted / slowest + 1.0
    last = np.where(np.isfinite(ready), ready, 0.0).max(axis=1)
    high = np.maximum(high, last + wanted / slowest + 1.0)
    reached = done(high) >= wanted * (1.0 - 1e-12)
    low = np.zeros(len(high))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        enough = done(middle) >= wanted * (1.0 - 1e-12)
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.where(reached, high, np.inf)
