"""Analysis: the incidents of a job at this moment, each with its degree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from pilotage.engine.healing.degrees import failing, unavailable, unfairness
from pilotage.engine.healing.job_health import ActivityHealth, JobHealth, is_running, store_of
from pilotage.engine.healing.replication import Copy, LatePackage, degree_of
from pilotage.engine.state.caches import SiteCache
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import AttemptState

_FAULTS_MAX = 200  # failed files of a site that are looked at
_ENDS_MIN = 5.0  # attempts of an activity that must have ended before their failures say anything


def copy_of(attempt: AttemptState, now: float) -> Copy:
    """A live attempt as the policies see it, at a wall-clock time."""
    if not attempt.leased:
        return Copy(attempt.ref.attempt, attempt.site.name, started=False)
    if attempt.phase < 0:
        return Copy(attempt.ref.attempt, attempt.site.name, True, elapsed=max(0.0, now - attempt.began_at))
    before, elapsed = attempt.phase_at - attempt.began_at, max(0.0, now - attempt.phase_at)
    return Copy(attempt.ref.attempt, attempt.site.name, True, attempt.phase, max(0.0, before), elapsed)


def package_of(job: JobState, number: int, now: float) -> LatePackage:
    """A package with its live attempts; one whose agent is silent is no reason to give up another."""
    work = job.work[number]
    copies = tuple(copy_of(each, now) for each in work.attempts.values() if not (each.lost or each.suspect))
    return LatePackage(number, copies, replica_queued=work.replicas > work.replicated)


def late_packages(health: JobHealth, activity: ActivityHealth, now: float) -> list[LatePackage]:
    """The packages of an activity of which an attempt is to be looked at."""
    numbers = dict.fromkeys(attempt.number for attempt in activity.late)
    return [package_of(health.job, number, now) for number in numbers if number in health.job.work]


def not_blocked(health: JobHealth, activity: ActivityHealth, now: float) -> float:
    """The degree of an activity without a late package: of the attempt that has run longest."""
    oldest = activity.oldest()
    if oldest is None or not is_running(oldest) or oldest.number not in health.job.work:
        return 0.0
    return degree_of(activity.times, package_of(health.job, oldest.number, now))


def low_efficiency(activity: ActivityHealth) -> float:
    """How little of the time of an activity its applications run."""
    return 1.0 - activity.times.efficiency


def failing_activity(activity: ActivityHealth) -> float:
    """How many of its attempts fail for good."""
    if activity.ends < _ENDS_MIN:
        return 0.0
    return failing(uncured=round(activity.failures), ends=round(activity.ends))


def unavailable_inputs(job: JobState, caches: Mapping[str, SiteCache]) -> dict[str, float]:
    """Stores of which files that packages of a job wait for could not be brought, and how bad that is."""
    failures: dict[str, int] = {}
    for cache in caches.values():
        for locator, fault in islice(cache.faults.items(), _FAULTS_MAX):
            if any(work.job is job for work in islice(cache.waiting.get(locator, ()), _FAULTS_MAX)):
                store = store_of(locator)
                failures[store] = failures.get(store, 0) + fault.failures
    return {store: unavailable(count) for store, count in sorted(failures.items())}


def unavailable_outputs(health: JobHealth) -> dict[str, float]:
    """Stores to which outputs of a job could not be copied."""
    return {store: unavailable(count) for store, count in sorted(health.failed_copies.items())}


def unfair_sharing(slowdowns: Iterable[float]) -> float:
    """How unequally the jobs that wait are slowed down."""
    return unfairness(list(slowdowns))
