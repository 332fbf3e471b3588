"""What people ask for at the worst moment: kill, restart, reschedule, replicate; and what may never happen all the same."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    Accepted,
    CancelSubmitted,
    Hold,
    Kill,
    Refused,
    Replicate,
    Reschedule,
    Restart,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.jobs.definition import Retry, RetryRule
from pilotage.service.messages import OperationRequest
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, chain, kind, plan, site, stage

KILL = OperationRequest(token=1, operation=Kill(job=JOB, package="1.1.1"))


def refusal(answer: Accepted | Refused) -> tuple[str, str]:
    assert isinstance(answer, Refused), answer
    return answer.code, answer.subject


# --- kill -----------------------------------------------------------------------------------------------------------


def test_a_kill_before_a_success_in_the_same_step_wins() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        small.step(KILL, pilot.message())
        assert isinstance(small.answers.pop().outcome, Accepted)
        assert small.status("1.1.1") == "cancelled"
        assert small.told(payloads.CommitGranted, "1.1.1") == []


def test_a_success_before_a_kill_in_the_same_step_ends_in_one_of_both() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        small.step(pilot.message(), KILL)
        small.answers.pop()
        granted, cancelled = small.told(payloads.CommitGranted, "1.1.1"), small.told(payloads.CancelAccepted, "1.1.1")
        assert len(granted) + len(cancelled) == 1
        assert small.status("1.1.1") == ("done" if granted else "cancelled")


def test_a_success_after_a_kill_is_never_granted() -> None:
    with Small(site()) as small:
        small.submit(chain())
        pilot = small.pilot()
        ref = pilot.ref("1.1.1")
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.end(ref)
        pilot.exchange()
        small.wait(100, pilot)
        assert small.standings() == {"cancelled": ["1.1.1"], "upstream": ["2.1.1"]}
        assert small.told(payloads.CommitGranted, "1.1.1") == []


def test_killing_what_was_granted_in_the_step_before_is_refused() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.pilot().succeed("1.1.1")
        assert refusal(small.ask(Kill(job=JOB, package="1.1.1"))) == ("package-over", "1.1.1")
        assert refusal(small.ask(Kill(job=JOB))) == ("job-over", JOB)


def test_a_killed_job_starts_and_grants_nothing_more_and_its_pilots_are_told() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(5))
        pilot = small.pilot()
        refs = tuple(pilot.held)
        small.ask(Kill(job=JOB))
        reply = pilot.exchange(held=refs)
        assert reply is not None
        assert (reply.cancelled, reply.assignments) == (refs, ())
        for ref in refs:
            pilot.end(ref)
        pilot.exchange()
        small.wait(200, pilot)
        assert len(small.created()) == 2
        assert small.standings()["cancelled"] == ["1.1.1", "1.2.1"]
        assert "done" not in small.standings()
        assert small.reserved("a") == {}
        assert refusal(small.ask(Kill(job=JOB))) == ("job-over", JOB)


def test_killing_a_queued_bound_attempt_takes_it_out_of_its_batch_system() -> None:
    with Small(site(mode="bound")) as small:
        small.submit(bag(1))
        [effect] = small.take(SubmitAttempt)
        small.ask(Kill(job=JOB, package="1.1.1"))
        assert small.take(CancelSubmitted) == [CancelSubmitted(site="a", key=effect.key)]
        agent = small.agent(f"{effect.key}.1", site="a", request=effect.key, serves=effect.ref)
        reply = agent.exchange()
        assert reply is not None
        assert reply.leave
        assert reply.assignments == ()


# --- restart --------------------------------------------------------------------------------------------------------


def test_a_restart_opens_an_epoch_in_which_numbers_go_on() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        pilot.fail("1.1.1", "platform-failure")
        small.ask(Kill(job=JOB, package="1.1.1"))
        pilot.exchange()
        assert isinstance(small.ask(Restart(job=JOB, package="1.1.1")), Accepted)
        pilot.exchange()
        [ref] = pilot.held
        assert (ref.attempt, pilot.held[ref].epoch) == (3, 2)
        pilot.succeed("1.1.1")
        [granted] = small.told(payloads.CommitGranted, "1.1.1")
        assert (granted.attempt, granted.epoch) == (3, 2)


def test_an_attempt_of_an_older_epoch_cannot_win_in_a_newer_one() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        old = pilot.ref("1.1.1")
        small.ask(Kill(job=JOB, package="1.1.1"))
        small.ask(Restart(job=JOB, package="1.1.1"))
        pilot.end(old, epoch=1)
        pilot.exchange()
        assert small.status("1.1.1") == "live"
        pilot.end(old, epoch=2)
        pilot.exchange()
        assert small.told(payloads.CommitGranted, "1.1.1") == []
        pilot.succeed("1.1.1")
        assert [event.attempt for event in small.told(payloads.CommitGranted, "1.1.1")] == [2]


def test_a_done_package_begins_anew_and_its_consumer_waits_for_it_again() -> None:
    with Small(site()) as small:
        small.submit(chain(stages=2))
        pilot = small.pilot()
        small.ask(Hold(job=JOB, package="2.1.1"))
        pilot.succeed("1.1.1")
        assert isinstance(small.ask(Restart(job=JOB, package="1.1.1")), Accepted)
        assert small.engine.state.jobs.by_id[JOB].waits.tolist() == [0, 1]
        pilot.exchange()
        pilot.succeed("1.1.1")
        assert [(event.attempt, event.epoch) for event in small.told(payloads.CommitGranted, "1.1.1")] == [
            (1, 1),
            (2, 2),
        ]


def test_restarting_what_a_live_consumer_reads_is_refused_by_its_name() -> None:
    with Small(site()) as small:
        small.submit(chain(stages=2))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        assert pilot.packages == ["2.1.1"]
        before = len(small.book)
        assert refusal(small.ask(Restart(job=JOB, package="1.1.1"))) == ("consumer-started", "2.1.1")
        assert len(small.book) == before


def test_restarting_what_runs_is_refused() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        small.pilot()
        assert refusal(small.ask(Restart(job=JOB, package="1.1.1"))) == ("package-unfinished", "1.1.1")
        assert refusal(small.ask(Restart(job=JOB))) == ("nothing-failed", JOB)


def test_a_restart_brings_back_what_was_given_up_because_of_it_through_levels_and_merges() -> None:
    # 1.1 → 2.1 → 3.1 → 4.1, and 1.2 → 3.1
    edges = [("1.1.1", "2.1.1"), ("2.1.1", "3.1.1"), ("1.2.1", "3.1.1"), ("3.1.1", "4.1.1")]
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), stage(), stage(), edges=edges))
        pilot = small.pilot()
        small.ask(Kill(job=JOB, package="1.1.1"))
        assert small.standings()["upstream"] == ["2.1.1", "3.1.1", "4.1.1"]
        pilot.succeed("1.2.1")
        small.ask(Restart(job=JOB, package="1.1.1"))
        assert small.standings()["blocked"] == ["2.1.1", "3.1.1", "4.1.1"]
        pilot.exchange()
        for package in ("1.1.1", "2.1.1", "3.1.1", "4.1.1"):
            assert pilot.packages == [package]
            pilot.succeed(package)
        assert list(small.standings()) == ["done"]


def test_a_merge_comes_back_only_when_none_of_its_producers_is_dead() -> None:
    edges = [("1.1.1", "2.1.1"), ("1.2.1", "2.1.1"), ("2.1.1", "3.1.1")]
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(2), stage(), stage(), edges=edges))
        pilot = small.pilot()
        for package in ("1.1.1", "1.2.1"):
            small.ask(Kill(job=JOB, package=package))
        pilot.exchange()
        small.ask(Restart(job=JOB, package="1.1.1"))
        assert small.standings()["upstream"] == ["2.1.1", "3.1.1"]
        small.ask(Restart(job=JOB, package="1.2.1"))
        assert "upstream" not in small.standings()
        pilot.exchange()
        assert sorted(pilot.packages) == ["1.1.1", "1.2.1"]


def test_restarting_what_was_given_up_because_of_a_producer_that_is_still_dead_does_not_wait_for_ever() -> None:
    with Small(site()) as small:
        small.submit(chain())
        small.take(SubmitPilot)
        small.ask(Kill(job=JOB, package="1.1.1"))
        small.ask(Restart(job=JOB, package="2.1.1"))
        assert small.status("2.1.1") == "upstream"  # refused, or given up again


def test_restarting_a_killed_job_goes_on_with_everything_that_was_not_done() -> None:
    with Small(site(cores=2)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        small.ask(Kill(job=JOB))
        pilot.exchange()
        assert isinstance(small.ask(Restart(job=JOB)), Accepted)
        pilot.exchange()
        for _ in range(3):
            pilot.succeed(*pilot.packages)
        assert small.standings() == {"done": ["1.1.1", "1.2.1", "2.1.1", "2.2.1"]}
        assert len(small.told(payloads.CommitGranted, "1.1.1")) == 1


def test_a_package_of_a_killed_job_that_never_began_is_cancelled_and_can_be_restarted() -> None:
    with Small(site(cores=1)) as small:
        small.submit(chain(lines=2))
        pilot = small.pilot()
        small.ask(Kill(job=JOB))
        pilot.exchange()
        for package in ("1.1.1", "1.2.1", "2.2.1"):
            told = small.explain(package)
            assert (told.standing, told.reasons[0].code) == ("cancelled", "job-cancelled")
        assert [why.code for why in small.explain("1.2.1").reasons] == ["job-cancelled"]
        assert isinstance(small.ask(Restart(job=JOB, package="1.2.1")), Accepted)
        pilot.exchange()
        assert pilot.packages == ["1.2.1"]
        pilot.succeed("1.2.1")
        # Nobody asked for anything else of it.
        assert small.standings() == {"done": ["1.2.1"], "cancelled": ["1.1.1", "2.1.1", "2.2.1"]}
        assert isinstance(small.ask(Restart(job=JOB, package="2.2.1")), Accepted)
        pilot.exchange()
        pilot.succeed("2.2.1")
        assert small.standings() == {"done": ["1.2.1", "2.2.1"], "cancelled": ["1.1.1", "2.1.1"]}


def test_a_package_of_a_killed_job_comes_back_with_what_it_needs_and_with_nothing_else() -> None:
    edges = [("1.1.1", "2.1.1"), ("1.2.1", "2.2.1"), ("2.1.1", "3.1.1"), ("1.3.1", "3.1.1"), ("3.1.1", "4.1.1")]
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(3), stage(2), stage(), stage(), edges=edges))
        pilot = small.pilot()
        assert sorted(pilot.packages) == ["1.1.1", "1.2.1"]  # these two are cancelled by themselves
        small.ask(Kill(job=JOB))
        pilot.exchange()
        assert isinstance(small.ask(Restart(job=JOB, package="3.1.1")), Accepted)
        pilot.exchange()
        assert sorted(pilot.packages) == ["1.1.1", "1.3.1"]
        pilot.succeed("1.1.1", "1.3.1")
        pilot.succeed("2.1.1")
        pilot.succeed("3.1.1")
        assert small.standings() == {
            "done": ["1.1.1", "1.3.1", "2.1.1", "3.1.1"],
            "cancelled": ["1.2.1", "2.2.1", "4.1.1"],
        }


def test_a_package_of_a_killed_job_that_needs_what_was_given_up_is_refused_with_its_name() -> None:
    gives_up = kind(retry=Retry(rules=(RetryRule(reason="application-error", action="give-up"),)))
    with Small(site()) as small:
        small.submit(plan(stage(2, gives_up), stage(2), edges=[("1.1.1", "2.1.1"), ("1.2.1", "2.2.1")]))
        pilot = small.pilot()
        pilot.fail("1.1.1", "application-error")
        small.ask(Kill(job=JOB))
        pilot.exchange()
        assert refusal(small.ask(Restart(job=JOB, package="2.1.1"))) == ("producer-over", "1.1.1")
        assert small.standings()["aborted"] == ["1.1.1"]


# --- reschedule and replicate ---------------------------------------------------------------------------------------


def test_rescheduling_gives_the_attempt_up_and_tries_elsewhere() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        pilot = small.pilot("a")
        ref = pilot.ref("1.1.1")
        assert isinstance(small.ask(Reschedule(job=JOB, package="1.1.1")), Accepted)
        [lost] = small.told(payloads.AttemptLost, "1.1.1")
        assert msgspec.json.decode(lost.data)["reason"] == "rescheduled"
        reply = pilot.exchange()
        assert reply is not None
        assert reply.cancelled == (ref,)
        small.wait(1, pilot)
        other = small.pilot("b")
        assert other.packages == ["1.1.1"]
        assert small.created() == [("1.1.1", 1, "a"), ("1.1.1", 2, "b")]


def test_rescheduling_does_not_count_as_a_failure() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        for _ in range(30):
            small.ask(Reschedule(job=JOB, package="1.1.1"))
            pilot.exchange()
            pilot.exchange()
            pilot.unread.clear()
        assert pilot.packages == ["1.1.1"]
        assert small.status("1.1.1") == "live"


def test_rescheduling_what_does_not_run_is_refused() -> None:
    with Small(site()) as small:
        small.submit(bag(2))
        small.take(SubmitPilot)
        assert refusal(small.ask(Reschedule(job=JOB, package="1.1.1"))) == ("not-running", "1.1.1")


def test_a_replica_runs_beside_the_attempt_and_one_of_them_wins() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        one = small.pilot("a")
        assert isinstance(small.ask(Replicate(job=JOB, package="1.1.1")), Accepted)
        small.wait(1, one)
        two = small.pilot("b")
        assert (one.packages, two.packages) == (["1.1.1"], ["1.1.1"])
        small.wait(30, one, two)
        assert small.created() == [("1.1.1", 1, "a"), ("1.1.1", 2, "b")]
        two.succeed("1.1.1")
        assert [event.attempt for event in small.told(payloads.CommitGranted, "1.1.1")] == [2]
        one.exchange()
        assert one.held == {}


def test_a_replica_that_fails_leaves_the_other_alone() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1))
        one = small.pilot("a")
        small.ask(Replicate(job=JOB, package="1.1.1"))
        small.wait(1, one)
        two = small.pilot("b")
        two.fail("1.1.1", "application-error")
        assert one.packages == ["1.1.1"]
        one.succeed("1.1.1")
        assert small.status("1.1.1") == "done"
        two.exchange()
        two.unread.clear()


def test_replicating_what_does_not_run_or_acts_on_the_outside_is_refused() -> None:
    with Small(site(cores=2)) as small:
        small.submit(plan(stage(1, kind("mail", side_effects=True)), stage(1)))
        assert refusal(small.ask(Replicate(job=JOB, package="2.1.1"))) == ("not-running", "2.1.1")
        small.pilot()
        assert refusal(small.ask(Replicate(job=JOB, package="1.1.1"))) == ("side-effects", "1.1.1")


@pytest.mark.parametrize("side_effects", [True, False])
def test_what_acts_on_the_outside_is_not_tried_again_while_a_silent_attempt_may_still_act(
    *, side_effects: bool
) -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(side_effects=side_effects)))
        small.pilot("a")
        other = small.agent("b-0.1", site="b", request="b-0")
        other.exchange()
        small.wait(1000, other)
        other.unread.clear()
        small.take(SubmitPilot)
        assert bool(small.take(CancelSubmitted)) == side_effects  # its batch system is asked to end it
        assert len(small.created()) == (1 if side_effects else 2)


def test_what_acts_on_the_outside_is_tried_again_once_its_attempt_is_surely_over() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(side_effects=True)))
        one = small.pilot("a")
        other = small.agent("b-0.1", site="b", request="b-0")
        other.exchange()
        one.fail("1.1.1", "platform-failure")
        other.exchange()
        assert other.packages == ["1.1.1"]


def test_what_acts_on_the_outside_and_was_killed_and_restarted_waits_until_its_pilot_has_stopped_it() -> None:
    with Small(site(pilots=2)) as small:
        small.submit(bag(1, kind(side_effects=True)))
        one = small.pilot()
        other = small.agent("a-0.1", site="a", request="a-0")
        other.exchange()
        small.ask(Kill(job=JOB, package="1.1.1"))
        small.ask(Restart(job=JOB, package="1.1.1"))
        other.exchange()
        assert other.packages == []  # one still runs it
        one.exchange()  # is told to stop it
        one.exchange()  # has stopped it
        other.exchange()
        assert one.packages + other.packages == ["1.1.1"]


def test_operations_on_what_is_not_there_say_so_and_write_nothing() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        pilot = small.pilot()
        before = len(small.book)
        answers = [
            small.ask(Kill(job="jj")),
            small.ask(Kill(job=JOB, package="1.2.1")),
            small.ask(Kill(job=JOB, package="nonsense")),
            small.ask(Reschedule(job=JOB, package="9.1.1")),
        ]
        assert [refusal(each)[0] for each in answers] == ["unknown-job", *["unknown-package"] * 3]
        assert len(small.book) == before
        assert pilot.packages == ["1.1.1"]
