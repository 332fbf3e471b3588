"""An engine that takes over: it knows what the events told, asks again for what was not seen done, and contradicts nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    CancelSubmitted,
    Drop,
    ExpandStage,
    Hold,
    Kill,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import Gone, Submitted
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import HealingSettings
from tests.kit.decided import check_decisions
from tests.kit.small_engine import JOB, Small, differences
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

LEASE = 60.0
GIB = 2**30
MERGE = [("1.1.1", "2.1.1"), ("1.2.1", "2.1.1")]


def fresh() -> Small:
    small = Small(site(cores=2))
    small.submit(chain(lines=3))
    return small


def half_done() -> Small:
    small = Small(site(cores=2))
    small.submit(chain(lines=3))
    small.pilot().succeed("1.1.1")
    return small


def all_done() -> Small:
    small = Small(site(cores=2))
    small.submit(chain(lines=2))
    pilot = small.pilot()
    while pilot.held:
        pilot.succeed(*pilot.packages)
    return small


def failures_of_many_kinds() -> Small:
    small = Small(site(capacity=Capacity(cores_hundredths=400, memory_bytes=64 * GIB)))
    small.submit(bag(4, kind(memory_bytes=GIB)))
    pilot = small.pilot()
    for package, reason in zip(
        list(pilot.packages), ("out-of-memory", "missing-input", "wall-time", "preempted"), strict=True
    ):
        pilot.fail(package, reason, message="why", after=3.0)
    return small


def suspects_and_losses() -> Small:
    small = Small(site("a", cores=2), site("b"))
    small.submit(bag(3))
    small.pilot("a")
    other = small.agent("b-0.1", site="b", request="b-0")
    other.exchange()
    small.wait(LEASE + 1, other)
    other.exchange()
    return small


def a_pilot_lost_and_another_in_its_place() -> Small:
    small = suspects_and_losses()
    small.wait(3 * LEASE, small.agents["b-0.1"])
    return small


def a_suspect_that_recovered() -> Small:
    small = Small(site(cores=2))
    small.submit(bag(3))
    pilot = small.pilot()
    small.wait(LEASE + 1)
    pilot.exchange()
    return small


def killed_and_restarted() -> Small:
    small = Small(site(cores=2))
    small.submit(plan(stage(2), stage(), stage(), edges=[*MERGE, ("2.1.1", "3.1.1")]))
    pilot = small.pilot()
    pilot.fail("1.1.1", "platform-failure")
    small.ask(Kill(job=JOB, package="1.1.1"))
    small.ask(Restart(job=JOB, package="1.1.1"))
    small.ask(Kill(job=JOB, package="1.2.1"))
    pilot.exchange()
    return small


def a_killed_job() -> Small:
    small = Small(site(cores=2))
    small.submit(chain(lines=3))
    small.pilot().succeed("1.1.1")
    small.ask(Kill(job=JOB))
    return small


def a_killed_job_that_goes_on() -> Small:
    small = a_killed_job()
    small.ask(Restart(job=JOB))
    return small


def dropped_and_restored() -> Small:
    small = Small(site(cores=4))
    small.submit(plan(stage(4), stage(), edges=MERGE))
    pilot = small.pilot()
    for line in (1, 2, 3):
        small.ask(Drop(job=JOB, stage=1, line=line))
    small.ask(Restore(job=JOB, stage=1, line=2))
    pilot.exchange()
    return small


def done_and_dropped() -> Small:
    small = Small(site(cores=2))
    small.submit(plan(stage(2), stage(), edges=MERGE))
    small.pilot().succeed("1.1.1")
    small.ask(Drop(job=JOB, stage=1, line=1))
    return small


def dropped_while_it_succeeded() -> Small:
    small = Small(site(cores=2))
    small.submit(plan(stage(2), stage(), edges=MERGE))
    pilot = small.pilot()
    ref = pilot.ref("1.2.1")
    small.ask(Drop(job=JOB, stage=1, line=2))
    pilot.end(ref)
    pilot.exchange()
    return small


def held_things() -> Small:
    small = Small(site(cores=2))
    small.submit(chain(lines=3))
    small.pilot()
    small.ask(Hold(job=JOB))
    for package in ("1.1.1", "1.3.1", "2.1.1"):
        small.ask(Hold(job=JOB, package=package))
    return small


def held_and_over() -> Small:
    small = Small(site(cores=2))
    small.submit(bag(2))
    pilot = small.pilot()
    small.ask(Hold(job=JOB, package="1.1.1"))
    small.ask(Hold(job=JOB, package="1.2.1"))
    pilot.succeed("1.1.1")
    small.ask(Kill(job=JOB, package="1.2.1"))
    return small


def replicas_and_rescheduling() -> Small:
    small = Small(site("a", cores=2), site("b"))
    small.submit(bag(2))
    small.pilot("a")
    small.ask(Replicate(job=JOB, package="1.1.1"))
    small.ask(Reschedule(job=JOB, package="1.2.1"))
    return small


def bound_in_every_stage_of_life() -> Small:
    small = Small(site(mode="bound", cores=4, job_throttle=3.0))
    small.submit(bag(4))
    _, queued, running, failed = small.take(SubmitAttempt)
    small.step(Submitted(site="a", key=queued.key, native_id="77"))
    small.bound(running)
    small.step(Gone(site="a", key=failed.key, reason="unknown"))
    return small


def a_late_stage_that_waits() -> Small:
    small = Small(site(cores=2))
    made = plan(stage(2), None, stage(1, kind("merge")), late={2: ["1.1.1", "1.2.1"]}, waits={3: (2,)})
    small.submit(made)
    small.pilot().succeed("1.1.1")
    return small


def a_late_stage_that_grew() -> Small:
    small = a_late_stage_that_waits()
    pilot = next(iter(small.agents.values()))
    pilot.succeed("1.2.1")
    edges = [("1.1.1", "2.1.1"), ("1.2.1", "2.2.1"), ("2.1.1", "3.1.1"), ("2.2.1", "3.1.1")]
    small.grow(grown(small.plans[JOB][0], late=2, lines=2, edges=edges), late=2)
    pilot.exchange()
    return small


def a_late_stage_with_a_dead_producer() -> Small:
    small = a_late_stage_that_waits()
    small.ask(Kill(job=JOB, package="1.2.1"))
    return small


def given_up_alike() -> Small:
    retry = Retry(rules=(RetryRule(reason="application-error", action="give-up"),))
    small = Small(site(cores=2), incidents=HealingSettings(failing_attempts_max=6))
    small.submit(bag(9, kind(retry=retry)))
    pilot = small.pilot()
    while pilot.held:
        pilot.fail(pilot.packages[0], "application-error")
    return small


def two_jobs_and_dead_pilots() -> Small:
    small = Small(site("a", pilots=2), site("b"))
    small.submit(bag(3), job="one")
    small.submit(chain(), job="two", owner="emmy")
    pilot = small.pilot("a")
    key = next(each.key for each in small.effects if isinstance(each, SubmitPilot))
    small.step(Submitted(site="a", key=key, native_id="5"))
    pilot.end(next(iter(pilot.held)))
    pilot.say(payloads.PilotEnded(reason="idle"))
    pilot.exchange(leaving="idle")
    return small


HISTORIES = [
    fresh, half_done, all_done, failures_of_many_kinds, suspects_and_losses, a_pilot_lost_and_another_in_its_place,
    a_suspect_that_recovered, killed_and_restarted, a_killed_job, a_killed_job_that_goes_on, dropped_and_restored,
    done_and_dropped, dropped_while_it_succeeded, held_things, held_and_over, replicas_and_rescheduling,
    bound_in_every_stage_of_life, a_late_stage_that_waits, a_late_stage_that_grew, a_late_stage_with_a_dead_producer,
    given_up_alike, two_jobs_and_dead_pilots,
]  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES)
def test_an_engine_from_the_rows_of_the_book_knows_what_the_one_before_it_knew(history: Callable[[], Small]) -> None:
    small = history()
    core = small.restarted()
    assert differences(core.engine.durable_state(), small.engine.durable_state()) == []
    core.engine.sanity_check()


@pytest.mark.parametrize("history", HISTORIES)
def test_an_engine_that_hears_all_events_knows_what_the_one_before_it_knew(history: Callable[[], Small]) -> None:
    small = history()
    assert differences(small.replayed().durable_state(), small.engine.durable_state()) == []


@pytest.mark.parametrize("history", HISTORIES)
def test_after_a_restart_everything_that_can_still_be_finished_is(history: Callable[[], Small]) -> None:
    small = history()
    small.effects.clear()  # nothing of them was done
    small.restart()
    assert differences(small.restarted().engine.durable_state(), small.engine.durable_state()) == []
    small.finish()
    check_decisions(small.book)
    assert differences(small.replayed().durable_state(), small.engine.durable_state()) == []


# --- what is done again ---------------------------------------------------------------------------------------------


def test_submissions_that_were_not_seen_are_asked_for_again_under_the_same_keys() -> None:
    small = Small(site("a", mode="bound"), site("b", pilots=2))
    small.submit(bag(9))
    bound, pilots = small.take(SubmitAttempt), small.take(SubmitPilot)
    small.step(
        Submitted(site="a", key=bound[0].key, native_id="1"), Submitted(site="b", key=pilots[0].key, native_id="2")
    )
    small.restart()
    assert small.take(SubmitAttempt) == bound[1:]
    assert small.take(SubmitPilot) == pilots[1:]
    assert small.created() == [(f"1.{line}.1", 1, "a") for line in (1, 2, 3)]


def test_a_late_stage_whose_plan_was_not_seen_is_asked_for_again() -> None:
    small = a_late_stage_that_waits()
    next(iter(small.agents.values())).succeed("1.2.1")
    assert len(small.take(ExpandStage)) == 1
    small.restart()
    assert [each.stage for each in small.take(ExpandStage)] == [2]


def test_a_success_that_was_written_without_its_grant_is_granted() -> None:
    small = Small(site())
    small.submit(chain())
    pilot = small.pilot()
    pilot.end(pilot.ref("1.1.1"))
    outbox = small.core.step([pilot.message()], small.now)
    finished = [one for one in outbox.events if isinstance(one.data, payloads.AttemptFinished)]
    assert len(finished) == 1
    small.journal.append(finished, small.now)
    small.journal.sync()
    small.book += finished
    small.core = small.restarted()
    small.step()
    assert [event.attempt for event in small.told(payloads.CommitGranted, "1.1.1")] == [1]


def test_a_lease_has_a_full_term_after_a_restart() -> None:
    small = Small(site(cores=2))
    small.submit(bag(1))
    pilot = small.pilot()
    small.wait(LEASE - 5)
    small.now += 10_000.0
    small.restart()
    small.wait(LEASE - 1)
    assert small.told(payloads.AttemptSuspected, "1.1.1") == []
    pilot.exchange()
    small.wait(LEASE - 1)
    assert small.told(payloads.AttemptSuspected, "1.1.1") == []
    small.wait(2)
    assert len(small.told(payloads.AttemptSuspected, "1.1.1")) == 1


def test_a_silent_suspect_is_lost_in_the_end_also_after_a_restart() -> None:
    small = suspects_and_losses()
    small.restart()
    small.wait(3 * LEASE + 1, small.agents["b-0.1"])
    assert [event.attempt for event in small.told(payloads.AttemptLost, "1.1.1")] == [1]
    assert [event.attempt for event in small.told(payloads.AttemptSuspected, "1.1.1")] == [1]


def test_what_acts_on_the_outside_and_was_killed_is_waited_for_after_a_restart_too() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, kind(side_effects=True)))
    one = small.pilot()
    other = small.agent("a-0.1", site="a", request="a-0")
    other.exchange()
    small.ask(Kill(job=JOB, package="1.1.1"))
    small.restart()
    small.ask(Restart(job=JOB, package="1.1.1"))
    other.exchange()
    assert other.packages == []  # one still runs it
    one.exchange()  # is told to stop it
    one.exchange()  # has stopped it
    other.exchange()
    assert one.packages + other.packages == ["1.1.1"]


def test_a_suspect_whose_pilot_speaks_after_a_restart_recovers() -> None:
    small = Small(site(cores=2), site("b"))
    small.submit(bag(1))
    pilot = small.pilot()
    small.wait(LEASE + 1)
    assert len(small.told(payloads.AttemptSuspected, "1.1.1")) == 1
    small.restart()
    pilot.exchange()
    assert len(small.told(payloads.AttemptRecovered, "1.1.1")) == 1


def test_a_pilot_keeps_its_attempts_over_a_restart_and_goes_on() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot()
        small.restart()
        assert pilot.exchange() is None
        pilot.succeed("1.1.1")
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert list(small.standings()) == ["done"]
        assert {event.attempt for event in small.told(payloads.CommitGranted, "1.1.1")} == {1}


def test_what_an_agent_was_told_is_acknowledged_stays_acknowledged() -> None:
    small = Small(site(cores=2))
    small.submit(bag(2))
    pilot = small.pilot()
    pilot.end(pilot.ref("1.1.1"))
    bad = pilot.unacknowledged.pop()
    pilot.unacknowledged.append(msgspec.structs.replace(bad, type="NoSuchEvent"))
    reply = pilot.exchange()
    assert reply is not None
    assert reply.acknowledged == pilot.n
    small.restart()
    pilot.say(payloads.PhaseEntered(phase="inputs"), pilot.ref("1.2.1"))
    reply = pilot.exchange()
    assert reply is not None
    assert reply.acknowledged == pilot.n


def test_cancels_are_told_again_after_a_restart() -> None:
    small = Small(site())
    small.submit(bag(1))
    pilot = small.pilot()
    ref = pilot.ref("1.1.1")
    small.ask(Kill(job=JOB))
    small.restart()
    reply = pilot.exchange()
    assert reply is not None
    assert reply.cancelled == (ref,)


def test_a_bound_attempt_that_was_cancelled_is_not_submitted_again() -> None:
    small = Small(site(mode="bound"))
    small.submit(bag(1))
    small.take(SubmitAttempt)
    small.ask(Kill(job=JOB))
    assert len(small.take(CancelSubmitted)) == 1
    small.restart()
    assert small.effects == []


def test_numbers_of_decisions_go_on() -> None:
    small = half_done()
    last = small.engine.state.log.next_number
    small.restart()
    assert small.engine.state.log.next_number >= last
    small.ask(Hold(job=JOB))
    assert small.told(payloads.Held)[0].n >= last


def test_a_job_that_was_held_at_a_restart_has_waited_as_long_as_before_it_was_held() -> None:
    with Small(site("a")) as small:
        small.submit(bag(1))
        small.wait(1000)
        small.ask(Hold(job=JOB))
        small.wait(5000)
        small.restart()
        small.wait(5000)
        small.ask(Release(job=JOB))
        assert small.engine.state.clock.now - small.engine.state.jobs.by_id[JOB].since == pytest.approx(1000)
        small.effects.clear()


def test_a_pilot_is_on_its_node_also_for_the_engine_that_follows() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        pilot = small.pilot(node="node-7")
        small.restart()
        assert small.engine.state.pilots.by_name[pilot.name].node == "node-7"
        assert ("a", pilot.request, "node-7") in [each[1:] for each in small.engine.durable_state()["pilots"]]
        pilot.unread.clear()
