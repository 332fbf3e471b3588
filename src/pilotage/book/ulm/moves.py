"""The table of moves: what an event of L&B says about the state of its job.

A row is looked up by the type of the event, the component that logged it and its result; `*` stands for any. Where L&B
knows an event but draws nothing from it the state is None; a combination that is not in the table is one that L&B calls
a bad event.
"""

from __future__ import annotations

import msgspec

from pilotage.model.states import State

ANY = "*"
USER_INTERFACE = "UserInterface"
NETWORK_SERVER = "NetworkServer"
WORKLOAD_MANAGER = "WorkloadManager"
JOB_CONTROLLER = "JobController"
LOG_MONITOR = "LogMonitor"
LRMS = "LRMS"
CREAM_INTERFACE = "CREAMInterface"
CREAM_EXECUTOR = "CREAMExecutor"

SOURCES = (
    USER_INTERFACE, NETWORK_SERVER, WORKLOAD_MANAGER, "BigHelper", JOB_CONTROLLER, LOG_MONITOR, LRMS, "Application",
    "LBServer", CREAM_INTERFACE, CREAM_EXECUTOR,
)  # fmt: skip
"""The components that log events of gLite jobs."""

RESULT_FIELDS: dict[str, tuple[str, ...]] = {
    "Transfer": ("RESULT",),
    "EnQueued": ("RESULT",),
    "Resubmission": ("RESULT",),
    "Done": ("STATUS_CODE",),
    "Cancel": ("STATUS_CODE",),
    "CollectionState": ("STATE",),
    "CREAMStore": ("COMMAND", "RESULT"),
    "CREAMCall": ("CALLEE", "COMMAND", "RESULT"),
    "CREAMCancel": ("STATUS_CODE",),
    "CREAMStatus": ("RESULT", "NEW_STATE"),
    "FileTransfer": ("RESULT",),
}
"""Which fields `DG.TYPE.FIELD` make up the result of an event; several are joined by a slash."""

SILENT_TYPES = (
    "Purge", "Chkpt", "Listener", "CurDescr", "UserTag", "ChangeACL", "Notification", "ResourceUsage", "Suspend",
    "Resume", "GrantPayloadOwnership", "TakePayloadOwnership", "ConnectJob", "DisconnectJob", "Sandbox",
    "FileTransferRegister", "CREAMStart", "CREAMPurge", "CREAMAccepted", "CREAMRunning", "CREAMReallyRunning",
    "CREAMDone", "CREAMSuspend", "CREAMResume",
)  # fmt: skip
"""Events that L&B keeps and that never change a state."""


class Move(msgspec.Struct, frozen=True):
    """What an event says: the state it leads to, if any."""

    state: State | None
    failed: bool = False
    """The job ended, and not well: a collection does not count it as done."""
    overtaken: bool = False
    """Said nothing once the same branch runs or ran: the batch system's own events may have been faster."""


_SILENT = Move(None)
_EARLY_READY = Move(State.READY, overtaken=True)

_ROWS: tuple[tuple[str, str, str, Move], ...] = (
    ("RegJob", ANY, ANY, Move(State.SUBMITTED)),
    ("Transfer", USER_INTERFACE, "OK", Move(State.WAITING)),
    ("Transfer", JOB_CONTROLLER, "OK", Move(State.READY)),
    ("Transfer", LOG_MONITOR, "OK", Move(State.SCHEDULED, overtaken=True)),
    ("Transfer", USER_INTERFACE, "FAIL", Move(State.SUBMITTED)),
    ("Transfer", JOB_CONTROLLER, "FAIL", _EARLY_READY),
    ("Transfer", LOG_MONITOR, "FAIL", _EARLY_READY),
    ("Transfer", ANY, "START", _SILENT),
    ("Transfer", ANY, "REFUSED", _SILENT),
    ("Accepted", NETWORK_SERVER, ANY, Move(State.WAITING)),
    ("Accepted", LOG_MONITOR, ANY, _EARLY_READY),
    ("Accepted", LRMS, ANY, Move(State.SCHEDULED)),
    ("Refused", NETWORK_SERVER, ANY, Move(State.SUBMITTED)),
    ("Refused", LOG_MONITOR, ANY, Move(State.READY)),
    ("Refused", LRMS, ANY, Move(State.READY)),
    ("EnQueued", NETWORK_SERVER, "OK", Move(State.WAITING)),
    ("EnQueued", WORKLOAD_MANAGER, "OK", _EARLY_READY),
    ("EnQueued", LOG_MONITOR, "OK", Move(State.WAITING)),
    ("EnQueued", NETWORK_SERVER, "FAIL", Move(State.WAITING)),
    ("EnQueued", WORKLOAD_MANAGER, "FAIL", Move(State.WAITING)),
    ("EnQueued", LOG_MONITOR, "FAIL", _SILENT),
    ("EnQueued", ANY, "START", _SILENT),
    ("EnQueued", ANY, "REFUSED", _SILENT),
    ("DeQueued", WORKLOAD_MANAGER, ANY, Move(State.WAITING)),
    ("DeQueued", JOB_CONTROLLER, ANY, _EARLY_READY),
    ("HelperCall", ANY, ANY, Move(State.WAITING)),
    ("HelperReturn", ANY, ANY, Move(State.WAITING)),
    ("Match", ANY, ANY, Move(State.WAITING)),
    ("Pending", ANY, ANY, Move(State.WAITING)),
    ("Running", ANY, ANY, Move(State.RUNNING)),
    ("ReallyRunning", LRMS, ANY, Move(State.RUNNING)),
    ("ReallyRunning", LOG_MONITOR, ANY, Move(State.RUNNING)),
    ("ReallyRunning", ANY, ANY, _SILENT),
    ("Resubmission", ANY, "WILLRESUB", _SILENT),
    ("Resubmission", ANY, "WONTRESUB", _SILENT),
    ("Resubmission", ANY, "SHALLOW", _SILENT),
    ("Done", LRMS, ANY, _SILENT),  # the wrapper has ended; whether the job has, the log monitor says
    ("Done", ANY, "OK", Move(State.DONE)),
    ("Done", ANY, "FAILED", Move(State.DONE, failed=True)),
    ("Done", ANY, "KILLED", Move(State.DONE, failed=True)),
    ("Done", ANY, "CANCELLED", Move(State.CANCELLED)),
    ("Cancel", ANY, "DONE", Move(State.CANCELLED)),
    ("Cancel", ANY, "REQ", _SILENT),
    ("Cancel", ANY, "REFUSE", _SILENT),
    ("Cancel", ANY, "ABORT", _SILENT),
    ("Abort", ANY, ANY, Move(State.ABORTED)),
    ("Clear", ANY, ANY, Move(State.CLEARED)),
    *(("CollectionState", ANY, state.value, Move(state)) for state in State),
    ("CREAMStore", ANY, "CMDSTART/OK", Move(State.WAITING)),
    ("CREAMStore", ANY, ANY, _SILENT),
    ("CREAMCall", CREAM_EXECUTOR, "LRMS/CMDSTART/OK", Move(State.SCHEDULED)),
    ("CREAMCall", ANY, ANY, _SILENT),
    ("CREAMCancel", ANY, "DONE", Move(State.CANCELLED)),
    ("CREAMCancel", ANY, ANY, _SILENT),
    ("CREAMAbort", ANY, ANY, Move(State.ABORTED)),
    ("CREAMStatus", ANY, "DONE/PENDING", Move(State.WAITING)),
    ("CREAMStatus", ANY, "DONE/IDLE", Move(State.SCHEDULED)),
    ("CREAMStatus", ANY, "DONE/RUNNING", Move(State.RUNNING)),
    ("CREAMStatus", ANY, "DONE/REALLY-RUNNING", Move(State.RUNNING)),
    ("CREAMStatus", ANY, "DONE/DONE-OK", Move(State.DONE)),
    ("CREAMStatus", ANY, "DONE/DONE-FAILED", Move(State.DONE, failed=True)),
    ("CREAMStatus", ANY, "DONE/ABORTED", Move(State.ABORTED)),
    ("CREAMStatus", ANY, "DONE/CANCELLED", Move(State.CANCELLED)),
    ("CREAMStatus", ANY, "DONE/PURGED", Move(State.CLEARED)),
    ("CREAMStatus", ANY, ANY, _SILENT),
    ("FileTransfer", ANY, "START", Move(State.RUNNING)),
    ("FileTransfer", ANY, "OK", Move(State.DONE)),
    ("FileTransfer", ANY, "FAIL", Move(State.DONE, failed=True)),
    *((name, ANY, ANY, _SILENT) for name in SILENT_TYPES),
)

MOVES: dict[tuple[str, str, str], Move] = {(name, source, result): move for name, source, result, move in _ROWS}
"""The rows by what they are looked up by; results are in capitals."""

EVENT_TYPES: dict[str, str] = {name.lower(): name for name, _, _ in MOVES}
"""The name of each type of event by its lower-case form, since L&B compares names that way."""

SOURCE_NAMES: dict[str, str] = {name.lower(): name for name in SOURCES}
"""The name of each component by its lower-case form."""


def move_of(kind: str, *, source: str, result: str) -> Move | None:
    """The row for an event, the most particular first; None where L&B would call the event a bad one."""
    return (
        MOVES.get((kind, source, result))
        or MOVES.get((kind, source, ANY))
        or MOVES.get((kind, ANY, result))
        or MOVES.get((kind, ANY, ANY))
    )
