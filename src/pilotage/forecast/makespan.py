"""How long work takes on pilots that start one after the other, and how many pilots it takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.steps import Floats


def expected_work_left(
    latency: LatencyDistribution, *, work_seconds: float, pilots: int, at_seconds: ArrayLike
) -> Floats:
    """E_W(t) = max(w_0 - n * integral of F_L from 0 to t, 0) (pilot-job-model, section 2.4)."""
    return np.maximum(work_seconds - pilots * latency.started.area(at_seconds), 0.0)


def expected_makespan(latency: LatencyDistribution, *, work_seconds: ArrayLike, pilots: ArrayLike) -> Floats:
    """E_M(n): the time until which the integral of F_L from a on is w_0 / n, exactly (pilot-job-model, eq. 3)."""
    work = np.asarray(work_seconds, dtype=np.float64)
    return latency.started.time_of_area(work / np.asarray(pilots, dtype=np.float64))


def makespan_limit_seconds(latency: LatencyDistribution) -> float:
    """The makespan as the number of simultaneously submitted pilots grows without limit: a (pilot-job-model, eq. 4)."""
    return latency.lower_bound_seconds


def pilots_within(
    latency: LatencyDistribution, *, work_seconds: float, makespan_seconds: float, pilots_max: int
) -> int | None:
    """The smallest n with E_M(n) at most a given makespan (pilot-job-model, eq. 3); None where `pilots_max` are too few."""
    per_pilot = float(latency.started.area(makespan_seconds))
    if per_pilot <= 0.0:
        return None
    found = max(1, int(np.ceil(work_seconds / per_pilot * (1.0 - 1e-12))))
    return found if found <= pilots_max else None
