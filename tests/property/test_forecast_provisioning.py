"""What holds of every plan for pilots: it keeps its promise, never wants more than is allowed, and stays as it is in a still world."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.book.codec import Checked
from pilotage.engine.decisions.forecast_provisioning import YOUNG_SECONDS
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import Need, finish_seconds, provision
from pilotage.model.events import payloads
from pilotage.model.resources import Capacity
from pilotage.model.site import Site
from tests.kit.small_plans import bag, kind
from tests.unit.engine.test_engine_forecast_provisioning import small_with, withdrawn

SLACK = 0.05  # times are exact to a part in a hundred, and pilots that have waited alike are counted together
LATENCIES = st.lists(st.one_of(st.floats(1.0, 5000.0), st.just(math.inf)), min_size=5, max_size=40).filter(
    lambda drawn: any(np.isfinite(drawn))
)
NEEDS = st.builds(
    Need,
    work_seconds=st.floats(1.0, 1e6),
    package_seconds=st.floats(1.0, 5000.0),
    running=st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.0, 1e5) | st.just(math.inf)), max_size=3).map(tuple),
    queued_seconds=st.lists(st.floats(0.0, 5000.0), max_size=8).map(tuple),
    queued_max=st.integers(1, 100),
    lifetime_seconds=st.floats(100.0, 1e5) | st.just(math.inf),
    start_cost_seconds=st.sampled_from([0.0, 0.0, 300.0]),
)


@given(LATENCIES.map(empirical_latency), NEEDS, st.sampled_from([0.0, 0.1, 0.5]))
@settings(deadline=None)
def test_a_plan_keeps_its_promise_within_the_limits(latency: LatencyDistribution, need: Need, within: float) -> None:
    found = provision(latency, need, within=within)
    if found is None:
        return
    queued = len(need.queued_seconds)
    assert 0 <= found.queued <= found.kept <= found.best_queued <= max(queued, need.queued_max)
    promise = (1.0 + within) * found.best_seconds
    assert finish_seconds(latency, need, queued=found.queued) <= promise * (1.0 + SLACK)
    if found.queued:
        assert finish_seconds(latency, need, queued=found.queued - 1) >= promise * (1.0 - SLACK)


@given(LATENCIES.map(empirical_latency), NEEDS)
@settings(deadline=None)
def test_more_work_takes_longer_and_more_pilots_finish_sooner(latency: LatencyDistribution, need: Need) -> None:
    more = Need(**{**vars(need), "work_seconds": 2 * need.work_seconds})
    queued = len(need.queued_seconds)
    fewer, as_it_is = (finish_seconds(latency, need, queued=number) for number in (queued, queued + 5))
    assert as_it_is <= fewer * (1.0 + SLACK)
    assert as_it_is <= finish_seconds(latency, more, queued=queued + 5) * (1.0 + SLACK)


@given(
    st.floats(60.0, 1500.0),
    st.integers(1, 200),
    st.sampled_from([10.0, 60.0, 900.0]),
    st.integers(2, 30),
    st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(deadline=None, max_examples=30)
def test_in_a_still_world_no_pilot_is_withdrawn_that_is_not_overdue_and_none_soon_after_its_request(
    latency_seconds: float, packages: int, run_seconds: float, most: int, within: float
) -> None:
    there = Site(name="lyon", kind="slurm", capacity=Capacity(cores_hundredths=100), pilots_max=most)
    small = small_with(there, latency_seconds=latency_seconds, provisioning_within=within, submit_again_seconds=1e6)
    small.watched = False
    small.submit(bag(packages, kind(run_seconds=run_seconds)))
    asked = requested(small.book)
    assert 1 <= len(asked) <= min(most, packages)
    small.wait(0.95 * latency_seconds)
    assert not withdrawn(small)
    small.wait(latency_seconds)
    asked = requested(small.book)
    ended = {one.event.pilot: one.event.time for one in small.book if getattr(one.data, "reason", "") == "withdrawn"}
    assert all(at >= asked[pilot] + YOUNG_SECONDS for pilot, at in ended.items())
    assert len(asked) - len(ended) <= most


def requested(book: Iterable[Checked]) -> dict[str | None, float]:
    """When each pilot was requested."""
    asked = [one.event for one in book if isinstance(one.data, payloads.PilotRequested)]
    return {event.pilot: event.time for event in reversed(asked)}
