"""Who is told of a failure without having subscribed: one table from reasons to audiences.

After the DØ job definition, section 5: the researcher hears of every failure; a platform that fails concerns those who
manage the cluster; a crash or a missing output concerns grid control as well; what a binary itself wrote into its log
concerns nobody but the researcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pilotage.model.outcomes import ExitCodeGasw
from pilotage.model.reasons import LossReason, Reason


class Audience(StrEnum):
    """Who can be told."""

    RESEARCHER = "researcher"
    CLUSTER_MANAGEMENT = "cluster-management"
    GRID_CONTROL = "grid-control"


OPERATORS = (Audience.CLUSTER_MANAGEMENT, Audience.GRID_CONTROL)

_RESEARCHER = (Audience.RESEARCHER,)
_PLATFORM = (Audience.RESEARCHER, Audience.CLUSTER_MANAGEMENT)
_CRASH = (Audience.RESEARCHER, Audience.CLUSTER_MANAGEMENT, Audience.GRID_CONTROL)

ROUTES: Mapping[Reason, tuple[Audience, ...]] = {
    "platform-failure": _PLATFORM,
    "credential-expired": _PLATFORM,
    "disk-full": _PLATFORM,  # the node's own disk: its user cannot mend it
    "segmentation-fault": _CRASH,
    "signal": _CRASH,
    "missing-output": _CRASH,
    "failure-pattern": _RESEARCHER,  # a message in a log
    "looping": _RESEARCHER,
    "application-error": _RESEARCHER,
    "command-not-found": _RESEARCHER,
    "input-checksum": _RESEARCHER,
    "missing-input": _RESEARCHER,
    "out-of-memory": _RESEARCHER,
    "preempted": _RESEARCHER,
    "wall-time": _RESEARCHER,
}
"""Whom each reason reaches."""

LOSS_ROUTES: Mapping[LossReason, tuple[Audience, ...]] = {
    "platform-failure": ROUTES["platform-failure"],
    "pilot-killed": _PLATFORM,
    "unheard": _PLATFORM,
    "preempted": ROUTES["preempted"],
    "wall-time": ROUTES["wall-time"],
    "rescheduled": (),
    "dropped": (),
    "outrun": (),
}
"""Whom it reaches that an attempt was lost; nobody, where somebody wanted it so or another attempt was quicker."""

_BY_NAME: dict[str, tuple[Audience, ...]] = {
    str(reason): reached for reason, reached in (*ROUTES.items(), *LOSS_ROUTES.items()) if reached
}

NO_FAILURES = frozenset({ExitCodeGasw.SUCCESS.value, ExitCodeGasw.EXECUTION_CANCELED.value})
"""Exit codes of attempts of which nobody need be told: it went well, or somebody wanted it to end."""

NO_LOSSES = frozenset(reason for reason, reached in LOSS_ROUTES.items() if not reached)
"""Why attempts are lost of which nobody need be told."""


def audiences(reason: str) -> tuple[Audience, ...]:
    """Whom a reason reaches; one that is not in the table, such as why a package was given up, only the researcher."""
    return _BY_NAME.get(reason, _RESEARCHER)


def reason_of(*, reason: str | None, exit_code: str) -> str:
    """The reason of a failed attempt; where none was given, its exit code in the same spelling."""
    if reason:
        return reason
    if exit_code == ExitCodeGasw.EXECUTION_STALLED.value:
        return "platform-failure"
    return exit_code.lower().replace("_", "-")
