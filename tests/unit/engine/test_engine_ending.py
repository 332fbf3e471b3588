"""How a job ends: what runs last begins when everything else is over, and some exit statuses end everything else."""

from __future__ import annotations

import pytest

from pilotage.engine.decisions.job_lifecycle import result_of
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Accepted, Drop, Kill, Restart
from pilotage.model.jobs.definition import AbortOn, Retry
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.states import ExitCodeGasw
from tests.kit.small_engine import Agent, Small, differences
from tests.kit.small_plans import grown, kind, plan, site, stage

LAST = kind("last", final=True)
CHECK = kind("check", abort_on=AbortOn(exit_code=3), retry=Retry(attempts_max=5))


def begin(small: Small, made: JobPlan) -> Agent:
    assert isinstance(small.submit(made), Accepted)
    return small.pilot()


def test_what_runs_last_waits_for_everything_else() -> None:
    with Small(site(cores=4)) as small:
        agent = begin(small, plan(stage(1, LAST), stage(2)))
        assert agent.packages == ["2.1.1", "2.2.1"]
        reason = small.explain("1.1.1").reasons[0]
        assert (reason.code, reason.count) == ("runs-last", 2)
        assert reason.message == "it is a final package: 2 other packages are not over"
        agent.succeed("2.1.1")
        assert small.status("1.1.1") == "blocked"
        agent.succeed("2.2.1")
        assert agent.packages == ["1.1.1"]
        agent.succeed("1.1.1")
        assert small.standings() == {"done": ["1.1.1", "2.1.1", "2.2.1"]}


def test_what_runs_last_runs_whatever_came_of_the_others() -> None:
    retry = Retry(attempts_max=1)
    edges = [("1.1.1", "2.1.1")]
    with Small(site(cores=4)) as small:
        agent = begin(small, plan(stage(3, kind(retry=retry)), stage(), stage(1, LAST), edges=edges))
        agent.fail("1.1.1", "application-error")
        assert small.status("2.1.1") == "upstream"
        assert isinstance(small.ask(Kill(job="j", package="1.2.1")), Accepted)
        assert small.status("3.1.1") == "blocked"
        assert isinstance(small.ask(Drop(job="j", stage=1, line=3)), Accepted)
        agent.exchange()
        assert agent.packages == ["3.1.1"]
        agent.succeed("3.1.1")
        assert small.status("3.1.1") == "done"


def test_what_runs_last_does_not_run_because_the_job_was_killed() -> None:
    with Small(site(cores=4)) as small:
        agent = begin(small, plan(stage(2), stage(1, LAST)))
        assert isinstance(small.ask(Kill(job="j")), Accepted)
        agent.exchange()
        small.wait(100.0, agent)
        assert agent.packages == []
        assert [package for package, _, _ in small.created()] == ["1.1.1", "1.2.1"]
        agent.unread.clear()
        # The job goes on, and what runs last still does.
        assert isinstance(small.ask(Restart(job="j")), Accepted)
        agent.exchange()
        agent.succeed("1.1.1", "1.2.1")
        agent.succeed("2.1.1")
        assert small.status("2.1.1") == "done"


def test_what_ran_last_runs_again_after_another_began_anew() -> None:
    retry = Retry(attempts_max=1)
    with Small(site(cores=4)) as small:
        agent = begin(small, plan(stage(2, kind(retry=retry)), stage(1, LAST)))
        agent.succeed("1.1.1")
        agent.fail("1.2.1", "application-error")
        agent.succeed("2.1.1")
        assert isinstance(small.ask(Restart(job="j")), Accepted)
        assert small.status("2.1.1") == "blocked"
        assert small.told(payloads.Restarted, "2.1.1")[0].epoch == 2
        agent.exchange()
        assert agent.packages == ["1.2.1"]
        agent.succeed("1.2.1")
        assert agent.packages == ["2.1.1"]
        agent.succeed("2.1.1")
        assert small.standings() == {"done": ["1.1.1", "1.2.1", "2.1.1"]}


def test_what_runs_last_and_has_begun_goes_on_and_runs_once_more() -> None:
    retry = Retry(attempts_max=1)
    with Small(site(cores=4)) as small:
        agent = begin(small, plan(stage(1, kind(retry=retry)), stage(1, LAST)))
        agent.fail("1.1.1", "application-error")
        assert agent.packages == ["2.1.1"]
        assert isinstance(small.ask(Restart(job="j", package="1.1.1")), Accepted)
        agent.exchange()
        agent.succeed("2.1.1")
        assert agent.packages == ["1.1.1"]
        agent.succeed("1.1.1")
        assert agent.packages == ["2.1.1"]
        agent.succeed("2.1.1")


def test_what_runs_last_waits_for_a_stage_that_is_still_to_come() -> None:
    with Small(site(cores=4)) as small:
        made = plan(stage(1), None, stage(1, LAST), late={2: ["1.1.1"]})
        agent = begin(small, made)
        agent.succeed("1.1.1")
        assert "stage 2" in small.explain("3.1.1").reasons[0].message
        small.effects.clear()
        small.grow(grown(made, late=2, edges=[("1.1.1", "2.1.1")]), late=2)
        agent.exchange()
        assert agent.packages == ["2.1.1"]
        agent.succeed("2.1.1")
        assert agent.packages == ["3.1.1"]
        agent.succeed("3.1.1")


def test_what_runs_last_does_not_wait_for_a_stage_that_never_comes() -> None:
    with Small(site(cores=4)) as small:
        made = plan(stage(1, kind(retry=Retry(attempts_max=1))), None, stage(1, LAST), late={2: ["1.1.1"]})
        agent = begin(small, made)
        agent.fail("1.1.1", "application-error")
        assert agent.packages == ["3.1.1"]
        agent.succeed("3.1.1")
        assert small.engine.state.jobs.by_id["j"].aborted  # only then is the job given up


@pytest.mark.parametrize("status", [3, 0])
def test_an_exit_status_ends_the_job_and_what_runs_last_runs(status: int) -> None:
    check = kind("check", abort_on=AbortOn(exit_code=status, result=7), retry=Retry(attempts_max=5))
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(1, check), stage(3), stage(1, LAST)))
        assert agent.packages == ["1.1.1", "2.1.1"]
        agent.end(agent.ref("1.1.1"), reason="application-error" if status else None, status=status)
        reply = agent.exchange()
        assert reply is not None
        assert [ref.package for ref in reply.cancelled] == ["2.1.1"]
        first = small.status("1.1.1")
        assert first == ("aborted" if status else "done")
        assert small.standings()["cancelled"] == ["2.1.1", "2.2.1", "2.3.1"]
        said = [one.data.message for one in small.book if isinstance(one.data, payloads.CancelAccepted)]
        assert said == [f"1.1.1 ended with exit status {status}, which ends the job"] * 3
        assert agent.packages == ["3.1.1"]
        agent.succeed("3.1.1")
        assert result_of(small.engine.state.jobs.by_id["j"]) == 7
        assert [package for package, _, _ in small.created()] == ["1.1.1", "2.1.1", "3.1.1"]


def test_another_exit_status_ends_nothing() -> None:
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(1, CHECK), stage(1)))
        agent.end(agent.ref("1.1.1"), reason="application-error", status=2)
        agent.exchange()
        assert small.status("2.1.1") == "live"
        assert result_of(small.engine.state.jobs.by_id["j"]) is None
        small.wait(700.0, agent)
        agent.succeed("1.1.1", "2.1.1")


def test_a_signal_is_a_status_below_nothing() -> None:
    check = kind("check", abort_on=AbortOn(exit_code=-9))
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(1, check), stage(1)))
        data = payloads.AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED, reason="signal", signal=9)
        agent.say(data, agent.ref("1.1.1"))
        agent.held.pop(agent.ref("1.1.1"))
        agent.exchange()
        assert small.standings() == {"aborted": ["1.1.1"], "cancelled": ["2.1.1"]}


def test_a_job_that_was_ended_goes_on_when_it_is_restarted() -> None:
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(1, CHECK), stage(2), stage(1, LAST)))
        agent.end(agent.ref("1.1.1"), reason="application-error", status=3)
        agent.exchange()
        assert "1.1.1 ended with exit status 3" in small.explain("2.1.1").reasons[0].message
        agent.succeed("3.1.1")
        assert isinstance(small.ask(Restart(job="j")), Accepted)
        agent.exchange()
        assert agent.packages == ["1.1.1", "2.1.1"]
        agent.succeed("1.1.1", "2.1.1")
        agent.succeed("2.2.1")
        agent.succeed("3.1.1")
        assert small.standings() == {"done": ["1.1.1", "2.1.1", "2.2.1", "3.1.1"]}


def test_a_stage_that_was_to_come_does_not_when_the_job_was_ended() -> None:
    with Small(site(cores=2)) as small:
        made = plan(stage(1), stage(1, CHECK), None, stage(1, LAST), late={3: ["1.1.1"]})
        agent = begin(small, made)
        agent.succeed("1.1.1")
        small.effects.clear()
        agent.end(agent.ref("2.1.1"), reason="application-error", status=3)
        agent.exchange()
        small.grow(grown(made, late=3), late=3)
        assert small.engine.state.jobs.by_id["j"].count == 3
        assert agent.packages == ["4.1.1"]
        agent.succeed("4.1.1")
        said = [one.data for one in small.book if isinstance(one.data, payloads.Aborted) and one.event.package is None]
        assert [(each.cause, each.upstream) for each in said] == [("abort-on", "2.1.1")]
        assert small.engine.state.jobs.by_id["j"].aborted


def test_an_engine_that_takes_over_knows_how_the_job_ends() -> None:
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(2, CHECK), stage(1, LAST)))
        for step in range(3):
            before = small.engine.durable_state()
            assert not differences(small.restarted().engine.durable_state(), before)
            if step == 0:
                agent.succeed("1.1.1")
            elif step == 1:
                agent.end(agent.ref("1.2.1"), reason="application-error", status=3)
                agent.exchange()
        small.restart()
        agent.exchange()
        small.engine.sanity_check()
        agent.succeed("2.1.1")
        assert small.status("2.1.1") == "done"
        assert result_of(small.engine.state.jobs.by_id["j"]) == 3


def test_what_ran_last_and_failed_has_the_last_word() -> None:
    last = kind("last", final=True, retry=Retry(attempts_max=1))
    with Small(site(cores=2)) as small:
        agent = begin(small, plan(stage(1, kind("check", abort_on=AbortOn(exit_code=3, result=0))), stage(1, last)))
        agent.end(agent.ref("1.1.1"), reason="application-error", status=3)
        agent.exchange()
        agent.fail("2.1.1", "application-error")
        assert small.standings() == {"aborted": ["1.1.1", "2.1.1"]}
        assert result_of(small.engine.state.jobs.by_id["j"]) is None
