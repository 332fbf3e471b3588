"""Why an attempt can fail, and what can be done about it: the words of the retry rules, of the book and of the agent."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "application-error",
    "command-not-found",
    "credential-expired",
    "disk-full",
    "failure-pattern",
    "input-checksum",
    "looping",
    "missing-input",
    "missing-output",
    "out-of-memory",
    "platform-failure",
    "preempted",
    "segmentation-fault",
    "signal",
    "wall-time",
]

Action = Literal["again", "elsewhere", "later", "more-memory", "more-time", "give-up", "hold-job"]

LossReason = Literal[
    "unheard", "pilot-killed", "platform-failure", "preempted", "wall-time", "rescheduled", "dropped", "outrun"
]
"""Why nobody waits for an attempt any more: its pilot is silent, died under it, is gone, somebody asked for it, or another began.
"""
