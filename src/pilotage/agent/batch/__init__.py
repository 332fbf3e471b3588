"""Drives batch systems: which command to call, and how to read its answer. It runs no command itself.

Each module of this package with a subclass of `Dialect` adds one batch system; no list names them.
"""

from __future__ import annotations

from pilotage.agent.batch.dialect import ANOTHER_AGENT_STATUS, CANNOT_WRITE_STATUS, Dialect, element_key, output_of
from pilotage.agent.batch.registry import dialects
from pilotage.agent.batch.values import (
    Answer,
    BatchError,
    BatchJob,
    BatchRequest,
    Busy,
    Call,
    Limits,
    Queue,
    Refused,
    Unknown,
)

__all__ = [
    "ANOTHER_AGENT_STATUS",
    "CANNOT_WRITE_STATUS",
    "Answer",
    "BatchError",
    "BatchJob",
    "BatchRequest",
    "Busy",
    "Call",
    "Dialect",
    "Limits",
    "Queue",
    "Refused",
    "Unknown",
    "dialects",
    "element_key",
    "output_of",
]
