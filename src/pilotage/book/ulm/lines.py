r"""Parses one ULM line into an event: `NAME=value` fields separated by blanks, with quotes where needed.

Inside quotes `\"`, `\\` and `\n` are escapes. Real logs also have unescaped quotes; such a value ends at the first
quote before another field or the end of the line, and the event is marked.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from pilotage.model.errors import Problem
from pilotage.model.states import State

# Sequence codes: the number of events that each component of the workload management had logged before an event.
#
# A component counts its own events and passes on the counters that it got with the job. Codes are compared counter by
# counter, in the order in which a job passes the components; that is the only order, since clocks differ.


class SequenceCode(NamedTuple):
    """The nine counters, named as in the log; as tuples, codes compare as in L&B."""

    ui: int
    ns: int
    wm: int
    bh: int
    jss: int
    lm: int
    lrms: int
    app: int
    lbs: int

    def __str__(self) -> str:
        """As in a line, with L&B's own widths."""
        return (
            f"UI={self.ui:06}:NS={self.ns:010}:WM={self.wm:06}:BH={self.bh:010}:JSS={self.jss:06}"
            f":LM={self.lm:06}:LRMS={self.lrms:06}:APP={self.app:06}:LBS={self.lbs:06}"
        )


# Eighteen digits are more than any counter needs, and within Python's limit on long numbers.
_CODE = re.compile(
    ":".join(rf"{name}=([0-9]{{1,18}})" for name in ("UI", "NS", "WM", "BH", "JSS", "LM", "LRMS", "APP"))
    + r"(?::LBS=([0-9]{1,18}))?"
)


def parse_code(text: str) -> SequenceCode | None:
    """Parse a code; None if malformed. Old components omit the L&B server's counter, which is then 0."""
    found = _CODE.fullmatch(text)
    return None if found is None else SequenceCode._make(map(int, found.groups("0")))


# The transition table: how an event of L&B changes the state of its job.
#
# A row is found by the type of the event, its component and its result; `*` stands for any. The state is None if L&B
# knows the event but ignores it; L&B calls a combination that is not in the table a bad event.

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
"""The fields `DG.TYPE.FIELD` that make up the result of an event; several are joined by a slash."""

SILENT_TYPES = (
    "Purge", "Chkpt", "Listener", "CurDescr", "UserTag", "ChangeACL", "Notification", "ResourceUsage", "Suspend",
    "Resume", "GrantPayloadOwnership", "TakePayloadOwnership", "ConnectJob", "DisconnectJob", "Sandbox",
    "FileTransferRegister", "CREAMStart", "CREAMPurge", "CREAMAccepted", "CREAMRunning", "CREAMReallyRunning",
    "CREAMDone", "CREAMSuspend", "CREAMResume",
)  # fmt: skip
"""Events that L&B stores and that never change a state."""


class Move(msgspec.Struct, frozen=True):
    """The effect of an event: the state that it leads to, if any."""

    state: State | None
    failed: bool = False
    """The job failed: a collection does not count it as done."""
    overtaken: bool = False
    """Ignored once the same branch runs or ran: the batch system's own events may have been faster."""


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
    ("Done", LRMS, ANY, _SILENT),  # the wrapper has ended; the log monitor tells whether the job has
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
"""The rows by their keys; results are upper-case."""

EVENT_TYPES: dict[str, str] = {name.lower(): name for name, _, _ in MOVES}
"""Event types by their lower-case names, since L&B ignores case."""

SOURCE_NAMES: dict[str, str] = {name.lower(): name for name in SOURCES}
"""Components by their lower-case names."""


def move_of(kind: str, *, source: str, result: str) -> Move | None:
    """The row for an event, the most specific first; None for a bad event of L&B."""
    return (
        MOVES.get((kind, source, result))
        or MOVES.get((kind, source, ANY))
        or MOVES.get((kind, ANY, result))
        or MOVES.get((kind, ANY, ANY))
    )


_NAME = r"[A-Za-z0-9._-]++"
_VALUE_ENDS = rf"(?=\s*+\Z|\s++{_NAME}=)"
# Possessive quantifiers: a line of a megabyte costs one pass, whatever it contains.
_FIELD = re.compile(
    rf'\s*+({_NAME})=(?:"((?:[^"\\]++|\\.)*+)"{_VALUE_ENDS}|([^\s"]++)(?=\s|\Z)|(?=\s|\Z))',
    re.DOTALL,
)
_BROKEN_FIELD = re.compile(
    rf'\s*+({_NAME})="((?:[^"\\]++|\\.|"(?!\s*+\Z|\s++{_NAME}=))*+)"{_VALUE_ENDS}',
    re.DOTALL,
)
_BEGUN_FIELD = re.compile(rf'\s*+({_NAME})="(?:[^"\\]++|\\.)*+(")?+', re.DOTALL)
_BLANKS = re.compile(r"\s*+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_DATE = re.compile(r"[0-9]{14}(?:\.[0-9]{1,9})?")
_NUMBER = re.compile(r"[0-9]{1,9}")

# Added or changed on the way: the same event may arrive with and without them.
_STAMPS = frozenset({
    "DG.JOBID", "DG.USER", "DG.PRIORITY", "DG.LLLID", "DG.LLPID", "DG.ARRIVED", "DG.ARR_DATE", "ARR_DATE",
})  # fmt: skip
_NOTHING = frozenset({"", "(nil)"})  # how the C components of L&B print a missing value
_OTHER_SYSTEMS = ("pbs", "condor", "vm")

# A job's own id in its description, and in the name of its folder at the workload manager.
_ID_IN_DESCRIPTION = re.compile(r'\bedg_jobid\s*+=\s*+"([^"\s]{1,1000})"')
_ID_IN_FOLDER = re.compile(r"/(https_3a_2f_2f[A-Za-z0-9._-]{1,1000})/")
_ENCODED = re.compile(r"_([0-9a-f]{2})")


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A RegJob event: the job's type, upper-case, its parent, and its number of subjobs."""

    kind: str
    parent: str
    subjobs: int


class UlmEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of one job, as far as the state depends on it; equal events have one `identity`, whatever their route."""

    job: str
    kind: str
    source: str
    result: str
    code: SequenceCode
    time: str
    identity: bytes
    line: int = 0
    destination: str = ""
    worker_code: SequenceCode | None = None
    registration: Registration | None = None
    own_names: tuple[str, ...] = ()
    """Job ids found in descriptions, for an event without job id; then those found in folder names."""
    oddities: tuple[str, ...] = ()
    """Oddities of the line, which counts all the same."""

    @property
    def order(self) -> tuple[SequenceCode, str, str, str, bytes]:
        """The total order of a job's events: by code, then by clock, then by content."""
        return self.code, self.time, self.source, self.kind, self.identity


class _Unreadable(Exception):
    def __init__(self, code: str, message: str, *, column: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.column = column
        self.hint = hint


def parse_line(text: str, *, file: str = "", line: int = 0) -> UlmEvent | Problem:
    """Parse one line that is not blank; returns the event, or what is wrong."""
    try:
        return _event(text, line=line)
    except _Unreadable as reason:
        return Problem(
            file=file, line=line, column=reason.column, code=reason.code, message=reason.message, hint=reason.hint
        )


class _Fields:
    """The raw fields of a line, unescaped on access."""

    __slots__ = ("oddities", "raw")

    def __init__(self, text: str) -> None:
        self.raw: dict[str, str] = {}
        self.oddities: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _FIELD.match(text, position)
            if found is None:
                found = _BROKEN_FIELD.match(text, position)
                if found is None:
                    raise _broken(text, position)
                self.oddities.append(f"a quote inside {_short(found[1])} is not escaped")
            name, quoted, plain = found[1].upper(), found[2], found[3] if found.re is _FIELD else None
            value = quoted if quoted is not None else plain or ""
            if self.raw.setdefault(name, value) != value:
                raise _Unreadable(
                    "ulm-repeated-field", f"{_short(name)} occurs twice, with two values", column=found.start(1) + 1
                )
            position = found.end()

    def get(self, name: str) -> str:
        """The value of a field; empty if it is missing or not set."""
        value = self.raw.get(name, "")
        if "\\" in value:
            value = _ESCAPE.sub(_unescaped, value)
        return "" if value in _NOTHING else value


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _broken(text: str, position: int) -> _Unreadable:
    """The fault where no field could be parsed."""
    begun = _BEGUN_FIELD.match(text, position)
    if begun is not None and begun[2] is None:
        name, start = begun[1], begun.start(1)
        return _Unreadable("ulm-quote", f"the quoted value of {_short(name)} does not end", column=start + 1)
    wrong = _BLANKS.match(text, position if begun is None else begun.end())
    start = position if wrong is None else wrong.end()
    message = f"expected NAME=value, got {_short(text[start : start + 41])}"
    return _Unreadable("ulm-field", message, column=start + 1, hint='quote values with blanks: "…"')


def _short(text: str) -> str:
    """The first characters of a foreign text, safe to show."""
    return repr(text if len(text) <= 40 else text[:40] + "…")[1:-1]


def _event(text: str, *, line: int) -> UlmEvent:
    fields = _Fields(text)
    kind = _kind(fields.get("DG.EVNT"))
    code_text = fields.get("DG.SEQCODE")
    code = parse_code(code_text)
    if code is None:
        raise _Unreadable("ulm-sequence-code", _code_fault(code_text))
    time = fields.get("DATE")
    if time and _DATE.fullmatch(time) is None:
        raise _Unreadable("ulm-date", f"DATE is {_short(time)}; expected YYYYMMDDhhmmss.ffffff")
    written_source = fields.get("DG.SOURCE")
    source = SOURCE_NAMES.get(written_source.lower(), written_source)
    result = "/".join(fields.get(f"DG.{kind.upper()}.{name}").upper() for name in RESULT_FIELDS.get(kind, ()))
    if move_of(kind, source=source, result=result) is None:
        fields.oddities.append(_no_meaning(kind, source=source, result=result))
    job = fields.get("DG.JOBID")
    return UlmEvent(
        job=job,
        kind=kind,
        source=source,
        result=result,
        code=code,
        time=time,
        identity=_identity(fields.raw),
        line=line,
        destination=_destination(fields, kind=kind, source=source),
        worker_code=parse_code(fields.get("DG.REALLYRUNNING.WN_SEQ")) if kind == "ReallyRunning" else None,
        registration=_registration(fields) if kind == "RegJob" else None,
        own_names=() if job else _own_names(fields),
        oddities=tuple(fields.oddities),
    )


def _kind(name: str) -> str:
    kind = EVENT_TYPES.get(name.lower())
    if kind is not None:
        return kind
    if not name:
        raise _Unreadable("ulm-event-type", "the line has no DG.EVNT, so the event is unknown")
    if name.lower().startswith(_OTHER_SYSTEMS):
        raise _Unreadable(
            "ulm-event-type",
            f"{_short(name)} is an event of a job outside gLite",
            hint="states are computed for gLite jobs, collections, CREAM jobs and file transfers",
        )
    raise _Unreadable("ulm-event-type", f"{_short(name)} is not an event type of L&B")


def _code_fault(text: str) -> str:
    if not text:
        return "the line has no DG.SEQCODE, so its event cannot be ordered"
    return f"DG.SEQCODE is {_short(text)}; expected UI=…:NS=…:WM=…:BH=…:JSS=…:LM=…:LRMS=…:APP=…:LBS=…"


def _no_meaning(kind: str, *, source: str, result: str) -> str:
    of = f" with the result {_short(result)}" if kind in RESULT_FIELDS else ""
    return f"{kind} from {_short(source) or 'an unknown component'}{of} has no effect on a state"


def _identity(raw: dict[str, str]) -> bytes:
    content = "\n".join(sorted(f"{name}={value}" for name, value in raw.items() if name not in _STAMPS))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _destination(fields: _Fields, *, kind: str, source: str) -> str:
    if kind == "Match":
        return fields.get("DG.MATCH.DEST_ID")
    if kind == "RegJob" and source in (CREAM_INTERFACE, CREAM_EXECUTOR):
        return fields.get("DG.REGJOB.NS")
    return ""


def _registration(fields: _Fields) -> Registration:
    subjobs = fields.get("DG.REGJOB.NSUBJOBS")
    return Registration(
        kind=fields.get("DG.REGJOB.JOBTYPE").upper(),
        parent=fields.get("DG.REGJOB.PARENT"),
        subjobs=int(subjobs) if _NUMBER.fullmatch(subjobs) else 0,
    )


def _own_names(fields: _Fields) -> tuple[str, ...]:
    """Job ids found in the line's descriptions, or else in its folder names."""
    texts = [fields.get(name) for name in sorted(fields.raw) if name.endswith((".JDL", ".JOB"))]
    ids = {found for text in texts for found in _ID_IN_DESCRIPTION.findall(text)}
    if ids:
        return tuple(sorted(ids))
    folders = {found for text in texts for found in _ID_IN_FOLDER.findall(text)}
    return tuple(sorted({_ENCODED.sub(lambda found: chr(int(found[1], 16)), folder) for folder in folders}))
