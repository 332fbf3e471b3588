"""Forecasts once some pilots have started: what they show of today corrects what earlier pilots showed.

The paper's model takes every pilot for independent of the others. Pilots of one day are not: all are slow, or many are faults.
So today's latencies are those of the history times one unknown factor, with one unknown fault ratio. What has started, and
what has not started yet, weighs the possible factors and ratios; of the pilots still queued each combination says how likely they
start by when.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pilotage.forecast.available import binomial, poisson_binomial, tail
from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.steps import Floats, StepFunction

_QUANTILES = 256  # of the history's latencies
_FACTORS = 25
_RATIOS = 24
_LEARNED_MAX = 256  # starts that are looked at one by one
_GROUPS_MAX = 64  # of queued pilots that were submitted at nearly the same time
_LEARNED_GROUPS_MAX = 8  # the same where only the day is learned
_NEWTON_STEPS_MAX = 100
_TIMES_MAX = 1000
_DENSITY_POINTS = 512
_WEIGHT_MIN = 1e-6
_BANDWIDTH_MIN = 0.02
_LATENCY_MIN_SECONDS = 1e-3
_LOG_UNSEEN = -27.6  # of a density that is as good as 0


@dataclass(frozen=True)
class Drift:
    """How far a day may be from the history.

    `factor_sd` is the standard deviation of the logarithm of the factor between latencies of today and of the history;
    the history's fault ratio counts as if it had been seen on `fault_ratio_pilots` pilots of today. To these come half a fault
    and half a start once pilots of today are looked at: what the history never saw may happen today.
    """

    factor_sd: float
    fault_ratio_pilots: float


USUAL_DRIFT = Drift(factor_sd=0.4, fault_ratio_pilots=8.0)
"""Two days of three within a factor of 1.5; a history whose fault ratio eight pilots of today outweigh."""

NO_DRIFT = Drift(factor_sd=0.0, fault_ratio_pilots=np.inf)
"""Today is as the history was."""


@dataclass(frozen=True, eq=False)
class ObservedPilots:
    """Pilots of today as they are at `now_seconds`: when each was submitted, and when it started; infinity where it has not."""

    now_seconds: float
    submitted_seconds: Floats
    started_seconds: Floats

    @property
    def starts_seconds(self) -> Floats:
        """When pilots started, in order."""
        return np.sort(self.started_seconds[self.started_seconds <= self.now_seconds])

    @property
    def queued_submitted_seconds(self) -> Floats:
        """When the pilots that have not started were submitted; some may only be submitted later."""
        return np.sort(self.submitted_seconds[self.started_seconds > self.now_seconds])


@dataclass(frozen=True, eq=False)
class Today:
    """Possible days, each with its probability: a factor on the latencies of the history, and a fault ratio."""

    quantiles_seconds: Floats
    factors: Floats
    fault_ratios: Floats
    weights: Floats

    def started(self, elapsed_seconds: ArrayLike) -> Floats:
        """The probability to have started some time after the request, on each possible day, as rows of days."""
        elapsed = np.asarray(elapsed_seconds, dtype=np.float64)
        scaled = elapsed / self.factors.reshape(-1, *[1] * elapsed.ndim)
        ratio = np.searchsorted(self.quantiles_seconds, scaled, side="right") / len(self.quantiles_seconds)
        found: Floats = ratio * (1.0 - self.fault_ratios).reshape(-1, *[1] * elapsed.ndim)
        return found

    def mean_started_later(self, elapsed_seconds: Floats, later_seconds: Floats) -> Floats:
        """The probability, over all days, that pilots that have waited for some time have started some time later.

        Rows are pilots, columns are times. The fault ratio of a day only scales it, so days are taken together by their factor.
        """
        factors, _, _ = self._factors
        count = len(self.quantiles_seconds)
        waited, scales = self.after_a_wait(elapsed_seconds)
        found = np.zeros(later_seconds.shape)
        for number, factor in enumerate(factors):
            later = np.searchsorted(self.quantiles_seconds, later_seconds / factor, side="right") / count
            found += scales[number][:, None] * np.maximum(later - waited[number][:, None], 0.0)
        return found

    def after_a_wait(self, elapsed_seconds: Floats) -> tuple[Floats, Floats]:
        """For each distinct factor and each pilot that has waited: F_L at its wait, and what a rise of F_L after it counts.

        The second is the sum over the days of a factor of w (1 - rho) / (1 - (1 - rho) F_L(wait)).
        """
        factors, place, of_factor = self._factors
        scaled = elapsed_seconds / factors[:, None]
        waited = np.searchsorted(self.quantiles_seconds, scaled, side="right") / len(self.quantiles_seconds)
        starts = 1.0 - self.fault_ratios
        left = np.maximum(1.0 - waited[place] * starts[:, None], 1e-12)
        return waited, of_factor @ ((self.weights * starts)[:, None] / left)

    def area_started(self, elapsed_seconds: Floats) -> tuple[Floats, Floats]:
        """F_L, without faults, some time after the request, and its integral up to then, exactly: rows are distinct factors."""
        factors, _, _ = self._factors
        scaled = elapsed_seconds / factors[:, None]
        passed = np.searchsorted(self.quantiles_seconds, scaled, side="right")
        count = len(self.quantiles_seconds)
        return passed / count, factors[:, None] * (passed * scaled - self._sums[passed]) / count

    @cached_property
    def _factors(self) -> tuple[Floats, NDArray[np.int64], Floats]:
        """The distinct factors, the place of each day's factor among them, and 1 for each factor and each day that has it."""
        factors, place = np.unique(self.factors, return_inverse=True)
        return factors, place, (place == np.arange(len(factors))[:, None]).astype(np.float64)

    @cached_property
    def _sums(self) -> Floats:
        """The sum of the first quantiles, for every number of them."""
        return np.concatenate([[0.0], np.cumsum(self.quantiles_seconds)])

    @property
    def longest_seconds(self) -> float:
        """A time after its request by which a pilot has started, unless it never does."""
        return float(self.quantiles_seconds[-1] * self.factors.max())

    def start_latencies(self, days: ArrayLike, uniforms: Floats, elapsed_seconds: Floats) -> Floats:
        """Latencies that uniform numbers stand for, of pilots that have waited for some time already; infinite for a fault.

        Each row is of one day, each column of one pilot, whose elapsed time is negative before its submission.
        """
        return self.of_runs(days).start_latencies(uniforms, elapsed_seconds)

    def of_runs(self, days: ArrayLike) -> RunDays:
        """The days of some runs, for whoever asks about the same runs again and again."""
        chosen = np.asarray(days)
        starts = np.maximum(1.0 - self.fault_ratios[chosen, None], 1e-12)
        return RunDays(self.quantiles_seconds, self.factors[chosen, None], starts)


@dataclass(frozen=True, eq=False)
class RunDays:
    """The day of each of some runs: the factor on its latencies, and the share of its pilots that start, as columns."""

    quantiles_seconds: Floats
    factors: Floats
    starts: Floats

    def start_latencies(self, uniforms: Floats, elapsed_seconds: Floats) -> Floats:
        """Latencies that uniform numbers stand for, of pilots that have waited for some time already; infinite for a fault."""
        quantiles = self.quantiles_seconds
        scaled = elapsed_seconds / self.factors
        waited = quantiles.searchsorted(scaled, side="right") * (self.starts / len(quantiles))
        target = (waited + uniforms * (1.0 - waited)) / self.starts
        found = quantiles.take((target * len(quantiles)).astype(np.intp), mode="clip")
        found = np.maximum(found, scaled) * self.factors
        found[target >= 1.0] = np.inf
        return found


def possible_days(latency: LatencyDistribution, *, drift: Drift) -> Today:
    """The possible days before anything of today was seen; on average they are as the history was."""
    return _days(latency, drift=drift, surprise=0.0)


def _days(latency: LatencyDistribution, *, drift: Drift, surprise: float) -> Today:
    values = latency.started.values / latency.started.last_value
    asked = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    quantiles = latency.started.times_seconds[np.searchsorted(values, asked)]
    if len(values) <= _QUANTILES and np.allclose(np.diff(values, prepend=0.0), 1.0 / len(values)):
        quantiles = latency.started.times_seconds  # few and equally likely: taken as they are
    spread = np.linspace(-3.0, 3.0, _FACTORS) if drift.factor_sd > 0.0 else np.zeros(1)
    factor_weights = np.exp(-0.5 * spread**2)
    # The mean of the factor is 1: without evidence no day is slower than the history.
    factors = np.exp(drift.factor_sd * spread - 0.5 * drift.factor_sd**2)
    ratios, ratio_weights = _fault_ratios(latency, pilots=drift.fault_ratio_pilots, surprise=surprise)
    weights = np.outer(factor_weights, ratio_weights).ravel()
    return Today(
        np.maximum(quantiles, 0.0),
        np.repeat(factors, len(ratios)),
        np.tile(ratios, len(factors)),
        weights / weights.sum(),
    )


@dataclass(frozen=True, eq=False)
class _Prior:
    """What the history alone says, prepared once for all forecasts from it: possible days, and the density of latencies."""

    days: Today
    factors: Floats
    ratios: Floats
    log_weights: Floats  # rows are factors, columns are fault ratios
    density_at: Floats  # logarithms of latencies
    log_density: Floats


_PRIORS: WeakKeyDictionary[LatencyDistribution, dict[Drift, _Prior]] = WeakKeyDictionary()


def _prior(latency: LatencyDistribution, drift: Drift) -> _Prior:
    known = _PRIORS.setdefault(latency, {})
    found = known.get(drift)
    if found is None:
        days = _days(latency, drift=drift, surprise=0.5)
        factors, ratios = np.unique(days.factors), np.unique(days.fault_ratios)
        log_weights = np.log(np.maximum(days.weights, 1e-300)).reshape(len(factors), -1)
        found = known[drift] = _Prior(days, factors, ratios, log_weights, *_log_density(days.quantiles_seconds))
    return found


def learn_today(latency: LatencyDistribution, observed: ObservedPilots, *, drift: Drift) -> Today:
    """The possible days, weighed by what has started, and after which wait, and by what has not started (Bayes).

    What depends on the history alone is computed once for each distribution of latencies.
    """
    prior = _prior(latency, drift)
    started = observed.started_seconds <= observed.now_seconds
    waits = np.sort(observed.started_seconds[started] - observed.submitted_seconds[started])
    logs = prior.log_weights + len(waits) * np.log1p(-np.minimum(prior.ratios, 1.0 - 1e-12))
    if len(waits):
        some = waits[np.linspace(0, len(waits) - 1, min(len(waits), _LEARNED_MAX)).astype(np.int64)]
        asked = np.subtract.outer(np.log(np.maximum(some, _LATENCY_MIN_SECONDS)), np.log(prior.factors))
        density = np.interp(asked, prior.density_at, prior.log_density, left=_LOG_UNSEEN, right=_LOG_UNSEEN)
        logs += (density.sum(axis=0) * (len(waits) / len(some)))[:, None]
    waiting = observed.now_seconds - observed.submitted_seconds[~started]
    waiting = np.sort(waiting[waiting > 0.0])
    if len(waiting):
        elapsed, counts = _grouped(waiting, most=_LEARNED_GROUPS_MAX)
        gone, _ = prior.days.area_started(elapsed)
        left = 1.0 - gone[:, None, :] * (1.0 - prior.ratios)[:, None]
        logs += np.log(np.maximum(left, 1e-9)) @ counts
    weights = np.exp(logs - logs.max()).ravel()
    weights[weights < _WEIGHT_MIN] = 0.0
    kept = weights > 0.0
    days = prior.days
    return Today(days.quantiles_seconds, days.factors[kept], days.fault_ratios[kept], weights[kept] / weights.sum())


@dataclass(frozen=True, eq=False)
class ConditionedPilots:
    """How many pilots are available, given what has started by now (pilot-job-model, eq. 1 and 2, on each possible day)."""

    observed: ObservedPilots
    today: Today

    def mean(self, at_seconds: ArrayLike) -> Floats:
        """The expected number at some times; before now, what was seen."""
        at = np.atleast_1d(np.asarray(at_seconds, dtype=np.float64))
        submitted, counts = _grouped(self.observed.queued_submitted_seconds)
        now = self.observed.now_seconds
        later = self.today.mean_started_later(now - submitted, np.subtract.outer(np.maximum(at, now), submitted).T)
        return self._known(at) + counts @ np.minimum(later, 1.0)

    def sd(self, at_seconds: ArrayLike) -> Floats:
        """The standard deviation at some times: of pilots on one day, and between the possible days."""
        at = np.atleast_1d(np.asarray(at_seconds, dtype=np.float64))
        chances, counts = self._chances(at)
        means = np.einsum("dqt,q->dt", chances, counts)
        within = np.einsum("dqt,q->dt", chances * (1.0 - chances), counts)
        mean = self.today.weights @ means
        found: Floats = np.sqrt(self.today.weights @ (within + (means - mean) ** 2))
        return found

    def probability_at_least(self, at_least: int, at_seconds: ArrayLike) -> Floats:
        """The probability that at least so many are available at some times."""
        at = np.atleast_1d(np.asarray(at_seconds, dtype=np.float64))
        known, (chances, counts) = self._known(at), self._chances(at)
        found = np.zeros(len(at))
        for moment in range(len(at)):
            missing = at_least - int(known[moment])
            for day, weight in enumerate(self.today.weights):
                groups = [binomial(int(counts[q]), float(chances[day, q, moment])) for q in range(len(counts))]
                found[moment] += weight * tail(_sum_of(groups), at_least=missing)
        return found

    def available(self) -> StepFunction:
        """The expected number over time as a step function: its area is the work done (pilot-job-model, eq. 3)."""
        starts = self.observed.starts_seconds
        submitted = self.observed.queued_submitted_seconds
        times = [starts]
        if len(submitted):
            waits = np.unique(np.outer(self.today.quantiles_seconds, np.unique(self.today.factors)).ravel())
            some = np.unique(submitted[np.linspace(0, len(submitted) - 1, min(len(submitted), 16)).astype(np.int64)])
            later = np.add.outer(waits, some).ravel()
            later = np.unique(later[later > self.observed.now_seconds])
            times.append(later[np.linspace(0, len(later) - 1, min(len(later), _TIMES_MAX)).astype(np.int64)])
        every = np.unique(np.concatenate(times))
        if not len(every):
            return StepFunction(np.array([self.observed.now_seconds]), np.zeros(1))
        return StepFunction(every, np.maximum.accumulate(self.mean(every)))

    def makespan(self, work_seconds: float) -> float:
        """When the work is done: the area below the expected number reaches it, exactly (pilot-job-model, eq. 3).

        The number never falls, so its area is convex, and Newton's steps from a late time on never pass the solution.
        """
        starts, now = self.observed.starts_seconds, self.observed.now_seconds
        submitted, counts = _grouped(self.observed.queued_submitted_seconds)
        waited, scales = self.today.after_a_wait(now - submitted)
        scales *= counts
        _, before = self.today.area_started(now - submitted)

        def done_and_rate(at: float) -> tuple[float, float]:
            known = starts[: np.searchsorted(starts, at, side="right")]
            done, rate = len(known) * at - float(known.sum()), float(len(known))
            if at > now:
                reached, area = self.today.area_started(at - submitted)
                done += float((scales * (area - before - waited * (at - now))).sum())
                rate += float((scales * (reached - waited)).sum())
            return done, rate

        last = float(submitted[-1]) + self.today.longest_seconds if len(submitted) else now
        at = max(now, last * (1.0 + 1e-9) + 1e-6)
        for _ in range(_NEWTON_STEPS_MAX):
            done, rate = done_and_rate(at)
            if rate <= 1e-12:
                return np.inf if done < work_seconds else at
            step = (work_seconds - done) / rate
            at += step
            if step > -1e-7 * max(at, 1.0):  # beyond the last start, one step forward is exact, too
                return at
        return at

    def _known(self, at: Floats) -> Floats:
        return np.searchsorted(self.observed.starts_seconds, at, side="right").astype(np.float64)

    def _chances(self, at: Floats) -> tuple[Floats, Floats]:
        """For each day, group of queued pilots and time, how likely a pilot has started; and the sizes of the groups."""
        submitted, counts = _grouped(self.observed.queued_submitted_seconds)
        now = self.observed.now_seconds
        waited = self.today.started(now - submitted)[..., None]
        later = self.today.started(np.subtract.outer(at, submitted).T)
        chances = (later - waited) / np.maximum(1.0 - waited, 1e-12)
        return np.clip(np.where(at > now, chances, 0.0), 0.0, 1.0), counts


def _fault_ratios(latency: LatencyDistribution, *, pilots: float, surprise: float) -> tuple[Floats, Floats]:
    """Possible fault ratios and their weights: a Beta distribution around that of the history."""
    if np.isinf(pilots):
        return np.array([latency.fault_ratio]), np.ones(1)
    count = latency.observations
    mean = (latency.fault_ratio * count + 0.5) / (count + 1.0) if not surprise else latency.fault_ratio
    faults, starts = pilots * mean + surprise, pilots * (1.0 - mean) + surprise
    edges = np.linspace(0.0, 1.0, _RATIOS + 1) ** 2
    middles = (edges[1:] + edges[:-1]) / 2
    weights = middles ** (faults - 1.0) * (1.0 - middles) ** (starts - 1.0) * np.diff(edges)
    # Near 0 the density may have a pole: the first interval is integrated exactly.
    weights[0] = edges[1] ** faults / faults
    middles[0] = edges[1] * faults / (faults + 1.0)
    return middles, weights / weights.sum()


def _log_density(latencies: Floats) -> tuple[Floats, Floats]:
    """The logarithm of the density of the logarithm of latencies: a kernel estimate, which a factor only shifts.

    It is a table: logarithms of latencies, and the value at each.
    """
    known = np.log(np.maximum(latencies, _LATENCY_MIN_SECONDS))
    quartiles = np.percentile(known, [25.0, 75.0])
    spread = min(float(known.std()), float(quartiles[1] - quartiles[0]) / 1.34)
    bandwidth = max(0.9 * spread * len(known) ** -0.2, _BANDWIDTH_MIN)
    at = np.linspace(known.min() - 5.0 * bandwidth, known.max() + 5.0 * bandwidth, _DENSITY_POINTS)
    kernels = np.exp(-0.5 * (np.subtract.outer(at, known) / bandwidth) ** 2).mean(axis=1) / bandwidth
    return at, np.log(np.maximum(kernels, 1e-12))


def _grouped(times: Floats, *, most: int = _GROUPS_MAX) -> tuple[Floats, Floats]:
    """Few times that stand for many sorted ones, and how many each stands for."""
    found, counts = np.unique(times, return_counts=True)
    if len(found) <= most:
        return found, counts.astype(np.float64)
    begins = np.linspace(0.0, len(times), most, endpoint=False).astype(np.int64)
    counts = np.diff(begins, append=len(times))
    return np.add.reduceat(times, begins) / counts, counts.astype(np.float64)


def _sum_of(distributions: list[Floats]) -> Floats:
    found = poisson_binomial([])
    for each in distributions:
        found = np.convolve(found, each)
    return found
