"""What acts on the outside is not begun again before it is known to have stopped, and is never waited for in vain."""

from __future__ import annotations

import pytest

from pilotage.engine.transitions.occupancy import cancel_abandoned
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import CancelSubmitted, Kill, Reschedule, Restart, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Gone
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, kind, site

LEASE = 60.0
MAIL = kind("mail", side_effects=True)


def stopped_by_word_of_mouth() -> tuple[Small, Agent]:
    """An attempt was rescheduled, its agent has stopped it, which no event says, and was given up later."""
    small = Small(site(pilots=2))
    small.submit(bag(1, MAIL))
    one = small.pilot()
    small.ask(Reschedule(job=JOB, package="1.1.1"))
    one.exchange()  # is told to stop it
    one.exchange(leaving="soon")  # has stopped it
    assert small.engine.state.abandoned.by_pilot == {}
    small.wait(4 * LEASE)
    assert one.name not in small.engine.state.pilots.by_name
    return small, one


def test_the_word_of_a_batch_system_about_a_request_counts_for_its_pilot_after_a_restart() -> None:
    small, one = stopped_by_word_of_mouth()
    small.step(Gone(site="a", key=one.request, reason="ended"))
    small.restart()
    assert small.engine.state.abandoned.by_pilot == {}
    assert small.status("1.1.1") != "blocked"


def test_a_pilot_that_was_given_up_is_ended_after_a_restart_until_its_batch_system_says_so() -> None:
    small, one = stopped_by_word_of_mouth()
    small.effects.clear()
    small.restart()
    assert small.status("1.1.1") == "blocked"
    assert small.take(CancelSubmitted) == [CancelSubmitted(site="a", key=one.request)]
    small.wait(small.settings.submit_again_seconds)
    assert small.take(CancelSubmitted) == [CancelSubmitted(site="a", key=one.request)]
    small.step(Gone(site="a", key=one.request, reason="cancelled"))
    assert small.status("1.1.1") != "blocked"
    small.wait(3 * small.settings.submit_again_seconds)
    assert small.take(CancelSubmitted) == []
    small.restart()
    assert small.status("1.1.1") != "blocked"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_bound_agent_that_was_given_up_is_ended_too(restarted: bool) -> None:  # noqa: FBT001
    small = Small(site(mode="bound"))
    small.submit(bag(1, MAIL))
    [effect] = small.take(SubmitAttempt)
    agent = small.bound(effect)
    assert agent.packages == ["1.1.1"]
    small.ask(Kill(job=JOB, package="1.1.1"))
    small.ask(Restart(job=JOB, package="1.1.1"))
    small.wait(4 * LEASE)
    assert small.status("1.1.1") == "blocked"
    if restarted:
        small.effects.clear()
        small.restart()
    assert CancelSubmitted(site="a", key=effect.key) in small.take(CancelSubmitted)
    small.step(Gone(site="a", key=effect.key, reason="cancelled"))
    assert [each.ref.attempt for each in small.take(SubmitAttempt)] == [2]


def test_a_request_that_another_pilot_serves_well_is_not_ended() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(2, MAIL))
    one = small.pilot()
    other = small.agent(f"{one.request}.2", site="a", request=one.request)
    other.exchange()
    small.ask(Reschedule(job=JOB, package=one.packages[0]))
    small.wait(5 * LEASE, other)
    assert list(small.engine.state.abandoned.by_pilot) == [one.name]
    assert small.take(CancelSubmitted) == []
    small.take(SubmitPilot)


def test_an_agent_that_ends_orderly_needs_no_batch_system() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, MAIL))
    one = small.pilot()
    small.ask(Reschedule(job=JOB, package="1.1.1"))
    one.say(payloads.PilotEnded(reason="idle"))
    one.exchange(leaving="idle")
    small.restart()
    assert small.engine.state.abandoned.by_pilot == {}
    assert small.take(CancelSubmitted) == []


def test_what_an_agent_said_before_it_was_given_an_attempt_does_not_tell_a_later_service_that_it_has_stopped() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, MAIL))
    one = small.pilot()
    assert one.packages == ["1.1.1"]
    small.ask(Kill(job=JOB, package="1.1.1"))
    small.ask(Restart(job=JOB, package="1.1.1"))
    small.restart()
    # Its first exchange comes once more, late: with it, it had asked for what it runs.
    small.step(one.message(sequence=1, seen=0, held=()))
    assert list(small.engine.state.abandoned.by_pilot) == [one.name]
    assert small.status("1.1.1") == "blocked"
    one.exchange()  # is told to stop it
    assert small.status("1.1.1") == "blocked"
    one.exchange()  # has stopped it
    assert small.created() == [("1.1.1", 1, "a"), ("1.1.1", 2, "a")]
    small.take(SubmitPilot)


def test_what_has_stopped_does_not_act_again_when_another_attempt_is_granted() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, MAIL))
    one = small.pilot()
    small.wait(4 * LEASE)
    assert one.name not in small.engine.state.pilots.by_name
    small.step(Gone(site="a", key=one.request, reason="cancelled"))
    assert small.engine.state.abandoned.by_pilot == {}
    two = small.pilot()
    two.succeed("1.1.1")
    assert small.status("1.1.1") == "done"
    assert small.engine.state.abandoned.by_pilot == {}
    small.effects.clear()
    small.wait(3 * small.settings.submit_again_seconds)
    assert CancelSubmitted(site="a", key=one.request) not in small.effects


def test_nobody_is_asked_to_end_a_pilot_that_is_heard_or_that_nothing_is_known_of() -> None:
    small = Small(site(pilots=2))
    small.submit(bag(1, MAIL))
    one = small.pilot()
    state = small.engine.state
    small.ask(Reschedule(job=JOB, package="1.1.1"))  # from now on it may act, and is heard
    assert one.name in state.abandoned.by_pilot
    for pilot in (one.name, "unknown"):
        state.abandoned.to_cancel[pilot] = None
        timers = len(state.clock.timers._heap)
        cancel_abandoned(state, pilot)
        assert pilot not in state.abandoned.to_cancel
        assert len(state.clock.timers._heap) == timers
    assert small.take(CancelSubmitted) == []
    small.take(SubmitPilot)
