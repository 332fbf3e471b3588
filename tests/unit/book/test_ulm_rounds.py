"""gLite L&B jobs that go round again, and collections of jobs."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.book.ulm import ImportedJob, read_ulm
from pilotage.book.ulm.states import FILE_TRANSFER_COLLECTION, ChildClass, collection_state
from pilotage.model.states import State
from tests.kit.ulm import START, LoggedJob


def only(job: LoggedJob) -> ImportedJob:
    imported = read_ulm(job.text(), file="events.log")
    assert (imported.faults, imported.warnings) == ((), ())
    return imported.jobs[0]


def states(*jobs: LoggedJob) -> dict[str, str]:
    imported = read_ulm("".join(job.text() for job in jobs), file="events.log")
    return {job.id: job.state.value for job in imported.jobs}


# Resubmissions, as in L&B's own examples


def test_each_round_counts_once_though_two_components_log_it() -> None:
    job = LoggedJob()
    job.run("ce1")
    job.resubmit("ce2", result="WILLRESUB")
    job.resubmit("ce3", result="SHALLOW")
    assert msgspec.structs.astuple(only(job))[1:] == (State.RUNNING, 12 + 14 + 14, 2, "ce3")


def test_a_refused_resubmission_does_not_count_and_an_announced_one_does_until_it_is_refused() -> None:
    job = LoggedJob()
    job.run("ce1")
    job.log("LogMonitor", "Resubmission", RESULT="WILLRESUB")
    assert only(job).resubmissions == 1
    job.log("WorkloadManager", "Resubmission", RESULT="WONTRESUB")
    assert only(job).resubmissions == 0


def test_two_announcements_without_a_decision_are_two_rounds() -> None:
    job = LoggedJob()
    for _ in range(2):
        job.log("LogMonitor", "Resubmission", RESULT="WILLRESUB")
        job.log("WorkloadManager", "DeQueued")
    assert only(job).resubmissions == 2


def shallow_twice() -> tuple[LoggedJob, list[str]]:
    """A job that went to three destinations by shallow resubmissions, and the code of each branch."""
    job = LoggedJob()
    job.run("ce1")
    codes = [str(job.code)]
    for destination in ("ce2", "ce3"):
        job.resubmit(destination, result="SHALLOW")
        codes.append(str(job.code))
    return job, codes


@pytest.mark.parametrize("branch, destination", [(0, "ce1"), (1, "ce2"), (2, "ce3")])
def test_the_branch_whose_payload_runs_says_where_the_job_is(branch: int, destination: str) -> None:
    job, codes = shallow_twice()
    job.log("LogMonitor", "ReallyRunning", WN_SEQ=codes[branch])
    assert (only(job).state, only(job).destination) == (State.RUNNING, destination)


def test_a_deep_resubmission_after_a_branch_has_won_starts_afresh() -> None:
    job, codes = shallow_twice()
    job.log("LogMonitor", "ReallyRunning", WN_SEQ=codes[1])
    job.resubmit("ce4", result="WILLRESUB")
    assert (only(job).state, only(job).resubmissions, only(job).destination) == (State.RUNNING, 3, "ce4")


def test_events_of_a_branch_that_lost_do_not_change_the_state() -> None:
    job = LoggedJob()
    job.run("ce1")
    job.log("LRMS", "ReallyRunning")
    job.log("WorkloadManager", "DeQueued")
    job.log("WorkloadManager", "Match", DEST_ID="ce2")
    assert (only(job).state, only(job).destination) == (State.RUNNING, "ce1")


def test_a_job_that_comes_from_its_user_again_forgets_its_branch() -> None:
    job = LoggedJob()
    job.run("ce1")
    job.log("LRMS", "ReallyRunning")
    job.log_with(START._replace(ui=9, ns=96670), "NetworkServer", "Clear", REASON="TIMEOUT")
    assert only(job).state is State.CLEARED


# Collections

RUNS, DONE, ABORTED, CLEARED = ChildClass.RUNNING, ChildClass.DONE, ChildClass.ABORTED, ChildClass.CLEARED


@pytest.mark.parametrize(
    "counts, state, of_transfers",
    [
        ({RUNS: 1, DONE: 2}, "RUNNING", "RUNNING"),
        ({CLEARED: 3}, "CLEARED", "WAITING"),
        ({CLEARED: 1, DONE: 2}, "DONE", "WAITING"),
        ({DONE: 3}, "DONE", "DONE"),
        ({ABORTED: 1, DONE: 2}, "ABORTED", "ABORTED"),
        ({ABORTED: 3}, "ABORTED", "ABORTED"),
        ({ABORTED: 1, DONE: 1}, "WAITING", "WAITING"),
        ({}, "WAITING", "WAITING"),
    ],
)
def test_a_collection_takes_the_first_rule_that_fits(
    counts: dict[ChildClass, int], state: str, of_transfers: str
) -> None:
    assert collection_state(counts, children=3) == state
    assert collection_state(counts, children=3, kind=FILE_TRANSFER_COLLECTION) == of_transfers


def family(*ends: str, kind: str = "COLLECTION") -> list[LoggedJob]:
    """A parent and its children: each is registered, and runs or ends as told."""
    parent = LoggedJob("parent")
    parent.register(kind=kind, subjobs=len(ends))
    children = []
    for number, end in enumerate(ends):
        child = LoggedJob(f"child{number}")
        child.register(parent="parent")
        if end:
            child.run("ce")
        if end in ("OK", "FAILED", "CANCELLED"):
            child.log("LogMonitor", "Done", STATUS_CODE=end)
        elif end != "Running" and end:
            child.log("LogMonitor", end)
        children.append(child)
    return [parent, *children]


@pytest.mark.parametrize(
    "ends, state",
    [
        (("", ""), "SUBMITTED"),
        (("OK", ""), "WAITING"),
        (("OK", "Running"), "RUNNING"),
        (("OK", "OK"), "DONE"),
        (("OK", "CANCELLED"), "DONE"),
        (("Clear", "CANCELLED"), "CLEARED"),
        (("OK", "Abort"), "ABORTED"),
        (("OK", "FAILED"), "WAITING"),
    ],
)
def test_a_collection_is_what_its_children_make_it(ends: tuple[str, ...], state: str) -> None:
    jobs = family(*ends)
    assert states(*jobs)["parent"] == states(*reversed(jobs))["parent"] == state


def test_children_that_are_not_in_the_file_rest() -> None:
    parent, child, _ = family("OK", "OK")
    assert states(parent, child)["parent"] == "WAITING"


def test_a_dag_has_a_state_of_its_own() -> None:
    assert states(*family("OK", "Running", kind="DAG"))["parent"] == "SUBMITTED"


def test_a_child_of_an_unknown_parent_is_a_job_like_any_other() -> None:
    _, child = family("OK")
    assert states(child) == {"child0": "DONE"}


def test_a_cancelled_collection_stays_so_and_an_aborted_one_until_a_child_moves_later() -> None:
    for kind, earlier, later in (("Cancel", "CANCELLED", "CANCELLED"), ("Abort", "ABORTED", "RUNNING")):
        parent, child = family("Running")
        parent.log("WorkloadManager", kind, STATUS_CODE="DONE")
        assert states(parent, child)["parent"] == later
        while len(parent.lines) < 60:
            parent.log("Application", "UserTag")
        parent.log("WorkloadManager", kind, STATUS_CODE="DONE")
        assert states(parent, child)["parent"] == earlier


def test_what_the_server_said_of_a_collection_stands_while_children_are_missing() -> None:
    parent, *children = family("OK", "OK", "OK")
    parent.log("LBServer", "CollectionState", STATE="Done", DONE_CODE="0")
    assert states(parent)["parent"] == "DONE"
    assert states(parent, children[0])["parent"] == "DONE"


def test_collections_of_collections_are_counted_from_below() -> None:
    top = LoggedJob("a-top")
    top.register(kind="COLLECTION", subjobs=1)
    parent, *children = family("OK", "OK")
    parent.log("UserInterface", "RegJob", JOBTYPE="COLLECTION", PARENT="a-top", NSUBJOBS="2")
    assert states(top, parent, *children) == dict.fromkeys(("a-top", "child0", "child1", "parent"), "DONE")


def test_a_collection_that_is_its_own_ancestor_is_told_and_keeps_its_state() -> None:
    one, other = LoggedJob("one"), LoggedJob("other")
    one.register(kind="COLLECTION", parent="other")
    other.register(kind="COLLECTION", parent="one")
    imported = read_ulm(one.text() + other.text(), file="f")
    assert [job.state for job in imported.jobs] == [State.SUBMITTED, State.SUBMITTED]
    assert [(warning.code, warning.line) for warning in imported.warnings] == [("ulm-circle", 1), ("ulm-circle", 2)]
