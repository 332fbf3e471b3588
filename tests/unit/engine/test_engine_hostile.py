"""What a faulty agent, a strange batch system or an unlucky moment must not do to the engine."""

from __future__ import annotations

import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import (
    Drop,
    ExpandStage,
    Kill,
    Refused,
    Restart,
    Restore,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import Gone, SubmissionFailed, Submitted
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import RestartSettings
from pilotage.model.states import ExitCodeGasw
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import bag, grown, kind, plan, site, stage


def test_reservations_that_wait_for_a_slot_have_one_timer_whatever_their_number() -> None:
    small = Small(site("a", capacity=Capacity(cores_hundredths=1000, memory_bytes=10**9)))
    small.watched = False
    for number in range(14):
        small.submit(bag(1, kind(memory_bytes=1000 + number)), job=f"j{number}")
        small.step(after=1.0)
    peak = 0
    for _ in range(80):
        small.step(after=1.0)
        peak = max(peak, len(small.engine.state.clock.timers._heap))
    assert peak < 100


def test_any_number_of_pilots_that_never_came_only_makes_the_wait_longer() -> None:
    small = Small(site("a"), dead_starts_max=0)
    small.watched = False
    small.submit(bag(1))
    state, longest_seconds = small.engine.state.sites.by_name["a"], small.engine.state.settings.dead_start_seconds_max
    for dead in range(1100):
        wanted = small.take(SubmitPilot)[-1]
        small.step(SubmissionFailed(site="a", key=wanted.key, reason="failed"))
        assert state.dead_starts == dead + 1
        small.wait(longest_seconds + 2)
    small.step(SubmissionFailed(site="a", key=small.take(SubmitPilot)[-1].key, reason="failed"))
    assert state.quiet_until == small.now + longest_seconds


@pytest.mark.parametrize("attempt", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "0", "-1", ""])
def test_a_batch_system_may_speak_of_keys_that_are_none(attempt: str) -> None:
    with Small(site("a")) as small:
        small.submit(bag(1))
        small.take(SubmitPilot)
        small.step(Gone(site="a", key=f"{JOB}:1.1.1:{attempt}", reason="failed"))
        small.step(Submitted(site="a", key=f"{JOB}:1.1.1:{attempt}", native_id="7"))
        assert small.status("1.1.1") == "reserved"


def test_what_may_still_act_is_waited_for_when_a_late_stage_grows() -> None:
    small = Small(site(pilots=2))
    made = plan(stage(1, kind(side_effects=True)), stage(1), None, late={3: ["2.1.1"]})
    small.submit(made)
    one = small.pilot()
    other = small.agent("a-0.1", site="a", request="a-0")
    other.exchange()
    holder, free = (one, other) if "1.1.1" in one.packages else (other, one)
    small.ask(Kill(job=JOB, package="1.1.1"))
    small.ask(Restart(job=JOB, package="1.1.1"))
    free.succeed("2.1.1")
    small.take(ExpandStage)
    small.grow(grown(made, late=3), late=3)
    assert small.status("1.1.1") == "blocked"
    assert "1.1.1" not in free.packages
    assert holder.ref("1.1.1").attempt == 1


def test_what_failed_while_it_was_dropped_counts_once_it_is_restored() -> None:
    small = Small(site(), restart=RestartSettings(attempts_max=1))
    small.submit(bag(1))
    pilot = small.pilot()
    ref = pilot.ref("1.1.1")
    held = dict(pilot.held)
    small.ask(Drop(job=JOB, stage=1, line=1))
    pilot.held = held
    pilot.end(ref, reason="application-error")
    pilot.exchange()
    small.ask(Restore(job=JOB, stage=1, line=1))
    assert small.status("1.1.1") == "aborted"


def test_a_success_of_an_attempt_that_was_never_created_is_noted_and_not_believed() -> None:
    small = Small(site("a", pilots=2))
    small.submit(bag(3))
    pilot = small.pilot()
    pilot.end(AttemptRef(JOB, "1.3.1", 1))
    pilot.exchange()
    small.restart()
    small.step()
    assert small.told(payloads.CommitGranted, "1.3.1") == []
    assert small.status("1.3.1") != "done"


def test_an_agent_cannot_end_another_one() -> None:
    small = Small(site("a", pilots=2))
    small.submit(bag(2))
    one = small.pilot()
    other = small.agent("a-0.1", site="a", request="a-0")
    other.exchange()
    one.say(payloads.PilotEnded(reason="failed"), pilot=other.name)
    one.exchange()
    small.restart()
    assert other.name in small.engine.state.pilots.by_name


def test_an_agent_cannot_make_another_owner() -> None:
    small = Small(site("a"))
    small.submit(bag(1))
    pilot = small.pilot()
    pilot.say(payloads.OwnerSet(owner="mallory"), job=JOB, pilot=None)
    pilot.exchange()
    assert [one for one in small.book if isinstance(one.data, payloads.OwnerSet)] == []


@pytest.mark.parametrize("job", ["", "bad id/!"])
def test_what_is_no_id_of_a_job_is_refused(job: str) -> None:
    with Small(site("a")) as small:
        answer = small.submit(bag(1), job=job)
        assert isinstance(answer, Refused)
        assert answer.code == "bad-id"


def test_a_late_stage_that_no_site_can_run_is_given_up_and_says_why() -> None:
    made = plan(stage(1), None, late={2: ["1.1.1"]})
    with Small(site("a")) as small:
        small.submit(made)
        small.pilot().succeed("1.1.1")
        small.take(ExpandStage)
        small.grow(grown(made, late=2, template=kind(gpus=1000)), late=2)
        small.step()
        assert small.status("2.1.1") == "aborted"
        [aborted] = small.told(payloads.Aborted, "2.1.1")
        assert b"1,000 GPUs" in bytes(aborted.data)


def test_an_agent_that_stops_what_it_was_given_for_no_reason_does_not_do_so_for_ever() -> None:
    small = Small(site("a"), restart=RestartSettings(preemptions_max=3))
    small.submit(bag(1))
    pilot = small.pilot()
    for _ in range(10):
        for ref in list(pilot.held):
            del pilot.held[ref]
            pilot.say(payloads.AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_CANCELED), ref)
        pilot.exchange()
    assert small.status("1.1.1") == "aborted"
    assert len(small.created()) == 3
    assert differences(small.restarted().engine.durable_state(), small.engine.durable_state()) == []


@pytest.mark.parametrize("who", ["another", "itself"])
def test_an_attempt_that_is_over_ends_once(who: str) -> None:
    small = Small(site("a", pilots=2))
    small.submit(bag(2))
    one = small.pilot()
    other = small.agent("a-0.1", site="a", request="a-0")
    other.exchange()
    ref = one.ref("1.1.1")
    one.end(ref, reason="application-error")
    one.exchange()
    speaker = other if who == "another" else one
    speaker.held.pop(ref, None)
    speaker.say(payloads.AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, manifest=()), ref)
    speaker.exchange()
    assert len([each for each in small.told(payloads.AttemptFinished, "1.1.1") if each.attempt == 1]) == 1
    assert small.told(payloads.Noted)
    assert differences(small.restarted().engine.durable_state(), small.engine.durable_state()) == []
    small.restart()
    assert small.told(payloads.CommitGranted, "1.1.1") == []


def test_a_pilot_that_was_given_up_may_still_say_how_it_ended_also_to_the_next_service() -> None:
    for restarts in (False, True):
        small = Small(site("a"))
        small.submit(bag(1))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        small.wait(4 * 60.0)
        small.ask(Kill(job=JOB, package="1.1.1"))
        if restarts:
            small.restart()
        pilot.say(payloads.AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_CANCELED), ref)
        pilot.exchange()
        assert [each.attempt for each in small.told(payloads.AttemptFinished, "1.1.1")] == [1]


def test_no_site_takes_or_speaks_of_a_bound_attempt_of_another() -> None:
    with Small(site("a", mode="bound"), site("b", mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        other = "b" if effect.site == "a" else "a"
        thief = small.agent("thief.1", site=other, request="thief", serves=effect.ref)
        reply = thief.exchange()
        assert reply is not None
        assert reply.leave
        assert reply.assignments == ()
        small.step(Submitted(site=other, key=effect.key, native_id="7"))
        assert small.told(payloads.AttemptQueued, "1.1.1") == []
        small.step(SubmissionFailed(site=other, key=effect.key, reason="failed"))
        assert small.told(payloads.AttemptStarted, "1.1.1") == []
        small.step(Submitted(site=effect.site, key=effect.key, native_id="7"))
        assert len(small.told(payloads.AttemptQueued, "1.1.1")) == 1
        owner = small.bound(effect)
        assert owner.packages == ["1.1.1"]


def test_no_site_says_that_what_may_still_act_at_another_is_gone() -> None:
    small = Small(site("a"), site("b"))
    small.submit(bag(1, kind(side_effects=True)))
    pilot = small.pilot()
    at = small.engine.state.pilots.by_name[pilot.name].site.name
    key = small.engine.state.pilots.by_name[pilot.name].request
    small.wait(4 * 60.0)
    assert pilot.name not in small.engine.state.pilots.by_name
    assert small.engine.state.abandoned.by_pilot
    small.step(Gone(site="b" if at == "a" else "a", key=key, reason="ended"))
    assert small.engine.state.abandoned.by_pilot
    small.step(Gone(site=at, key=key, reason="ended"))
    assert not small.engine.state.abandoned.by_pilot


def test_nobody_of_another_site_tells_the_end_of_what_a_pilot_that_is_gone_ran() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        ref = pilot.ref("1.1.1")
        small.wait(1_000)  # it is given up
        small.effects.clear()
        rogue = Agent(small, pilot.name, site="b", request="")
        small.agents[rogue.name] = rogue
        rogue.n, rogue.sequence = pilot.n, pilot.sequence
        rogue.end(ref)
        rogue.exchange()
        assert not small.told(payloads.CommitGranted, "1.1.1")
        assert [one.data.text for one in small.book if isinstance(one.data, payloads.Noted)] == [
            "ignored: AttemptFinished of j 1.1.1 1, epoch 1"
        ]
        late = Agent(small, pilot.name, site="a", request="")
        small.agents[late.name] = late
        late.n, late.sequence = rogue.n, rogue.sequence
        late.end(ref)
        late.exchange()
        assert small.told(payloads.CommitGranted, "1.1.1")
        small.effects.clear()
