"""The failures of a package as the restart rules see them, made in one place: from events as they come, and from the book."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pilotage.engine.restart import Failure
from pilotage.model.demand import Demand
from pilotage.model.outcomes import PILOT_WALL_OVER, ExitCodeGasw
from pilotage.model.reasons import LossReason, Reason

PILOT_KILLED: LossReason = "pilot-killed"
UNHEARD: LossReason = "unheard"
RESCHEDULED: LossReason = "rescheduled"
DROPPED: LossReason = "dropped"

INPUT_REASONS: frozenset[Reason] = frozenset({"missing-input", "input-checksum"})
"""Why an attempt fails that could not have its inputs: it is tried again at once when a package has made them anew."""

OUTRUN: LossReason = "outrun"
_NOBODYS_FAULT = (RESCHEDULED, DROPPED, OUTRUN)
_MESSAGE_MAX = 1000  # characters of an exit message that are remembered of each failure
_PLATFORM: Reason = "platform-failure"
_UNASKED: Reason = "preempted"


class End(Protocol):
    """How an attempt ended: the payload that says so, or what the book has of it."""

    @property
    def exit_code(self) -> str | None:
        """GASW's."""

    @property
    def exit_message(self) -> str | None:
        """What was said of it."""

    @property
    def reason(self) -> str | None:
        """Ours."""

    @property
    def exit_status(self) -> int | None:
        """Of the process."""

    @property
    def signal(self) -> int | None:
        """That ended it."""


def failure_of(
    attempt: int,
    *,
    site: str,
    demand: Demand,
    remaining_seconds: float | None,
    lost_reason: str | None = None,
    end: End | None = None,
) -> Failure | None:
    """The failure that an attempt is, which has told its end or is only believed to be over; None where it counts for nothing.

    `lost_reason` says why nobody waited for it, None that somebody did. What nobody waited for and was stopped is what it
    was before: a loss, or nobody's fault. An agent that stops what somebody waits for and gives no reason has taken the
    place away: that is counted as being preempted, which has a bound, or it could be done for ever.
    """
    told = end is not None and not (end.exit_code == ExitCodeGasw.EXECUTION_CANCELED and end.reason is None)
    killed_pilot = False
    if end is not None and told:
        reason: str = end.reason or "application-error"
    elif end is not None and lost_reason is None:
        reason = _UNASKED
    elif lost_reason in _NOBODYS_FAULT:
        return None
    else:
        lost = lost_reason or UNHEARD
        reason = _PLATFORM if lost in (UNHEARD, PILOT_KILLED) else lost
        killed_pilot = lost == PILOT_KILLED
    said = end if told else None
    return Failure(
        attempt=attempt,
        site=site,
        reason=reason,
        exit_status=said.exit_status if said is not None else None,
        signal=said.signal if said is not None else None,
        message=(said.exit_message or "")[:_MESSAGE_MAX] if said is not None else "",
        memory_bytes=demand.memory_bytes,
        wall_seconds=demand.wall_seconds,
        remaining_seconds=remaining_seconds,
        killed_pilot=killed_pilot,
        with_pilot=said is None or said.exit_message == PILOT_WALL_OVER,
    )


def lacked_input(failures: Mapping[int, Failure]) -> bool:
    """Whether the latest of the failures of a package, by attempt, was that an input was missing or damaged."""
    return bool(failures) and failures[max(failures)].reason in INPUT_REASONS
