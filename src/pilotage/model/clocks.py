"""Whether the clock of a sender is wrong, proven by what it says beside its events: they may be of any age.

A sender says what its clock shows as it sends. It sends before we receive: a clock that shows more runs ahead. And it
sends after our last answer to it, which said what our clock showed: a clock that shows less runs behind. How long the
events lay somewhere, or were on their way, does not matter.
"""

from __future__ import annotations


def is_wrong(time: float, *, service_time: float, received: float, tolerance_seconds: float) -> bool:
    """Whether a clock that showed `time` at sending is wrong; ours showed at least `service_time` then (0: nobody knows)."""
    if time > received + tolerance_seconds:
        return True
    # Two clocks never run at quite the same rate, so who has counted for long may have counted somewhat more than passed
    # here. By much more, our own clock was set back since it was told, and nothing is proven.
    if not 0.0 < service_time <= received + tolerance_seconds:
        return False
    return time < min(service_time, received) - tolerance_seconds


def is_doubtful(time: float, *, service_time: float, received: float, tolerance_seconds: float) -> bool:
    """Whether such a clock runs behind, or what it is about was long on its way: who has heard our clock can tell."""
    return not service_time and time < received - tolerance_seconds
