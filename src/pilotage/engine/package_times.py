"""When a package is expected to start and to end: computed when somebody asks, and kept nowhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import is_bound
from pilotage.engine.state.job_queries import is_over, status_of
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.model.resources import slots_for

PACKAGES_MAX = 100_000
"""Of a larger job, only running packages have expected times: all dependencies would have to be looked at."""
_LEFT_MIN = 0.05  # of its run time that a package is taken to need yet, however long it runs


class PackageTimes(NamedTuple):
    """Expected times since 1970; no start for a package that has started, none at all where too little is known."""

    start_at: float | None = None
    end_at: float | None = None


NOT_KNOWN = PackageTimes()


def expected_package_times(state: EngineState, job: JobState, number: int) -> PackageTimes:
    """When a package is expected to start and to end, in line with the forecast of its job."""
    status, now = status_of(job, number), state.clock.wall_time
    if status >= PackageStatus.DROPPED or not job.open or is_over(job):
        return NOT_KNOWN
    expected = job.run_times.expected(job.plan)
    own = expected[job.kinds[number]]
    elapsed = {
        at: (max(0.0, now - attempt.began_at), attempt.site.site.speed)
        for at, attempt in job.attempts()
        if attempt.leased and attempt.trusted and attempt.counted
    }
    if number in elapsed:
        if own.known == "unknown":
            return NOT_KNOWN
        return PackageTimes(end_at=now + _left(own.mean_seconds, *elapsed[number]))
    work = job.work.get(number)
    if job.count > PACKAGES_MAX or (work is not None and work.held):
        return NOT_KNOWN
    whole = state.forecasts.expectation(job)
    usual = job.run_times.typical_seconds or max((each.mean_seconds for each in expected), default=0.0)
    if whole is None or not usual:
        return NOT_KNOWN
    # Only whoever asks pays for this import.
    from pilotage.forecast.package_times import expected_times

    by_kind = np.array([usual if each.known == "unknown" else each.mean_seconds for each in expected])
    under_way = np.frombuffer(job.status, np.uint8) < PackageStatus.DROPPED
    left = np.where(under_way, by_kind[job.plan.template_of.astype(np.int64)], 0.0)
    running = np.zeros(job.count)
    for at, (seconds, speed) in elapsed.items():
        running[at], left[at] = 1.0, _left(float(left[at]), seconds, speed)
    found = expected_times(
        left_seconds=left,
        path_ends_seconds=job.plan.graph.path_ends_seconds(left),
        slots=max(1, len(elapsed), _slots(state, job, number)),
        first_slot_seconds=0.0,
        running=running,
    )
    # The forecast of the job knows more: other jobs, queued pilots and their latencies, speeds.
    last = float(found.ends_seconds.max())
    factor = whole.left.median_seconds / last if last > 0.0 else 1.0
    start = now + factor * float(found.starts_seconds[number])
    end = now + factor * float(found.ends_seconds[number])
    return PackageTimes(start_at=start, end_at=None if own.known == "unknown" else end)


def _left(run_seconds: float, elapsed_seconds: float, speed: float) -> float:
    """How long a running package takes yet; the run time is that on the standard platform."""
    whole = run_seconds / speed
    return max(whole - elapsed_seconds, _LEFT_MIN * whole)


def _slots(state: EngineState, job: JobState, number: int) -> int:
    """How many packages like this one live and queued pilots hold at once, or a bound site runs."""
    queue, found = queue_of(state, job, number), 0
    for site in state.sites.by_name.values():
        if site.removed or site.asleep or not state.placement.able(site, queue):
            continue
        if is_bound(site, queue):
            found += site.profile.room(queue.shape).limit
        else:
            found += site.slots[queue.shape] + site.expected * slots_for(queue.demand, site.site.capacity)
    return found
