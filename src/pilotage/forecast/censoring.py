"""Latencies of which some are not known yet: a pilot that is still queued has waited at least so long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.latency import LatencyDistribution, no_start
from pilotage.forecast.steps import Floats, StepFunction


@dataclass(frozen=True, eq=False)
class CensoredLatency:
    """The Kaplan-Meier estimate of a latency distribution, and the variance of the estimate at each of its steps."""

    latency: LatencyDistribution
    variances: Floats
    censored: int

    def sd_at(self, times_seconds: ArrayLike) -> Floats:
        """The standard deviation of the estimated probability to have started by some times (Greenwood's formula)."""
        times = np.asarray(times_seconds, dtype=np.float64)
        found = np.searchsorted(self.latency.started.times_seconds, times, side="right") - 1
        return np.where(found < 0, 0.0, np.sqrt(self.variances[found]))


def kaplan_meier(*, latencies_seconds: ArrayLike, censored_at_seconds: ArrayLike) -> CensoredLatency:
    """The distribution of latencies where some pilots are still queued or were withdrawn while they were.

    A latency is infinite for a fault, and not a number where the pilot had waited for `censored_at_seconds` without an end.
    A fault never starts, so it stays at risk throughout. Whatever is left after the last start never starts, as far as is known.
    """
    latencies = np.asarray(latencies_seconds, dtype=np.float64)
    is_censored = np.isnan(latencies)
    times, starts = np.unique(latencies[np.isfinite(latencies)], return_counts=True)
    waits = np.broadcast_to(np.asarray(censored_at_seconds, dtype=np.float64), latencies.shape)
    return kaplan_meier_of_counts(
        times_seconds=times,
        starts=starts,
        censored_at_seconds=waits[is_censored],
        censored=np.ones(int(is_censored.sum()), np.int64),
        faults=int(np.isinf(latencies).sum()),
    )


def kaplan_meier_of_counts(
    *,
    times_seconds: ArrayLike,
    starts: ArrayLike,
    censored_at_seconds: ArrayLike,
    censored: ArrayLike,
    faults: int,
) -> CensoredLatency:
    """As `kaplan_meier`, where the starts at each of some increasing times are counted, and the waits likewise."""
    times, began = np.asarray(times_seconds, dtype=np.float64), np.asarray(starts, dtype=np.int64)
    waits, waiting = np.asarray(censored_at_seconds, dtype=np.float64), np.asarray(censored, dtype=np.int64)
    total = int(began.sum()) + int(waiting.sum()) + faults
    if not began.sum():
        raise no_start(total)
    order = np.argsort(waits, kind="stable")
    left = np.concatenate([[0], np.cumsum(waiting[order])])
    # A pilot that starts at the very moment at which another is last seen queued starts before it.
    at_risk = total - (np.cumsum(began) - began) - left[np.searchsorted(waits[order], times, side="left")]
    survival = np.cumprod(1.0 - began / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = began / (at_risk * (at_risk - began))
    variances = np.where(survival > 0.0, survival**2 * np.cumsum(np.where(np.isfinite(terms), terms, 0.0)), 0.0)
    started = StepFunction(times, (1.0 - survival).astype(np.float64))
    return CensoredLatency(LatencyDistribution(started, total), variances, int(waiting.sum()))
