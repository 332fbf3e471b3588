"""Whose fault the end of an attempt is, as far as the choice of a site cares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pilotage.model.reasons import LossReason, Reason

Cause = Literal["success", "platform", "application", "nobody"]
"""How an attempt ended: well, by the fault of its place, by its own, or by nobody's (preempted, cancelled, no input)."""

CAUSES: Mapping[Reason | LossReason, Cause] = {
    "platform-failure": "platform",
    "credential-expired": "platform",
    "disk-full": "platform",
    "unheard": "platform",
    "pilot-killed": "platform",
    "preempted": "nobody",
    "rescheduled": "nobody",
    "dropped": "nobody",
    "outrun": "nobody",  # what its queue is worth is told by itself
    "wall-time": "nobody",  # it asked for too little, or its pilot had too little left: neither is the place's fault
    "missing-input": "nobody",  # it would be missing everywhere
    "input-checksum": "nobody",
    "application-error": "application",
    "command-not-found": "application",  # a site that lacks it shows as a black hole, where others have it
    "failure-pattern": "application",
    "looping": "application",
    "missing-output": "application",
    "out-of-memory": "application",
    "segmentation-fault": "application",
    "signal": "application",
}
"""The cause that each reason counts as."""

_BY_NAME: dict[str, Cause] = {str(reason): cause for reason, cause in CAUSES.items()}


def cause_of(reason: str) -> Cause:
    """The cause that a reason counts as; one that is not in the table is a package's own word, so its own fault."""
    return _BY_NAME.get(reason, "application")
