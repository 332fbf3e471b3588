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
    censored = np.isnan(latencies)
    # A pilot that starts at the very moment at which another is last seen queued starts before it.
    waited = np.sort(np.where(censored, np.asarray(censored_at_seconds, dtype=np.float64), latencies))
    times, starts = np.unique(latencies[np.isfinite(latencies)], return_counts=True)
    if not len(times):
        raise no_start(len(latencies))
    at_risk = len(waited) - np.searchsorted(waited, times, side="left")
    survival = np.cumprod(1.0 - starts / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = starts / (at_risk * (at_risk - starts))
    variances = np.where(survival > 0.0, survival**2 * np.cumsum(np.where(np.isfinite(terms), terms, 0.0)), 0.0)
    started = StepFunction(times, (1.0 - survival).astype(np.float64))
    return CensoredLatency(LatencyDistribution(started, len(latencies)), variances, int(censored.sum()))
