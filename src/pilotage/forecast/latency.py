"""The latency of pilots: from the request of a pilot to its start, as an empirical distribution with faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.steps import Floats, StepFunction
from pilotage.model.errors import PilotageError


@dataclass(frozen=True, eq=False)
class LatencyDistribution:
    """The probability that a pilot has started some time after its request: `(1 - fault ratio) * F_L` of the paper.

    A fault is a pilot with infinite latency (pilot-job-model, section 2.2), so the function ends below 1.
    """

    started: StepFunction
    observations: int

    @property
    def fault_ratio(self) -> float:
        """The share of pilots that never start: rho of the paper."""
        return max(0.0, 1.0 - self.started.last_value)

    @property
    def lower_bound_seconds(self) -> float:
        """The largest time at which no pilot has started yet: a of the paper (below eq. 3)."""
        return float(self.started.times_seconds[0])

    def at(self, times_seconds: ArrayLike) -> Floats:
        """`(1 - fault ratio) * F_L(t)`."""
        return self.started.at(times_seconds)


def empirical_latency(latencies_seconds: ArrayLike) -> LatencyDistribution:
    """The empirical distribution of measured latencies, with infinity for each fault (pilot-job-model, section 2.2).

    Raises `PilotageError` where there is no start among them.
    """
    measured = np.sort(np.asarray(latencies_seconds, dtype=np.float64).ravel())
    started = int(np.searchsorted(measured, np.inf))
    if not started:
        raise no_start(len(measured))
    values = np.arange(1, started + 1, dtype=np.float64)
    values /= len(measured)
    return LatencyDistribution(StepFunction(measured[:started], values), observations=len(measured))


def no_start(count: int) -> PilotageError:
    """The error for latencies that are all faults."""
    return PilotageError(
        f"none of {count:,} pilots started: every latency is a fault",
        next_step="forecast from pilots of which some started",
    )
