"""Who goes first among jobs and users of equal priority: the formula, the order that follows, and what is told of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilotage.engine.decisions.provisioning import pilots_wanted
from pilotage.engine.fairness import PlanTimes, Share
from pilotage.engine.state.run_times import LEARNED_MIN
from pilotage.model.answers import Why
from pilotage.model.events import payloads
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.exchange.operations import Hold, Release
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.resources import Capacity, Demand
from pilotage.model.states import ExitCodeGasw
from pilotage.service.core import Core
from tests.kit.small_engine import START, Agent, Small
from tests.kit.small_plans import bag, chain, kind, plan, site, stage


def slowdown(small: Small, job: str) -> float:
    """What is expected of a job after one more look."""
    state = small.engine.state.jobs.by_id[job]
    small.engine.state.fairness.refresh()
    return -small.engine.state.fairness.keys([state])[state][3]


def jobs_in_order(small: Small) -> list[str]:
    """The jobs with something ready, in the order in which they go."""
    return list(
        dict.fromkeys(queue.job.id for queue in small.engine.state.fairness.ordered(small.engine.state.queues.ready))
    )


def finish(pilot: Agent, seconds: float, *, count: int) -> None:
    """Let a pilot with one slot finish packages, one after the other."""
    for _ in range(count):
        [ref] = pilot.held
        phases = (PhaseTimes(phase="application", started_at=0.0, seconds=seconds),)
        pilot.say(payloads.AttemptFinished(exit_code=ExitCodeGasw.SUCCESS, phases=phases, manifest=()), ref)
        del pilot.held[ref]
        pilot.exchange(after=seconds)


# --- the formula ------------------------------------------------------------------------------------------------------


def test_the_slowdown_is_what_is_over_and_what_is_left_by_what_it_takes_alone() -> None:
    share = Share(since=100.0)
    share.left_seconds, share.area_seconds, share.critical_seconds = 600.0, 50.0, 60.0
    share.update_alone()
    assert share.slowdown(160.0, 10) == (60.0 + 600.0 / 10) / 60.0
    assert share.slowdown(160.0, 0) == (60.0 + 600.0 / 0.5) / 60.0
    assert share.slowdown(40.0, 10) == 600.0 / 10 / 60.0  # nothing is over before it began


def test_jobs_taken_together_came_when_the_first_came_and_take_what_all_take() -> None:
    one, other = Share(since=10.0), Share(since=5.0)
    one.left_seconds, one.area_seconds, one.critical_seconds = 100.0, 20.0, 3.0
    other.left_seconds, other.area_seconds, other.critical_seconds = 50.0, 30.0, 70.0
    one.join(other)
    assert (one.since, one.left_seconds, one.alone_seconds) == (5.0, 150.0, 70.0)


@pytest.mark.parametrize(
    "made, seconds, critical",
    [
        (bag(7), [10.0], 10.0),
        (chain(kind("a"), kind("b"), kind("c"), lines=3), [1.0, 20.0, 300.0], 321.0),
        (plan(stage(2, kind("a"), kind("b")), stage(1, kind("c"))), [5.0, 6.0, 7.0], 11.0),
        (plan(stage(2, kind("a"), kind("b")), stage(1, kind("c")), edges=[("1.1.2", "2.1.1")]), [5.0, 6.0, 7.0], 18.0),
    ],
    ids=["bag", "chain", "beside each other", "after each other"],
)
def test_a_job_takes_at_least_its_longest_way(made: JobPlan, seconds: list[float], critical: float) -> None:
    assert PlanTimes(made).critical_seconds(np.array(seconds)) == critical


def test_what_packages_took_counts_more_than_what_the_document_says_once_enough_are_done() -> None:
    with Small(site()) as small:
        small.submit(bag(20, kind(run_seconds=1000.0)), job="said")
        small.submit(bag(1), job="other")
        pilot = small.pilot()
        small.engine.state.fairness.refresh()
        share = small.engine.state.fairness.shares.get(small.engine.state.jobs.by_id["said"])
        assert share is not None
        assert share.alone_seconds == 20 * 1000.0
        while small.engine.state.jobs.by_id["said"].run_times.by_kind.get(0, [0])[0] < LEARNED_MIN:
            finish(pilot, 10.0, count=1)
        small.wait(60, pilot)
        slowdown(small, "said")
        assert share.alone_seconds == 20 * 10.0
        small.finish()


def test_a_job_of_which_nobody_knows_anything_is_taken_for_one_like_the_others() -> None:
    with Small(site()) as small:
        small.submit(bag(5, kind(run_seconds=40.0)), job="known")
        small.submit(bag(5), job="unknown")
        small.pilot()
        small.now += 60.0
        small.step()
        assert slowdown(small, "unknown") > 0
        shares_of = [
            small.engine.state.fairness.shares.get(small.engine.state.jobs.by_id[name]) for name in ("known", "unknown")
        ]
        assert [each.alone_seconds for each in shares_of if each is not None] == [200.0, 200.0]
        small.finish()


def test_time_in_which_a_job_was_held_does_not_count() -> None:
    with Small(site()) as small:
        small.submit(bag(5), job="one")
        small.submit(bag(5), job="two")
        small.ask(Hold(job="two"))
        small.wait(500)
        small.ask(Release(job="two"))
        one, two = small.engine.state.jobs.by_id["one"], small.engine.state.jobs.by_id["two"]
        assert two.since == pytest.approx(one.since + 500, abs=1.0)
        small.effects.clear()


@pytest.mark.parametrize("restarted", [True, False])
def test_time_in_which_a_job_was_held_does_not_count_after_a_restart_or_a_replay_either(*, restarted: bool) -> None:
    with Small(site()) as small:
        small.submit(bag(5), job="one")
        small.submit(bag(5), job="two")
        for _ in range(2):
            small.wait(50)
            small.ask(Hold(job="two"))
            small.wait(100)
            small.ask(Hold(job="two"))  # which changes nothing
            small.wait(150)
            small.ask(Release(job="two"))
            small.wait(70)
        small.ask(Hold(job="one"))
        small.wait(30)
        known = small.engine.state.jobs.by_id
        assert known["two"].since == pytest.approx(START + 500)
        again = (small.restarted().engine if restarted else small.replayed()).state.jobs.by_id
        for name, job in known.items():
            assert again[name].since == pytest.approx(job.since), name
            assert again[name].released_at == pytest.approx(job.released_at), name
        assert again["one"].held_since == pytest.approx(known["one"].held_since)
        small.ask(Release(job="one"))
        small.effects.clear()


# --- the order --------------------------------------------------------------------------------------------------------


def test_a_small_job_does_not_wait_for_all_of_a_large_one() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(100), job="large")
        pilot = small.pilot()
        small.submit(bag(2), job="small")
        turns = 0
        while small.engine.state.jobs.by_id["small"].unfinished:
            turns += 1
            _one(pilot)
        assert turns <= 10
        small.finish()


def _one(pilot: Agent) -> None:
    """One attempt of those a pilot holds succeeds."""
    pilot.small.wait(60.0)
    pilot.end(next(iter(pilot.held)))
    pilot.exchange()


def test_who_came_first_goes_first_where_that_was_set() -> None:
    with Small(site(), fairness="first-come") as small:
        small.submit(bag(20), job="large")
        pilot = small.pilot()
        small.submit(bag(2, kind(run_seconds=1e5, priority=9)), job="small")
        order = []
        while pilot.held:
            order += [ref.job for ref in pilot.held]
            _one(pilot)
        assert order == ["large"] * 20 + ["small"] * 2


def test_priority_goes_before_slowdown() -> None:
    with Small(site()) as small:
        small.submit(bag(20, priority=1), job="urgent")
        pilot = small.pilot()
        small.submit(bag(1), job="small")
        order = []
        while pilot.held:
            order += [ref.job for ref in pilot.held]
            _one(pilot)
        assert order == ["urgent"] * 20 + ["small"]


def test_what_a_job_prefers_of_its_own_is_no_matter_of_others() -> None:
    with Small(site()) as small:
        small.submit(bag(30, kind("pushy", priority=9)), job="pushy")
        pilot = small.pilot()
        small.submit(bag(3), job="modest")
        order = []
        while pilot.held:
            order += [ref.job for ref in pilot.held]
            _one(pilot)
        assert order.index("modest") < 10


def test_many_jobs_of_a_user_get_no_more_than_one_job_of_another() -> None:
    with Small(site(cores=10)) as small:
        for number in range(20):
            small.submit(bag(10, hold=True), job=f"many-{number}", owner="ada")
        small.submit(bag(200, hold=True), job="one", owner="emmy")
        for number in range(20):
            small.ask(Release(job=f"many-{number}"))
        small.ask(Release(job="one"))
        pilot = small.pilot()
        for _ in range(100):
            _one(pilot)
        ours = sum(ref.job == "one" for ref in pilot.held)
        assert 4 <= ours <= 6, pilot.held
        small.finish(turns=1000)


def test_a_job_that_nothing_was_started_of_for_long_goes_first() -> None:
    with Small(site(), fairness_patience_seconds=600.0) as small:
        small.submit(bag(3, kind(run_seconds=1e6)), job="slow", owner="ada")
        pilot = small.pilot()
        small.submit(bag(50, kind(run_seconds=1.0)), job="quick", owner="emmy")
        small.now += 30.0
        _one(pilot)
        waited = small.now
        while next(iter(pilot.held)).job != "slow":
            assert small.now <= waited + 700.0
            small.wait(60.0, pilot)  # a clock that jumps is not believed, and patience is measured by what is
            pilot.end(next(iter(pilot.held)))
            pilot.exchange()
        small.finish()


def test_what_needs_several_cores_is_not_overtaken_for_ever_by_what_fills_each_that_is_free() -> None:
    with Small(site(cores=2, pilots=2), fairness_patience_seconds=600.0) as small:
        small.submit(bag(200), job="narrow", owner="ada")
        pilots = [small.pilot(), small.pilot()]
        small.submit(bag(1, kind(demand=Demand(cores_hundredths=200))), job="wide", owner="emmy")
        began = small.now
        while not any(ref.job == "wide" for pilot in pilots for ref in pilot.held):
            assert small.now <= began + 900.0
            small.wait(60.0, *pilots)
            for pilot in pilots:
                _one(pilot)  # one after the other, so that never two cores are free at once
        assert small.now >= began + 600.0
        assert sum(len(pilot.held) for pilot in pilots) == 3  # the other pilot was never kept waiting
        small.finish(turns=1000)


def test_who_waits_for_a_gpu_keeps_no_cores_free_that_are_none_of_his_trouble() -> None:
    with Small(site(capacity=Capacity(cores_hundredths=300, gpus=1)), fairness_patience_seconds=600.0) as small:
        small.submit(bag(2, kind(demand=Demand(cores_hundredths=100, gpus=1))), job="first", owner="eve")
        pilot = small.pilot()
        small.submit(bag(200), job="narrow", owner="ada")
        small.submit(bag(1, kind(demand=Demand(cores_hundredths=100, gpus=1))), job="second", owner="emmy")
        for _ in range(30):
            small.wait(60.0, pilot)
            for ref in [each for each in pilot.held if each.job == "narrow"]:
                pilot.end(ref)
            pilot.exchange()
            assert [ref.job for ref in pilot.held] == ["first", "narrow", "narrow"]
        small.finish(turns=1000)


def test_room_is_not_made_for_longer_than_it_was_waited_for() -> None:
    with Small(site(cores=2), fairness_patience_seconds=600.0) as small:
        small.submit(bag(200), job="narrow", owner="ada")
        pilot = small.pilot()
        first = next(iter(pilot.held))  # it does not end
        small.submit(bag(1, kind(demand=Demand(cores_hundredths=200))), job="wide", owner="emmy")
        idle = 0
        for _ in range(30):
            small.wait(60.0, pilot)
            for ref in [each for each in pilot.held if each != first]:
                pilot.end(ref)
            pilot.exchange()
            idle += len(pilot.held) == 1
        assert 8 <= idle <= 12
        small.finish(turns=1000)


def test_slots_that_come_at_once_are_shared() -> None:
    with Small(site(cores=12)) as small:
        for job in ("one", "two", "three"):
            small.submit(bag(50, hold=True), job=job)
        for job in ("one", "two", "three"):
            small.ask(Release(job=job))
        pilot = small.pilot()
        held = [ref.job for ref in pilot.held]
        assert sorted(held.count(job) for job in ("one", "two", "three")) == [4, 4, 4]
        small.finish(turns=1000)


# --- pilots -----------------------------------------------------------------------------------------------------------


def test_pilots_are_asked_for_whoever_goes_first() -> None:
    with Small(site(cores=1, pilots=4)) as small:
        small.submit(bag(100, hold=True), job="large")
        small.submit(bag(2, priority=1, hold=True), job="urgent")
        for job in ("large", "urgent"):
            small.ask(Release(job=job))
        small.wait(1)
        there = small.engine.state.sites.by_name["a"]
        assert (there.expected, pilots_wanted(small.engine.state, there, 1)) == (4, 1)
        assert [[ref.job for ref in small.pilot().held] for _ in range(3)] == [["urgent"], ["urgent"], ["large"]]
        small.finish()


def test_pilots_that_come_one_by_one_are_shared_between_users() -> None:
    with Small(site(cores=1, pilots=6)) as small:
        for job, owner in (("one", "ada"), ("two", "emmy"), ("three", "mary")):
            small.submit(bag(50, hold=True), job=job, owner=owner)
        for job in ("one", "two", "three"):
            small.ask(Release(job=job))
        small.wait(1)
        assert small.engine.state.sites.by_name["a"].expected == 6
        held = [ref.job for _ in range(6) for ref in small.pilot().held]
        assert sorted(held.count(job) for job in ("one", "two", "three")) == [2, 2, 2]
        small.finish(turns=1000)


def test_no_more_pilots_are_asked_for_than_the_work_needs() -> None:
    with Small(site(cores=4, pilots=50)) as small:
        small.submit(bag(9), job="one")
        small.submit(bag(8), job="two")
        small.wait(1)
        assert small.engine.state.sites.by_name["a"].expected == math.ceil(17 / 4)
        small.effects.clear()


# --- what is told -----------------------------------------------------------------------------------------------------


def turn(small: Small, package: str, job: str) -> Why:
    """What is said of whose turn it is."""
    return next(each for each in small.explain(package, job=job).reasons if each.code == "after-others")


def test_explain_names_the_job_that_goes_before_and_why() -> None:
    with Small(site()) as small:
        small.submit(bag(100), job="large", owner="ada")
        small.pilot()
        small.submit(bag(1), job="small", owner="emmy")
        small.submit(bag(5, priority=3), job="urgent", owner="emmy")
        told = turn(small, "1.90.1", "large")
        assert told.subject == "urgent"
        assert "its priority is 3, that of this job 0" in told.message
        small.finish()


def test_explain_tells_the_slowdowns() -> None:
    with Small(site()) as small:
        small.submit(bag(100), job="large", owner="ada")
        small.pilot()
        small.submit(bag(10), job="small", owner="emmy")
        small.wait(100)
        behind, ahead = ("large", "small") if jobs_in_order(small)[0] == "small" else ("small", "large")
        told = turn(small, "1.10.1", behind)
        assert told.subject == ahead
        assert "expected slowdown" in told.message
        small.finish()


def test_explain_says_who_came_first() -> None:
    with Small(site(), fairness="first-come") as small:
        small.submit(bag(100), job="large")
        small.submit(bag(10), job="small")
        assert turn(small, "1.10.1", "small").message == "large of ada goes before its job: it was submitted first"
        assert not [each for each in small.explain("1.90.1", job="large").reasons if each.code == "after-others"]
        small.effects.clear()


# --- a start from the book --------------------------------------------------------------------------------------------


def test_after_a_restart_the_order_is_worked_out_from_when_jobs_came_and_what_is_left() -> None:
    with Small(site()) as small:
        small.submit(bag(40, kind(run_seconds=60.0)), job="large", owner="ada")
        pilot = small.pilot()
        finish(pilot, 10.0, count=10)
        small.submit(bag(8, kind(run_seconds=60.0)), job="small", owner="emmy")
        finish(pilot, 10.0, count=4)
        before = {job: state.since for job, state in small.engine.state.jobs.by_id.items()}
        core: Core = small.restarted()
        assert {job: state.since for job, state in core.engine.state.jobs.by_id.items()} == pytest.approx(
            before, abs=0.001
        )
        small.finish()
