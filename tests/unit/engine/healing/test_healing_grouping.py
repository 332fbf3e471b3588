"""Short packages share a batch job in bound mode: each is an attempt of its own, and they begin one after another."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.model.events import payloads
from pilotage.model.events.healing_payloads import ActivityGrouped, HealingDecided
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted, Kill, SubmitAttempt
from pilotage.model.exchange.reports import Gone, Submitted
from pilotage.model.resources import Demand
from pilotage.model.settings.engine import HealingSettings
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, kind, site

QUEUE, RUN = 30.0, 2.0


def ended(agent: Agent, package: str) -> None:
    """The package that an agent runs succeeds after its usual time."""
    agent.small.now += RUN
    ref = agent.ref(package)
    phases = (payloads.PhaseTimes(phase="application", started_at=0.0, seconds=RUN),)
    agent.say(payloads.AttemptFinished(exit_code="SUCCESS", manifest=(), phases=phases), ref)  # type: ignore[arg-type]
    agent.held.pop(ref)
    agent.exchange()
    agent.unread.clear()


def bound_site(name: str = "a", **more: Any) -> Any:
    return site(name, mode="bound", **({"job_throttle": 0.0} | more))


def learned(small: Small, packages: int, **template: Any) -> SubmitAttempt:
    """A job of short packages, of which five have finished alone; the batch job of the next ones."""
    small.submit(bag(packages, kind(**template)))
    for _ in range(5):
        (effect,) = small.take(SubmitAttempt)
        small.now += QUEUE
        ended(small.bound(effect), effect.ref.package)
    (effect,) = small.take(SubmitAttempt)
    return effect


def sizes(small: Small) -> list[int]:
    return [msgspec.json.decode(each.data, type=ActivityGrouped).packages for each in small.told(ActivityGrouped)]


def created(small: Small, package: str) -> payloads.AttemptCreated:
    found = small.told(payloads.AttemptCreated, package)
    return msgspec.json.decode(found[-1].data, type=payloads.AttemptCreated)


def run_all(small: Small, agent: Agent) -> list[str]:
    """An agent runs what it is given until it is told to leave."""
    ran = []
    while agent.packages:
        (package,) = agent.packages
        ran.append(package)
        ended(agent, package)
    assert agent.left
    return ran


def run_batch_jobs(small: Small) -> None:
    """Start the agent of each batch job, and let it run all, until there is no further one."""
    for _ in range(20):
        small.take(CancelSubmitted)
        for each in small.take(SubmitAttempt):
            if f"{each.key}.1" not in small.agents:
                run_all(small, small.bound(each))
        small.wait(60.0)


def test_packages_that_are_shorter_than_the_queue_share_a_batch_job() -> None:
    with Small(bound_site(), group_packages_max=4) as small:
        effect = learned(small, 11)
        assert sizes(small) == [4]
        assert [created(small, f"1.{n}.1").group for n in (5, 6, 9)] == [None, effect.key, effect.key]
        assert small.told(payloads.AttemptCreated, "1.10.1") == []
        small.now += QUEUE
        agent = small.bound(effect)
        assert agent.packages == ["1.6.1"]  # the others wait for their turn
        assert [len(small.told(payloads.AttemptStarted, f"1.{n}.1")) for n in (6, 7)] == [1, 0]
        assert run_all(small, agent) == ["1.6.1", "1.7.1", "1.8.1", "1.9.1"]
        for n in (6, 7, 8, 9):
            assert len(small.told(payloads.CommitGranted, f"1.{n}.1")) == 1
        (rest,) = small.take(SubmitAttempt)
        run_all(small, small.bound(rest))
        small.finish()


def test_an_agent_is_told_how_many_follow() -> None:
    with Small(bound_site(), group_packages_max=3) as small:
        agent = small.bound(learned(small, 8))
        assert [each.following for each in agent.held.values()] == [2]
        ended(agent, "1.6.1")
        assert [each.following for each in agent.held.values()] == [1]
        run_all(small, agent)
        small.finish()


def test_one_means_never() -> None:
    with Small(bound_site(), group_packages_max=1) as small:
        effect = learned(small, 6)
        assert sizes(small) == []
        assert created(small, "1.6.1").group is None
        run_all(small, small.bound(effect))
        small.finish()


def test_packages_with_side_effects_have_a_batch_job_each() -> None:
    with Small(bound_site()) as small:
        effect = learned(small, 6, side_effects=True)
        assert created(small, "1.6.1").group is None
        run_all(small, small.bound(effect))
        small.finish()


def test_a_batch_job_is_asked_for_with_the_sum_of_the_wall_times_within_the_limit_of_its_site() -> None:
    demand = Demand(wall_seconds=60.0)
    with Small(bound_site(wall_seconds=200.0), group_packages_max=10) as small:
        effect = learned(small, 20, demand=demand)
        assert effect.demand.wall_seconds == 180.0  # three of them fit
        effects = [effect]
        while effects:
            run_all(small, small.bound(effects.pop()))
            effects += small.take(SubmitAttempt)
        small.finish()


def test_the_failure_of_one_does_not_end_the_others() -> None:
    with Small(bound_site(), group_packages_max=3) as small:
        agent = small.bound(learned(small, 8))
        agent.fail("1.6.1", reason="application-error", after=RUN)
        agent.unread.clear()
        assert run_all(small, agent) == ["1.7.1", "1.8.1"]
        small.wait(60.0)
        (again,) = small.take(SubmitAttempt)
        assert again.ref == AttemptRef(JOB, "1.6.1", 2)
        assert created(small, "1.6.1").group is None  # after a failure it has a batch job of its own
        run_all(small, small.bound(again))
        small.finish()


def test_a_crash_in_the_middle_loses_only_what_was_not_finished() -> None:
    with Small(bound_site(), group_packages_max=4) as small:
        effect = learned(small, 9)
        agent = small.bound(effect)
        ended(agent, "1.6.1")
        small.step(Gone(site="a", key=effect.key, reason="killed"))
        agent.held.clear()
        small.wait(200.0)
        lost = {n: small.told(payloads.AttemptLost, f"1.{n}.1") for n in (6, 7, 8, 9)}
        assert [len(each) for each in lost.values()] == [0, 1, 1, 1]
        reasons = [msgspec.json.decode(lost[n][0].data, type=payloads.AttemptLost).reason for n in (7, 8, 9)]
        assert reasons == ["pilot-killed", "regrouped", "regrouped"]
        run_batch_jobs(small)
        for n in (6, 7, 8, 9):
            assert len(small.told(payloads.CommitGranted, f"1.{n}.1")) == 1
        small.finish()


def test_those_that_have_not_begun_are_bound_anew_while_their_agent_is_silent() -> None:
    with Small(bound_site(job_throttle=1.0), group_packages_max=4) as small:
        small.submit(bag(20, kind()))
        while not sizes(small):
            for effect in small.take(SubmitAttempt):
                small.now += QUEUE
                ended(small.bound(effect), effect.ref.package)
        agent = next(small.bound(each) for each in small.take(SubmitAttempt) if created(small, each.ref.package).group)
        (running,) = agent.packages
        follows = [each.ref.package for each in small.engine.state.sites.by_name["a"].bound.values() if each.group]
        small.wait(70.0)
        (lost,) = small.told(payloads.AttemptLost, follows[1])
        assert msgspec.json.decode(lost.data, type=payloads.AttemptLost).reason == "regrouped"
        ended(agent, running)  # it comes back, has finished its package, and gets no other
        assert agent.left
        assert len(small.told(payloads.CommitGranted, running)) == 1
        small.watched = False
        small.effects.clear()
        small.engine.sanity_check()


def test_a_batch_job_that_never_started_fails_one_attempt_and_frees_the_others() -> None:
    with Small(bound_site(), group_packages_max=4) as small:
        effect = learned(small, 9)
        small.step(Gone(site="a", key=effect.key, reason="failed"))
        lost = [small.told(payloads.AttemptLost, f"1.{n}.1") for n in (6, 7, 8, 9)]
        reasons = [msgspec.json.decode(each[0].data, type=payloads.AttemptLost).reason for each in lost]
        assert reasons == ["platform-failure", "regrouped", "regrouped", "regrouped"]
        small.wait(4000.0)
        run_batch_jobs(small)
        small.finish()


def test_every_attempt_of_a_batch_job_is_queued_when_that_is() -> None:
    with Small(bound_site(), group_packages_max=3) as small:
        effect = learned(small, 8)
        small.step(Submitted(site="a", key=effect.key, native_id="77"))
        assert all(len(small.told(payloads.AttemptQueued, f"1.{n}.1")) == 1 for n in (6, 7, 8))
        why = small.explain("1.7.1")
        (shared,) = [each for each in why.reasons if each.code == "shares-batch-job"]
        assert shared.count == 2
        run_all(small, small.bound(effect))
        small.finish()


def test_a_cancelled_job_cancels_the_batch_job_once() -> None:
    with Small(bound_site(), group_packages_max=3) as small:
        effect = learned(small, 8)
        small.ask(Kill(job=JOB))
        assert [each.key for each in small.take(CancelSubmitted)] == [effect.key]
        small.engine.sanity_check()


def test_a_restarted_engine_goes_on_with_the_batch_job() -> None:
    small = Small(bound_site(), group_packages_max=3)
    effect = learned(small, 8)
    agent = small.bound(effect)
    ended(agent, "1.6.1")
    small.restart()
    agent.exchange()
    agent.unread.clear()
    assert agent.packages == ["1.7.1"]
    assert run_all(small, agent) == ["1.7.1", "1.8.1"]
    small.effects.clear()
    small.finish()


def test_killing_one_package_leaves_the_others_of_its_batch_job() -> None:
    with Small(bound_site(), group_packages_max=4) as small:
        effect = learned(small, 9)
        small.ask(Kill(job=JOB, package="1.6.1"))  # whose key is that of the batch job
        assert small.take(CancelSubmitted) == []
        agent = small.bound(effect)
        assert agent.packages == ["1.7.1"]
        small.ask(Kill(job=JOB, package="1.8.1"))
        small.ask(Kill(job=JOB, package="1.7.1"))
        agent.exchange()
        agent.unread.clear()
        assert run_all(small, agent) == ["1.9.1"]
        small.finish()


def test_packages_leave_a_group_while_slots_elsewhere_are_idle() -> None:
    no_copies = HealingSettings(waste_max=0.0)
    with Small(bound_site("a"), bound_site("b"), group_packages_max=100, incidents=no_copies) as small:
        small.submit(bag(100, kind()))
        shared: list[SubmitAttempt] = []
        while len(shared) < 2:
            small.now += QUEUE
            effects = small.take(SubmitAttempt)
            shared += [each for each in effects if created(small, each.ref.package).group]
            for agent in [small.bound(each) for each in effects if each not in shared]:
                ended(agent, agent.packages[0])
        slow, fast = map(small.bound, shared)
        while fast.packages:
            ended(fast, fast.packages[0])
            slow.exchange()  # it is alive, and its first package takes long
        before = len(small.engine.state.sites.by_name[slow.site].groups[slow.request].members)
        small.wait(70.0, slow)
        decisions = [msgspec.json.decode(each.data, type=HealingDecided) for each in small.told(HealingDecided)]
        decision = next(each for each in decisions if any(one.treatment == "ungroup" for one in each.treated))
        assert decision.incidents[decision.drawn - 1].kind == "too-coarse"
        lost = [one.data for one in small.book if isinstance(one.data, payloads.AttemptLost)]
        assert {each.reason for each in lost} == {"regrouped"}
        assert 0 < len(lost) < before
        slow.unread.clear()
        run_all(small, slow)
        run_batch_jobs(small)
        for n in range(1, 101):
            assert len(small.told(payloads.CommitGranted, f"1.{n}.1")) == 1
        small.finish()
