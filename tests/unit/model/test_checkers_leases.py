"""Who may run at once, and where: for each promise a story that keeps it and one that breaks it."""

from __future__ import annotations

import pytest

from pilotage.model.exchange.operations import Refused, Replicate, Reschedule
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.site import Site
from pilotage.simulator.checkers.observer import Rules
from tests.kit.observed import JOB, ONE, PILOT, TWO, Story, broken, demanding, merging_plan

# --- two at once ----------------------------------------------------------------------------------------------------


def test_two_live_attempts_unasked_are_seen() -> None:
    story = Story()
    story.created(ONE)
    with broken("leases", "beside 1, unasked"):
        story.created(ONE, 2, pilot="pilot.2")


@pytest.mark.parametrize("kind", ["AttemptSuspected", "AttemptLost"])
def test_a_second_attempt_beside_one_that_was_doubted_is_right(kind: str) -> None:
    story = Story()
    story.created(ONE)
    story.say(kind, ONE, 1)
    story.say("AttemptRecovered", ONE, 1)
    story.created(ONE, 2, pilot="pilot.2")


def test_a_second_attempt_beside_one_of_a_pilot_that_ended_is_right() -> None:
    story = Story()
    story.created(ONE)
    story.say("PilotEnded", stream=PILOT, pilot=PILOT, data={"reason": "wall-time"})
    story.created(ONE, 2, pilot="pilot.2")


def test_as_many_replicas_as_were_wanted_are_right() -> None:
    story = Story()
    story.created(ONE)
    story.observer.on_asked(Replicate(job=JOB, package=ONE), 0.0)
    story.say("ReplicaWanted", ONE, replicas=1)
    story.created(ONE, 2, pilot="pilot.2")
    story.finished(ONE, 1, reason="signal")
    story.created(ONE, 3)
    with broken("leases", "beside 2, 3, unasked"):
        story.created(ONE, 4, pilot="pilot.3")


def test_replicas_are_wanted_for_one_epoch() -> None:
    story = Story()
    story.observer.on_asked(Replicate(job=JOB, package=ONE), 0.0)
    story.say("ReplicaWanted", ONE, replicas=1)
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.created(ONE, 1, epoch=2)
    with broken("leases", "beside 1, unasked"):
        story.created(ONE, 2, epoch=2, pilot="pilot.2")


def test_replicas_that_nobody_asked_for_are_seen() -> None:
    story = Story()
    story.observer.on_asked(Replicate(job=JOB, package=ONE), 0.0)
    story.observer.on_asked(Replicate(job=JOB, package=ONE), 0.0)
    story.observer.on_answered(Replicate(job=JOB, package=ONE), Refused(code="job-over", message="no"), 0.0)
    story.say("ReplicaWanted", ONE, replicas=1)
    with broken("leases", "2 replicas are wanted, and 1 were asked for"):
        story.say("ReplicaWanted", ONE, replicas=2)


def test_a_package_that_is_rescheduled_leaves_its_attempts_behind() -> None:
    story = Story()
    story.created(ONE)
    with broken("leases", "without a request"):
        story.say("AttemptLost", ONE, 1, reason="rescheduled")
    story.observer.on_asked(Reschedule(job=JOB, package=ONE), 0.0)
    with broken("leases", "beside 1, unasked"):
        story.created(ONE, 2, pilot="pilot.2")
    story.say("AttemptLost", ONE, 1, reason="rescheduled")
    story.created(ONE, 2, pilot="pilot.2")


def test_an_attempt_that_two_pilots_started_is_seen() -> None:
    story = Story()
    story.created(ONE, pilot="")
    story.say("AttemptStarted", ONE, 1, data={"pilot": "bound.1"})
    with broken("leases", "bound.2, and bound.1 has it"):
        story.say("AttemptStarted", ONE, 1, data={"pilot": "bound.2"})


def test_a_package_with_side_effects_never_has_two_that_could_run() -> None:
    for excuse in ("AttemptSuspected", "replica", "reschedule"):
        story = Story(merging_plan(Template(activity="work", side_effects=True)))
        story.pilot()
        story.created(ONE)
        story.assigned(ONE)
        story.started(ONE)
        if excuse == "replica":
            story.observer.on_asked(Replicate(job=JOB, package=ONE), 0.0)
            story.say("ReplicaWanted", ONE, replicas=1)
        elif excuse == "reschedule":
            story.observer.on_asked(Reschedule(job=JOB, package=ONE), 0.0)
            story.say("AttemptLost", ONE, 1, reason="rescheduled")
        else:
            story.say(excuse, ONE, 1)
        with broken("leases", "beside 1"):
            story.created(ONE, 2, pilot="pilot.2")
        story.ended(ONE)
        story.created(ONE, 2, pilot="pilot.2")


def acting(*, assigned: bool = True) -> Story:
    """A package with side effects, whose first attempt runs."""
    story = Story(merging_plan(Template(activity="work", side_effects=True)))
    story.pilot()
    story.created(ONE)
    if assigned:
        story.assigned(ONE)
        story.started(ONE)
    return story


@pytest.mark.parametrize("end", ["finished", "lost", "pilot ended"])
def test_a_package_with_side_effects_goes_on_when_its_attempt_is_over(end: str) -> None:
    story = acting()
    match end:
        case "finished":
            story.finished(ONE, reason="signal")
        case "lost":
            story.say("AttemptLost", ONE, 1)
        case _:
            story.say("PilotEnded", stream=PILOT, pilot=PILOT, data={"reason": "wall-time"})
    story.created(ONE, 2, pilot="pilot.2")


def test_a_package_with_side_effects_goes_on_where_an_assignment_never_arrived() -> None:
    story = acting(assigned=False)
    with broken("leases", "beside 1"):
        story.created(ONE, 2, pilot="pilot.2")
    story.say("Restarted", ONE, epoch=2, cause="by-hand")
    story.created(ONE, 2, epoch=2, pilot="pilot.2")


def test_side_effects_of_an_earlier_epoch_that_really_go_on_are_seen() -> None:
    for doubted in (False, True):
        story = acting()
        if doubted:
            story.say("AttemptSuspected", ONE, 1)
        story.say("Restarted", ONE, epoch=2, cause="by-hand")
        if not doubted:
            with broken("leases", "beside 1"):
                story.created(ONE, 2, epoch=2, pilot="pilot.2")
            story.ended(ONE)
        story.created(ONE, 2, epoch=2, pilot="pilot.2")


# --- one pilot has it -------------------------------------------------------------------------------------------------


def test_an_attempt_runs_in_the_pilot_that_it_was_given_to() -> None:
    story = Story()
    story.pilot()
    story.created(ONE)
    story.assigned(ONE)
    story.assigned(ONE)  # a reply that came twice
    story.started(ONE)
    story.ended(ONE)
    story.assigned(ONE)  # the agent answers with the same end


def test_an_assignment_before_its_attempt_is_durable_is_seen() -> None:
    story = Story()
    story.pilot()
    with broken("leases", "before its creation was durable"):
        story.assigned(ONE)


def test_an_assignment_before_its_lease_is_durable_is_seen() -> None:
    story = Story()
    story.pilot("bound.1")
    story.created(ONE, pilot="")
    with broken("leases", "no lease of it is durable"):
        story.assigned(ONE, pilot="bound.1")
    story.say("AttemptStarted", ONE, 1, data={"pilot": "bound.1"})
    story.assigned(ONE, pilot="bound.1")


def test_an_assignment_to_a_second_pilot_is_seen() -> None:
    story = Story()
    story.pilot()
    story.pilot("pilot.2")
    story.created(ONE, pilot="")
    story.say("AttemptStarted", ONE, 1)  # which pilot has it is not said
    story.assigned(ONE)
    with broken("leases", "pilot.1 had it before"):
        story.assigned(ONE, pilot="pilot.2")


def test_an_assignment_to_another_pilot_than_the_book_says_is_seen() -> None:
    story = Story()
    story.pilot("pilot.2")
    story.created(ONE)
    with broken("leases", "the book says pilot.1"):
        story.assigned(ONE, pilot="pilot.2")


def test_an_assignment_in_another_epoch_is_seen() -> None:
    story = Story()
    story.pilot()
    story.created(ONE)
    with broken("leases", "in epoch 2, and is of epoch 1"):
        story.assigned(ONE, epoch=2)


def test_an_attempt_that_runs_twice_is_seen() -> None:
    story = Story()
    story.pilot()
    story.created(ONE)
    story.assigned(ONE)
    story.started(ONE)
    with broken("leases", "started twice"):
        story.started(ONE)
    story.ended(ONE)
    with broken("leases", "is not held"):
        story.started(ONE)


# --- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node, is_right", [("n17", True), ("n2", True), ("n18", False), ("", False)])
def test_an_attempt_on_a_node_that_its_package_does_not_name_is_seen(node: str, *, is_right: bool) -> None:
    story = Story(merging_plan(demanding(node_restriction=("n17", "n[12]"))))
    story.pilot(node=node)
    story.created(ONE)
    story.assigned(ONE, demand=demanding(node_restriction=("n17", "n[12]")).demand)
    if is_right:
        story.started(ONE)
        return
    with broken("nodes", f"{node or 'an unknown node'}, and may run on n17, n\\[12\\] only"):
        story.started(ONE)


# --- rooms ----------------------------------------------------------------------------------------------------------


def test_more_than_fits_at_once_is_seen() -> None:
    story = Story()
    story.pilot(cores=1, backlog=1)
    for package in (ONE, TWO):
        story.created(package)
        story.assigned(package)
    story.started(ONE)
    with broken("rooms", "2 attempts run there and take cores_hundredths 200 of 100"):
        story.started(TWO)
    with broken("rooms", "2 attempts run there"):
        story.observer.check(1.0)
    story.ended(ONE)
    story.observer.check(2.0)


def test_memory_counts_as_well() -> None:
    story = Story(merging_plan(demanding(cores_hundredths=50, memory_bytes=600)))
    story.pilot(cores=4, memory_bytes=1000, backlog=1)
    for package in (ONE, TWO):
        story.created(package)
        story.assigned(package, demand=demanding(cores_hundredths=50, memory_bytes=600).demand)
    story.started(ONE)
    with broken("rooms", "memory_bytes 1200 of 1000"):
        story.started(TWO)


@pytest.mark.parametrize("backlog", [0, 1])
def test_one_assignment_beyond_the_backlog_is_seen(backlog: int) -> None:
    story = Story()
    story.pilot(cores=1, backlog=backlog)
    story.created(ONE)
    story.created(TWO)
    story.assigned(ONE)
    if backlog:
        story.assigned(TWO)
        return
    with broken("rooms", "number 2 beside a backlog of 0"):
        story.assigned(TWO)


def test_what_a_pilot_has_forgotten_takes_no_room() -> None:
    story = Story()
    story.pilot()
    story.created(ONE)
    story.created(TWO)
    story.assigned(ONE)
    story.ended(ONE)  # cancelled before it began
    story.assigned(TWO)


def test_the_room_of_a_pilot_that_is_gone_is_gone_with_it() -> None:
    story = Story()
    story.pilot()
    story.created(ONE)
    story.assigned(ONE)
    story.started(ONE)
    story.observer.on_gone(PILOT, 1.0)
    story.observer.check(1.0)
    story.created(TWO)
    with broken("leases", "the pilot never began"):
        story.assigned(TWO)


def test_an_assignment_where_it_can_never_run_is_seen() -> None:
    story = Story(merging_plan(demanding(cores_hundredths=400)))
    story.pilot(cores=2, backlog=9)
    story.created(ONE)
    with broken("rooms", "can never run: cores_hundredths 400 of 200"):
        story.assigned(ONE, demand=demanding(cores_hundredths=400).demand)


def test_an_assignment_with_another_demand_than_its_package_is_seen() -> None:
    story = Story(merging_plan(demanding(memory_bytes=100)))
    story.pilot(memory_bytes=1000)
    story.created(ONE, memory_bytes=200)  # twice, after it ran out of it
    with broken("rooms", "and takes"):
        story.assigned(ONE, demand=demanding(memory_bytes=100).demand)
    story.assigned(ONE, demand=demanding(memory_bytes=200).demand)


@pytest.mark.parametrize(
    "template, why",
    [
        (Template(activity="work", executor="slurm"), "may only run on slurm"),
        (demanding(gpus=1), "cannot hold it: gpus 1 of 0"),
        (demanding(wall_seconds=7200.0), "wall_seconds 7200.0 of 3600.0"),
        (demanding(nodes=2), "nodes 2 of 1"),
    ],
)
def test_a_site_that_cannot_hold_an_attempt_is_seen(template: Template, why: str) -> None:
    small = Site(name="lyon", kind="local", wall_seconds=3600.0)
    large = Site(name="lyon", kind="slurm", nodes=4, capacity=Capacity(gpus=2))
    with broken("rooms", why):
        Story(merging_plan(template), rules=Rules(sites=(small,))).created(ONE)
    Story(merging_plan(template), rules=Rules(sites=(large,))).created(ONE)
    Story(merging_plan(demanding(wall_seconds=60.0)), rules=Rules(sites=(small,))).created(ONE)
    with broken("rooms", "which is no site"):
        Story(rules=Rules(sites=(Site(name="nikhef"),))).created(ONE)


def test_a_category_beyond_its_limit_is_seen() -> None:
    plan = merging_plan(Template(activity="work", category="licence"), limits={"licence": 1})
    story = Story(plan)
    story.created(ONE)
    with broken("rooms", "2 packages of category licence are live, at most 1"):
        story.created(TWO)
    story = Story(plan)
    story.created(ONE)
    story.say("AttemptSuspected", ONE, 1)
    story.created(TWO)
    story.finished(TWO, reason="signal")
    story.say("AttemptRecovered", ONE, 1)
    with broken("rooms", "2 packages of category licence"):
        story.created(TWO, 2)
