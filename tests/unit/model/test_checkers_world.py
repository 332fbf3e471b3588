"""What is read, what is durable and how it all ends: for each promise a story that keeps it and one that breaks it."""

from __future__ import annotations

import pytest

from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Drop,
    Hold,
    Kill,
    Refused,
    Release,
    Restart,
    Restore,
)
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.plan import LatePlan
from pilotage.simulator.checkers.observer import Observer
from tests.kit.observed import JOB, MERGE, ONE, PILOT, TWO, Story, broken, inputs, merging_plan, ref, states

# --- acknowledged ---------------------------------------------------------------------------------------------------


def test_an_acknowledged_event_that_is_not_durable_is_seen() -> None:
    story = Story()
    for _ in range(3):
        story.observer.on_spooled(story.event("PilotStarted", stream=PILOT, pilot=PILOT, site="lyon"))
    for n in (1, 3):
        story.say("PilotStarted", stream=PILOT, n=n, pilot=PILOT, data={"site": "lyon"})
    story.observer.on_acknowledged(PILOT, 1, 0.0)
    with broken("acknowledged", "event 2 is not durable, and 3 was acknowledged"):
        story.observer.on_acknowledged(PILOT, 3, 0.0)
    story.observer.on_crash(1.0)
    story.say("PilotStarted", stream=PILOT, n=2, pilot=PILOT, data={"site": "lyon"})
    story.observer.on_acknowledged(PILOT, 3, 2.0)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_an_event_that_is_in_the_book_twice_is_seen(n: int) -> None:
    story = Story()
    for each in (1, 2, 4):
        story.say("PilotStarted", stream=PILOT, n=each, pilot=PILOT, data={"site": "lyon"})
    with broken("acknowledged", f"event {n} .* twice"):
        story.say("PilotStarted", stream=PILOT, n=n, pilot=PILOT, data={"site": "lyon"})


def test_an_event_that_is_in_the_book_otherwise_than_it_was_said_is_seen() -> None:
    story = Story()
    story.observer.on_spooled(story.event("PilotStarted", stream=PILOT, n=1, pilot=PILOT, site="lyon"))
    with broken("acknowledged", "was said as PilotStarted"):
        story.say("PilotStarted", stream=PILOT, n=1, pilot=PILOT, data={"site": "nikhef"})


@pytest.mark.parametrize(
    "operation, kind, package, data",
    [
        (Kill(job=JOB), "CancelAccepted", None, {}),
        (Kill(job=JOB, package=ONE), "CancelAccepted", ONE, {}),
        (Hold(job=JOB, package=ONE), "Held", ONE, {"operation": 7}),
        (Release(job=JOB), "Released", None, {"operation": 7}),
        (Drop(job=JOB, stage=1, line=1), "Dropped", ONE, {"operation": 7}),
        (Restore(job=JOB, stage=1, line=1), "Restored", ONE, {"operation": 7}),
        (Restart(job=JOB, package=ONE), "Restarted", ONE, {"cause": "by-hand"}),
    ],
)
def test_an_accepted_operation_that_is_not_durable_is_seen(
    operation: AnyOperation, kind: str, package: str | None, data: dict[str, object]
) -> None:
    story = Story()
    accepted = Accepted(operation=7, events=1)
    story.observer.on_answered(operation, Refused(code="job-over", message="no"), 0.0)
    story.observer.on_answered(operation, Accepted(operation=6, events=0), 0.0)  # it stood so already
    with broken("acknowledged", "is not durable"):
        story.observer.on_answered(operation, accepted, 0.0)
    story.say(kind, package, epoch=2 if kind == "Restarted" else 1, data=data)
    story.observer.on_answered(operation, accepted, 0.0)


def test_an_accepted_job_that_is_not_durable_is_seen() -> None:
    observer = Observer()
    observer.on_submitted(JOB, Refused(code="job-over", message="no"), 0.0)
    with broken("acknowledged", "the job was accepted"):
        observer.on_submitted(JOB, Accepted(operation=1, events=2), 0.0)
    Story().observer.on_submitted(JOB, Accepted(operation=1, events=2), 0.0)


# --- reads ----------------------------------------------------------------------------------------------------------


def merging(story: Story) -> None:
    """Both producers are done and the merge is about to run."""
    story.done(ONE, TWO)
    story.created(MERGE)


def test_a_consumer_reads_what_was_granted() -> None:
    story = Story()
    story.pilot()
    merging(story)
    story.assigned(MERGE, inputs=inputs(one=1, two=1))
    story.read(MERGE, ONE)
    story.read(MERGE, TWO)


def test_a_consumer_that_starts_before_its_producer_was_granted_is_seen() -> None:
    story = Story()
    story.done(ONE)
    story.created(TWO)
    story.finished(TWO)
    with broken("reads", r"before its producer 1\.2\.1 was granted"):
        story.created(MERGE)


def test_a_consumer_that_starts_while_its_producer_begins_anew_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    story.say("Restarted", TWO, epoch=2, cause="by-hand")
    with broken("reads", r"before its producer 1\.2\.1 was granted"):
        story.created(MERGE)


def test_a_consumer_that_may_start_early_must_say_beside_which_attempts() -> None:
    story = Story(merging_plan(kinds=EdgeKind.FILE))
    with broken("early", r"before its producer 1\.1\.1 was granted"):
        story.created(MERGE)


def test_an_attempt_of_a_package_that_no_plan_has_is_seen() -> None:
    with broken("reads", "in no plan"):
        Story().created("1.3.1")


def test_a_read_of_an_attempt_that_was_not_granted_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.say("AttemptSuspected", ONE, 1)
    story.created(ONE, 2)
    story.finished(ONE, 1)
    story.finished(ONE, 2)
    story.granted(ONE, 2)
    story.done(TWO)
    story.created(MERGE)
    story.read(MERGE, ONE, attempt=2)
    with broken("reads", r"files of attempt 1 of 1\.1\.1, which was never granted"):
        story.read(MERGE, ONE, attempt=1)


def test_a_read_of_a_grant_that_was_out_of_date_before_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    story.created(MERGE)
    story.read(MERGE, ONE, attempt=1)  # what stood when it was created
    story.finished(MERGE, reason="signal")
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.done(ONE, attempt=2, epoch=2)
    story.created(MERGE, 2)
    story.read(MERGE, ONE, attempt=2, reader_attempt=2)
    with broken("reads", "a later epoch was granted"):
        story.read(MERGE, ONE, attempt=1, reader_attempt=2)


def test_a_restart_of_what_somebody_reads_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    story.created(MERGE)
    with broken("epochs", "reads attempt 1 of it"):
        story.say("Restarted", ONE, epoch=2, cause="by-hand")


def test_an_attempt_beside_a_success_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.finished(ONE)
    with broken("creations", "attempt 1 had succeeded"):
        story.created(ONE, 2)


def test_a_read_of_what_was_dropped_is_seen() -> None:
    story = Story()
    story.pilot()
    story.done(ONE, TWO)
    story.say("Dropped", TWO, operation=4)
    story.created(MERGE, drop_revision=4)
    story.assigned(MERGE, inputs=inputs(one=1), drop_revision=4)
    story.read(MERGE, ONE)
    with broken("reads", r"files of 1\.2\.1, which was dropped"):
        story.read(MERGE, TWO)


def test_a_read_of_what_was_dropped_only_later_is_right() -> None:
    story = Story()
    merging(story)
    story.say("Dropped", TWO, operation=4)
    story.read(MERGE, TWO)


@pytest.mark.parametrize("revision", [0, 4, 5])
def test_an_attempt_that_pins_another_revision_than_what_stands_is_seen(revision: int) -> None:
    story = Story()
    story.done(ONE, TWO)
    story.say("Dropped", TWO, operation=4)
    if revision == 4:
        story.created(MERGE, drop_revision=revision)
        return
    if revision == 5:
        story.say("Restored", TWO, operation=5)
        revision = 4
    with broken("reads", r"and its producer 1\.2\.1 was"):
        story.created(MERGE, drop_revision=revision)


def test_a_read_of_a_stranger_is_seen() -> None:
    story = Story()
    merging(story)
    story.finished(MERGE)
    story.granted(MERGE)
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.created(ONE, 2, epoch=2)
    with broken("reads", "no producer of it"):
        story.read(ONE, MERGE, reader_attempt=2)


def test_a_read_by_an_attempt_that_is_not_durable_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    with broken("reads", "never durably created"):
        story.read(MERGE, ONE)


def test_a_read_of_another_job_is_seen() -> None:
    story = Story()
    merging(story)
    with broken("reads", "files of the job other"):
        story.observer.on_read(ref(MERGE), AttemptRef("other", ONE, 1), 0.0)


def test_an_assignment_without_all_its_inputs_is_seen() -> None:
    story = Story()
    story.pilot()
    merging(story)
    with broken("reads", r"without the files of 1\.2\.1"):
        story.assigned(MERGE, inputs=inputs(one=1))


def test_an_assignment_of_files_that_were_not_granted_is_seen() -> None:
    story = Story()
    story.pilot()
    merging(story)
    with broken("reads", "was to take files of attempt 2"):
        story.assigned(MERGE, inputs=inputs(one=2, two=1))


def test_an_assignment_with_another_drop_revision_is_seen() -> None:
    story = Story()
    story.pilot()
    merging(story)
    with broken("reads", "assigned with drop revision 3, created with 0"):
        story.assigned(MERGE, inputs=inputs(one=1, two=1), drop_revision=3)


def test_a_stage_that_is_not_late_and_is_laid_out_late_is_seen() -> None:
    with broken("reads", "is not late"):
        Story().say("StageExpanded", data={"stage": 2, "shape": {"templates": []}})


def test_a_late_stage_waits_for_the_late_stages_that_it_lists() -> None:
    story = Story(merging_plan(late=(LatePlan(stage=3, packages=(0,)), LatePlan(stage=4, stages=(3,)))))
    with broken("reads", "stage 4 was expanded before stage 3"):
        story.say("StageExpanded", data={"stage": 4, "shape": {"templates": []}})
    story.done(ONE)
    for stage in (3, 4):
        story.say("StageExpanded", data={"stage": stage, "shape": {"templates": []}})


def test_a_late_stage_is_laid_out_once_over_all_that_it_lists() -> None:
    plan = merging_plan(late=(LatePlan(stage=3, packages=(0, 1)),))
    expanded = {"stage": 3, "shape": {"templates": []}}
    story = Story(plan)
    story.done(ONE)
    with broken("reads", r"before its producer 1\.2\.1 was granted or dropped"):
        story.say("StageExpanded", data=expanded)
    story.say("Dropped", TWO, operation=1)
    with broken("reads", "before stage 3, which it waits for"):
        story.created(MERGE, drop_revision=1)
    story.say("StageExpanded", data=expanded)
    with broken("reads", "expanded twice"):
        story.say("StageExpanded", data=expanded)
    story.created(MERGE, drop_revision=1)


# --- the end --------------------------------------------------------------------------------------------------------


def nothing(job: str, package: str) -> list[str]:
    """An engine that knows no reason."""
    return []


def busy(job: str, package: str) -> list[str]:
    """An engine that always has a reason."""
    return ["no-room"]


def test_a_whole_job_that_went_well_breaks_nothing() -> None:
    story = Story()
    story.done(ONE, TWO, MERGE)
    said = states(one="DONE", two="DONE", merge="DONE")
    story.observer.finished(said, nothing, lambda: dict(reversed(said.items())))
    assert story.observer.check_finished(said, stopped_at=0.0, horizon_seconds=10.0, now=99.0)


def test_a_package_that_waits_without_a_reason_is_seen() -> None:
    story = Story()
    story.done(ONE)
    said = states(one="DONE", two="WAITING", merge="WAITING")
    story.observer.finished(said, busy)
    with broken("waiting", "is WAITING, and nothing says why"):
        story.observer.finished(said, nothing)


def test_a_package_that_waits_for_what_was_given_up_is_seen() -> None:
    story = Story()
    story.done(ONE)
    story.say("Aborted", TWO, cause="quota")
    said = states(one="DONE", two="ABORTED", merge="WAITING")
    with broken("waiting", r"waits for 1\.2\.1, which was given up"):
        story.observer.finished(said, busy)
    story.say("Dropped", TWO, operation=1)
    story.observer.finished(said, busy)


def test_a_package_that_was_dropped_needs_no_reason() -> None:
    story = Story()
    story.done(ONE, TWO, MERGE)
    story.say("Restarted", TWO, epoch=2, cause="by-hand")
    story.say("Dropped", TWO, operation=1)
    story.observer.finished(states(one="DONE", two="WAITING", merge="DONE"), nothing)


@pytest.mark.parametrize("said", ["WAITING", "CANCELLED", "CLEARED"])
def test_a_book_that_says_another_end_is_seen(said: str) -> None:
    story = Story()
    story.done(ONE)
    story.observer.check_states(states(one="DONE", two="RUNNING"))
    with broken("states", f"is {said} in the book, and DONE by its events"):
        story.observer.check_states(states(one=said))
    with broken("states", "is DONE in the book, and not final"):
        story.observer.check_states(states(one="DONE", two="DONE"))
    with broken("states", "is DONE, and not in the book"):
        story.observer.check_states({})


def test_the_packages_of_a_cancelled_job_are_cancelled_once_nothing_of_them_runs() -> None:
    story = Story()
    story.created(ONE)
    story.say("CancelAccepted")
    story.observer.check_states(states(one="RUNNING", two="CANCELLED"))
    with broken("states", "is WAITING in the book, and CANCELLED"):
        story.observer.check_states(states(two="WAITING"))


def test_a_book_that_depends_on_the_order_is_seen() -> None:
    story = Story()
    story.done(ONE)
    said = states(one="DONE", two="WAITING")
    with broken("states", "from the same events in another order"):
        story.observer.check_states(said, lambda: states(one="DONE", two="RUNNING"))
    story.observer.check_states(said, lambda: said)


def test_what_has_not_finished_by_the_horizon_is_seen() -> None:
    story = Story()
    story.done(ONE)
    said = states(one="DONE", two="WAITING", merge="WAITING")
    assert not story.observer.check_finished(said, stopped_at=100.0, horizon_seconds=50.0, now=149.0)
    with broken("finishing", "is WAITING 50 seconds after the last fault"):
        story.observer.check_finished(said, stopped_at=100.0, horizon_seconds=50.0, now=150.0)
    story.say("Held", TWO, operation=1)
    assert story.observer.check_finished(said, stopped_at=100.0, horizon_seconds=50.0, now=150.0)


def test_a_late_stage_that_is_never_laid_out_is_seen() -> None:
    story = Story(merging_plan(late=(LatePlan(stage=3, packages=(0, 1)),)))
    story.done(ONE)
    said = states(one="DONE", two="DONE", merge="DONE")
    with broken("finishing", "is not expanded"):
        story.observer.check_finished(said, stopped_at=0.0, horizon_seconds=1.0, now=9.0)
    story.done(TWO)
    story.say("StageExpanded", data={"stage": 3, "shape": {"templates": []}})
    assert story.observer.check_finished(said, stopped_at=0.0, horizon_seconds=1.0, now=9.0)
    waiting = states(one="DONE", two="ABORTED", merge="WAITING")
    with broken("finishing", "is WAITING"):
        story.observer.check_finished(waiting, stopped_at=0.0, horizon_seconds=1.0, now=9.0)
