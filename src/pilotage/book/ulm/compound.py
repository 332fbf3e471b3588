"""Collections: a state from the states of the children, by L&B's own rule.

L&B counts the children of a collection by class and takes the first rule that fits: one runs → RUNNING; all are cleared
or cancelled → CLEARED; all are done or cleared → DONE; all are aborted, done or cleared → ABORTED; else WAITING. A child
that failed and may be resubmitted rests. For a DAG it has no such rule: DAGMan is a job with events of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from pilotage.book.ulm.states import ChildClass, JobFacts
from pilotage.model.states import State

COLLECTION = "COLLECTION"
FILE_TRANSFER_COLLECTION = "FILE_TRANSFER_COLLECTION"
_KINDS = frozenset({COLLECTION, FILE_TRANSFER_COLLECTION})


def collection_state(counts: Mapping[ChildClass, int], *, children: int, kind: str = COLLECTION) -> State:
    """The state of a collection with so many children, of which those that are not counted rest."""
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
    # A collection inside a collection comes first; what is never free of such children is a circle.
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
    """What a collection is, from its own events and its children."""
    changes = [child.changed_class_time for child in children if child.changed_class_time is not None]
    if not changes or own.state in (State.CANCELLED, State.CLEARED):
        return own  # L&B looks at the children when one of them changes, and ended is ended
    if own.state is State.ABORTED and max(changes) <= own.aborted_time:
        return own
    if own.collection_reported and len(children) < own.subjobs:
        return own  # L&B saw all children when it logged this state, and we do not
    counts = Counter(child.child_class for child in children)
    state = collection_state(counts, children=max(own.subjobs, len(children)), kind=own.kind)
    return msgspec.structs.replace(own, state=state, failed=False, changed_class_time=max(changes))
