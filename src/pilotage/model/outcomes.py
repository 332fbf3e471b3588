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


_CODES: dict[str, ExitCodeGasw] = {
    "cancelled": ExitCodeGasw.EXECUTION_CANCELED,
    "disk-full": ExitCodeGasw.ERROR_WRITE_LOCAL,
    "input-checksum": ExitCodeGasw.ERROR_READ_GRID,
    "looping": ExitCodeGasw.EXECUTION_STALLED,
    "missing-input": ExitCodeGasw.ERROR_READ_GRID,
    "missing-output": ExitCodeGasw.ERROR_FILE_NOT_FOUND,
    "preempted": ExitCodeGasw.EXECUTION_CANCELED,
}
_CODES_BY_PHASE: dict[str, ExitCodeGasw] = {
    "": ExitCodeGasw.UNDEFINED,
    "setup": ExitCodeGasw.ERROR_WRITE_LOCAL,
    "inputs": ExitCodeGasw.ERROR_READ_GRID,
    "outputs": ExitCodeGasw.ERROR_WRITE_GRID,
    "logs": ExitCodeGasw.ERROR_GET_STD,  # no phase of its own: what it wrote cannot be read, to look for failures in it
}


def exit_code_for(reason: str, *, phase: str) -> ExitCodeGasw:
    """GASW's exit code of a failure: one for each reason; where the platform failed, one for each phase it was in.

    An agent says the same (`agent/diagnosis.py`), and so does one of the simulator. Before the first phase, `phase` is
    empty. Whatever else there is, such as a reason that a failure pattern names, is a failure of the execution.
    """
    if reason == "platform-failure":
        return _CODES_BY_PHASE.get(phase, ExitCodeGasw.EXECUTION_FAILED)
    return _CODES.get(reason, ExitCodeGasw.EXECUTION_FAILED)


AbortCause = Literal[
    "waited-too-long", "quota", "credential-expired", "retries-exhausted", "upstream", "permanent-failure", "abort-on"
]
"""Why a package or a job was given up."""

ClearedBy = Literal["user", "timeout"]
"""Who cleared outputs: their owner took them, or their time was over."""

KeptReason = Literal["changed", "made", "not-removed", "read"]
"""Why a file stays whose removal was asked for: it is not as it was granted, another job has it as well, the system does not
let it go, or somebody who is not over reads it."""
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
