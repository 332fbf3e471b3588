"""When the packages of a plan would start and end, were they submitted now."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pilotage.forecast.package_times import ExpectedTimes, expected_times
from pilotage.model.jobs.graph import Graph

__all__ = ["ExpectedTimes", "planned_times"]


def planned_times(graph: Graph, seconds: NDArray[np.float64], *, slots: int) -> ExpectedTimes:
    """Seconds from the submission until each package starts and ends; the run time is 0 for those that would not run."""
    return expected_times(
        left_seconds=seconds,
        path_ends_seconds=graph.path_ends_seconds(seconds),
        slots=max(1, slots),
        first_slot_seconds=0.0,
        running=np.zeros(len(seconds)),
    )
