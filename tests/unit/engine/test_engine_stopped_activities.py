"""An activity that cannot succeed is stopped after a stated number of equal failures, and only a person opens it again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import ActivityReopened, ActivityStopped
from pilotage.model.exchange.operations import (
    Accepted,
    CancelSubmitted,
    Drop,
    Kill,
    Refused,
    Restart,
    Restore,
    SubmitPilot,
)
from pilotage.model.settings.engine import HealingSettings
from tests.kit.small_engine import JOB, Agent, Small, differences
from tests.kit.small_plans import bag, chain, grown, kind, plan, site, stage

BOUND = 20
WRONG = "exit status 1: no such option --fats"


def stopped(small: Small) -> list[ActivityStopped]:
    return [msgspec.json.decode(each.data, type=ActivityStopped) for each in small.told(ActivityStopped)]


def fail_all(pilot: Agent, *, message: str = WRONG, reason: str = "application-error", times: int = 1000) -> int:
    """Let what a pilot holds fail, one after the other, as long as it gets something; how many did."""
    count = 0
    while pilot.held and count < times:
        pilot.fail(pilot.packages[0], reason, message=message, after=1.0)
        count += 1
    pilot.unread.clear()
    return count


def aborted(small: Small, cause: str) -> list[str]:
    return [
        one.event.package or ""
        for one in small.book
        if isinstance(one.data, payloads.Aborted) and one.data.cause == cause
    ]


@pytest.mark.parametrize("healing", ["predictive", "paper", "off"])
def test_two_hundred_packages_that_fail_on_one_machine_are_stopped_after_twenty_attempts(healing: str) -> None:
    with Small(site(cores=4), healing=healing) as small:
        small.submit(bag(200))
        assert fail_all(small.pilot()) == BOUND
        assert len(small.created()) <= BOUND + 4
        [found] = stopped(small)
        assert (found.activity, found.failed_attempts, found.failed_packages) == ("run", BOUND, 8)
        assert found.message == (
            f"20 attempts of 8 packages of run failed alike (application-error: {WRONG}), and none succeeded"
        )
        assert len(small.standings()["aborted"]) == 200
        assert len(aborted(small, "activity-stopped")) == 200 - len(aborted(small, "retries-exhausted"))


def test_numbers_and_folders_in_messages_do_not_make_failures_different() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(100))
        pilot = small.pilot()
        for number in range(BOUND):
            pilot.fail(pilot.packages[0], "application-error", message=f"/scratch/{number}/run.py: line {number}")
        assert len(stopped(small)) == 1
        pilot.unread.clear()


def test_failures_of_many_kinds_stop_nothing() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(60))
        pilot, number = small.pilot(), 0
        while pilot.held:
            letters = "".join(chr(ord("g") + int(digit)) for digit in str(number))
            pilot.fail(pilot.packages[0], "application-error", message=f"cannot read {letters}")
            number += 1
        assert stopped(small) == []
        assert number == 180
        pilot.unread.clear()


@pytest.mark.parametrize("reason", ["platform-failure", "missing-input", "wall-time", "out-of-memory", "disk-full"])
def test_failures_of_the_platform_or_of_limits_stop_nothing(reason: str) -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(60))
        pilot = small.pilot()
        fail_all(pilot, reason=reason, times=100)
        assert stopped(small) == []
        small.effects.clear()


def test_one_success_says_that_the_activity_can_succeed() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(60))
        pilot = small.pilot()
        fail_all(pilot, times=BOUND - 1)
        pilot.succeed(pilot.packages[0])
        fail_all(pilot)
        assert stopped(small) == []
        assert (len(small.standings()["aborted"]), len(small.standings()["done"])) == (59, 1)


def test_a_tenth_of_the_packages_that_fail_at_once_while_the_others_run_for_an_hour_stop_nothing() -> None:
    with Small(site(cores=100)) as small:
        small.submit(bag(200))
        pilot = small.pilot()
        good = {name for at, name in enumerate(pilot.packages) if at % 10}
        for _ in range(100):
            bad = [name for name in pilot.packages if name not in good and int(name.split(".")[1]) % 10 == 1]
            if not bad:
                break
            pilot.fail(bad[0], "application-error", message=WRONG, after=0.2)
        assert len(small.standings()["aborted"]) >= 10
        assert stopped(small) == []
        small.wait(3600, pilot)
        pilot.succeed(*sorted(pilot.packages))
        pilot.unread.clear()
        small.effects.clear()


def test_half_of_the_packages_that_fail_while_the_others_get_further_stop_nothing() -> None:
    with Small(site(cores=10)) as small:
        small.submit(bag(200))
        pilot = small.pilot()
        kept = pilot.packages[:5]
        failed = 0
        while failed < 100:
            bad = [name for name in pilot.packages if name not in kept]
            pilot.fail(bad[0], "application-error", message=WRONG, after=1.0)
            failed += 1
        assert stopped(small) == []  # five run for far longer: six times the bound is needed
        while not stopped(small):
            bad = [name for name in pilot.packages if name not in kept]
            pilot.fail(bad[0], "application-error", message=WRONG, after=1.0)
            failed += 1
        assert failed == 6 * BOUND
        pilot.unread.clear()


def test_an_attempt_that_hangs_does_not_keep_the_others_going_for_ever() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(200))
        pilot = small.pilot()
        hanging, count = pilot.packages[0], 0
        while not stopped(small):
            pilot.fail(next(name for name in pilot.packages if name != hanging), "signal", after=1.0)
            count += 1
        assert count == 2 * BOUND
        assert pilot.packages == []
        pilot.unread.clear()


def test_few_packages_with_many_attempts_stop_nothing() -> None:
    from pilotage.model.jobs.definition import Retry

    with Small(site(cores=1)) as small:
        small.submit(bag(4, kind(retry=Retry(attempts_max=10))))
        assert fail_all(small.pilot()) == 40
        assert stopped(small) == []


def test_one_site_of_two_must_not_be_to_blame() -> None:
    with Small(site("a", cores=4), site("b", cores=4)) as small:
        small.submit(bag(200))
        pilot = small.pilot("a")
        fail_all(pilot, times=3 * BOUND)
        assert stopped(small) == []
        other = small.pilot("b")
        other.fail(other.packages[0], "application-error", message=WRONG)
        assert len(stopped(small)) == 1
        other.unread.clear()
        pilot.unread.clear()
        small.effects.clear()


def test_without_a_bound_nothing_is_stopped() -> None:
    with Small(site(cores=4), incidents=HealingSettings(failing_attempts_max=0)) as small:
        small.submit(bag(30))
        assert fail_all(small.pilot()) == 90
        assert stopped(small) == []


def test_running_attempts_are_stopped_and_other_activities_go_on() -> None:
    made = plan(stage(50, kind("broken")), stage(3, kind("healthy", priority=-1)))
    with Small(site(cores=4)) as small:
        small.submit(made)
        pilot = small.pilot()
        fail_all(pilot, times=BOUND)
        assert [each.activity for each in stopped(small)] == ["broken"]
        assert pilot.packages == ["2.1.1", "2.2.1", "2.3.1"]
        pilot.succeed(*pilot.packages)
        assert small.standings()["done"] == ["2.1.1", "2.2.1", "2.3.1"]
        assert not small.engine.state.jobs.by_id[JOB].unfinished


def test_packages_that_need_them_are_told_as_for_failed_producers() -> None:
    with Small(site(cores=4)) as small:
        small.submit(chain(kind("make"), kind("use"), lines=30))
        pilot = small.pilot()
        fail_all(pilot)
        assert len(small.standings()["upstream"]) == 30
        assert {why.message for why in small.explain("2.30.1").reasons} == {
            "it was given up because it needs the outputs of 1.30.1, which is aborted"
        }


def test_explain_says_how_to_go_on() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(30, kind("fast fit")))
        fail_all(small.pilot())
        [why] = small.explain("1.30.1").reasons
        assert why.next_step.startswith(f"mend the cause, then: pilotage retry {JOB} --activity 'fast fit'; ")


def opened_again(small: Small, **more: Any) -> Accepted:
    answer = small.ask(Restart(job=JOB, activity="run", **more))
    assert isinstance(answer, Accepted), answer
    return answer


def test_an_activity_that_is_opened_again_runs_all_its_packages_and_counts_anew() -> None:
    with Small(site(cores=4)) as small:
        small.submit(chain(kind("run"), kind("use"), lines=30))
        pilot = small.pilot()
        fail_all(pilot)
        opened_again(small, message="mended")
        [event] = small.told(ActivityReopened)
        assert msgspec.json.decode(event.data)["message"] == "mended"
        pilot.exchange()
        assert fail_all(pilot, times=BOUND - 1) == BOUND - 1
        assert len(stopped(small)) == 1
        fail_all(pilot)
        assert len(stopped(small)) == 2
        opened_again(small)
        pilot.exchange()
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert len(small.standings()["done"]) == 60
        pilot.unread.clear()


def test_a_restart_of_the_whole_job_opens_it_again() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(30))
        pilot = small.pilot()
        fail_all(pilot)
        assert isinstance(small.ask(Restart(job=JOB)), Accepted)
        pilot.exchange()
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert len(small.standings()["done"]) == 30
        pilot.unread.clear()


def refusal(small: Small, **more: Any) -> Refused:
    answer = small.ask(Restart(job=JOB, **more))
    assert isinstance(answer, Refused)
    return answer


def test_what_cannot_be_opened_again_is_refused_by_name() -> None:
    with Small(site(cores=4)) as small:
        small.submit(plan(stage(30, kind("broken")), stage(1, kind("healthy", priority=-1))))
        pilot = small.pilot()
        fail_all(pilot, times=BOUND)
        unknown = refusal(small, activity="brokn")
        assert (unknown.code, unknown.message) == ("unknown-activity", "the job j has no activity 'brokn'")
        assert "broken" in unknown.next_step
        other = refusal(small, activity="healthy")
        assert other.code == "not-stopped"
        assert other.message == "the activity healthy of the job j is not stopped (stopped: broken)"
        single = refusal(small, package="1.30.1")
        assert single.code == "activity-stopped"
        assert "pilotage retry j --activity broken; " in single.next_step
        assert refusal(small, package="1.30.1", activity="broken").code == "unknown-package"
        small.ask(Kill(job=JOB))
        assert refusal(small, activity="broken").code == "job-over"
        pilot.exchange()
        pilot.unread.clear()


def test_a_limit_of_failures_counts_only_packages_that_failed_themselves() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(200, failures_max=8))
        fail_all(small.pilot())
        assert len(stopped(small)) == 1
        assert not small.engine.state.jobs.by_id[JOB].cancelled


def test_packages_that_come_back_or_appear_later_are_aborted_too() -> None:
    with Small(site(cores=4)) as small:
        made = plan(stage(30, kind("run")), None, late={2: ["1.1.1"]}, waits={})
        small.submit(plan(stage(30), stage(1, kind("list")), None, late={3: ["2.1.1"]}))
        del made
        small.ask(Drop(job=JOB, stage=1, line=30))
        pilot = small.pilot()
        while not stopped(small):
            broken = next(name for name in pilot.packages if name.startswith("1."))
            pilot.fail(broken, "application-error", message=WRONG, after=1.0)
        small.ask(Restore(job=JOB, stage=1, line=30))
        assert small.status("1.30.1") == "aborted"
        pilot.exchange()
        pilot.succeed("2.1.1")
        from pilotage.model.exchange.operations import ExpandStage

        small.take(ExpandStage)
        small.grow(grown(small.plans[JOB][0], late=3, lines=2), late=3)
        assert small.status("3.1.1") == small.status("3.2.1") == "aborted"
        pilot.unread.clear()


def test_bound_attempts_are_taken_out_of_their_queues() -> None:
    from pilotage.model.exchange.operations import SubmitAttempt

    with Small(site("a", mode="bound", cores=6)) as small:
        small.submit(bag(40))
        while not stopped(small):
            for effect in small.take(SubmitAttempt)[:1]:
                agent = small.bound(effect)
                agent.fail(agent.packages[0], "application-error", message=WRONG, after=1.0)
                agent.unread.clear()
        assert {each.key for each in small.take(CancelSubmitted)} >= {each.key for each in small.take(SubmitAttempt)}


def test_an_engine_that_starts_between_stop_and_aborts_finishes_them() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(30))
        pilot = small.pilot()
        fail_all(pilot, times=BOUND - 1)
        state = small.engine.state
        job = state.jobs.by_id[JOB]
        found = job.activities.most_equal("run")
        assert found is not None
        from pilotage.engine.decisions.stopped_activities import stop_activity

        stop_activity(state, job, "run", found)
        told = small.engine.take_decided()
        small.book += told
        small.journal.append(told, small.now)
        small.journal.sync()
        core = small.restarted()
        assert core.engine.state.jobs.by_id[JOB].counts[8] < 30
        decided = core.engine.decide(small.now)
        assert sum(one.event.type == "Aborted" for one in decided) >= 20
        assert core.engine.state.jobs.by_id[JOB].counts[8] == 30
        small.step()
        pilot.exchange()
        pilot.unread.clear()


def test_an_engine_that_starts_anew_counts_on() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(200))
        pilot = small.pilot()
        fail_all(pilot, times=BOUND - 1)
        small.core = small.restarted()
        pilot.exchange()
        assert fail_all(pilot) == 1
        assert len(stopped(small)) == 1
        assert not differences(small.restarted().engine.durable_state(), small.engine.durable_state())
        small.take(SubmitPilot)


def test_an_engine_that_starts_anew_knows_of_successes() -> None:
    with Small(site(cores=4)) as small:
        small.submit(bag(60))
        pilot = small.pilot()
        pilot.succeed(pilot.packages[0])
        fail_all(pilot, times=BOUND - 1)
        small.core = small.restarted()
        pilot.exchange()
        fail_all(pilot)
        assert stopped(small) == []
        small.take(SubmitPilot)
