"""Derives the state, the resubmissions and the destination of one job from its sorted events.

L&B folds events as they arrive, so that a late one can have another effect. Here all events are sorted first, as L&B
does when it computes a state from a stored log, and then folded by the same rules: branches of shallow resubmissions,
the deadline that a deep one sets, final states. So the order of arrival does not matter.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from pilotage.book.ulm.lines import LOG_MONITOR, LRMS, WORKLOAD_MANAGER, Move, SequenceCode, UlmEvent, move_of
from pilotage.model.states import State

_FINAL = frozenset({State.ABORTED, State.CANCELLED, State.CLEARED})
_RAN = frozenset({State.RUNNING, State.DONE})
_RESUBMITTED = frozenset({"WILLRESUB", "SHALLOW"})
# Logged by any component at any time: their codes do not tell where the job is.
_ASIDE = frozenset({"Cancel", "ChangeACL", "GrantPayloadOwnership", "TakePayloadOwnership"})


class ChildClass(StrEnum):
    """How a collection counts a child; a failed job that may be resubmitted rests."""

    RESTING = "resting"
    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"
    CLEARED = "cleared"


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What all events of one job say together."""

    state: State
    failed: bool
    events: int
    resubmissions: int
    destination: str | None
    kind: str = ""
    parent: str = ""
    subjobs: int = 0
    registered_line: int = 0
    changed_class_time: str | None = None
    """When the job last changed its class for a collection; None if it never did."""
    aborted_time: str = ""
    collection_reported: bool = False
    """L&B itself logged the state of this collection."""

    @property
    def child_class(self) -> ChildClass:
        """How a collection counts this job."""
        return child_class(self.state, failed=self.failed)


def child_class(state: State | None, *, failed: bool) -> ChildClass:
    """How a collection counts a child in this state (L&B counts cancelled children as cleared)."""
    match state:
        case State.RUNNING:
            return ChildClass.RUNNING
        case State.DONE:
            return ChildClass.RESTING if failed else ChildClass.DONE
        case State.ABORTED:
            return ChildClass.ABORTED
        case State.CANCELLED | State.CLEARED:
            return ChildClass.CLEARED
        case _:
            return ChildClass.RESTING


def facts_of(events: Iterable[UlmEvent]) -> JobFacts:
    """Fold the distinct events of one job, in any order."""
    fold = _Fold()
    for event in sorted(events, key=lambda each: each.order):
        fold.take(event)
    return fold.facts()


class _BranchRelation(StrEnum):
    """How an event relates to the branch that the job runs in."""

    FREE = "no branch is known"
    GOOD = "of the branch that runs"
    FOREIGN = "of a branch that lost"
    OLD = "of before the last deep resubmission"


class _Fold:
    """The facts so far. A branch is one decision of the workload manager: all events with its counter."""

    def __init__(self) -> None:
        self._count = 0
        self._state: State | None = None
        self._failed = False
        self._ran_branch = -1  # the workload manager's counter when the job was last seen running or done
        self._last: SequenceCode | None = None
        self._branch: int | None = None  # the branch whose payload runs
        self._branch_last: SequenceCode | None = None
        self._deep_branch: int | None = None
        self._destination = ""
        self._matches: dict[int, str] = {}
        self._matched_branches: list[int] = []
        self._resubmissions = 0
        self._announced = False
        self._kind = ""
        self._parent = ""
        self._subjobs = 0
        self._registered_line = 0
        self._class = ChildClass.RESTING
        self._changed_class_time: str | None = None
        self._aborted_time = ""
        self._collection_reported = False

    def take(self, event: UlmEvent) -> None:
        """Fold the next event in the total order."""
        self._count += 1
        if event.kind != "Cancel" and self._enters_again(event.code):
            self._branch = self._branch_last = self._deep_branch = None
        relation = self._relation(event.code)
        late = self._is_late(event, relation)
        self._learn(event, relation)
        move = move_of(event.kind, source=event.source, result=event.result)
        if event.kind == "ReallyRunning":
            self._run_really(event, relation, late=late)
        elif event.kind == "Resubmission":
            self._resubmit(event)
        elif move is not None and move.state is not None and not late and not self._is_overtaken(move, event):
            self._enter(move.state, event, branch=event.code.wm, failed=move.failed)
        if move is not None and not late:
            self._pass(event, relation)

    def facts(self) -> JobFacts:
        """The resulting facts; a job without any other state was at least submitted."""
        return JobFacts(
            state=self._state or State.SUBMITTED,
            failed=self._failed,
            events=self._count,
            resubmissions=self._resubmissions + self._announced,
            destination=self._destination or None,
            kind=self._kind,
            parent=self._parent,
            subjobs=self._subjobs,
            registered_line=self._registered_line,
            changed_class_time=self._changed_class_time,
            aborted_time=self._aborted_time,
            collection_reported=self._collection_reported,
        )

    def _enters_again(self, code: SequenceCode) -> bool:
        """Tell whether the user submits the job once more, which ends all loops of resubmission."""
        return self._last is not None and (code.ui > self._last.ui or code.ns > self._last.ns)

    def _relation(self, code: SequenceCode) -> _BranchRelation:
        if self._deep_branch is not None and code.wm < self._deep_branch:
            return _BranchRelation.OLD
        if self._branch is None:
            return _BranchRelation.FREE
        return _BranchRelation.GOOD if code.wm == self._branch else _BranchRelation.FOREIGN

    def _is_late(self, event: UlmEvent, relation: _BranchRelation) -> bool:
        """Tell whether the event can no longer change the state."""
        if event.kind == "Abort" and event.source == WORKLOAD_MANAGER:
            return False  # L&B always accepts it
        if self._state in _FINAL and not (self._state is State.ABORTED and event.kind == "CollectionState"):
            return True
        if relation is _BranchRelation.GOOD:
            return self._branch_last is not None and event.code < self._branch_last
        return relation is not _BranchRelation.FREE

    def _is_overtaken(self, move: Move, event: UlmEvent) -> bool:
        return move.overtaken and self._state in _RAN and event.code.wm == self._ran_branch

    def _learn(self, event: UlmEvent, relation: _BranchRelation) -> None:
        """Record everything except the state, also from late events."""
        if event.registration is not None:
            self._kind = event.registration.kind or self._kind
            self._parent = event.registration.parent or self._parent
            self._subjobs = event.registration.subjobs
            self._registered_line = event.line
        if event.kind == "CollectionState":
            self._collection_reported = True
        if event.destination:
            if relation in (_BranchRelation.FREE, _BranchRelation.GOOD):
                self._destination = event.destination
            if event.code.wm not in self._matches:
                bisect.insort(self._matched_branches, event.code.wm)
            self._matches[event.code.wm] = event.destination

    def _run_really(self, event: UlmEvent, relation: _BranchRelation, *, late: bool) -> None:
        """The payload started: from now on only events of its branch count, and its destination is the job's."""
        if relation in (_BranchRelation.OLD, _BranchRelation.FOREIGN) or event.source not in (LRMS, LOG_MONITOR):
            return
        # The log monitor repeats a report of the worker node, whose own code names the branch.
        code = event.worker_code if event.source == LOG_MONITOR and event.worker_code else event.code
        if event.source == LRMS or self._branch is None:
            self._branch = code.wm
        if not late and (event.source == LRMS or self._branch_last is None):
            self._branch_last = code
            self._enter(State.RUNNING, event, branch=code.wm, failed=False)
        place = bisect.bisect_right(self._matched_branches, self._branch)
        if place:
            self._destination = self._matches[self._matched_branches[place - 1]]

    def _resubmit(self, event: UlmEvent) -> None:
        """Count each resubmission once: the log monitor announces it, and the workload manager's decision replaces that."""
        again = event.result in _RESUBMITTED
        if event.source != WORKLOAD_MANAGER:
            self._resubmissions += self._announced and again
            self._announced = self._announced or again
            return
        self._announced = False
        self._resubmissions += again
        if event.result == "WILLRESUB":
            self._forget_branches(event.code)

    def _forget_branches(self, code: SequenceCode) -> None:
        self._branch = None
        self._deep_branch = code.wm
        self._matches.clear()
        self._matched_branches.clear()

    def _enter(self, state: State, event: UlmEvent, *, branch: int, failed: bool) -> None:
        self._state = state
        self._failed = failed
        if state in _RAN:
            self._ran_branch = branch
        if state is State.ABORTED:
            self._aborted_time = event.time
            self._forget_branches(event.code)
        now = child_class(state, failed=failed)
        if now is not self._class:
            self._class = now
            self._changed_class_time = event.time

    def _pass(self, event: UlmEvent, relation: _BranchRelation) -> None:
        if event.kind not in _ASIDE or self._state is State.CANCELLED:
            self._last = event.code
        if relation is _BranchRelation.GOOD:
            self._branch_last = event.code


# Derives the state of a collection from its children, by L&B's own rule.
#
# L&B counts the children by class and takes the first rule that matches: one runs → RUNNING; all are cleared or cancelled →
# CLEARED; all are done or cleared → DONE; all are aborted, done or cleared → ABORTED; else WAITING. A failed child that
# may be resubmitted rests. There is no such rule for a DAG: DAGMan is a job with events of its own.

COLLECTION = "COLLECTION"
FILE_TRANSFER_COLLECTION = "FILE_TRANSFER_COLLECTION"
_KINDS = frozenset({COLLECTION, FILE_TRANSFER_COLLECTION})


def collection_state(counts: Mapping[ChildClass, int], *, children: int, kind: str = COLLECTION) -> State:
    """The state of a collection with so many children; those not counted rest."""
    cleared = counts.get(ChildClass.CLEARED, 0) if kind == COLLECTION else 0  # transfers are never cleared
    done = counts.get(ChildClass.DONE, 0)
    if counts.get(ChildClass.RUNNING, 0):
        return State.RUNNING
    if kind == COLLECTION and cleared == children:
        return State.CLEARED
    if done + cleared == children:
        return State.DONE
    if counts.get(ChildClass.ABORTED, 0) + done + cleared == children:
        return State.ABORTED
    return State.WAITING


def with_collections(jobs: Mapping[str, JobFacts]) -> tuple[dict[str, JobFacts], tuple[str, ...]]:
    """The jobs with the states of their collections, and the ids of collections that are their own ancestors."""
    children: dict[str, list[str]] = {}
    for name, facts in jobs.items():
        if facts.parent in jobs and jobs[facts.parent].kind in _KINDS:
            children.setdefault(facts.parent, []).append(name)
    # Inner collections come first; those that never become free are in a circle.
    awaited = {name: sum(child in children for child in below) for name, below in children.items()}
    free = [name for name, count in awaited.items() if count == 0]
    known = dict(jobs)
    while free:
        name = free.pop()
        del awaited[name]
        known[name] = _compound(jobs[name], [known[child] for child in children[name]])
        parent = jobs[name].parent
        if parent in awaited:
            awaited[parent] -= 1
            if awaited[parent] == 0:
                free.append(parent)
    return known, tuple(sorted(awaited))


def _compound(own: JobFacts, children: list[JobFacts]) -> JobFacts:
    """The facts of a collection, from its own events and its children."""
    changes = [child.changed_class_time for child in children if child.changed_class_time is not None]
    if not changes or own.state in (State.CANCELLED, State.CLEARED):
        return own  # a final state stays: L&B looks at the children only when one of them changes
    if own.state is State.ABORTED and max(changes) <= own.aborted_time:
        return own
    if own.collection_reported and len(children) < own.subjobs:
        return own  # L&B saw all children when it logged this state; we may not
    counts = Counter(child.child_class for child in children)
    state = collection_state(counts, children=max(own.subjobs, len(children)), kind=own.kind)
    return msgspec.structs.replace(own, state=state, failed=False, changed_class_time=max(changes))
