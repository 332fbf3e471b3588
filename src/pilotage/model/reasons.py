"""Why an attempt can fail, and what can be done about it: the words of the retry rules, of the book and of the agent."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "application-error",
    "command-not-found",
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
