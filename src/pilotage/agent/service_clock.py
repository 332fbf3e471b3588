"""Estimates the clock of the service from the times it has sent, so that a wrong clock on this computer is noticed."""

from __future__ import annotations

import time
from typing import Any

TIME_FIELD = "Pilotage-Time"
"""Header with the clock of the sender: of an agent in a request, of the service in its answer."""
TOO_EARLY = 425
"""Status of an answer that rejects a message because the sender's clock may be wrong; it carries the service's time."""
SERVICE_TIME_FIELD = "Pilotage-Service-Time"
"""Request header: the least that the service's clock must show, as the sender knows; 0 if unknown."""

# A clock that cannot be set, and that keeps running while the computer sleeps.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ServiceClock:
    """A lower bound of the service's clock: the last time it sent, plus the time passed since."""

    __slots__ = ("_beyond", "_is_in_vain")

    def __init__(self) -> None:
        self._beyond = 0.0  # its clock minus our steady clock; 0: unknown
        self._is_in_vain = False

    def hear(self, sent: Any) -> None:
        """Take a time that the service sent just now or earlier; ignore anything that is not a time."""
        try:
            shown = float(sent)
        except (TypeError, ValueError, OverflowError):
            return
        if 0.0 < shown < 1e12:
            self._beyond = shown - time.clock_gettime(_STEADY)

    def doubted(self) -> None:
        """The service asked for its own time back. If its answers never carry a time, send no clocks any more."""
        self._is_in_vain = True

    @property
    def is_in_vain(self) -> bool:
        """Tell whether the clock headers only make the service reject our messages."""
        return self._is_in_vain and not self._beyond

    def at_least(self) -> float:
        """Lower bound of the service's clock now; 0 if unknown."""
        return self._beyond + time.clock_gettime(_STEADY) if self._beyond else 0.0


def clock_fields(service: ServiceClock) -> dict[str, str]:
    """The clock headers of a request."""
    if service.is_in_vain:
        return {}
    least, here = both_clocks(service)
    return {TIME_FIELD: f"{here:.3f}", SERVICE_TIME_FIELD: f"{least:.3f}"}


def both_clocks(service: ServiceClock) -> tuple[float, float]:
    """Lower bound of the service's clock, and our clock."""
    least = service.at_least()  # first: a pause in between must not make our clock look late
    return least, time.time()
