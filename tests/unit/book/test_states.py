"""The fold moves exactly as the table of transitions says: every state with every event, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.book.rows.derived_states import compound_state, default_state
from pilotage.book.rows.rows import JobRow, StageRow
from pilotage.model.events.events import EVENT_TYPES
from pilotage.model.states import (
    ADVANCE,
    COMPOUND_RULES,
    FINAL_STATES,
    MEANINGS,
    MOVABLE_STATES,
    TRANSITIONS,
    State,
)
from tests.kit.memory_ledger import MemoryBook

SHAPE = {"templates": [{"lines": 1, "activities": ["sim"]}]}
Step = tuple[str, dict[str, Any]]

ACCEPTED: Step = ("JobAccepted", {})
BOUND: Step = ("Bound", {"site": "lyon"})
UNBOUND: Step = ("Unbound", {})
CREATED: Step = ("AttemptCreated", {"attempt": 1, "site": "lyon"})
QUEUED: Step = ("AttemptQueued", {"attempt": 1})
STARTED: Step = ("AttemptStarted", {"attempt": 1})
FAILED: Step = ("AttemptFinished", {"attempt": 1, "exit_code": "EXECUTION_FAILED"})
SUCCEEDED: Step = ("AttemptFinished", {"attempt": 1, "exit_code": "SUCCESS"})
SUSPECTED: Step = ("AttemptSuspected", {"attempt": 1})
RECOVERED: Step = ("AttemptRecovered", {"attempt": 1})
LOST: Step = ("AttemptLost", {"attempt": 1, "reason": "preempted"})
PHASE: Step = ("PhaseEntered", {"attempt": 1, "phase": "inputs"})
GRANTED: Step = ("CommitGranted", {"attempt": 1})
CANCELLED: Step = ("CancelAccepted", {})
ABORTED: Step = ("Aborted", {"cause": "quota"})
CLEARED: Step = ("Cleared", {"by": "user"})

WAYS: dict[State, list[list[Step]]] = {
    # How a package comes to stand in each state: by the book, and with what comes before lost on the way.
    State.SUBMITTED: [[]],
    State.WAITING: [[ACCEPTED], [ACCEPTED, CREATED, FAILED], [ACCEPTED, BOUND, CREATED, STARTED, FAILED], [UNBOUND],
                    [ACCEPTED, CREATED, STARTED, SUSPECTED, LOST]],
    State.READY: [[ACCEPTED, BOUND], [ACCEPTED, BOUND, CREATED], [BOUND], [CREATED]],
    State.SCHEDULED: [[ACCEPTED, BOUND, CREATED, QUEUED], [QUEUED]],
    State.RUNNING: [[ACCEPTED, CREATED, QUEUED, STARTED], [STARTED], [CREATED, STARTED, SUCCEEDED], [SUCCEEDED],
                    [CREATED, STARTED, LOST, RECOVERED], [CREATED, STARTED, LOST, SUCCEEDED]],
    State.DONE: [[ACCEPTED, CREATED, STARTED, SUCCEEDED, GRANTED], [GRANTED]],
    State.ABORTED: [[ACCEPTED, CREATED, STARTED, FAILED, ABORTED], [ABORTED], [STARTED, ABORTED]],
    State.CANCELLED: [[ACCEPTED, CREATED, STARTED, CANCELLED], [CANCELLED]],
    State.CLEARED: [[ACCEPTED, CREATED, STARTED, SUCCEEDED, GRANTED, CLEARED], [CLEARED]],
}  # fmt: skip
EVENTS: dict[tuple[str, str], Step] = {
    # Every event a package can be moved by, and beside them those that must not move it, as (type, note of the table).
    ("JobAccepted", ""): ACCEPTED,
    ("InputsRemade", ""): ("InputsRemade", {"granted": 2}),
    ("Bound", ""): BOUND,
    ("Unbound", ""): UNBOUND,
    ("AttemptCreated", ""): ("AttemptCreated", {"attempt": 2, "site": "nikhef"}),
    ("AttemptCreated", "with a lease"): ("AttemptCreated", {"attempt": 2, "site": "nikhef", "lease_seconds": 60}),
    ("AttemptCreated", "in place of the only live one"): (
        "AttemptCreated", {"attempt": 2, "site": "nikhef", "replaces": 1},
    ),
    ("AttemptQueued", ""): QUEUED,
    ("AttemptStarted", ""): STARTED,
    ("AttemptSuspected", "it held a lease"): SUSPECTED,
    ("AttemptRecovered", "it holds its lease again"): RECOVERED,
    ("AttemptLost", "it was given up; the engine decides what follows"): LOST,
    ("PhaseEntered", "it holds a lease"): PHASE,
    ("OutputsStaged", "it holds a lease"): ("OutputsStaged", {"attempt": 1, "manifest": []}),
    ("AttemptFinished", "succeeded; it waits for its grant"): SUCCEEDED,
    ("AttemptFinished", "failed; the engine decides what follows"): FAILED,
    ("CommitGranted", ""): GRANTED,
    ("OutputsStored", "nothing else was heard of the attempt yet"): ("OutputsStored", {"attempt": 1}),
    ("OutputsDisposed", "nothing else was heard of the attempt yet"): ("OutputsDisposed", {"attempt": 1}),
    ("Aborted", ""): ABORTED,
    ("CancelAccepted", ""): CANCELLED,
    ("Cleared", ""): CLEARED,
    ("Restarted", "opens a new epoch"): ("Restarted", {"epoch": 2, "cause": "by-hand"}),
    ("Held", ""): ("Held", {"operation": 1}),
    ("Released", ""): ("Released", {"operation": 1}),
    ("Dropped", ""): ("Dropped", {"operation": 1}),
    ("Restored", ""): ("Restored", {"operation": 1}),
    ("RemovalOrdered", ""): ("RemovalOrdered", {"attempt": 1, "by": "ada"}),
    ("FilesRemoved", ""): ("FilesRemoved", {"attempt": 1, "removed": ["a"]}),
    ("ReplicaWanted", ""): ("ReplicaWanted", {"replicas": 1}),
    ("Tagged", ""): ("Tagged", {"name": "study", "value": "A"}),
    ("Noted", ""): ("Noted", {"text": "so"}),
    ("PackageRegistered", ""): ("PackageRegistered", {}),
    ("NodeDescribed", ""): ("NodeDescribed", {"attempt": 1, "node": "node1"}),
}  # fmt: skip


def wire(n: int, step: Step) -> dict[str, Any]:
    event_type, said = step
    data = {name: value for name, value in said.items() if name not in ("attempt", "epoch")}
    event: dict[str, Any] = {"source": "service", "stream": "engine", "n": n, "type": event_type, "time": 100.0 + n}
    event |= {"seen": n}
    event |= {"job": "j", "data": data} | {name: said[name] for name in ("attempt", "epoch") if name in said}
    return event if event_type in ("JobRegistered", "JobAccepted") else event | {"package": "1.1.1"}


def book_after(*steps: Step) -> MemoryBook:
    """A book that heard of one package, and then these steps, in this order."""
    book = MemoryBook()
    first: list[Step] = [
        ("JobRegistered", {"owner": "ada", "name": "n", "stages": [SHAPE]}),
        ("Noted", {"text": "it is"}),
    ]
    book.take([wire(n, step) for n, step in enumerate([*first, *steps], 1)])
    return book


def state_after(*steps: Step) -> State:
    return State(book_after(*steps).package("j", "1.1.1").state)


@pytest.mark.parametrize("state", list(State))
def test_every_state_can_be_reached(state: State) -> None:
    for way in WAYS[state]:
        assert state_after(*way) == state, way


def test_the_fold_moves_as_the_table_says_and_in_no_other_way() -> None:
    moves = {
        (event, note, state, after)
        for (event, note), step in EVENTS.items()
        for state, ways in WAYS.items()
        for way in ways
        if (after := state_after(*way, step)) != state
    }
    table = {
        (each.event, each.note, source, each.target)
        for each in TRANSITIONS
        for source in each.sources
        if source != each.target
    }
    # A replacement where nothing was tried before is a plain creation.
    plain = {
        move
        for move in moves
        if move[1] == "in place of the only live one" and move[2] in (State.SUBMITTED, State.WAITING)
    }
    assert {(*move[:1], "", *move[2:]) for move in plain} <= table
    assert moves - plain == table


def test_a_move_of_the_table_into_its_own_state_opens_an_epoch() -> None:
    for each in TRANSITIONS:
        for state in each.sources:
            if state == each.target:
                for way in WAYS[state]:
                    after = book_after(*way, EVENTS[each.event, each.note]).package("j", "1.1.1")
                    assert (after.state, after.epoch) == (state, 2)


def test_every_event_type_about_packages_and_attempts_is_walked() -> None:
    walked = {event for event, _ in EVENTS}
    about = {name for name, each in EVENT_TYPES.items() if each.subjects & {"package", "attempt"}}
    assert about <= walked
    assert {each.event for each in TRANSITIONS} <= walked


def test_of_two_final_facts_the_more_advanced_is_shown_in_any_order_and_flagged() -> None:
    finals = {State.DONE: GRANTED, State.CANCELLED: CANCELLED, State.ABORTED: ABORTED}
    for one, first in finals.items():
        for other, second in finals.items():
            facts = book_after(first, second).package("j", "1.1.1")
            assert facts.state == max(one, other, key=ADVANCE.__getitem__)
            assert facts.conflict == int(one != other)


def test_of_states_that_facts_imply_the_most_advanced_is_shown() -> None:
    steps = {
        State.WAITING: ACCEPTED, State.READY: CREATED, State.SCHEDULED: QUEUED, State.RUNNING: STARTED,
        State.ABORTED: ABORTED, State.CANCELLED: CANCELLED, State.DONE: GRANTED, State.CLEARED: CLEARED,
    }  # fmt: skip
    for one, first in steps.items():
        for other, second in steps.items():
            assert state_after(first, second) == max(one, other, key=ADVANCE.__getitem__), (first, second)


def test_two_grants_of_one_epoch_are_flagged_and_the_later_attempt_is_shown() -> None:
    facts = book_after(GRANTED, ("CommitGranted", {"attempt": 2})).package("j", "1.1.1")
    assert (facts.state, facts.conflict, facts.attempt) == ("DONE", 1, 2)


def test_a_lost_attempt_is_not_waited_for_and_says_why_until_it_has_an_end_of_its_own() -> None:
    lost = book_after(ACCEPTED, CREATED, STARTED, LOST).package("j", "1.1.1")
    assert (lost.state, lost.reason, lost.entered_at) == ("WAITING", "preempted", 106.0)
    assert (lost.attempts[1].lost_at, lost.attempts[1].lost_reason) == (106.0, "preempted")
    late = book_after(ACCEPTED, CREATED, STARTED, LOST, FAILED).package("j", "1.1.1")
    assert (late.state, late.reason, late.exit_code) == ("WAITING", None, "EXECUTION_FAILED")
    won = book_after(ACCEPTED, CREATED, STARTED, LOST, SUCCEEDED, GRANTED).package("j", "1.1.1")
    assert (won.state, won.reason) == ("DONE", None)


def test_a_phase_alone_does_not_bring_a_lost_attempt_back_and_its_recovery_or_success_does() -> None:
    assert state_after(CREATED, STARTED, LOST, PHASE) == State.WAITING
    assert state_after(CREATED, STARTED, LOST, RECOVERED) == State.RUNNING
    assert state_after(CREATED, STARTED, LOST, SUCCEEDED) == State.RUNNING


def test_of_suspected_recovered_and_lost_the_last_word_stands() -> None:
    words = {"suspected_at": SUSPECTED, "recovered_at": RECOVERED, "lost_at": LOST}
    for first in words.values():
        for stands, second in words.items():
            attempt = book_after(CREATED, STARTED, first, second).package("j", "1.1.1").attempts[1]
            assert {name for name in words if getattr(attempt, name) is not None} == {stands}
            assert attempt.lost_reason == ("preempted" if stands == "lost_at" else None)


def test_replicas_are_wanted_for_the_rest_of_an_epoch() -> None:
    wanted: list[Step] = [("ReplicaWanted", {"replicas": 1}), ("ReplicaWanted", {"replicas": 2})]
    assert book_after(CREATED, *wanted).package("j", "1.1.1").replicas == 2
    again: Step = ("Restarted", {"epoch": 2, "cause": "by-hand"})
    assert book_after(CREATED, *wanted, again).package("j", "1.1.1").replicas == 0


def test_beside_a_lost_attempt_another_one_counts() -> None:
    other: Step = ("AttemptCreated", {"attempt": 2, "site": "nikhef", "lease_seconds": 60})
    facts = book_after(ACCEPTED, CREATED, STARTED, LOST, other).package("j", "1.1.1")
    assert (facts.state, facts.attempt, facts.reason) == ("RUNNING", 2, None)


def test_the_states_of_the_dzero_job_definition() -> None:
    assert {state.value: meaning.dzero for state, meaning in MEANINGS.items()} == {
        "SUBMITTED": "unscheduled", "WAITING": "unscheduled", "READY": "scheduled", "SCHEDULED": "scheduled",
        "RUNNING": "launched", "DONE": "successful", "ABORTED": "failed", "CANCELLED": "canceled",
        "CLEARED": "successful",
    }  # fmt: skip


def test_the_tables_speak_of_the_same_states() -> None:
    assert set(MEANINGS) == set(ADVANCE) == set(State)
    assert len(set(ADVANCE.values())) == len(State)
    assert {State.DONE, State.ABORTED, State.CANCELLED, State.CLEARED} == FINAL_STATES
    assert set(MOVABLE_STATES) | {State.RUNNING} | FINAL_STATES == set(State)


def job(**facts: Any) -> JobRow:
    return JobRow(job_id=1, job="j", accepted_at=1.0, **facts)


def state_of(one: JobRow, *, late: int = 0, **counts: Any) -> str:
    return compound_state(StageRow(job_id=1, stage=1, **counts), job=one, late=late)


@pytest.mark.parametrize(
    "facts, counts, state",
    [
        ({"accepted_at": None}, {"submitted": 2}, "SUBMITTED"),
        ({"accepted_at": None}, {}, "SUBMITTED"),
        ({"accepted_at": None}, {"submitted": 1, "ready": 1}, "WAITING"),
        ({"accepted_at": None}, {"aborted": 1}, "ABORTED"),
        ({"accepted_at": None, "cancelled_at": 2.0}, {"cancelled": 2}, "CANCELLED"),
        ({"accepted_at": None}, {"submitted": 1, "running": 1, "started": 1}, "RUNNING"),
        ({}, {"waiting": 2}, "WAITING"),
        ({}, {"waiting": 1, "scheduled": 1, "done": 0}, "WAITING"),
        ({}, {"waiting": 1, "done": 1, "started": 1, "succeeded": 1}, "RUNNING"),
        ({}, {"waiting": 1, "aborted": 1}, "WAITING"),
        ({}, {"running": 1, "started": 1}, "RUNNING"),
        ({"cancelled_at": 2.0}, {"running": 1, "cancelled": 3, "started": 1}, "RUNNING"),
        ({"cancelled_at": 2.0}, {"cancelled": 3, "done": 1, "succeeded": 1, "started": 1}, "CANCELLED"),
        ({}, {"done": 1, "aborted": 1, "succeeded": 1, "started": 2}, "DONE"),
        ({}, {"aborted": 1, "cancelled": 1}, "ABORTED"),
        ({}, {"cleared": 2, "succeeded": 2}, "CLEARED"),
        ({}, {"cleared": 1, "done": 1, "succeeded": 2}, "DONE"),
        ({}, {"cleared": 1, "aborted": 1, "succeeded": 1}, "DONE"),
        ({"cleared_at": 3.0}, {"done": 2, "succeeded": 2}, "CLEARED"),
        ({"cleared_at": 3.0, "cancelled_at": 2.0}, {"cancelled": 2}, "CANCELLED"),
        ({"aborted_at": 2.0}, {"aborted": 2}, "ABORTED"),
        ({}, {}, "WAITING"),
        ({"cancelled_at": 2.0}, {}, "CANCELLED"),
    ],
)  # fmt: skip
def test_a_compound_takes_the_first_rule_that_holds(facts: dict[str, Any], counts: dict[str, int], state: str) -> None:
    one = JobRow(job_id=1, job="j", **{"accepted_at": 1.0, **facts})
    assert state_of(one, **counts) == state
    assert state in {rule.state.value for rule in COMPOUND_RULES}


def test_a_stage_that_is_not_known_yet_can_still_move() -> None:
    assert state_of(job(), late=1, done=2, succeeded=2, started=2) == "RUNNING"
    assert state_of(job(), late=1) == "WAITING"
    assert state_of(job(cancelled_at=2.0), late=1, done=2, succeeded=2, started=2) == "CANCELLED"


def test_a_compound_is_never_scheduled_or_ready() -> None:
    states = {rule.state for rule in COMPOUND_RULES}
    assert not states & {State.SCHEDULED, State.READY}


def test_what_nothing_was_heard_of_stands_where_its_job_puts_it() -> None:
    assert default_state(JobRow(job_id=1, job="j")) == "SUBMITTED"
    assert default_state(job()) == "WAITING"
    assert default_state(job(aborted_at=2.0)) == "ABORTED"
    assert default_state(job(aborted_at=2.0, cancelled_at=3.0)) == "CANCELLED"
