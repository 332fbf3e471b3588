"""Decisions that may never stand: for each promise a story that keeps it and one that breaks it."""

from __future__ import annotations

import pytest

from pilotage.model.exchange.operations import Reschedule
from pilotage.model.jobs.definition import Retry
from pilotage.model.jobs.plan import Template
from pilotage.simulator.checkers.observer import Violation
from tests.kit.observed import JOB, MERGE, ONE, PILOT, TWO, Story, broken, merging_plan

# --- grants ---------------------------------------------------------------------------------------------------------


def test_one_grant_in_each_epoch_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.done(ONE, attempt=2, epoch=2)


def test_a_second_grant_in_one_epoch_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.say("AttemptSuspected", ONE, 1)
    story.created(ONE, 2)
    story.finished(ONE, 1)
    story.finished(ONE, 2)
    story.granted(ONE, 1)
    with broken("grants", "attempt 2 was granted, and 1 was"):
        story.granted(ONE, 2)


def test_the_suspect_may_win() -> None:
    story = Story()
    story.created(ONE)
    story.say("AttemptSuspected", ONE, 1)
    story.say("AttemptLost", ONE, 1)
    story.created(ONE, 2)
    story.finished(ONE, 1)
    story.granted(ONE, 1)


@pytest.mark.parametrize("package", [ONE, None])
def test_a_grant_after_a_cancel_is_seen(package: str | None) -> None:
    story = Story()
    story.created(ONE)
    story.say("CancelAccepted", package)
    story.finished(ONE)
    with broken("grants", "cancelled epoch"):
        story.granted(ONE)


def test_a_cancel_of_a_package_after_its_grant_is_seen() -> None:
    story = Story()
    story.done(ONE)
    with broken("grants", "in which attempt 1 was granted"):
        story.say("CancelAccepted", ONE)


def test_a_cancel_of_the_job_after_a_grant_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.created(TWO)
    story.say("CancelAccepted")
    story.say("CancelAccepted", TWO)


def test_a_grant_of_an_attempt_of_an_earlier_epoch_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.finished(ONE)
    with broken("grants", "attempt 1 of epoch 1 was granted for epoch 2"):
        story.granted(ONE, epoch=2)


def test_a_grant_of_what_was_never_staged_is_seen() -> None:
    story = Story()
    story.created(ONE)
    with broken("grants", "staged nothing"):
        story.granted(ONE)


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_a_grant_after_giving_up_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.say("Aborted", ONE, cause="waited-too-long")
    story.finished(ONE)
    with broken("epochs", "had ended as ABORTED"):
        story.granted(ONE)


@pytest.mark.parametrize("second", ["Aborted", "CancelAccepted"])
def test_an_epoch_that_ends_twice_is_seen(second: str) -> None:
    story = Story()
    story.say("Aborted", ONE, cause="quota")
    with broken("epochs", "had ended as ABORTED"):
        story.say(second, ONE, data={"cause": "quota"} if second == "Aborted" else {})


def test_what_comes_after_the_end_and_changes_nothing_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.say("Tagged", ONE, name="a", value="b")
    story.say("PhaseEntered", ONE, 1, stream=PILOT, phase="outputs")
    story.say("Held", ONE, operation=1)
    story.say("Cleared", ONE, by="user")


def test_an_epoch_that_goes_back_is_seen() -> None:
    story = Story()
    story.say("Restarted", ONE, epoch=3, cause="by-hand")
    with broken("epochs", "restarted in epoch 2, after epoch 3"):
        story.say("Restarted", ONE, epoch=2, cause="by-hand")


def test_an_epoch_of_a_job_that_goes_back_is_seen() -> None:
    story = Story()
    with broken("epochs", "restarted in epoch 1, after epoch 1"):
        story.say("Restarted", epoch=1, cause="by-hand")


def test_a_decision_of_an_epoch_that_nobody_opened_is_seen() -> None:
    story = Story()
    with broken("epochs", "AttemptCreated of epoch 2"):
        story.created(ONE, epoch=2)


def test_a_decision_of_an_epoch_that_the_job_opened_is_right() -> None:
    story = Story()
    story.say("CancelAccepted")
    story.say("Restarted", epoch=2, cause="by-hand")
    story.created(ONE, epoch=2)
    story.created(TWO, epoch=1)


def test_an_attempt_number_that_comes_again_is_seen_over_all_epochs() -> None:
    story = Story()
    story.done(ONE)
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    with broken("epochs", "attempt 1 was created after attempt 1"):
        story.created(ONE, 1, epoch=2)


def test_a_word_of_an_attempt_that_nobody_created_is_seen() -> None:
    story = Story()
    with broken("epochs", "never created"):
        story.finished(ONE)


def test_a_word_of_an_attempt_in_another_epoch_is_seen() -> None:
    story = Story()
    story.created(ONE)
    with broken("epochs", "AttemptFinished of epoch 2; attempt 1 is of 1"):
        story.finished(ONE, epoch=2)


def test_the_end_of_a_job_in_another_epoch_is_seen() -> None:
    story = Story()
    story.say("CancelAccepted")
    story.say("Restarted", epoch=2, cause="by-hand")
    with broken("epochs", "CancelAccepted of epoch 1, and the job is in 2"):
        story.say("CancelAccepted")
    story.say("CancelAccepted", epoch=2)


def test_a_reservation_after_the_end_is_seen() -> None:
    story = Story()
    story.say("Bound", ONE, site="lyon")
    story.done(ONE)
    with broken("epochs", "bound in epoch 1, which had ended as DONE"):
        story.say("Bound", ONE, site="lyon")


def test_a_job_that_is_cancelled_twice_is_seen() -> None:
    story = Story()
    story.say("CancelAccepted")
    with broken("epochs", "had ended"):
        story.say("CancelAccepted")


# --- creations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, why",
    [
        ([("CancelAccepted", None, {})], "ended as CANCELLED"),
        ([("CancelAccepted", ONE, {})], "ended as CANCELLED"),
        ([("Aborted", None, {"cause": "quota"})], "ended as ABORTED"),
        ([("Aborted", ONE, {"cause": "quota"})], "ended as ABORTED"),
        ([("Held", ONE, {"operation": 1})], "it was held"),
        ([("Held", None, {"operation": 1})], "its job was held"),
        ([("Released", ONE, {"operation": 2}), ("Held", ONE, {"operation": 3})], "it was held"),
        ([("Dropped", ONE, {"operation": 1})], "it was dropped"),
    ],
)
def test_an_attempt_of_what_is_not_to_be_done_is_seen(
    before: list[tuple[str, str | None, dict[str, object]]], why: str
) -> None:
    story = Story()
    for kind, package, data in before:
        story.say(kind, package, data=data)
    if before[0][1] is not None:
        story.created(TWO)  # the others go on
    with broken("creations", why):
        story.created(ONE)


def test_an_attempt_of_what_is_done_is_seen() -> None:
    story = Story()
    story.done(ONE)
    with broken("creations", "ended as DONE"):
        story.created(ONE, 2)


def test_an_attempt_of_a_job_that_was_not_accepted_is_seen() -> None:
    story = Story(begun=False)
    story.say("JobRegistered", owner="ada", name="j")
    with broken("creations", "never accepted"):
        story.created(ONE)


def test_an_attempt_after_release_and_restore_is_right_whatever_came_late() -> None:
    story = Story()
    story.say("Held", ONE, operation=1)
    story.say("Released", ONE, operation=3)
    story.say("Held", ONE, operation=2)
    story.say("Dropped", ONE, operation=4)
    story.say("Restored", ONE, operation=5)
    story.created(ONE)


def test_a_job_that_is_submitted_held_is_held_until_it_is_released() -> None:
    story = Story(merging_plan(hold=True))
    with broken("creations", "its job was held"):
        story.created(ONE)
    story.say("Released", operation=1)
    story.created(ONE)


def test_a_cancelled_job_that_is_restarted_may_go_on() -> None:
    story = Story()
    story.say("CancelAccepted")
    story.say("Restarted", epoch=2, cause="by-hand")
    story.created(ONE)


# --- retries and aborts ---------------------------------------------------------------------------------------------


def test_no_attempt_after_the_cap_of_counted_failures() -> None:
    story = Story()
    for attempt in range(1, 6):
        story.failed(ONE, attempt, "wall-time")
    with broken("retries", "after 5 counted failures of 5"):
        story.created(ONE, 6)


def test_failures_that_do_not_count_are_not_counted() -> None:
    story = Story()
    for attempt in range(1, 20):
        story.failed(ONE, attempt, "platform-failure")
    story.created(ONE, 20)
    story.say("AttemptLost", ONE, 20, reason="preempted")
    story.created(ONE, 21)


def test_a_loss_that_was_none_is_not_counted() -> None:
    story = Story(merging_plan(Template(activity="work", retry=Retry(attempts_max=2))))
    story.failed(ONE, 1, "signal")
    story.created(ONE, 2)
    story.say("AttemptLost", ONE, 2, reason="wall-time")
    story.say("AttemptRecovered", ONE, 2)
    story.finished(ONE, 2, reason="preempted")
    story.created(ONE, 3)
    story.finished(ONE, 3, reason="signal")
    with broken("retries", "2 counted failures of 2"):
        story.created(ONE, 4)


@pytest.mark.parametrize("excuse", ["cancelled", "lost before", "rescheduled"])
def test_an_end_that_nobody_waited_for_is_not_counted(excuse: str) -> None:
    story = Story(merging_plan(Template(activity="work", retry=Retry(attempts_max=1))))
    story.created(ONE)
    match excuse:
        case "cancelled":
            data = {"exit_code": "EXECUTION_CANCELED", "reason": "looping"}
            story.say("AttemptFinished", ONE, 1, stream=PILOT, data=data)
        case "lost before":
            story.say("AttemptLost", ONE, 1)
            story.finished(ONE, reason="signal")
        case _:
            story.observer.on_asked(Reschedule(job=JOB, package=ONE), 0.0)
            story.say("AttemptLost", ONE, 1, reason="rescheduled")
            story.created(ONE, 2)
            story.finished(ONE, reason="signal")
            story.say("AttemptLost", ONE, 2)
    story.created(ONE, 3)


def test_a_new_epoch_counts_anew() -> None:
    story = Story()
    for attempt in range(1, 6):
        story.failed(ONE, attempt, "wall-time")
    story.say("Aborted", ONE, cause="retries-exhausted")
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.created(ONE, 6, epoch=2)


def test_giving_up_too_early_is_seen() -> None:
    story = Story()
    story.failed(ONE, 1, "application-error")
    story.failed(ONE, 2, "application-error")
    with broken("aborts", "2 failures"):
        story.say("Aborted", ONE, cause="retries-exhausted")
    story.failed(ONE, 3, "application-error")
    story.say("Aborted", ONE, cause="retries-exhausted")


def test_giving_up_for_a_producer_that_did_not_fail_is_seen() -> None:
    story = Story()
    story.done(ONE)
    with broken("aborts", "did not fail"):
        story.say("Aborted", MERGE, cause="upstream", upstream=ONE)
    with broken("aborts", "did not fail"):
        story.say("Aborted", MERGE, cause="upstream")
    story.say("Aborted", TWO, cause="quota")
    story.say("Aborted", MERGE, cause="upstream", upstream=TWO)


# --- restores -------------------------------------------------------------------------------------------------------


def test_a_restore_after_a_consumer_held_a_lease_is_seen() -> None:
    story = Story()
    story.done(ONE)
    story.say("Dropped", TWO, operation=1)
    story.created(MERGE, drop_revision=1)
    with broken("restores", "attempt 1 of its consumer 2.1.1"):
        story.say("Restored", TWO, operation=2)


def test_a_restore_after_the_consumers_attempt_failed_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.say("Dropped", TWO, operation=1)
    story.created(MERGE, drop_revision=1)
    story.finished(MERGE, reason="signal")
    story.say("Restored", TWO, operation=2)


def test_a_restore_before_any_consumer_held_a_lease_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.say("Dropped", TWO, operation=1)
    story.created(MERGE, pilot="", drop_revision=1)  # bound, and not started
    story.say("Restored", TWO, operation=2)


def test_a_restore_after_the_consumer_began_anew_is_right() -> None:
    story = Story()
    story.done(ONE)
    story.say("Dropped", TWO, operation=1)
    story.created(MERGE, drop_revision=1)
    story.say("Restarted", MERGE, epoch=2, cause="by-hand")
    story.say("Restored", TWO, operation=2)


# --- successes ------------------------------------------------------------------------------------------------------


def test_a_success_that_is_given_up_is_seen() -> None:
    story = Story()
    story.created(ONE)
    story.finished(ONE)
    with broken("successes", "attempt 1 had succeeded"):
        story.say("Aborted", ONE, cause="waited-too-long")


def test_a_late_success_that_is_forgotten_is_seen_at_the_end() -> None:
    story = Story()
    story.created(ONE)
    story.say("AttemptLost", ONE, 1)
    story.created(ONE, 2)
    story.finished(ONE, 1)
    with broken("successes", "attempt 1 succeeded, and was not granted"):
        story.observer.finished({}, lambda job, package: ["busy"])


@pytest.mark.parametrize("end", ["CancelAccepted", "Dropped", "Restarted", "the job"])
def test_a_success_that_somebody_disputed_need_not_be_granted(end: str) -> None:
    story = Story()
    story.created(ONE)
    story.finished(ONE)
    match end:
        case "CancelAccepted":
            story.say("CancelAccepted", ONE)
        case "Dropped":
            story.say("Dropped", ONE, operation=1)
        case "Restarted":
            story.say("Restarted", ONE, epoch=2, cause="by-hand")
        case _:
            story.say("CancelAccepted")
    story.observer._ends.check_successes()


# --- what a violation tells -----------------------------------------------------------------------------------------


def test_a_violation_shows_the_last_events_about_its_package() -> None:
    story = Story()
    story.done(TWO)
    story.done(ONE)
    with pytest.raises(Violation) as caught:
        story.granted(ONE)
    found = caught.value
    assert (found.checker, found.subject) == ("grants", f"{JOB}/{ONE}")
    assert [each.event.type for each in found.events][-4:] == [
        "AttemptCreated",
        "AttemptFinished",
        "CommitGranted",
        "CommitGranted",
    ]
    assert {each.event.package for each in found.events} == {ONE, None}
    assert str(found).startswith(f"[grants] {JOB}/{ONE}: attempt 1 was granted")
