"""How long an application takes, as a distribution: pilots that start late, differ in speed, end, and take whole packages.

The paper's model knows a mean, and work that can be split as one likes. Here many possible runs are followed, each with a start
of every pilot. The numbers that stand for chance are computed from their places: the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.conditioning import Today
from pilotage.forecast.sequential import SequentialSubmission
from pilotage.forecast.steps import Floats

_CELLS_MAX = 600_000  # runs times pilots
_RUNS_MIN, _RUNS_MAX = 101, 1001
_HALVINGS = 50
_PRECISION = 1e-7  # of a time that is found by halving
_COLUMNS_MIN = 64  # of uniform numbers, of which a table is made at once
_KEPT_CELLS_MAX = 1 << 17  # of a table that is kept for the next question

QUICK_RUNS = 101
"""Possible runs that suffice for an interval that is asked for again and again."""


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
    """The makespan: median and an interval that holds nine runs of ten, infinite where too many runs never end.

    The mean is that of the runs that end; the others have a share, and would make it infinite.
    """

    mean_seconds: float
    median_seconds: float
    low_seconds: float
    high_seconds: float
    never_share: float


def makespan_distribution(application: Application, starts_seconds: Floats) -> MakespanDistribution:
    """The makespan over possible runs, as rows of starts, one for each pilot."""
    found = np.sort(makespans(application, starts_seconds))
    low, median, high = (float(found[round(share * (len(found) - 1))]) for share in (0.05, 0.5, 0.95))
    ending = found[np.isfinite(found)]
    mean = float(ending.mean()) if len(ending) else np.inf
    return MakespanDistribution(mean, median, low, high, 1.0 - len(ending) / len(found))


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
    today: Today,
    *,
    pilots: int,
    queued_since_seconds: Floats,
    now_seconds: float,
    started_seconds: Floats,
    runs: int | None = None,
) -> Floats:
    """Possible starts of pilots: known ones, and of queued ones by how long they have waited; rows are runs.

    A pilot that is submitted later has a submission after now. Without `runs`, as many are followed as `run_count` says.
    """
    runs = run_count(pilots) if runs is None else runs
    chance = uniforms(runs, len(queued_since_seconds), stream=2)
    waits = today.start_latencies(_days(today, runs), chance, now_seconds - queued_since_seconds)
    known = np.broadcast_to(started_seconds, (runs, len(started_seconds)))
    return np.concatenate([known, queued_since_seconds + waits], axis=1)


def sequential_starts(
    submission: SequentialSubmission, today: Today, *, pilots: int, runs: int | None = None
) -> Floats:
    """Possible starts of pilots that are submitted one after the other (pilot-job-model, section 2.5); rows are runs.

    The possible days are of G, the rest of the latency after the submission. Without `runs`, as many are followed as
    `run_count` says.
    """
    runs = run_count(pilots) if runs is None else runs
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
    """Numbers between 0 and 1 that are spread evenly down every column (a Latin hypercube), the same at every call.

    Fewer columns are the first ones of more columns.
    """
    made = max(_COLUMNS_MIN, 1 << (columns - 1).bit_length()) if columns else _COLUMNS_MIN
    table = _kept_table(rows, made, stream) if rows * made <= _KEPT_CELLS_MAX else _table(rows, columns, stream)
    return table[:, :columns]


def _table(rows: int, columns: int, stream: int) -> Floats:
    cells = np.arange(rows * columns, dtype=np.uint64).reshape(columns, rows)
    order = np.argsort(_mixed(cells + np.uint64(stream << 40)), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(rows)[None, :], axis=1)
    found: Floats = ((ranks + 0.5) / rows).T
    return found


@lru_cache(maxsize=16)
def _kept_table(rows: int, columns: int, stream: int) -> Floats:
    found = np.ascontiguousarray(_table(rows, columns, stream))
    found.flags.writeable = False
    return found


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look as if drawn, one for each number (the finaliser of SplitMix64)."""
    found = numbers * np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def _work_factors(runs: int, *, sd: float) -> Floats:
    """Factors on the work of each run: log-normal with median 1."""
    return np.exp(sd * _normals(runs)) if sd > 0.0 else np.ones(runs)


@lru_cache(maxsize=4)
def _normals(runs: int) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf(float(each)) for each in uniforms(runs, 1, stream=4)[:, 0]])


def _divisible(work: Floats, ready: Floats, speeds: Floats, life: float) -> Floats:
    if np.isinf(life):
        return _divisible_for_ever(work, ready, speeds)

    def done(at: Floats) -> Floats:
        spent = np.clip(at[:, None] - ready, 0.0, life)
        found: Floats = (spent * speeds).sum(axis=1)
        return found

    first = np.where(np.isfinite(ready), ready, 0.0)
    high = first.max(axis=1) + work / float(np.min(speeds)) + 1.0
    return _first_time(done, work, low=np.zeros(len(high)), high=high)


def _divisible_for_ever(work: Floats, ready: Floats, speeds: Floats) -> Floats:
    """The end with the first k pilots alone is (work + the sum of speed times start) / the sum of speeds; the least counts.

    One more pilot shortens it as long as that pilot starts before the end.
    """
    order = np.argsort(ready, axis=1)
    sorted_ready = np.take_along_axis(ready, order, axis=1)
    if speeds.shape == ready.shape:
        rates = np.take_along_axis(speeds, order, axis=1)
    else:
        rates = np.broadcast_to(speeds, ready.shape)
    ends = (work[:, None] + np.cumsum(rates * sorted_ready, axis=1)) / np.cumsum(rates, axis=1)
    found: Floats = ends.min(axis=1)
    return found


def _in_packages(work: Floats, packages: int, ready: Floats, speeds: Floats, life: float) -> Floats:
    each = work[:, None] / packages / speeds
    # A pilot takes no package that it could not finish.
    most = np.floor(life / each + 1e-9)

    def taken(at: Floats) -> Floats:
        return np.clip(np.floor((at[:, None] - ready) / each + 1e-9) + 1.0, 0.0, most)

    every = np.full(len(ready), float(packages))
    if np.isinf(life):
        # While the last package waits, all pilots are busy: it starts before work that splits would end, by a package at most.
        high = _divisible_for_ever(work, ready, speeds)
        low = np.maximum(high - each.max(axis=1), 0.0)
        high = high * (1.0 + 1e-12)
    else:
        first = np.where(np.isfinite(ready), ready, 0.0)
        low, high = np.zeros(len(ready)), first.max(axis=1) + packages * each.max(axis=1) + 1.0
    last = _first_time(lambda at: taken(at).sum(axis=1), every, low=low, high=high)
    ends = np.where(np.isfinite(ready), ready, 0.0) + taken(np.where(np.isfinite(last), last, 0.0)) * each
    busy = taken(np.where(np.isfinite(last), last, 0.0)) > 0.0
    return np.where(np.isfinite(last), np.where(busy, ends, 0.0).max(axis=1), np.inf)


def _first_time(done: Callable[[Floats], Floats], wanted: Floats, *, low: Floats, high: Floats) -> Floats:
    """The first times between two at which as much is done as is wanted; infinite where it never is."""
    finite = np.isfinite(high)
    low, high = np.where(finite, low, 0.0), np.where(finite, high, 0.0)
    reached = finite & (done(high) >= wanted * (1.0 - 1e-12))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        enough = done(middle) >= wanted * (1.0 - 1e-12)
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
        if float((high - low).max()) <= _PRECISION * float(high.max()):
            break
    return np.where(reached, high, np.inf)
