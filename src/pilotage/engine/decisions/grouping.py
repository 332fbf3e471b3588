"""Grouping: how many short packages of a class share a batch job at a site, and when a group is dissolved."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.forecasts import usual_room
from pilotage.engine.healing.grain import Grain, group_size, too_fine
from pilotage.engine.healing.job_health import ActivityHealth
from pilotage.engine.placement import is_bound
from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.model.events.healing_payloads import ActivityGrouped

_COUNTED_SECONDS = 5.0  # the slots for an activity are counted again after this time
_CHANGED = 1.5  # a size is recorded again if it has grown or shrunk by this factor
_SITES_MAX = 64  # whose slots are counted
_UNFINISHED = (PackageStatus.READY, PackageStatus.RESERVED, PackageStatus.LIVE, PackageStatus.DELAYED)


def usual_run_seconds(state: EngineState, attempt: AttemptState) -> float:
    """The median time of the packages of an attempt's activity; 0 if too few have finished."""
    health = state.healing.known(attempt.ref.job)
    if health is None:
        return 0.0
    activity = health.of_kind(health.job.kinds[attempt.number])
    return activity.times.total if activity.times.count >= state.healing.settings.finished_min else 0.0


def may_share(work: ActivePackage | None) -> bool:
    """Whether a package may share a batch job; after a failure it gets one of its own."""
    return work is None or not (work.failures or work.heals or work.early)


def packages_each(state: EngineState, queue: QueueClass, site: SiteState, number: int) -> int:
    """How many packages of a class, the next of which is `number`, share a batch job at a site; records a new size."""
    job, most, profile = queue.job, state.settings.group_packages_max, site.profile
    health = state.healing.known(job.id) if state.healing.enabled and most > 1 else None
    queue_seconds = profile.median_wait_seconds
    if health is None or queue_seconds is None or not profile.proved or profile.canary:
        return 1
    template = template_of(job, number)
    if template.side_effects or queue.demand.nodes > 1 or not may_share(job.work.get(number)):
        return 1
    activity = health.of_kind(queue.kind)
    if activity.times.count < state.healing.settings.finished_min:
        return 1
    run_seconds = activity.times.total
    unfinished = sum(job.counts[status] for status in _UNFINISHED)
    slots, slots_now = _slots(state, activity, queue, packages=unfinished)
    size = group_size(
        Grain(run_seconds, queue_seconds, unfinished, slots, slots_now),
        most=most,
        wall_seconds=queue.demand.wall_seconds,
        longest_seconds=site.site.wall_seconds,
    )
    _record(state, job, activity, size, run_seconds=run_seconds, queue_seconds=queue_seconds)
    return min(size, queue.ready)


def _slots(state: EngineState, activity: ActivityHealth, queue: QueueClass, *, packages: int) -> tuple[float, float]:
    """The slots for a class at all sites: as the mean over some packages, and at present."""
    now = state.clock.now
    if not activity.slots_at <= now < activity.slots_at + _COUNTED_SECONDS:
        expected = present = 0.0
        for site in state.placement.possible_sites(queue)[:_SITES_MAX]:
            if site.asleep or not site.known:
                continue
            if not is_bound(site, queue):
                expected += site.slots.get(queue.shape, 0)
                present += site.slots.get(queue.shape, 0)
                continue
            expected += usual_room(site, queue.shape, packages=max(1, packages))
            present += max(1, site.profile.room(queue.shape).limit)
        activity.slots, activity.slots_at = (expected, present), now
    return activity.slots


def _record(
    state: EngineState, job: JobState, activity: ActivityHealth, size: int, *, run_seconds: float, queue_seconds: float
) -> None:
    """Record the size of groups of an activity if it has changed much."""
    before = activity.grouped
    if size == before or (min(size, before) > 1 and max(size, before) < _CHANGED * min(size, before)):
        return
    degree = too_fine(run_seconds, queue_seconds)
    message = (
        f"a package takes {run_seconds:.3g} s, and a batch job waits for {queue_seconds:.3g} s: degree {degree:.2f}"
    )
    grouped = ActivityGrouped(activity=activity.name, operation=state.log.next_number, packages=size, message=message)
    state.log.write(grouped, job=job, epoch=job.epoch)
