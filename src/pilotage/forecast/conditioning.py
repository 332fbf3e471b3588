"""Forecasts once some pilots have started: what they show of today corrects what earlier pilots showed.

The paper's model takes every pilot for independent of the others. Pilots of one day are not: all are slow, or many are faults.
So today's latencies are those of the history times one unknown factor, with one unknown fault ratio. What has started, and
what has not started yet, weighs the possible factors and ratios; of the pilots still queued each combination says how likely they
start by when.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.available import binomial, poisson_binomial, tail
from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.steps import Floats, StepFunction

_QUANTILES = 256  # of the history's latencies
_FACTORS = 25
_RATIOS = 24
_LEARNED_MAX = 2000  # starts that are looked at one by one
_GROUPS_MAX = 64  # of queued pilots that were submitted at nearly the same time
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
        factors, place = np.unique(self.factors, return_inverse=True)
        count = len(self.quantiles_seconds)
        found = np.zeros(later_seconds.shape)
        for number, factor in enumerate(factors):
            waited = np.searchsorted(self.quantiles_seconds, elapsed_seconds / factor, side="right") / count
            later = np.searchsorted(self.quantiles_seconds, later_seconds / factor, side="right") / count
            weights, starts = self.weights[place == number], 1.0 - self.fault_ratios[place == number]
            left = np.maximum(1.0 - np.outer(waited, starts), 1e-12)
            scale = (weights * starts / left).sum(axis=1)
            found += scale[:, None] * np.maximum(later - waited[:, None], 0.0)
        return found

    def start_latencies(self, days: ArrayLike, uniforms: Floats, elapsed_seconds: Floats) -> Floats:
        """Latencies that uniform numbers stand for, of pilots that have waited for some time already; infinite for a fault.

        Each row is of one day, each column of one pilot, whose elapsed time is negative before its submission.
        """
        chosen = np.asarray(days)
        ratios, factors = self.fault_ratios[chosen, None], self.factors[chosen, None]
        scaled = elapsed_seconds / factors
        waited = np.searchsorted(self.quantiles_seconds, scaled, side="right") / len(self.quantiles_seconds)
        waited *= 1.0 - ratios
        target = (waited + uniforms * (1.0 - waited)) / np.maximum(1.0 - ratios, 1e-12)
        place = np.minimum((target * len(self.quantiles_seconds)).astype(np.int64), len(self.quantiles_seconds) - 1)
        return np.where(target < 1.0, np.maximum(self.quantiles_seconds[place], scaled) * factors, np.inf)


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


def learn_today(latency: LatencyDistribution, observed: ObservedPilots, *, drift: Drift) -> Today:
    """The possible days, weighed by what has started, and after which wait, and by what has not started (Bayes)."""
    prior = _days(latency, drift=drift, surprise=0.5)
    started = observed.started_seconds <= observed.now_seconds
    waits = np.sort(observed.started_seconds[started] - observed.submitted_seconds[started])
    logs = np.log(np.maximum(prior.weights, 1e-300))
    logs += len(waits) * np.log1p(-np.minimum(prior.fault_ratios, 1.0 - 1e-12))
    if len(waits):
        some = waits[np.linspace(0, len(waits) - 1, min(len(waits), _LEARNED_MAX)).astype(np.int64)]
        factors, place = np.unique(prior.factors, return_inverse=True)
        density = _log_density(prior.quantiles_seconds, np.divide.outer(some, factors)).sum(axis=0)
        logs += density[place] * (len(waits) / len(some))
    waiting = observed.now_seconds - observed.queued_submitted_seconds
    elapsed, counts = np.unique(waiting[waiting > 0.0], return_counts=True)
    for wait, count in zip(elapsed, counts, strict=True):
        logs += count * np.log(np.maximum(1.0 - prior.started(wait), 1e-9))
    weights = np.exp(logs - logs.max())
    weights[weights < _WEIGHT_MIN * weights.max()] = 0.0
    kept = weights > 0.0
    return Today(prior.quantiles_seconds, prior.factors[kept], prior.fault_ratios[kept], weights[kept] / weights.sum())


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


def _log_density(latencies: Floats, at: Floats) -> Floats:
    """The logarithm of the density of the logarithm of latencies: a kernel estimate, which a factor only shifts."""
    known = np.log(np.maximum(latencies, _LATENCY_MIN_SECONDS))
    asked = np.log(np.maximum(at, _LATENCY_MIN_SECONDS))
    quartiles = np.percentile(known, [25.0, 75.0])
    spread = min(float(known.std()), float(quartiles[1] - quartiles[0]) / 1.34)
    bandwidth = max(0.9 * spread * len(known) ** -0.2, _BANDWIDTH_MIN)
    # Tabulated: there are more places to ask for than it takes to draw the curve.
    at = np.linspace(known.min() - 5.0 * bandwidth, known.max() + 5.0 * bandwidth, _DENSITY_POINTS)
    kernels = np.exp(-0.5 * (np.subtract.outer(at, known) / bandwidth) ** 2).mean(axis=1) / bandwidth
    logs = np.log(np.maximum(kernels, 1e-12))
    found: Floats = np.interp(asked, at, logs, left=_LOG_UNSEEN, right=_LOG_UNSEEN)
    return found


def _grouped(times: Floats) -> tuple[Floats, Floats]:
    """Few times that stand for many, and how many each stands for."""
    found, counts = np.unique(times, return_counts=True)
    if len(found) <= _GROUPS_MAX:
        return found, counts.astype(np.float64)
    parts = np.array_split(times, _GROUPS_MAX)
    return np.array([part.mean() for part in parts]), np.array([float(len(part)) for part in parts])


def _sum_of(distributions: list[Floats]) -> Floats:
    found = poisson_binomial([])
    for each in distributions:
        found = np.convolve(found, each)
    return found
