"""What the sender of a batch says of its clock, in the headers of the request."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.agent.service_clock import SERVICE_TIME_FIELD, TIME_FIELD
from pilotage.model.clocks import is_doubtful, is_wrong
from pilotage.model.events import TIME_MAX
from pilotage.service.http.errors import ClockDoubted

__all__ = ["TIME_FIELD", "is_skewed"]


def is_skewed(header: Callable[[str], str], *, received: float, tolerance_seconds: float) -> bool:
    """Whether the clock of a sender is wrong by its own word; who does not say is believed.

    Raises `ClockDoubted` where that cannot be told before the sender has heard our time, and says that it has not.
    """
    time, service_time = _time(header(TIME_FIELD)), _time(header(SERVICE_TIME_FIELD))
    if time is None:
        return False
    if service_time is not None and is_doubtful(
        time, service_time=service_time, received=received, tolerance_seconds=tolerance_seconds
    ):
        raise ClockDoubted(received)
    return is_wrong(time, service_time=service_time or 0.0, received=received, tolerance_seconds=tolerance_seconds)


def _time(text: str) -> float | None:
    try:
        found = float(text) if text else None
    except ValueError:
        return None
    return found if found is not None and 0.0 <= found < TIME_MAX else None
