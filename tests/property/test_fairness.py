"""Whatever jobs come when: nobody starves, the same history gives the same order, and priority is never overruled."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pilotage.engine.forecasts import NoForecasts
from pilotage.model.events.payloads import AttemptCreated
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import SubmitPilot
from pilotage.model.settings.engine import Order
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, kind, site

PATIENCE_SECONDS = 500.0


class Come(NamedTuple):
    """A job that comes after so many turns."""

    turn: int
    packages: int
    owner: str
    said_seconds: float
    priority: int


def comes(priorities: list[int]) -> st.SearchStrategy[list[Come]]:
    """Some jobs."""
    return st.lists(
        st.builds(
            Come,
            turn=st.integers(0, 20),
            packages=st.integers(1, 12),
            owner=st.sampled_from(["ada", "emmy", "lise"]),
            said_seconds=st.sampled_from([0.0, 1.0, 60.0, 1e6]),
            priority=st.sampled_from(priorities),
        ),
        min_size=2,
        max_size=6,
    )


def run(jobs: list[Come], *, slots: int, seconds: float, fairness: Order = "slowdown") -> Small:
    """All jobs to their end on one pilot, whose packages end one after the other."""
    small = Small(site(cores=slots), fairness=fairness, fairness_patience_seconds=PATIENCE_SECONDS)
    small.watched = False
    small.engine.state.forecasts = NoForecasts()  # what is forecast decides nothing
    small.submit(bag(1), job="first")
    pilot = small.pilot()
    turn = 0
    while pilot.held or turn <= max(each.turn for each in jobs):
        for number, each in enumerate(jobs):
            if each.turn == turn:
                made = bag(each.packages, kind(run_seconds=each.said_seconds), priority=each.priority)
                small.submit(made, job=f"job-{number}", owner=each.owner)
        turn += 1
        small.wait(seconds, pilot)
        if pilot.held:
            pilot.end(next(iter(pilot.held)))
        pilot.exchange()
    assert not any(state.unfinished for state in small.engine.state.jobs.by_id.values())
    small.take(SubmitPilot)
    pilot.unread.clear()
    return small


def starts(small: Small) -> list[tuple[float, AttemptRef]]:
    """What was started when."""
    return [
        (one.event.time, AttemptRef(one.event.job or "", one.event.package or "", one.event.attempt or 0))
        for one in small.book
        if isinstance(one.data, AttemptCreated)
    ]


@given(jobs=comes([0]), slots=st.integers(1, 3), seconds=st.sampled_from([5.0, 60.0]))
def test_nobody_starves(jobs: list[Come], slots: int, seconds: float) -> None:
    with run(jobs, slots=slots, seconds=seconds) as small:
        submitted = {one.event.job: one.event.time for one in small.book if one.event.type == "JobAccepted"}
        times: dict[str, list[float]] = {job: [time] for job, time in submitted.items() if job is not None}
        for time, ref in starts(small):
            times[ref.job].append(time)
        # Once until it is bound and once until it runs; every other job may have waited as long, and is served first once.
        longest = 2 * PATIENCE_SECONDS + (len(times) + 2 * slots + 3) * seconds
        for job, its_own in times.items():
            assert all(later - earlier <= longest for earlier, later in pairwise(its_own)), (job, its_own)


@given(jobs=comes([0, 0, 1]), slots=st.integers(1, 3), seconds=st.sampled_from([5.0, 60.0]))
def test_the_same_history_gives_the_same_order(jobs: list[Come], slots: int, seconds: float) -> None:
    with run(jobs, slots=slots, seconds=seconds) as one, run(jobs, slots=slots, seconds=seconds) as other:
        assert starts(one) == starts(other)


@given(jobs=comes([0, 1]), seconds=st.sampled_from([5.0, 60.0]))
def test_nothing_of_lower_priority_starts_while_something_of_higher_waits(jobs: list[Come], seconds: float) -> None:
    with run(jobs, slots=1, seconds=seconds) as small:
        waiting = {0: 0, 1: 0}
        priorities = {f"job-{number}": each for number, each in enumerate(jobs)} | {"first": Come(0, 1, "ada", 0.0, 0)}
        for one in small.book:
            job = one.event.job or ""
            if one.event.type == "JobAccepted":
                waiting[priorities[job].priority] += priorities[job].packages
            elif isinstance(one.data, AttemptCreated):
                about = priorities[job].priority
                assert about or not waiting[1], one.event
                waiting[about] -= 1
