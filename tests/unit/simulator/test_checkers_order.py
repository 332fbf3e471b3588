"""Orders, terms and caps that may never be: each with the story that is right."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pilotage.model.exchange.exchange import Exchange
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.jobs.plan import JobPlan, Template
from pilotage.simulator.checkers.observer import Rules
from tests.kit.observed import JOB, ONE, PILOT, SITE, TWO, Story, broken, merging_plan

TERMS = Rules(lease_seconds=60.0, lost_after_leases=3.0, late_seconds=20.0)


def urgent_plan() -> JobPlan:
    """The second of two packages is the more urgent one."""
    plan = merging_plan(Template(activity="work"))
    kinds = (*plan.templates, Template(activity="work", priority=3))
    return msgspec.structs.replace(plan, templates=kinds, template_of=np.array([0, 2, 1], np.uint32))


def given(story: Story, *packages: str) -> None:
    """A pilot is given packages in one step."""
    data = {"site": SITE, "pilot": PILOT, "lease_seconds": 60.0}
    events = [story.event("AttemptCreated", package=each, attempt=1, data=data) for each in packages]
    story.observer.on_decided([story.check(each) for each in events], story.now)


def test_who_is_more_urgent_is_given_first() -> None:
    given(Story(urgent_plan()), TWO, ONE)
    with broken("priorities", f"{PILOT} was given {JOB}/{ONE} before it"):
        given(Story(urgent_plan()), ONE, TWO)


@pytest.mark.parametrize("why", ["held", "tried"])
def test_who_could_not_begin_before_is_believed(why: str) -> None:
    story = Story(urgent_plan())
    if why == "held":
        story.say("Held", TWO, operation=7)
        story.say("Released", TWO, operation=8)
    else:
        story.failed(TWO, 1, "platform-failure")
    given(story, ONE, TWO)


def silent(story: Story, *, until: float, began: float = 0.0) -> None:
    """A pilot is heard once, and given up as silent when that time has come."""
    story.observer.on_began(began)
    story.observer.on_exchange(Exchange(pilot=PILOT, site=SITE, sequence=1), 10.0)
    ended = story.check(story.event("PilotEnded", pilot=PILOT, data={"reason": "unheard"}))
    story.observer.on_decided([ended], until)
    story.observer.on_written([ended], until)


def test_a_silent_pilot_is_lost_after_its_term() -> None:
    silent(Story(rules=TERMS), until=190.0)
    for until in (130.0, 189.0, 200.0):
        with broken("leases", f"lost after {until - 10.0:.2f} s of silence, and is to be after 180.00 s"):
            silent(Story(rules=TERMS), until=until)


def test_a_clock_that_was_set_moves_a_term_by_what_it_may_and_no_more() -> None:
    story = Story(rules=TERMS)
    story.observer.on_clock_set(since=95.0, due=100.0, now=100.0)
    silent(story, until=170.0)
    story = Story(rules=TERMS)
    story.observer.on_clock_set(since=95.0, due=100.0, now=100.0)
    with broken("leases", "lost after 159.00 s"):
        silent(story, until=169.0)


def test_no_more_replicas_are_wanted_than_may_be() -> None:
    story = Story(rules=Rules(replicas_max=2, queue_replicas_max=1))
    story.created(ONE)
    story.say("ReplicaWanted", ONE, replicas=1, cause="queue")
    story.created(ONE, 2, replica=True)
    with broken("leases", "3 attempts are under way or wanted, and at most 2"):
        story.say("ReplicaWanted", ONE, replicas=2, cause="queue")
    story.finished(ONE, 2, reason="platform-failure")
    with broken("leases", "2 replicas are wanted for what queues, of at most 1"):
        story.say("ReplicaWanted", ONE, replicas=2, cause="queue")


def ruled(*actions: str) -> Story:
    """A package whose rules are all for one failure; the first acts once."""
    first, *rest = (RetryRule(reason="application-error", action=each) for each in actions)  # type: ignore[arg-type]
    rules = (msgspec.structs.replace(first, times=1), *rest)
    return Story(merging_plan(Template(activity="work", retry=Retry(rules=rules))))


def test_the_rules_of_a_package_act_in_their_order() -> None:
    story = ruled("again", "give-up")
    story.failed(ONE, 1, "application-error")
    story.failed(ONE, 2, "application-error")
    with broken("retries", "attempt 3 was created after a failure upon which its own rules give up"):
        story.created(ONE, 3)
    story.say("Aborted", ONE, cause="permanent-failure")
    story = ruled("again", "give-up")
    story.failed(ONE, 1, "application-error")
    with broken("retries", "the first of its own rules that applies has it tried again"):
        story.say("Aborted", ONE, cause="permanent-failure")
