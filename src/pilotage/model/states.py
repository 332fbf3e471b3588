"""The table of states: their meanings, the events that lead to them, and the state of a compound from its children.

A state is never stored as a decision: it is derived from facts (`pilotage.book.rows.derived_states`). The diagram in the
documentation is drawn from `TRANSITIONS`. For speed the folds do not read the tables: a test runs every state and event and
proves that the folds move exactly as the tables say.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

DzeroStatus = Literal["unscheduled", "scheduled", "launched", "successful", "failed", "canceled"]


class State(StrEnum):
    """The state of a package, or of a compound of packages, in the order in which work advances."""

    SUBMITTED = "SUBMITTED"
    WAITING = "WAITING"
    READY = "READY"
    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    ABORTED = "ABORTED"
    CANCELLED = "CANCELLED"
    CLEARED = "CLEARED"


class StateMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a state, in our words and in those of the DØ job definition."""

    meaning: str
    dzero: DzeroStatus
    final: bool = False


MEANINGS: dict[State, StateMeaning] = {
    State.SUBMITTED: StateMeaning(meaning="registered, not yet accepted", dzero="unscheduled"),
    State.WAITING: StateMeaning(
        meaning="accepted; waits for its inputs, a site, or its next attempt", dzero="unscheduled"
    ),
    State.READY: StateMeaning(meaning="bound to a site", dzero="scheduled"),
    State.SCHEDULED: StateMeaning(meaning="in the queue of a batch system, or offered to pilots", dzero="scheduled"),
    State.RUNNING: StateMeaning(meaning="an attempt holds a lease", dzero="launched"),
    State.DONE: StateMeaning(meaning="the outputs of one attempt were granted", dzero="successful", final=True),
    State.ABORTED: StateMeaning(meaning="given up, for a stated cause", dzero="failed", final=True),
    State.CANCELLED: StateMeaning(meaning="cancelled on request", dzero="canceled", final=True),
    State.CLEARED: StateMeaning(meaning="outputs handed over, or cleared by timeout", dzero="successful", final=True),
}
FINAL_STATES = frozenset(state for state, meaning in MEANINGS.items() if meaning.final)
FINAL_NAMES = frozenset(state.value for state in FINAL_STATES)
"""The final states as stored in rows."""
MOVABLE_STATES = (State.SUBMITTED, State.WAITING, State.READY, State.SCHEDULED)

ADVANCE: dict[State, int] = {
    # If two final facts should ever exist for one epoch, a grant outranks a cancel, because consumers may have read the outputs,
    # and a cancel outranks an abort, because a person asked for it. The book flags all three.
    State.SUBMITTED: 0,
    State.WAITING: 1,
    State.READY: 2,
    State.SCHEDULED: 3,
    State.RUNNING: 4,
    State.ABORTED: 5,
    State.CANCELLED: 6,
    State.DONE: 7,
    State.CLEARED: 8,
}
"""The order of the states: facts that imply several states show the most advanced one."""


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One move of a package: from one of several states to another, by an event."""

    event: str
    sources: tuple[State, ...]
    target: State
    note: str = ""


_UNFINISHED = (State.SUBMITTED, State.WAITING, State.READY, State.SCHEDULED, State.RUNNING)
_ENDED = (State.DONE, State.ABORTED, State.CANCELLED)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(event="JobAccepted", sources=(State.SUBMITTED,), target=State.WAITING),
    Transition(event="Bound", sources=(State.SUBMITTED, State.WAITING), target=State.READY),
    Transition(event="Unbound", sources=(State.SUBMITTED, State.READY), target=State.WAITING),
    Transition(event="AttemptCreated", sources=(State.SUBMITTED, State.WAITING), target=State.READY),
    Transition(
        event="AttemptCreated",
        sources=(State.SUBMITTED, State.WAITING, State.READY, State.SCHEDULED),
        target=State.RUNNING,
        note="with a lease",
    ),
    Transition(
        event="AttemptCreated",
        sources=(State.SCHEDULED, State.RUNNING),
        target=State.READY,
        note="in place of the only live one",
    ),
    Transition(event="AttemptQueued", sources=(State.SUBMITTED, State.WAITING, State.READY), target=State.SCHEDULED),
    Transition(event="AttemptStarted", sources=MOVABLE_STATES, target=State.RUNNING),
    Transition(event="AttemptSuspected", sources=MOVABLE_STATES, target=State.RUNNING, note="it held a lease"),
    Transition(event="AttemptRecovered", sources=MOVABLE_STATES, target=State.RUNNING, note="it holds its lease again"),
    Transition(
        event="AttemptLost",
        sources=(State.SUBMITTED, State.READY, State.SCHEDULED, State.RUNNING),
        target=State.WAITING,
        note="it was given up; the engine decides what follows",
    ),
    Transition(event="PhaseEntered", sources=MOVABLE_STATES, target=State.RUNNING, note="it holds a lease"),
    Transition(event="OutputsStaged", sources=MOVABLE_STATES, target=State.RUNNING, note="it holds a lease"),
    Transition(
        event="OutputsStored",
        sources=(State.SUBMITTED, State.WAITING),
        target=State.READY,
        note="nothing else was heard of the attempt yet",
    ),
    Transition(
        event="OutputsDisposed",
        sources=(State.SUBMITTED, State.WAITING),
        target=State.READY,
        note="nothing else was heard of the attempt yet",
    ),
    Transition(
        event="AttemptFinished", sources=MOVABLE_STATES, target=State.RUNNING, note="succeeded; it waits for its grant"
    ),
    Transition(
        event="AttemptFinished",
        sources=(State.SUBMITTED, State.READY, State.SCHEDULED, State.RUNNING),
        target=State.WAITING,
        note="failed; the engine decides what follows",
    ),
    Transition(event="CommitGranted", sources=(*_UNFINISHED, State.ABORTED, State.CANCELLED), target=State.DONE),
    Transition(event="Aborted", sources=_UNFINISHED, target=State.ABORTED),
    Transition(event="CancelAccepted", sources=(*_UNFINISHED, State.ABORTED), target=State.CANCELLED),
    Transition(event="Cleared", sources=(*_UNFINISHED, *_ENDED), target=State.CLEARED),
    Transition(
        event="Restarted",
        sources=(*_UNFINISHED, *_ENDED, State.CLEARED),
        target=State.WAITING,
        note="opens a new epoch",
    ),
)


class CompoundRule(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the rule for lines, stages and jobs: the first row whose condition holds gives the state."""

    condition: str
    state: State


COMPOUND_RULES: tuple[CompoundRule, ...] = (
    CompoundRule(condition="any child leased", state=State.RUNNING),
    CompoundRule(condition="not yet accepted", state=State.SUBMITTED),
    CompoundRule(condition="any child can still make progress, and one has started", state=State.RUNNING),
    CompoundRule(condition="any child can still make progress", state=State.WAITING),
    CompoundRule(condition="cancelled", state=State.CANCELLED),
    CompoundRule(condition="cleared, or every child cleared", state=State.CLEARED),
    CompoundRule(condition="nothing succeeded", state=State.ABORTED),
    CompoundRule(condition="otherwise, with its failed count", state=State.DONE),
)


# How an attempt ends and why a package is given up: GASW's exit codes and our causes.


class ExitCodeGasw(StrEnum):
    """The exit codes of GASW, which every finished attempt has, beside our more precise reason."""

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
    "logs": ExitCodeGasw.ERROR_GET_STD,  # not a phase: its logs cannot be read, to search them for failures
}


def exit_code_for(reason: str, *, phase: str) -> ExitCodeGasw:
    """GASW's exit code of a failure: one for each reason; for a platform failure, one for each phase.

    An agent does the same (`agent/attempt/diagnosis.py`), and so does the simulator's. Before the first phase, `phase` is empty.
    Any other reason, such as one named by a failure pattern, is a failure of the execution.
    """
    if reason == "platform-failure":
        return _CODES_BY_PHASE.get(phase, ExitCodeGasw.EXECUTION_FAILED)
    return _CODES.get(reason, ExitCodeGasw.EXECUTION_FAILED)


AbortCause = Literal[
    "waited-too-long",
    "quota",
    "credential-expired",
    "retries-exhausted",
    "upstream",
    "permanent-failure",
    "abort-on",
    "activity-stopped",
]
"""Why a package or a job was given up."""

ClearedBy = Literal["user", "timeout"]
"""How outputs were cleared: their owner took them, or their time was up."""

KeptReason = Literal["changed", "made", "not-removed", "read"]
"""Why a file stays although its removal was ordered: it changed since the grant, another job has it too, the system refuses
to remove it, or an unfinished package reads it.
"""
RestartCause = Literal["by-hand", "deep-resubmission", "remake", "revived"]
"""What opened a new epoch."""

ADOPTED = "adopted"
"""The site of attempts that were not run here."""
MADE_BEFORE = "made-before"
"""The reason of an agent's success report for adopted work: nothing was run."""
UNDECLARED = "undeclared-files"
"""The reason of an agent's success report if undeclared files were left behind."""
PILOT_WALL_OVER = "killed: the wall time of its pilot is over"
"""The agent's message for an attempt that ran until the end of its pilot, whatever its own limit."""

Phase = Literal["setup", "inputs", "application", "outputs", "cleaning"]
"""The phases of an attempt, in order; only a failed one reports its cleaning."""


# Why an attempt can fail, and what can be done about it: the vocabulary of the retry rules, the book and the agent.

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
    "unheard",
    "pilot-killed",
    "platform-failure",
    "preempted",
    "wall-time",
    "rescheduled",
    "dropped",
    "outrun",
    "healed",
    "regrouped",
]
"""Why an attempt is given up: its pilot is silent, died while running it or is gone, a person asked for it, another started,
healing treated an incident, or its group was dissolved before it began.
"""

NOBODYS_FAULT: frozenset[str] = frozenset({"rescheduled", "dropped", "outrun", "healed", "regrouped"})
"""The reasons for which an attempt is given up that blame neither its package nor its site."""
