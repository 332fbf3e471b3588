"""Into what statistics count: logarithmic bins of seconds, for each pair of states, in slices of time."""

from __future__ import annotations

import math

from pilotage.model.states import State

FINE_SECONDS = 10
COARSE_SECONDS = 300

BASE = 1.1  # a bin is ten per cent wide: its middle is within five of every value in it
SMALLEST = 0.001  # below a millisecond everything counts as nothing, and so does a clock that runs backwards
PER_LOG = 1 / math.log(BASE)
OFFSET = 1 - math.log(SMALLEST) * PER_LOG
BINS = 1024
ENTRY = 15  # in place of the earlier state: an entry into the later one, not a time
STATES = len(State)
NEVER = -1.0
"""In place of a time that did not come."""


def bin_of(seconds: float) -> int:
    """The bin that a time falls into."""
    return 0 if seconds < SMALLEST else min(BINS - 1, int(math.log(seconds) * PER_LOG + OFFSET))


def middle_of(number: int) -> float:
    """The time that a bin stands for."""
    return 0.0 if number == 0 else SMALLEST * BASE ** (number - 0.5)
