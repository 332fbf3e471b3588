"""How an attempt ends and why a package is given up: GASW's exit codes and our own causes."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class ExitCodeGasw(StrEnum):
    """The exit codes of GASW, which every finished attempt carries; our finer reason stands beside it."""

    SUCCESS = "SUCCESS"
    ERROR_READ_GRID = "ERROR_READ_GRID"
    ERROR_WRITE_GRID = "ERROR_WRITE_GRID"
    ERROR_WRITE_LOCAL = "ERROR_WRITE_LOCAL"
    ERROR_GET_STD = "ERROR_GET_STD"
    ERROR_FILE_NOT_FOUND = "ERROR_FILE_NOT_FOUND"
    EXECUTION_FAILED = "EXECUTION_FAILED"
    EXECUTION_CANCELED = "EXECUTION_CANCELED"
    EXECUTION_STALLED = "EXECUTION_STALLED"
    UNDEFINED = "UNDEFINED"


AbortCause = Literal[
    "waited-too-long", "quota", "credential-expired", "retries-exhausted", "upstream", "permanent-failure", "abort-on"
]
"""Why a package or a job was given up."""

ClearedBy = Literal["user", "timeout"]
"""Who cleared outputs: their owner took them, or their time was over."""

RestartCause = Literal["by-hand", "deep-resubmission", "remake", "revived"]
"""What opened a new epoch."""

ADOPTED = "adopted"
"""The site of attempts that were never made here."""
MADE_BEFORE = "made-before"
"""The reason that an agent gives with the success of what an earlier run had made: nothing was run."""
UNDECLARED = "undeclared-files"
"""The reason that an agent gives with the success of what left files behind that no output declares."""
PILOT_WALL_OVER = "killed: the wall time of its pilot is over"
"""What an agent says of an attempt that ran until the time of its pilot was over, whatever its own limit is."""

Phase = Literal["setup", "inputs", "application", "outputs", "cleaning"]
"""What an attempt does, in this order; only one that failed tells of its cleaning."""
