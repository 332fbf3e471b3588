"""When a running job will be over: waves of whole packages on slots that become free, or start, at uncertain times.

Many possible runs are followed at once, as rows of arrays. In each, the run times are a little longer or shorter than expected,
and queued pilots start on one of the possible days. Every slot takes the next package when it is free (list scheduling), which
is solved wave by wave instead of package by package, so that a job of a million packages costs as much as one of ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.completion import uniforms
from pilotage.forecast.conditioning import RunDays, Today
from pilotage.forecast.run_time import LIMIT, OVERDUE_SHARE, cdf, expected_rest, inverse_cdf
from pilotage.forecast.steps import Floats

RUNS = 32
"""Possible runs that are followed."""
SLOTS_MAX = 12
"""Slots that are followed one by one; where there are more, neighbours in time are taken together."""
RUNNING_MAX = 7
"""The same of slots with running packages."""
MODEL_SD = 0.06
"""Standard deviation of the logarithm of the time left that no part of the model stands for."""
_QUANTILES = (0.05, 0.5, 0.95)
_PARTS = 4  # of the time in which packages begin
_PARTS_AND_LAST = np.array([*((part + 0.5) / _PARTS for part in range(_PARTS)), 1.0])
_WAVES_MIN = 5.0  # behind so many, slots that differ are free at any moment
_ALIKE = 0.04  # packages that differ less have no stragglers
_AGAIN = 2.0  # a pilot that never starts is missed, and requested again: so many of the longest latencies later


class WorkGroup(NamedTuple):
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


class RunningSlots(NamedTuple):
    """Slots with a package of the job, by group: how long it runs already, the speed of its host, and the place of its bound site.

    Each stands for as many slots as its size; `some_running` makes few of many.
    """

    groups: tuple[int, ...]
    bound: tuple[int, ...]
    elapsed_seconds: Floats
    speeds: Floats
    sizes: Floats
    slots: float


NOT_BOUND = -1


class RunsAt(NamedTuple):
    """Where packages run: their group, the speed of the host, and the place of the site among `BoundSlots`, if it is one of them."""

    group: int
    speed: float
    bound: int = NOT_BOUND


def some_running(elapsed_seconds: Mapping[RunsAt, Sequence[float]], *, each: float = 1.0) -> RunningSlots:
    """Running slots, in few columns: neighbours by elapsed time are taken together. Each time stands for `each` slots."""
    count = sum(map(len, elapsed_seconds.values()))
    places: list[RunsAt] = []
    means: list[float] = []
    sizes: list[float] = []
    for place, elapsed in sorted(elapsed_seconds.items()):
        ordered = sorted(elapsed)
        parts = len(ordered) if count <= RUNNING_MAX else max(1, RUNNING_MAX * len(ordered) // count)
        first = 0
        for part in range(1, parts + 1):
            last = part * len(ordered) // parts
            places.append(place)
            means.append(sum(ordered[first:last]) / (last - first))
            sizes.append(each * (last - first))
            first = last
    return RunningSlots(
        tuple([place.group for place in places]),
        tuple([place.bound for place in places]),
        np.array(means),
        np.array([place.speed for place in places]),
        np.array(sizes),
        each * count,
    )


NOTHING_RUNS = some_running({})


class FreeSlots(NamedTuple):
    """Slots that become free after some time, each of some size, and the speed of its host."""

    after_seconds: Floats
    sizes: Floats
    speeds: Floats


class QueuedSlots:
    """Slots of pilots that wait in the queue of one site; `today` are the possible days there.

    Who asks for several jobs within some seconds keeps it, since the possible starts are the same for all.
    """

    __slots__ = ("_starts", "sizes", "speeds", "start_cost_seconds", "today", "waited_seconds")

    def __init__(
        self, today: Today, waited_seconds: Floats, sizes: Floats, speed: float, start_cost_seconds: float
    ) -> None:
        """Pilots that have waited for so long, with so many slots each."""
        self.today, self.waited_seconds, self.sizes = today, waited_seconds, sizes
        self.start_cost_seconds, self.speeds = start_cost_seconds, np.full(len(sizes), speed)
        self._starts: dict[int, Floats] = {}

    def starts(self, *, stream: int) -> Floats:
        """Possible starts of the pilots, from now, with the cost of the start."""
        found = self._starts.get(stream)
        if found is None:
            waits = _starts(self.today, self.waited_seconds, stream=stream)
            found = self._starts[stream] = waits + self.start_cost_seconds
        return found


class BoundSlots(NamedTuple):
    """Room at a bound site, where each package is a batch job of its own: it waits in the queue before it runs.

    Some packages have waited for some time already, and count as waiting; `today` are the possible days there.
    """

    today: Today
    waited_seconds: Floats
    sizes: Floats
    speed: float


class TimeLeft(NamedTuple):
    """Seconds until a job is over: mean, median, and an interval that holds nine of ten."""

    mean_seconds: float
    median_seconds: float
    low_seconds: float
    high_seconds: float


def time_left(
    groups: Sequence[WorkGroup],
    *,
    running: RunningSlots,
    free: FreeSlots,
    queued: Sequence[QueuedSlots],
    bound: Sequence[BoundSlots] = (),
) -> TimeLeft | None:
    """How long a job takes from now; None where no slot is there or will come. Groups come after those they wait for."""
    logs = _run_logarithms(groups)
    if not bound and _is_far_behind(groups, running):
        free, ends = _expected_to_end(groups, running, free)
        busy, running = np.zeros((RUNS, 0)), NOTHING_RUNS
    else:
        busy, ends = _running(groups, running, logs)
    slots = _joined(busy, running, free, queued, bound)
    if slots is None and any(group.packages for group in groups):
        return None
    over = _follow(groups, np.exp(logs), slots, ends, bound)
    ordered = sorted((over * _model_factors()).tolist())
    low, median, high = (_quantile(ordered, share) for share in _QUANTILES)
    return TimeLeft(math.fsum(ordered) / RUNS, median, low, high)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of the runs, each of which stands in the middle of its part."""
    place = share * RUNS - 0.5
    at = int(place)
    return ordered[at] + (place - at) * (ordered[at + 1] - ordered[at])


class _Slots:
    """All slots, in few columns: when each is free in each run, for how many it stands, and the speed of its host.

    `waits` is how long a package waits in a queue before it runs there, in each run; none where no site is bound.
    """

    __slots__ = ("power", "powers", "ready", "sizes", "speeds", "total", "waits")

    def __init__(self, ready: Floats, sizes: Floats, speeds: Floats, waits: Floats | None) -> None:
        self.ready, self.sizes, self.speeds, self.waits = ready, sizes, speeds, waits
        self.powers = sizes * speeds
        self.power, self.total = float(self.powers.sum()), float(sizes.sum())

    def each(self, seconds: Floats) -> Floats:
        """How long a slot takes for a package, in each run."""
        found: Floats = seconds[:, None] / self.speeds
        return found if self.waits is None else found + self.waits

    def mean(self, seconds: Floats, each: Floats) -> Floats:
        """The same on average over the packages that all slots take."""
        if self.waits is None:
            return seconds * (self.total / self.power)
        found: Floats = self.total / np.add.reduce(self.sizes / each, axis=1)
        return found

    def begun_by_all(self, ready: Floats, each: Floats, batch: _Batch) -> Floats:
        """When slots together have begun all packages, if all slots count: each has begun (t - ready) / each + 1 by t."""
        if self.waits is None:
            work: Floats = (batch.packages - self.total) * batch.seconds + ready @ self.powers
            return work / self.power
        rates = self.sizes / each
        begun: Floats = np.add.reduce(rates * ready, axis=1) + (batch.packages - self.total)
        begun /= np.add.reduce(rates, axis=1)
        return begun


def _run_logarithms(groups: Sequence[WorkGroup]) -> Floats:
    """By group and run, the logarithm of the factor on the run time of its packages together: groups vary independently.

    The mean is uncertain, and so many packages differ from it by chance.
    """
    sds = [math.hypot(group.mean_sd, group.spread / math.sqrt(max(group.packages, 1.0))) for group in groups]
    found: Floats = np.array(sds)[:, None] * _group_normals(len(groups))
    return found


def _is_far_behind(groups: Sequence[WorkGroup], running: RunningSlots) -> bool:
    """Whether so much waits behind the running packages that it makes no difference when exactly each of them ends."""
    waiting = math.fsum(group.packages * group.seconds for group in groups)
    longest = max((groups[at].seconds for at in running.groups), default=math.inf)
    return waiting >= _WAVES_MIN * longest * running.slots


def _expected_to_end(
    groups: Sequence[WorkGroup], running: RunningSlots, free: FreeSlots
) -> tuple[FreeSlots, list[Floats]]:
    """Free slots, and those with running packages after the rest that is expected of them; and the last end of each group."""
    rests = [
        expected_rest(mean_seconds=groups[at].seconds / speed, spread=groups[at].spread, elapsed_seconds=elapsed)
        for at, speed, elapsed in zip(
            running.groups, running.speeds.tolist(), running.elapsed_seconds.tolist(), strict=True
        )
    ]
    ends = [_zeros()] * len(groups)
    for at in set(running.groups):
        ends[at] = _zeros() + max(rest for of, rest in zip(running.groups, rests, strict=True) if of == at)
    return (
        FreeSlots(
            np.concatenate([free.after_seconds, rests]),
            np.concatenate([free.sizes, running.sizes]),
            np.concatenate([free.speeds, running.speeds]),
        ),
        ends,
    )


def _running(groups: Sequence[WorkGroup], running: RunningSlots, logs: Floats) -> tuple[Floats, list[Floats]]:
    """When running packages end, given how long they have run; and the last end of each group."""
    ends = [_zeros()] * len(groups)
    if not running.groups:
        return np.zeros((RUNS, 0)), ends
    of = list(running.groups)
    sigma = np.array([max(math.sqrt(math.log1p(groups[at].spread ** 2)), 1e-3) for at in of])
    mean = np.array([groups[at].seconds for at in of]) / running.speeds
    # A log-normal run time, known to be longer than it has been so far.
    factors = logs[of].T - 0.5 * sigma * sigma
    begun = cdf((np.log(np.maximum(running.elapsed_seconds, 1e-9) / mean) - factors) / sigma)
    each = _ends_of(begun, factors, sigma, _uniforms(len(of), stream=13)) * mean - running.elapsed_seconds
    lasts = each
    if len(of) < running.slots:  # the last of several slots in one column
        chances = np.exp(_log_uniforms(len(of), stream=13) / running.sizes)
        lasts = _ends_of(begun, factors, sigma, chances) * mean - running.elapsed_seconds
    overdue = OVERDUE_SHARE * np.maximum(running.elapsed_seconds - mean * np.exp(LIMIT * sigma), 0.0)
    lasts = np.maximum(lasts, overdue)
    firsts = [at for at, group in enumerate(of) if not at or of[at - 1] != group]
    for at, last in zip(firsts, np.maximum.reduceat(lasts, firsts, axis=1).T, strict=True):
        ends[of[at]] = last
    return np.maximum(each, overdue), ends


def _ends_of(begun: Floats, factors: Floats, sigma: Floats, chances: Floats) -> Floats:
    found: Floats = np.exp(sigma * inverse_cdf(begun + chances * (1.0 - begun)) + factors)
    return found


def _joined(
    busy: Floats,
    running: RunningSlots,
    free: FreeSlots,
    queued: Sequence[QueuedSlots],
    bound: Sequence[BoundSlots],
) -> _Slots | None:
    """All slots, in few columns."""
    times, sizes, fast = [busy], [running.sizes], [running.speeds]
    if len(free.sizes):
        times.append(free.after_seconds + _zeros()[:, None])
        sizes.append(free.sizes)
        fast.append(free.speeds)
    for number, site in enumerate(queued):
        times.append(site.starts(stream=20 + number))
        sizes.append(site.sizes)
        fast.append(site.speeds)
    waits = None
    if bound:
        queues = [_waits_of(site.today)[:, None] for site in bound]
        others = sum(map(len, sizes)) - len(running.bound)
        columns = [_zeros()[:, None] if at == NOT_BOUND else queues[at] for at in running.bound]
        columns += [_zeros()[:, None]] * others
        for number, (room, wait) in enumerate(zip(bound, queues, strict=True)):
            # As if it had begun one usual wait before its start.
            times.append(_starts(room.today, room.waited_seconds, stream=40 + number) - wait)
            sizes.append(room.sizes)
            fast.append(np.full(len(room.sizes), room.speed))
            columns += [wait] * len(room.sizes)
        waits = np.concatenate(columns, axis=1) if columns else None
    ready, weights, speed = np.concatenate(times, axis=1), np.concatenate(sizes), np.concatenate(fast)
    count = len(weights)
    if not count:
        return None
    if count <= SLOTS_MAX:
        return _Slots(ready, weights, speed, waits)
    sums = np.add.reduce(ready, axis=0)
    order = np.argsort(sums, kind="stable")
    weights, speed = weights[order], speed[order]
    cuts = [part * count // SLOTS_MAX for part in range(SLOTS_MAX)]
    # Slots that come much later are not taken together with those before them.
    gap = 1 + int(np.diff(sums[order]).argmax())
    cuts[min(range(1, SLOTS_MAX), key=lambda part: abs(cuts[part] - gap))] = gap
    together = np.add.reduceat(weights, cuts)
    # Each row sorted by itself: the first slots of one run are together with the first of another.
    rows = np.sort(ready, axis=1) if np.ptp(weights) == 0.0 and waits is None else ready[:, order]
    return _Slots(
        np.add.reduceat(rows * weights, cuts, axis=1) / together,
        together,
        np.add.reduceat(weights * speed, cuts) / together,
        None if waits is None else np.add.reduceat(waits[:, order] * weights, cuts, axis=1) / together,
    )


def _starts(today: Today, waited_seconds: Floats, *, stream: int) -> Floats:
    """Possible starts of batch jobs in a queue, from now."""
    latencies = _days_of(today).start_latencies(_uniforms(len(waited_seconds), stream=stream), waited_seconds)
    waits = np.maximum(latencies - waited_seconds, 0.0)
    waits[np.isinf(waits)] = _AGAIN * float(today.quantiles_seconds[-1])
    return waits


def _waits_of(today: Today) -> Floats:
    """How long batch jobs wait in a queue on average, on the day of each run."""
    found: Floats = today.quantiles_seconds.mean() * _days_of(today).factors[:, 0]
    return found


def _follow(
    groups: Sequence[WorkGroup],
    factors: Floats,
    slots: _Slots | None,
    ends: list[Floats],
    bound: Sequence[BoundSlots],
) -> Floats:
    """The end of every run: group after group, each on the slots as the ones before leave them."""
    over: list[Floats] = []
    begins: list[Floats] = []
    ready = slots.ready if slots is not None else np.zeros((RUNS, 0))
    mixed_seconds = 0.0  # standard deviation of the moments at which slots are free
    for number, group in enumerate(groups):
        end = ends[number]
        begin = _zeros()
        if group.packages > 0.0 and slots is not None:
            factor = factors[number]
            seconds = group.seconds * factor
            earliest = [over[before] for before in group.after]
            for before in group.follows:
                feeding = groups[before].seconds * factors[before]
                earliest.append(np.minimum(begins[before] + feeding, over[before]))
            possible = np.maximum(ready, reduce(np.maximum, earliest)[:, None]) if earliest else ready
            begin = np.minimum.reduce(possible, axis=1)
            spread = group.spread if slots.waits is None else _spread_with_waits(group, bound)
            batch = _Batch(group.packages, seconds, spread, begin)
            waves = group.packages / slots.total
            mixed_seconds = math.hypot(mixed_seconds, spread * group.seconds * math.sqrt(waves))
            if group.packages <= 1.0:
                last, ready = _one(possible, slots, batch)
            elif waves >= _WAVES_MIN and mixed_seconds >= _MIXED * group.seconds:
                last, ready = _steady(possible, slots, batch)
            else:
                last, ready = _waves(possible, slots, batch)
            end = np.maximum(np.maximum(end, last), begin + group.path_seconds * factor)
            for before in group.follows:
                end = np.maximum(end, over[before] + seconds)
        over.append(end)
        begins.append(begin)
    return reduce(np.maximum, over, _zeros())


def _spread_with_waits(group: WorkGroup, bound: Sequence[BoundSlots]) -> float:
    """How much packages differ that wait in a queue first: by their waits, too, which are as different as those of all sites."""
    quantiles = np.concatenate([site.today.quantiles_seconds for site in bound])
    whole = group.seconds + float(quantiles.mean())
    return round(math.hypot(group.spread * group.seconds, float(quantiles.std())) / whole, 2)


class _Batch(NamedTuple):
    """Packages that are alike, and the first moment in each run at which a slot can take one."""

    packages: float
    seconds: Floats
    spread: float
    begin: Floats


def _one(ready: Floats, slots: _Slots, batch: _Batch) -> tuple[Floats, Floats]:
    """What `_waves` finds for a single package, which the first free slot takes."""
    first = ready.argmin(axis=1)
    each = batch.seconds / slots.speeds[first]
    if slots.waits is not None:
        each = each + slots.waits[_rows(), first]
    following = ready.copy()
    following[_rows(), first] += each / slots.sizes[first]
    if batch.spread > 0.0:
        each = each * _usual_lengths(batch.spread)
    return batch.begin + each, following


def _steady(ready: Floats, slots: _Slots, batch: _Batch) -> tuple[Floats, Floats]:
    """What `_waves` finds where slots are free at any moment.

    A slot is then half a package behind on average, so the last package begins half a package later than if packages could be split.
    """
    each = slots.each(batch.seconds)
    mean = slots.mean(batch.seconds, each)
    last = _begun_by(ready, slots, each, batch) + 0.5 * mean
    end = last + mean
    if batch.spread > _ALIKE:
        end = np.maximum(end, _stragglers(batch, last, mean, last_wave=slots.total))
    return end, np.maximum(ready, last[:, None] + each * _phases(ready.shape[1]))


def _waves(ready: Floats, slots: _Slots, batch: _Batch) -> tuple[Floats, Floats]:
    """The end of the last of equal packages, each taken by the slot that is free first, and when slots are free then."""
    spread = batch.spread
    each = slots.each(batch.seconds)
    begun_by = _begun_by(ready, slots, each, batch)
    taken = np.maximum(np.floor((begun_by[:, None] - ready) / each + (1.0 + 1e-9)), 0.0)
    # Rounding leaves less than one package for each slot: the slots that are free next take them.
    missing = batch.packages - taken @ slots.sizes
    following = ready + taken * each
    if spread > 0.0:
        # Packages that differ mix the moments at which slots are free; no slot is off by more than half a package.
        following += np.minimum(spread * np.sqrt(taken), _MIXED) * each * _drifts(ready.shape[1])
    order = following.argsort(axis=1)
    weights = slots.sizes[order]
    after = np.add.accumulate(weights, axis=1)
    more = np.minimum(np.maximum((missing[:, None] - after) / weights + 1.0, 0.0), 1.0)
    extra = np.empty_like(more)
    extra.put(order + _row_places(ready.shape[1]), more)
    # Of slots that are followed together only some take one more package; the last of them ends a whole package later.
    lasts = np.ceil(extra - 1e-9)
    if spread > 0.0:
        lasts += _longest(slots.sizes, spread)
    end = ((following + lasts * each) * (taken + extra > 1e-9)).max(axis=1)
    if spread > _ALIKE:
        end = np.maximum(end, _stragglers(batch, begun_by, slots.mean(batch.seconds, each)))
    return end, following + extra * each


def _begun_by(ready: Floats, slots: _Slots, each: Floats, batch: _Batch) -> Floats:
    """When the last of equal packages has begun, in each run, if a slot takes parts of packages, too."""
    found = slots.begun_by_all(ready, each, batch)
    counts_from = ready - each
    if bool((np.maximum.reduce(counts_from, axis=1) <= found).all()):
        return found
    # Else it is the least over all prefixes of slots, in the order in which they begin to count.
    order = counts_from.argsort(axis=1)
    flat = order + _row_places(ready.shape[1])
    weights = slots.sizes[order]
    rates = weights / each.take(flat)
    known = np.add.accumulate(rates * ready.take(flat) - weights, axis=1)
    least: Floats = np.minimum.reduce((batch.packages + known) / np.add.accumulate(rates, axis=1), axis=1)
    return least


def _stragglers(batch: _Batch, last: Floats, seconds: Floats, *, last_wave: float = 0.0) -> Floats:
    """The end of the longest package, which may have begun at any time: the longest of each part of the time is looked at.

    With `last_wave`, also the longest of so many packages, which began within one run time before the last.
    """
    longest = _longest_of_parts(_rounded(batch.packages / _PARTS), _rounded(last_wave), batch.spread)
    begun = batch.begin[:, None] + np.maximum(last - batch.begin, 0.0)[:, None] * _PARTS_AND_LAST[: longest.shape[1]]
    found: Floats = np.maximum.reduce(begun + seconds[:, None] * longest, axis=1)
    return found


def _rounded(packages: float) -> float:
    """A power of two, so that few numbers are computed and kept: the longest of so many is hardly longer or shorter."""
    return 2.0 ** round(math.log2(packages)) if packages > 1.0 else min(packages, 1.0)


@lru_cache(maxsize=1024)
def _longest_of_parts(part: float, last_wave: float, spread: float) -> Floats:
    """How long the longest package of each part takes, by the mean; of the last wave, from the middle of the wave on."""
    found: Floats = 1.0 + _longest(np.array([max(part, 1.0)] * _PARTS + [last_wave] * bool(last_wave)), spread)
    if last_wave:
        found[:, -1] -= 0.5
    return found


@lru_cache(maxsize=256)
def _usual_lengths(spread: float) -> Floats:
    """How long one package takes, by the mean."""
    found: Floats = 1.0 + _longest(np.ones(1), spread)[:, 0]
    return found


def _longest(sizes: Floats, spread: float) -> Floats:
    """By how much the longest of so many packages is longer than the mean, by that mean; their run time is log-normal."""
    variance = math.log1p(spread**2)
    highest = inverse_cdf(np.exp(_log_uniforms(len(sizes), stream=15) / sizes))
    found: Floats = np.exp(math.sqrt(variance) * highest - 0.5 * variance) - 1.0
    return found


# --- numbers that stand for chance: the same at every call ----------------------------------------------------------------

_MIXED = 0.29  # of a package: the standard deviation of a moment somewhere within it


@lru_cache(maxsize=256)
def _uniforms(columns: int, *, stream: int) -> Floats:
    return uniforms(RUNS, columns, stream=stream)


@lru_cache(maxsize=256)
def _log_uniforms(columns: int, *, stream: int) -> Floats:
    return np.log(uniforms(RUNS, columns, stream=stream))


@lru_cache(maxsize=256)
def _normals(columns: int, *, stream: int) -> Floats:
    return inverse_cdf(uniforms(RUNS, columns, stream=stream))


@lru_cache(maxsize=64)
def _group_normals(groups: int) -> Floats:
    return np.ascontiguousarray(_normals(groups, stream=12).T)


@lru_cache(maxsize=64)
def _drifts(columns: int) -> Floats:
    """By how much slots are off, in standard deviations; none by more than half a package."""
    return np.clip(_normals(columns, stream=14), -0.5 / _MIXED, 0.5 / _MIXED)


@lru_cache(maxsize=64)
def _phases(columns: int) -> Floats:
    """When slots that are free at any moment are free next, by the run time of a package."""
    return uniforms(RUNS, columns, stream=17)


@lru_cache(maxsize=1)
def _model_factors() -> Floats:
    found: Floats = np.exp(MODEL_SD * _normals(1, stream=11)[:, 0])
    return found


@lru_cache(maxsize=1)
def _zeros() -> Floats:
    return np.zeros(RUNS)


@lru_cache(maxsize=1)
def _rows() -> NDArray[np.int64]:
    return np.arange(RUNS)


@lru_cache(maxsize=64)
def _row_places(columns: int) -> NDArray[np.int64]:
    return (np.arange(RUNS) * columns)[:, None]


@lru_cache(maxsize=16)
def _days_of(today: Today) -> RunDays:
    """The day of each run, the likelier the more runs: spread over the runs so that slow days meet short run times, too."""
    shuffled = (np.argsort(_uniforms(1, stream=16)[:, 0]) + 0.5) / RUNS
    found = np.searchsorted(np.cumsum(today.weights), shuffled * (1.0 - 1e-12))
    return today.of_runs(np.minimum(found, len(today.weights) - 1))
