"""When each package of a job is expected to start and to end, from its run time, what it waits for, and what is ahead of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pilotage.forecast.steps import Floats


class ExpectedTimes(NamedTuple):
    """Seconds from now until each package starts and ends; 0 for what has started, or is over."""

    starts_seconds: Floats
    ends_seconds: Floats


def expected_times(
    *, left_seconds: Floats, path_ends_seconds: Floats, slots: int, first_slot_seconds: float, running: Floats
) -> ExpectedTimes:
    """The expected times of the packages of one job, were it alone on so many equal slots.

    A package starts when the longest chain of packages before it is done and a slot is free. Slots are given in waves: with k
    packages ahead it is in wave k // slots, and each wave lasts as long as the mean of those ahead. For equal packages without
    dependencies this is exact; otherwise a rough guide. `left_seconds` is 0 for packages that are over, `path_ends_seconds` are
    the ends with as many slots as could be used, `running` is 1 for packages that have their slot. The first free slot is to be
    had after `first_slot_seconds`.
    """
    earliest = np.maximum(path_ends_seconds - left_seconds, 0.0)
    waiting = np.flatnonzero((left_seconds > 0.0) & (running == 0.0))
    order = waiting[np.argsort(earliest[waiting], kind="stable")]  # equal ones in the order of the document
    ahead = int(running.sum()) + np.arange(len(order))
    work = float(left_seconds[running > 0.0].sum()) + np.concatenate([[0.0], np.cumsum(left_seconds[order])])[:-1]
    waves = ahead // slots * (work / np.maximum(ahead, 1))
    starts = np.zeros(len(left_seconds))
    starts[order] = np.maximum(earliest[order], np.maximum(waves, first_slot_seconds))
    return ExpectedTimes(starts, np.where(left_seconds > 0.0, starts + left_seconds, 0.0))
