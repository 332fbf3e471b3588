"""Times that may never be: too little of it given, too early given up, too long waited; each with the story that is right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.model.exchange.exchange import Exchange
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.simulator.checkers.observer import Rules
from tests.kit.observed import JOB, MERGE, ONE, PILOT, SITE, TWO, Story, broken, demanding, merging_plan

RULES = Rules(lease_seconds=60.0, unfit_seconds=60.0, collect_seconds=0.5)
LIMITED = demanding(wall_seconds=600.0)


class TimedStory(Story):
    """A story in which a pilot is heard, and decisions have a time."""

    def __init__(self, template: Template | None = None) -> None:
        super().__init__(merging_plan(template), rules=RULES)
        self.observer.on_began(0.0)
        self.sequence = 0

    def event(self, kind: str, **said: Any) -> Any:
        event = super().event(kind, **said)
        return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | {"time": self.now})

    def heard(self, at: float, *, left: float | None = None, sequence: int = 0, site: str = SITE) -> None:
        """An exchange of the pilot reaches the service."""
        self.now = at
        self.sequence = sequence or self.sequence + 1
        told = Exchange(
            pilot=PILOT, site=site, sequence=self.sequence, remaining_seconds=left, capacity=Capacity(memory_bytes=8)
        )
        self.observer.on_exchange(told, at)

    def at(self, now: float) -> TimedStory:
        """Let time pass."""
        self.now = now
        return self


# --- remaining time -------------------------------------------------------------------------------------------------


def test_a_pilot_that_lasts_is_given_what_asks_for_time() -> None:
    story = TimedStory(LIMITED)
    story.heard(10.0, left=700.0)
    story.at(100.0).created(ONE, remaining_seconds=610.0)


def test_what_a_pilot_has_no_time_for_is_seen() -> None:
    story = TimedStory(LIMITED)
    story.heard(10.0, left=700.0)
    with broken("rooms", "asks for 600 s, and pilot.1 has 590 s left"):
        story.at(120.0).created(ONE, remaining_seconds=590.0)


def test_a_pilot_without_a_limit_lasts() -> None:
    story = TimedStory(LIMITED)
    story.heard(10.0)
    story.at(99999.0).created(ONE)


def test_time_that_a_pilot_never_told_of_is_seen() -> None:
    story = TimedStory()
    story.heard(10.0, left=700.0)
    with broken("rooms", "said to have 800"):
        story.at(20.0).created(ONE, remaining_seconds=800.0)


def test_what_ran_out_of_time_goes_where_more_is_left() -> None:
    story = TimedStory()
    story.heard(10.0, left=500.0)
    story.created(ONE, remaining_seconds=500.0)
    story.finished(ONE, reason="wall-time")
    story.heard(600.0, left=501.0, sequence=9)
    story.created(ONE, 2, remaining_seconds=501.0)
    with broken("retries", "where 480 s are left, and attempt 1 needed more than 500 s"):
        story.at(610.0).created(ONE, 3, remaining_seconds=480.0)


# --- leases ---------------------------------------------------------------------------------------------------------


def test_a_suspicion_after_a_silent_lease_is_right() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.created(ONE)
    story.at(70.0).say("AttemptSuspected", ONE, 1)


def test_a_suspicion_within_a_lease_is_seen() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.created(ONE)
    story.heard(40.0)
    with broken("leases", "suspected after 40 s of a lease of 60 s"):
        story.at(80.0).say("AttemptSuspected", ONE, 1)


def test_an_exchange_that_is_older_than_another_renews_nothing() -> None:
    story = TimedStory()
    story.heard(10.0, sequence=5)
    story.created(ONE)
    story.heard(40.0, sequence=4)
    story.at(70.0).say("AttemptSuspected", ONE, 1)


def test_what_is_heard_after_the_decision_and_before_the_write_does_not_count() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.created(ONE)
    suspected = story.check(story.at(70.0).event("AttemptSuspected", package=ONE, attempt=1))
    story.heard(71.0)
    story.observer.on_written([suspected], 75.0)


def test_leases_have_a_full_term_again_after_a_restart() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.created(ONE)
    story.observer.on_began(60.0)
    with broken("leases", "suspected after 20 s"):
        story.at(80.0).say("AttemptSuspected", ONE, 1)
    story.at(120.0).say("AttemptSuspected", ONE, 1)


def test_a_pilot_that_speaks_and_is_given_up_is_seen() -> None:
    story = TimedStory()
    story.heard(10.0)
    with broken("leases", "given up, and was heard 30 s before"):
        story.at(40.0).say("PilotEnded", pilot=PILOT, data={"reason": "not-listed"})


@pytest.mark.parametrize("says_so", [True, False])
def test_a_pilot_that_says_so_or_is_silent_is_over(*, says_so: bool) -> None:
    story = TimedStory()
    story.heard(10.0)
    if says_so:
        story.at(20.0).say("PilotEnded", pilot=PILOT, stream=PILOT, data={"reason": "idle"})
        story.say("PilotEnded", pilot=PILOT, data={"reason": "idle"})
    else:
        story.at(70.0).say("PilotEnded", pilot=PILOT, data={"reason": "unheard"})


def test_a_loss_without_the_end_of_its_pilot_is_seen() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.created(ONE)
    with broken("leases", "lost .platform-failure., and its pilot pilot.1 has not ended"):
        story.say("AttemptLost", ONE, 1, reason="platform-failure")
    story.at(100.0).say("PilotEnded", pilot=PILOT, data={"reason": "unheard"})
    story.say("AttemptLost", ONE, 1, reason="platform-failure")


# --- reservations ---------------------------------------------------------------------------------------------------


def test_a_reservation_where_no_pilot_is_stands_for_a_while_only() -> None:
    story = TimedStory()
    story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=210.0)
    with broken("waiting", "reserved for lyon since 130 s, where no pilot could run it for 120 s"):
        story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=230.0)


@pytest.mark.parametrize("template, stands", [(demanding(memory_bytes=8), True), (demanding(memory_bytes=9), False)])
def test_a_reservation_stands_where_a_pilot_is_large_enough(template: Template, *, stands: bool) -> None:
    story = TimedStory(template)
    story.heard(10.0)
    if stands:
        story.observer.on_reserved(JOB, TWO, site=SITE, since=100.0, now=500.0)
        return
    with broken("waiting", "no pilot could run it"):
        story.observer.on_reserved(JOB, TWO, site=SITE, since=100.0, now=500.0)


@pytest.mark.parametrize("clock", [-250.0, 0.0, 3000.0])
def test_when_a_pilot_ended_is_known_without_its_clock(clock: float) -> None:
    story = TimedStory()
    story.heard(10.0)
    ended = story.event("PilotEnded", pilot=PILOT, stream=PILOT, data={"reason": "idle"})
    story.observer.on_written([story.check(msgspec.structs.replace(ended, time=300.0 + clock))], 300.0)
    story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=400.0)
    with broken("waiting", "no pilot could run it"):
        story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=430.0)


def test_a_reservation_is_given_back_after_the_last_pilot_ended() -> None:
    story = TimedStory()
    story.heard(10.0)
    story.at(300.0).say("PilotEnded", pilot=PILOT, data={"reason": "unheard"})
    story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=400.0)
    with broken("waiting", "no pilot could run it"):
        story.observer.on_reserved(JOB, ONE, site=SITE, since=100.0, now=430.0)


# --- restarts -------------------------------------------------------------------------------------------------------


def test_what_looped_is_tried_with_a_higher_limit() -> None:
    story = Story(merging_plan(LIMITED))
    story.failed(ONE, 1, "looping")
    story.created(ONE, 2, wall_seconds=1200.0)
    story.finished(ONE, 2, reason="looping")
    with broken("retries", "with a limit of 1200 s, and attempt 2 looped with 1200 s"):
        story.created(ONE, 3, wall_seconds=1200.0)


def test_what_looped_without_a_limit_is_not_tried_again() -> None:
    story = Story()
    story.failed(ONE, 1, "looping")
    with broken("retries", "without a limit, and attempt 1 looped"):
        story.created(ONE, 2)
    story.say("Aborted", ONE, cause="permanent-failure")
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.created(ONE, 3, epoch=2)


def test_a_package_with_rules_of_its_own_may_loop_as_it_likes() -> None:
    rules = (RetryRule(reason="looping", action="again", times=3),)
    story = Story(merging_plan(Template(activity="work", retry=Retry(rules=rules))))
    story.failed(ONE, 1, "looping")
    story.created(ONE, 2)


def killed(story: Story, attempt: int) -> None:
    """An attempt under which its pilot died."""
    pilot = f"pilot.{attempt}"
    story.created(ONE, attempt, pilot=pilot)
    story.say("PilotEnded", pilot=pilot, data={"reason": "killed"})
    story.say("AttemptLost", ONE, attempt, reason="pilot-killed")


def test_what_killed_two_pilots_and_is_tried_again_is_seen() -> None:
    story = Story()
    killed(story, 1)
    killed(story, 2)
    with broken("retries", "attempt 3 was created after 2 pilots died while running it"):
        story.created(ONE, 3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_held_after_it_killed_two_pilots_may_be_tried_again(when: str) -> None:
    story = Story()
    killed(story, 1)
    story.created(ONE, 2)
    if when == "before":
        story.say("Held", ONE, operation=1)
    story.say("PilotEnded", pilot=PILOT, data={"reason": "killed"})
    story.say("AttemptLost", ONE, 2, reason="pilot-killed")
    if when == "after":
        story.say("Held", ONE, operation=1)
    story.say("Released", ONE, operation=2)
    story.created(ONE, 3)


# --- rogues ---------------------------------------------------------------------------------------------------------


def test_a_lie_that_is_noted_is_right_and_one_that_is_believed_is_seen() -> None:
    story = Story()
    story.created(ONE)
    lie = story.event("OutputsStaged", stream="pilot.2", package=ONE, attempt=1, data={"manifest": []})
    story.observer.on_forged(lie)
    story.say("Noted", stream="pilot.2", n=1, pilot="pilot.2", data={"text": "not heard"})
    again = story.event("OutputsStaged", stream="pilot.2", package=ONE, attempt=1, data={"manifest": []})
    story.observer.on_forged(again)
    with broken("rogues", "OutputsStaged of job1/1.1.1/1, which is not its to say"):
        story.observer.on_written([story.check(again)], 0.0)


def ends_otherwise(story: Story, n: int) -> None:
    """The agent of the first package's attempt says, and is believed, that it ended otherwise than it said before."""
    failed = {"exit_code": "EXECUTION_FAILED", "reason": "signal", "exit_status": 1}
    lie = story.event("AttemptFinished", stream=PILOT, n=n, package=ONE, attempt=1, data=failed)
    story.observer.on_forged(lie)
    story.observer.on_written([story.check(lie)], 0.0)


@pytest.mark.parametrize("heard", [True, False])
def test_an_end_that_was_heard_is_not_told_again_and_one_that_was_not_is_told_once(*, heard: bool) -> None:
    story = Story()
    story.created(ONE)
    well = {"exit_code": "SUCCESS", "exit_status": 0, "manifest": []}
    said = story.event("AttemptFinished", stream=PILOT, n=1, package=ONE, attempt=1, data=well)
    story.observer.on_spooled(said)
    if heard:
        story.observer.on_written([story.check(said)], 0.0)
    else:
        story.say("CancelAccepted", ONE)
        story.say("Noted", stream=PILOT, n=1, pilot=PILOT, data={"text": "not heard"})
        ends_otherwise(story, 2)
    with broken("rogues", "AttemptFinished of job1/1.1.1/1, which is not its to say"):
        ends_otherwise(story, 3 - heard)


@pytest.mark.parametrize("over", [True, False])
def test_the_late_word_of_an_honest_agent_may_be_noted_only_when_nobody_waits_for_it(*, over: bool) -> None:
    story = Story()
    story.created(ONE)
    said = story.event("PhaseEntered", stream=PILOT, package=ONE, attempt=1, data={"phase": "outputs"})
    story.observer.on_spooled(said)
    if over:
        story.say("CancelAccepted", ONE)
        story.say("Noted", stream=PILOT, n=1, pilot=PILOT, data={"text": "not heard"})
        return
    with broken("acknowledged", "was said as PhaseEntered and is in the book as Noted"):
        story.say("Noted", stream=PILOT, n=1, pilot=PILOT, data={"text": "not heard"})


# --- clearing -------------------------------------------------------------------------------------------------------


def test_a_job_that_is_over_may_be_cleared_and_begin_anew() -> None:
    story = Story()
    story.done(ONE, TWO)
    story.say("Aborted", MERGE, cause="quota")
    story.say("Cleared", by="user")
    story.say("Restarted", epoch=2, cause="by-hand")
    story.say("Restarted", MERGE, epoch=2, cause="by-hand")
    story.created(MERGE, epoch=2)


def test_a_job_that_is_cleared_before_it_is_over_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    with broken("epochs", "cleared before 2.1.1 was over"):
        story.say("Cleared", by="user")


def test_a_job_that_was_cancelled_may_be_cleared_whatever_is_left_of_it() -> None:
    story = Story()
    story.say("CancelAccepted")
    story.say("Cleared", by="timeout")


def test_an_attempt_of_a_job_that_was_cleared_is_seen() -> None:
    story = Story()
    story.done(ONE, TWO)
    story.say("Aborted", MERGE, cause="quota")
    story.say("Cleared", by="user")
    story.say("Restarted", MERGE, epoch=2, cause="by-hand")
    with broken("creations", "after its job was cleared"):
        story.created(MERGE, epoch=2)
