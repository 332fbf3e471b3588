"""What a step costs does not grow with the job: the same calls for a thousand packages and for a hundred thousand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from types import FrameType
from typing import Any

import pytest

from pilotage.engine.decisions.provisioning import request_pilots
from pilotage.model.exchange.operations import AnyOperation, Drop, Hold, Kill, Release, Reschedule, Restart, Restore
from pilotage.model.exchange.reports import Gone
from pilotage.model.jobs.plan import JobPlan
from pilotage.service.messages import Input, OperationRequest
from tests.kit.small_engine import JOB, Agent, Small
from tests.kit.small_plans import bag, chain, kind, plan, site, stage

FEW, MANY = 1_000, 100_000


def calls(function: Callable[[], object]) -> int:
    """How many functions are called, in Python or in C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@cache
def long_chain(packages: int) -> JobPlan:
    """Two stages of lines."""
    return chain(lines=packages // 2)


@cache
def wide_merge(packages: int) -> JobPlan:
    """One package that takes from all others."""
    return plan(stage(packages), stage(), edges=[(f"1.{n}.1", "2.1.1") for n in range(1, packages + 1)])


def running(made: JobPlan) -> tuple[Small, Agent]:
    """A job with eight packages under way."""
    small = Small(site(cores=8))
    small.watched = False
    small.submit(made)
    return small, small.pilot()


def cost(small: Small, *inbox: Input, after: float = 0.0) -> int:
    """The calls of one step, which nobody checks."""
    small.now += after
    return calls(lambda: small.core.step(inbox, small.now))


def cost_of_success(small: Small, pilot: Agent) -> int:
    pilot.end(pilot.ref(pilot.packages[0]))
    return cost(small, pilot.message())


def alike(few: int, many: int) -> bool:
    """Whether two costs are the same but for what is rounded: amortised growth of arrays, and depths of searches."""
    return few > 10 and many <= 1.5 * few + 20


def test_the_count_of_calls_sees_what_grows() -> None:
    few, many = calls(lambda: [abs(each) for each in range(10)]), calls(lambda: [abs(each) for each in range(1000)])
    assert not alike(max(few, 11), many)


@pytest.mark.parametrize("made", [bag, long_chain, wide_merge])
def test_a_success_costs_the_same_in_a_large_job(made: Callable[[int], JobPlan]) -> None:
    found = [cost_of_success(*running(made(size))) for size in (FEW, MANY)]
    assert alike(*found), found


def test_a_failure_costs_the_same_in_a_large_job() -> None:
    found = []
    for size in (FEW, MANY):
        small, pilot = running(bag(size))
        pilot.end(pilot.ref("1.1.1"), reason="application-error", message="no")
        found.append(cost(small, pilot.message()))
    assert alike(*found), found


@pytest.mark.parametrize(
    "operations",
    [
        [Hold(job=JOB, package="1.500.1"), Release(job=JOB, package="1.500.1")],
        [Hold(job=JOB), Release(job=JOB)],
        [Drop(job=JOB, stage=1, line=3), Restore(job=JOB, stage=1, line=3)],
        [Kill(job=JOB, package="1.3.1"), Restart(job=JOB, package="1.3.1")],
        [Reschedule(job=JOB, package="1.1.1")],
        [Kill(job=JOB)],
    ],
    ids=lambda operations: "-".join(type(each).__name__ for each in operations),
)
def test_an_operation_costs_the_same_in_a_large_job(operations: list[AnyOperation]) -> None:
    found = []
    for size in (FEW, MANY):
        small, _ = running(long_chain(size))
        asked = [OperationRequest(token=1, operation=each) for each in operations]
        found.append(cost(small, *asked))
    assert alike(*found), found


def test_an_expired_lease_costs_the_same_in_a_large_job() -> None:
    found = []
    for size in (FEW, MANY):
        small, _ = running(bag(size))
        found.append(cost(small, after=61.0))
    assert alike(*found), found


def test_a_tick_with_nothing_due_costs_the_same_in_a_large_job() -> None:
    found = []
    for size in (FEW, MANY):
        small, _ = running(bag(size))
        found.append(cost(small, after=0.5))
    assert alike(max(found[0], 11), found[1]), found


def test_a_dead_producer_of_a_late_stage_does_not_make_every_later_step_dear() -> None:
    found = []
    for size in (FEW, 20 * FEW):
        made = plan(stage(100), None, stage(size, kind("wait")), late={2: ["1.99.1"]}, waits={3: (2,)})
        small, pilot = running(made)
        small.ask(Kill(job=JOB, package="1.99.1"))
        found.append(cost_of_success(small, pilot))
    assert alike(*found), found


def test_packages_that_wait_for_more_time_each_do_not_make_every_later_step_dear() -> None:
    found = []
    for failures in (20, 400):
        sites = site("a", cores=8, wall_seconds=150.0), site("b", mode="bound", job_throttle=0.0)
        small = Small(*sites, interval_seconds=1e4, submit_again_seconds=1e9, flood_packages=0)
        small.watched = False
        small.submit(bag(1000))
        pilot = small.pilot("a")
        for _ in range(failures):
            pilot.end(pilot.ref(pilot.packages[0]), reason="wall-time")
            pilot.exchange(after=200.0 + pilot.n)  # each ran for another time, longer than the site ever gives
        found.append(cost_of_success(small, pilot))
    assert alike(*found), found


def test_a_pilot_that_is_gone_costs_the_same_among_many() -> None:
    found = []
    for pilots in (20, 1000):
        small = Small(site(cores=1, pilots=pilots + 1))
        small.watched = False
        small.submit(bag(2 * pilots, kind(side_effects=True)))
        names = [small.pilot() for _ in range(pilots)]
        small.step(*(OperationRequest(token=1, operation=Kill(job=JOB, package=each.packages[0])) for each in names))
        assert len(small.engine.state.abandoned.by_pilot) == pilots
        found.append(cost(small, Gone(site="a", key=names[0].request, reason="failed")))
    assert alike(*found), found


@pytest.mark.parametrize("package", ["1.500.1", ""])
def test_holding_and_releasing_again_and_again_leaves_nothing_behind(package: str) -> None:
    small, _ = running(bag(FEW))
    sizes = []
    for _ in range(3 * FEW):
        small.ask(Hold(job=JOB, package=package))
        small.ask(Release(job=JOB, package=package))
        sizes.append(sum(each.queue.size for each in small.engine.state.jobs.by_id[JOB].classes.values()))
    assert max(sizes) <= 2 * FEW + 100
    queued = sum(len(list(each.queue)) for each in small.engine.state.jobs.by_id[JOB].classes.values())
    assert queued == sizes[-1]


def test_holding_and_releasing_costs_the_same_the_thousandth_time() -> None:
    small, _ = running(bag(FEW))
    asked = (
        OperationRequest(token=1, operation=Hold(job=JOB, package="1.500.1")),
        OperationRequest(token=1, operation=Release(job=JOB, package="1.500.1")),
    )
    spent = [sum(cost(small, *asked) for _ in range(500)) for _ in range(8)]
    assert max(spent[1:]) <= 4 * min(spent), spent


# --- many jobs, many sites --------------------------------------------------------------------------------------------


def waiting_jobs(count: int, *, sites: int = 1, **asked: Any) -> tuple[Small, Agent]:
    """A pilot of eight slots at the first of some sites, and so many jobs that wait for one of them."""
    small = Small(site("here", cores=8), *(site(f"other-{number}") for number in range(1, sites)))
    small.watched = False
    for number in range(count):
        small.submit(bag(20, kind(**asked)), job=f"job-{number}", owner=f"owner-{number % 3}")
    return small, small.pilot("here")


def test_what_is_asked_of_each_site_costs_the_same_however_many_jobs_wait_for_another() -> None:
    found = {}
    for jobs, sites in ((2, 2), (2, 60), (60, 2), (60, 60)):
        small, _ = waiting_jobs(jobs, sites=sites, executor="here")
        small.engine.state.provisioning.last_run = -2.0
        found[jobs, sites] = calls(partial(request_pilots, small.engine.state))
    assert found[60, 60] <= 1.5 * (found[2, 60] + found[60, 2]), found


def test_a_pilot_that_has_nothing_to_say_costs_the_same_however_many_jobs_wait() -> None:
    found = []
    for jobs in (3, 100):
        small, pilot = waiting_jobs(jobs)
        pilot.exchange()
        found.append(cost(small, pilot.message()))
    assert alike(*found), found


def test_who_waits_in_vain_costs_little_when_somebody_else_gets_a_slot() -> None:
    few, many = (cost_of_success(*waiting_jobs(jobs)) for jobs in (10, 110))
    assert many - few < 15 * 100, (few, many)


def test_jobs_that_wait_for_one_site_cost_the_same_however_many_others_there_are() -> None:
    found = [cost_of_success(*waiting_jobs(60, sites=sites, executor="here")) for sites in (2, 60)]
    assert found[1] < 1.5 * found[0] + 60 * 10, found


def test_a_package_that_was_named_lately_is_named_for_less_and_every_other_as_ever() -> None:
    job = running(long_chain(FEW))[0].engine.state.jobs.by_id[JOB]
    first, again = (calls(partial(job.named, FEW - 1)) for _ in range(2))
    assert again < first
    places = [job.named(number)[1] for number in range(FEW)]
    assert [job.number(place) for place in places] == [*range(FEW)]
    assert [job.named(number)[1] for number in range(FEW)] == places
