"""Leases: who is silent is suspected, who is gone is replaced, who comes back may win, and only the holder may speak."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Gone, SubmissionFailed, Submitted
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, chain, kind, site

LEASE = 60.0


def two_sites(small: Small) -> tuple[Agent, Agent]:
    """A pilot at each of two sites; the one package runs at the first."""
    small.submit(bag(1))
    one = small.pilot("a")
    assert one.packages == ["1.1.1"]
    two = small.agent("b-0.1", site="b", request="b-0")
    two.exchange()
    return one, two


def granted(small: Small, package: str = "1.1.1") -> list[int | None]:
    return [event.attempt for event in small.told(payloads.CommitGranted, package)]


def test_a_pilot_that_exchanges_keeps_its_lease() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        small.wait(10 * LEASE, pilot)
        assert small.told(payloads.AttemptSuspected, "1.1.1") == []
        assert small.status("1.1.1") == "live"


def test_after_six_intervals_of_silence_an_attempt_is_suspect_and_another_starts_elsewhere() -> None:
    with Small(site("a"), site("b")) as small:
        _, two = two_sites(small)
        small.wait(LEASE - 1, two)
        assert small.told(payloads.AttemptSuspected, "1.1.1") == []
        small.wait(1.5, two)
        assert len(small.told(payloads.AttemptSuspected, "1.1.1")) == 1
        two.exchange()
        assert two.packages == ["1.1.1"]
        assert small.created() == [("1.1.1", 1, "a"), ("1.1.1", 2, "b")]
        two.heard()


def test_a_suspect_that_speaks_again_recovers_and_wins_and_the_other_is_stopped() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(LEASE + 1, two)
        two.exchange()
        two.unread.clear()
        one.exchange()
        assert len(small.told(payloads.AttemptRecovered, "1.1.1")) == 1
        one.succeed("1.1.1")
        assert granted(small) == [1]
        reply = two.exchange()
        assert reply is not None
        assert [ref.attempt for ref in reply.cancelled] == [2]
        assert two.held == {}


def test_a_suspect_whose_success_arrives_first_wins_without_recovering() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(LEASE + 1, two)
        two.exchange()
        two.unread.clear()
        one.succeed("1.1.1")
        assert granted(small) == [1]
        two.exchange()
        two.unread.clear()
        assert two.held == {}


def test_the_second_attempt_wins_when_it_is_first_and_the_suspect_is_told_to_stop() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(LEASE + 1, two)
        two.exchange()
        two.unread.clear()
        two.succeed("1.1.1")
        assert granted(small) == [2]
        reply = one.exchange()
        assert reply is not None
        assert [ref.attempt for ref in reply.cancelled] == [1]


def test_two_successes_in_one_step_give_one_grant() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(LEASE + 1, two)
        two.exchange()
        two.unread.clear()
        one.end(one.ref("1.1.1"))
        two.end(two.ref("1.1.1"))
        small.step(two.message(), one.message())
        assert len(granted(small)) == 1
        one.exchange()
        two.exchange()
        assert len(granted(small)) == 1


def test_after_three_leases_of_silence_a_pilot_has_ended_and_its_attempts_are_lost() -> None:
    with Small(site("a"), site("b")) as small:
        _, two = two_sites(small)
        small.wait(3 * LEASE - 1, two)
        assert small.told(payloads.AttemptLost, "1.1.1") == []
        small.wait(1, two)
        [lost] = small.told(payloads.AttemptLost, "1.1.1")
        assert msgspec.json.decode(lost.data)["reason"] == "unheard"
        assert [event.pilot for event in small.told(payloads.PilotEnded)] != []
        assert two.packages == ["1.1.1"]
        two.unread.clear()


def test_a_late_success_of_a_lost_attempt_wins() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(3 * LEASE + 1, two)
        two.unread.clear()
        one.end(one.ref("1.1.1"))
        reply = one.exchange()
        assert granted(small) == [1]
        assert reply is not None
        assert reply.leave
        two.exchange()
        two.unread.clear()
        assert two.held == {}


def test_a_late_failure_of_a_lost_attempt_changes_nothing_for_the_one_that_runs() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(3 * LEASE + 1, two)
        two.unread.clear()
        one.end(one.ref("1.1.1"), reason="application-error")
        one.exchange()
        one.unread.clear()
        assert small.status("1.1.1") == "live"
        two.succeed("1.1.1")
        assert granted(small) == [2]


def test_a_success_that_comes_after_the_grant_is_nothing_new() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.wait(3 * LEASE + 1, two)
        two.unread.clear()
        two.succeed("1.1.1")
        one.end(one.ref("1.1.1"))
        one.exchange()
        one.unread.clear()
        assert granted(small) == [2]


def test_a_pilot_that_ends_orderly_loses_what_it_holds_at_once() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        two.exchange()
        one.say(payloads.PilotEnded(reason="wall-time"))
        one.exchange(leaving="wall-time", held=())
        one.unread.clear()
        [lost] = small.told(payloads.AttemptLost, "1.1.1")
        assert msgspec.json.decode(lost.data)["reason"] == "wall-time"
        assert one.name not in small.engine.state.pilots.by_name
        small.take(SubmitPilot)
        two.unread.clear()


# --- who may speak --------------------------------------------------------------------------------------------------


def test_another_agent_cannot_end_an_attempt() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        ref = one.ref("1.1.1")
        two.end(ref)
        two.exchange()
        assert small.status("1.1.1") == "live"
        two.end(ref, reason="application-error")
        two.exchange()
        assert small.status("1.1.1") == "live"
        assert small.told(payloads.CommitGranted, "1.1.1") == []
        one.succeed("1.1.1")
        assert granted(small) == [1]


def test_an_event_in_the_name_of_another_stream_is_not_taken_at_all() -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        ref = one.ref("1.1.1")
        two.say(payloads.AttemptFinished(exit_code="SUCCESS", manifest=()), ref)  # type: ignore[arg-type]
        forged = msgspec.structs.replace(two.unacknowledged.pop(), stream=one.name, n=9)
        before = len(small.book)
        two.exchange(events=(forged,))
        assert len(small.book) == before
        assert small.status("1.1.1") == "live"


def test_an_event_of_an_old_epoch_cannot_win() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        pilot.end(ref, epoch=2)
        pilot.exchange()
        assert small.status("1.1.1") == "live"
        pilot.end(ref, epoch=1)
        pilot.exchange()
        assert granted(small) == [1]


def test_an_agent_cannot_say_what_only_the_engine_decides() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        for data in (payloads.CommitGranted(), payloads.AttemptLost(), payloads.AttemptRecovered()):
            pilot.say(data, pilot.ref("1.1.1"))
        pilot.exchange()
        assert [each.code for each in small.refused] == ["forbidden"] * 3
        small.refused.clear()
        assert small.status("1.1.1") == "live"
        assert pilot.unacknowledged == []


# --- bound attempts -------------------------------------------------------------------------------------------------


def test_a_bound_attempt_gets_its_lease_with_the_first_agent_that_asks() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        assert small.told(payloads.AttemptStarted, "1.1.1") == []
        small.step(Submitted(site="a", key=effect.key, native_id="42"))
        assert len(small.told(payloads.AttemptQueued, "1.1.1")) == 1
        agent = small.bound(effect)
        [started] = small.told(payloads.AttemptStarted, "1.1.1")
        assert msgspec.json.decode(started.data)["pilot"] == agent.name
        assert agent.packages == ["1.1.1"]
        agent.succeed("1.1.1")
        assert granted(small) == [1]
        assert agent.heard() is None


def test_the_second_agent_of_a_bound_attempt_is_told_to_leave_and_cannot_speak_for_it() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        first = small.bound(effect)
        second = small.agent(f"{effect.key}.2", site="a", request=effect.key, serves=effect.ref)
        reply = second.exchange()
        assert reply is not None
        assert reply.leave
        assert reply.assignments == ()
        assert len(small.told(payloads.AttemptStarted, "1.1.1")) == 1
        second.end(effect.ref)
        second.exchange()
        second.unread.clear()
        assert small.status("1.1.1") == "live"
        first.succeed("1.1.1")
        assert granted(small) == [1]


def test_a_submission_that_nothing_is_heard_of_is_asked_for_again_under_the_same_key() -> None:
    with Small(site(mode="bound"), submit_again_seconds=30.0) as small:
        small.submit(bag(1))
        [first] = small.take(SubmitAttempt)
        small.wait(29)
        assert small.take(SubmitAttempt) == []
        small.wait(1)
        assert small.take(SubmitAttempt) == [first]
        small.step(Submitted(site="a", key=first.key, native_id="42"))
        small.wait(100)
        assert small.take(SubmitAttempt) == []


def test_a_submission_that_fails_is_tried_again_as_another_attempt() -> None:
    with Small(site("a", mode="bound"), site("b", mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        small.step(SubmissionFailed(site="a", key=effect.key, reason="refused", message="no such queue"))
        [lost] = small.told(payloads.AttemptLost, "1.1.1")
        assert msgspec.json.decode(lost.data)["message"] == "no such queue"
        [again] = small.take(SubmitAttempt)
        assert (again.site, again.ref) == ("b", AttemptRef(JOB, "1.1.1", 2))
        small.take(CancelSubmitted)


def test_a_batch_system_that_says_gone_is_not_believed_before_a_lease() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        agent = small.bound(effect)
        small.step(Gone(site="a", key=effect.key, reason="unknown"))
        small.wait(2 * LEASE, agent)
        assert small.status("1.1.1") == "live"
        agent.succeed("1.1.1")
        assert granted(small) == [1]


@pytest.mark.parametrize("speaks", [True, False])
def test_a_pilot_that_is_gone_and_silent_is_lost_after_one_lease(*, speaks: bool) -> None:
    with Small(site("a"), site("b")) as small:
        one, two = two_sites(small)
        small.step(Gone(site="a", key=one.request, reason="killed", stderr="out of memory"))
        alive = (one, two) if speaks else (two,)
        small.wait(LEASE + 1, *alive)
        assert bool(small.told(payloads.AttemptLost, "1.1.1")) is not speaks
        small.take(SubmitPilot)
        two.unread.clear()


@pytest.mark.parametrize("known, reason", [("wall-time", "wall-time"), ("", "pilot-killed")])
def test_what_a_batch_system_says_of_an_end_counts_for_more_than_that_somebody_found_it_dead(
    known: str, reason: str
) -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        agent = small.bound(effect)
        if known:
            small.step(Gone(site="a", key=effect.key, reason=known))
        agent.say(payloads.PilotEnded(reason="killed"))  # as the next agent on its node tells for it
        agent.exchange()
        [lost] = [one.data for one in small.book if isinstance(one.data, payloads.AttemptLost)]
        assert lost.reason == reason
        small.effects.clear()
        agent.unread.clear()


def test_a_request_that_never_spoke_leaves_its_site_alone_for_a_while_longer_each_time() -> None:
    with Small(site(), dead_start_seconds=60.0) as small:
        small.submit(bag(1))
        quiet = []
        for _ in range(3):
            [effect] = small.take(SubmitPilot)
            small.step(Gone(site="a", key=effect.key, reason="failed", stderr="no python"))
            since = small.now
            while not small.effects:
                small.wait(1)
            quiet.append(small.now - since)
        assert [round(each) for each in quiet] == [60, 120, 240]
        small.take(SubmitPilot)


def test_a_pilot_takes_nothing_more_while_it_is_suspect() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(lines=1))
        pilot = small.pilot()
        small.wait(LEASE + 1)
        assert pilot.packages == ["1.1.1"]
        assert len(small.created()) == 1
        assert small.status("1.1.1") == "reserved"
        pilot.exchange()
        assert small.status("1.1.1") == "live"
        assert len(small.created()) == 1


def test_an_attempt_that_runs_elsewhere_too_is_not_given_to_the_same_pilot_twice() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(1, kind()))
        pilot = small.pilot()
        small.wait(LEASE + 1)
        pilot.exchange()
        small.wait(20, pilot)
        assert [attempt for _, attempt, _ in small.created()] == [1]


# --- removed by hand --------------------------------------------------------------------------------------------------


def remove(small: Small, *, reason: str) -> None:
    """Somebody takes the batch job of a pilot away, which is silent from then on."""
    pilot = small.pilot("a")
    assert pilot.held
    small.wait(1.5 * small.settings.lease_seconds)
    small.step(Gone(site="a", key=pilot.request, reason=reason))
    assert pilot.name not in small.engine.state.pilots.by_name


def slept(small: Small) -> int:
    """How often the site was put to sleep; it may have been woken since, where no other is a candidate."""
    return small.engine.state.sites.by_name["a"].profile.times


@pytest.mark.parametrize("reason", ["killed", "cancelled"])
def test_one_batch_job_that_is_removed_does_not_put_its_site_to_sleep(reason: str) -> None:
    small = Small(site("a", pilots=2), site("b", cores=8))
    small.submit(bag(40))
    remove(small, reason=reason)
    assert slept(small) == 0
    assert small.engine.state.sites.by_name["a"].profile.score.earned >= 0.0


def test_batch_jobs_that_are_killed_again_and_again_put_their_site_to_sleep() -> None:
    small = Small(site("a", pilots=2), site("b", cores=8))
    small.submit(bag(40))
    remove(small, reason="killed")
    assert slept(small) == 0
    remove(small, reason="killed")
    assert slept(small) == 1


def test_a_pilot_that_failed_puts_its_site_to_sleep_at_once() -> None:
    small = Small(site("a", pilots=2), site("b", cores=8))
    small.submit(bag(40))
    remove(small, reason="failed")
    assert slept(small) == 1
