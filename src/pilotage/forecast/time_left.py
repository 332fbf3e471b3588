"""When a running job will be over: waves of whole packages on slots that become free, or start, at uncertain times.

Many possible runs are followed at once, as rows of arrays. In each, the run times are a little longer or shorter than expected,
and queued pilots start on one of the possible days. Every slot takes the next package when it is free (list scheduling), which
is solved wave by wave instead of package by package, so that a job of a million packages costs as much as one of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.completion import uniforms
from pilotage.forecast.conditioning import Today
from pilotage.forecast.run_time import cdf, inverse_cdf
from pilotage.forecast.steps import Floats

RUNS = 32
"""Possible runs that are followed."""
SLOTS_MAX = 24
"""Slots that are followed one by one; where there are more, neighbours in time are taken together."""
RUNNING_MAX = 12
"""The same of slots with running packages."""
MODEL_SD = 0.06
"""Standard deviation of the logarithm of the time left that no part of the model stands for."""
_QUANTILES = (0.05, 0.5, 0.95)
_PLACES = (np.arange(RUNS) + 0.5) / RUNS  # of the runs, in the order of their ends
_PARTS = 4  # of the time in which packages begin
_PART_MIDDLES = (np.arange(_PARTS) + 0.5) / _PARTS
_AGAIN = 2.0  # a pilot that never starts is missed, and requested again: so many of the longest latencies later


@dataclass(frozen=True)
class WorkGroup:
    """Packages that are alike: how many wait to be started, and how long each takes.

    The run time is in seconds of a host of speed 1: its mean, the standard deviation between packages by that mean (`spread`),
    and the standard deviation of the logarithm of the mean itself (`mean_sd`). `path_seconds` is how long the group takes with any
    number of slots. No package starts before all of `after` are over; those of `follows` feed them one by one.
    """

    packages: float
    seconds: float
    spread: float
    mean_sd: float
    path_seconds: float
    after: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class RunningSlots:
    """Slots with a package of the job: its group, how long it runs already, and the speed of its host.

    Each stands for as many slots as its size; `some_running` makes few of many.
    """

    groups: NDArray[np.int64]
    elapsed_seconds: Floats
    speeds: Floats
    sizes: Floats


def some_running(groups: Sequence[int], elapsed_seconds: Sequence[float], speeds: Sequence[float]) -> RunningSlots:
    """Running slots, in at most as many columns as are followed: neighbours by group and elapsed time are taken together."""
    count = len(groups)
    if count <= RUNNING_MAX:
        return RunningSlots(np.array(groups, np.int64), np.array(elapsed_seconds), np.array(speeds), np.ones(count))
    alike: dict[tuple[int, float], list[float]] = {}
    for group, elapsed, speed in zip(groups, elapsed_seconds, speeds, strict=True):
        alike.setdefault((group, speed), []).append(elapsed)
    columns: list[tuple[int, float, float, float]] = []
    for (group, speed), waits in alike.items():
        waits.sort()
        parts = max(1, RUNNING_MAX * len(waits) // count)
        cuts = [at * len(waits) // parts for at in range(parts + 1)]
        for first, last in pairwise(cuts):
            columns.append((group, sum(waits[first:last]) / (last - first), speed, float(last - first)))
    of, means, fast, sizes = zip(*columns, strict=True)
    return RunningSlots(np.array(of, np.int64), np.array(means), np.array(fast), np.array(sizes))


@dataclass(frozen=True, eq=False)
class FreeSlots:
    """Slots that become free after some time, each of some size, and the speed of its host."""

    after_seconds: Floats
    sizes: Floats
    speeds: Floats


@dataclass(frozen=True, eq=False)
class QueuedSlots:
    """Slots of pilots that wait in the queue of one site; `today` are the possible days there."""

    today: Today
    waited_seconds: Floats
    sizes: Floats
    speed: float
    start_cost_seconds: float


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until a job is over: mean, median, and an interval that holds nine of ten."""

    mean_seconds: float
    median_seconds: float
    low_seconds: float
    high_seconds: float


def time_left(
    groups: Sequence[WorkGroup], *, running: RunningSlots, free: FreeSlots, queued: Sequence[QueuedSlots]
) -> TimeLeft | None:
    """How long a job takes from now; None where no slot is there or will come. Groups come after those they wait for."""
    factors = _run_factors(groups)
    busy, ends = _running(groups, running, factors)
    slots = _joined(busy, running, free, queued)
    if slots is None and any(group.packages for group in groups):
        return None
    over = _follow(groups, factors, slots, ends)
    over *= np.exp(MODEL_SD * _normals(1, stream=11)[:, 0])
    ordered = np.sort(over)
    low, median, high = np.interp(_QUANTILES, _PLACES, ordered).tolist()
    return TimeLeft(float(over.mean()), median, low, high)


@dataclass(frozen=True, eq=False)
class _Slots:
    ready: Floats  # rows of runs
    sizes: Floats
    speeds: Floats


def _run_factors(groups: Sequence[WorkGroup]) -> Floats:
    """By run and group, the factor on the run time of its packages together: its median is 1, and groups vary independently.

    The mean is uncertain, and so many packages differ from it by chance.
    """
    sds = np.array([math.hypot(group.mean_sd, group.spread / math.sqrt(max(group.packages, 1.0))) for group in groups])
    found: Floats = np.exp(sds * _normals(len(groups), stream=12))
    return found


def _running(groups: Sequence[WorkGroup], running: RunningSlots, factors: Floats) -> tuple[Floats, list[Floats]]:
    """When running packages end, given how long they have run; and the last end of each group."""
    zero = np.zeros(RUNS)
    if not len(running.groups):
        return np.zeros((RUNS, 0)), [zero] * len(groups)
    of = running.groups
    seconds = np.array([group.seconds for group in groups])
    sigmas = np.array([math.sqrt(math.log1p(group.spread**2)) for group in groups])
    sigma = np.maximum(sigmas[of], 1e-3)
    mean = factors[:, of] * (seconds[of] / running.speeds)
    # A log-normal run time, known to be longer than it has been so far.
    shift = np.log(np.maximum(running.elapsed_seconds, 1e-9)) - np.log(mean) + 0.5 * sigma**2
    begun = cdf(shift / sigma)
    # For each column the end of one of its slots, and of the last of them.
    chances = _one_and_last(tuple(running.sizes.tolist()))
    known = np.minimum(begun + chances * (1.0 - begun), 0.99997)
    total = mean * np.exp(sigma * inverse_cdf(known) - 0.5 * sigma**2)
    each, lasts = np.maximum(total - running.elapsed_seconds, 0.0)
    ends = [lasts[:, of == number].max(axis=1) if (of == number).any() else zero for number in range(len(groups))]
    return each, ends


def _joined(busy: Floats, running: RunningSlots, free: FreeSlots, queued: Sequence[QueuedSlots]) -> _Slots | None:
    """All slots, in few columns."""
    times = [busy, np.broadcast_to(free.after_seconds, (RUNS, len(free.after_seconds)))]
    sizes, fast = [running.sizes, free.sizes], [running.speeds, free.speeds]
    for number, site in enumerate(queued):
        times.append(_starts(site, stream=20 + number))
        sizes.append(site.sizes)
        fast.append(np.full(len(site.sizes), site.speed))
    ready, weights, speed = np.concatenate(times, axis=1), np.concatenate(sizes), np.concatenate(fast)
    if not len(weights):
        return None
    if len(weights) <= SLOTS_MAX:
        return _Slots(ready, weights, speed)
    order = np.argsort(ready.mean(axis=0), kind="stable")
    cuts = np.linspace(0, len(order), SLOTS_MAX + 1).astype(np.int64)[:-1]
    together = np.add.reduceat(weights[order], cuts)
    # Each row sorted by itself: the first slots of one run are together with the first of another.
    rows = np.sort(ready, axis=1) if np.ptp(weights) == 0.0 else ready[:, order]
    return _Slots(
        np.add.reduceat(rows * weights[order], cuts, axis=1) / together,
        together,
        np.add.reduceat(weights[order] * speed[order], cuts) / together,
    )


def _starts(site: QueuedSlots, *, stream: int) -> Floats:
    """Possible starts of queued pilots, from now, with the cost of the start."""
    waits = site.today.start_latencies(
        _days_of(site.today), _uniforms(len(site.sizes), stream=stream), site.waited_seconds
    )
    longest = float(site.today.quantiles_seconds[-1])
    waits = np.where(np.isfinite(waits), waits - site.waited_seconds, _AGAIN * longest)
    return np.maximum(waits, 0.0) + site.start_cost_seconds


def _follow(groups: Sequence[WorkGroup], factors: Floats, slots: _Slots | None, ends: list[Floats]) -> Floats:
    """The end of every run: group after group, each on the slots as the ones before leave them."""
    over: list[Floats] = []
    begins: list[Floats] = []
    ready = slots.ready if slots is not None else np.zeros((RUNS, 0))
    for number, group in enumerate(groups):
        factor = factors[:, number]
        earliest = np.zeros(RUNS)
        for before in group.after:
            earliest = np.maximum(earliest, over[before])
        for before in group.follows:
            feeding = groups[before].seconds * factors[:, before]
            earliest = np.maximum(earliest, np.minimum(begins[before] + feeding, over[before]))
        end = ends[number]
        begin = np.zeros(RUNS)
        if group.packages > 0.0 and slots is not None:
            seconds = np.maximum(group.seconds * factor, 1e-6)
            possible = np.maximum(ready, earliest[:, None])
            begin = possible.min(axis=1)
            last, ready = _waves(possible, slots, packages=group.packages, seconds=seconds, spread=group.spread)
            end = np.maximum(end, last)
            end = np.maximum(end, begin + group.path_seconds * factor)
            for before in group.follows:
                end = np.maximum(end, over[before] + seconds)
        over.append(end)
        begins.append(begin)
    found: Floats = np.max(over, axis=0) if over else np.zeros(RUNS)
    return found


def _waves(ready: Floats, slots: _Slots, *, packages: float, seconds: Floats, spread: float) -> tuple[Floats, Floats]:
    """The end of the last of equal packages, each taken by the slot that is free first, and when slots are free then."""
    each = seconds[:, None] / slots.speeds
    # A slot that is ready at s has begun (t - s) / each + 1 packages by t, rounded down. Without rounding, that is solved for t
    # exactly: the least over all prefixes of slots, in the order in which they begin to count.
    order = np.argsort(ready - each, axis=1)
    flat = order + _row_places(ready.shape[1])
    weights = slots.sizes[order]
    rates = weights / each.take(flat)
    known = np.cumsum(rates * ready.take(flat) - weights, axis=1)
    begun_by = ((packages + known) / np.cumsum(rates, axis=1)).min(axis=1)
    taken = np.maximum(np.floor((begun_by[:, None] - ready) / each + 1e-9) + 1.0, 0.0)
    # Rounding leaves less than one package for each slot: the slots that are free next take them.
    missing = packages - taken @ slots.sizes
    following = ready + taken * each
    if spread > 0.0:
        # Packages that differ mix the moments at which slots are free; no slot is off by more than half a package.
        drift = np.minimum(spread * np.sqrt(taken), 0.29) * _normals(ready.shape[1], stream=14)
        following += np.minimum(np.maximum(drift, -0.5), 0.5) * each
    order = np.argsort(following, axis=1)
    weights = slots.sizes[order]
    before = np.cumsum(weights, axis=1) - weights
    more = np.minimum(np.maximum(missing[:, None] - before, 0.0), weights) / weights
    extra = np.empty_like(more)
    extra.put(order + _row_places(ready.shape[1]), more)
    # Of slots that are followed together only some take one more package; the last of them ends a whole package later.
    lasts = following + np.ceil(extra - 1e-9) * each
    if spread > 0.0:
        lasts += each * _longest(tuple(slots.sizes.tolist()), round(spread, 2))
    end = np.where(taken + extra > 1e-9, lasts, 0.0).max(axis=1)
    if spread > 0.0:
        end = np.maximum(end, _stragglers(ready.min(axis=1), begun_by, packages, seconds / slots.speeds.mean(), spread))
    return end, following + extra * each


def _stragglers(begin: Floats, last: Floats, packages: float, seconds: Floats, spread: float) -> Floats:
    """The end of the longest package, which may have begun at any time: the longest of each part of the time is looked at."""
    count = float(f"{max(packages / _PARTS, 1.0):.2g}")  # few different values, so that the numbers are kept
    begun = begin[:, None] + np.maximum(last - begin, 0.0)[:, None] * _PART_MIDDLES
    found: Floats = (begun + seconds[:, None] * (1.0 + _longest((count,) * _PARTS, round(spread, 2)))).max(axis=1)
    return found


# --- numbers that stand for chance: the same at every call ----------------------------------------------------------------


@lru_cache(maxsize=256)
def _uniforms(columns: int, *, stream: int) -> Floats:
    return uniforms(RUNS, columns, stream=stream)


@lru_cache(maxsize=256)
def _normals(columns: int, *, stream: int) -> Floats:
    return inverse_cdf(uniforms(RUNS, columns, stream=stream))


@lru_cache(maxsize=256)
def _longest(sizes: tuple[float, ...], spread: float) -> Floats:
    """By how much the longest of so many packages is longer than the mean, by that mean; their run time is log-normal."""
    sigma = math.sqrt(math.log1p(spread**2))
    highest = inverse_cdf(uniforms(RUNS, len(sizes), stream=15) ** (1.0 / np.array(sizes)))
    found: Floats = np.exp(sigma * highest - 0.5 * sigma**2) - 1.0
    return found


@lru_cache(maxsize=256)
def _one_and_last(sizes: tuple[float, ...]) -> Floats:
    """Uniform numbers, and the highest of as many as each column has slots."""
    uniform = uniforms(RUNS, len(sizes), stream=13)
    return np.stack([uniform, uniform ** (1.0 / np.array(sizes))])


@lru_cache(maxsize=64)
def _row_places(columns: int) -> NDArray[np.int64]:
    return (np.arange(RUNS) * columns)[:, None]


def _days_of(today: Today) -> Floats:
    """The day of each run, the likelier the more runs: spread over the runs so that slow days meet short run times, too."""
    shuffled = (np.argsort(_uniforms(1, stream=16)[:, 0]) + 0.5) / RUNS
    found = np.searchsorted(np.cumsum(today.weights), shuffled * (1.0 - 1e-12))
    return np.minimum(found, len(today.weights) - 1)
