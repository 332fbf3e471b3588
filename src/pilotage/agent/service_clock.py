"""What the clock of a service shows, as far as it has said so: beside it a clock of this computer is seen to be wrong."""

from __future__ import annotations

import time
from typing import Any

TIME_FIELD = "Pilotage-Time"
"""What a clock showed: of a sender in a request, of the service in its answer."""
TOO_EARLY = 425
"""The status of an answer that says the time, and nothing was kept: the clock of the sender may be wrong."""
SERVICE_TIME_FIELD = "Pilotage-Service-Time"
"""In a request: what the clock of the service shows at least, as the sender knows; 0: it has not heard of it."""

# Nobody sets it, and it goes on while a computer sleeps.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ServiceClock:
    """At least so late it is by the clock of the service: as late as it said, and as much later as has passed since."""

    __slots__ = ("_beyond", "_is_in_vain")

    def __init__(self) -> None:
        """Know nothing yet."""
        self._beyond = 0.0  # its clock less ours that nobody sets; 0: it has not said
        self._is_in_vain = False

    def hear(self, told: Any) -> None:
        """Take what a service said its clock showed, just now or somewhat earlier; what is no time says nothing."""
        try:
            shown = float(told)
        except (TypeError, ValueError, OverflowError):
            return
        if 0.0 < shown < 1e12:
            self._beyond = shown - time.clock_gettime(_STEADY)

    def doubted(self) -> None:
        """The service wants to be told its own time. Where that does not get through to us, nothing is said of clocks."""
        self._is_in_vain = True

    @property
    def is_in_vain(self) -> bool:
        """Whether what is said of clocks keeps the service from taking anything."""
        return self._is_in_vain and not self._beyond

    def at_least(self) -> float:
        """What it shows now at least; 0: nobody knows."""
        return self._beyond + time.clock_gettime(_STEADY) if self._beyond else 0.0


def clock_fields(service: ServiceClock) -> dict[str, str]:
    """What a request says of the two clocks."""
    if service.is_in_vain:
        return {}
    least, here = both_clocks(service)
    return {TIME_FIELD: f"{here:.3f}", SERVICE_TIME_FIELD: f"{least:.3f}"}


def both_clocks(service: ServiceClock) -> tuple[float, float]:
    """What the clock of the service shows at least, and what the clock here shows."""
    least = service.at_least()  # first: whoever is stopped in between must not find that the clock here is late
    return least, time.time()
