"""Grouping: how many short packages of a class share a batch job at a site, and when a group is dissolved."""

from __future__ import annotations

import math
from typing import NamedTuple

from pilotage.engine.decisions.lost_pilots import take_back
from pilotage.engine.decisions.treatments import Action, Done
from pilotage.engine.engine_state import EngineState
from pilotage.engine.healing.grain import COARSE_DEGREE, Grain, group_size, moved, too_coarse, too_fine
from pilotage.engine.healing.job_health import ActivityHealth, JobHealth
from pilotage.engine.placement import is_bound
from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, BatchGroup, SiteState
from pilotage.model.events.healing_payloads import ActivityGrouped, IncidentKind, Treated

_COUNTED_SECONDS = 5.0  # the slots for an activity are counted again after this time
_CHANGED = 1.5  # a size is recorded again if it has grown or shrunk by this factor
_SITES_MAX = 64  # whose slots and queues are counted
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
        Grain(run_seconds, queue_seconds, unfinished, slots, slots_now, activity.running_most),
        most=most,
        wall_seconds=queue.demand.wall_seconds,
        longest_seconds=site.site.wall_seconds,
    )
    _record(state, job, activity, size, run_seconds=run_seconds, queue_seconds=queue_seconds)
    return min(size, queue.ready)


def _slots(state: EngineState, activity: ActivityHealth, queue: QueueClass, *, packages: int) -> tuple[float, float]:
    """The slots for a class at all sites: after the success of some packages, and at present."""
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
            expected += max(1, site.profile.room_after(queue.shape, successes=packages).limit)
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


# --- incidents and their treatment ----------------------------------------------------------------------------------


class _Elsewhere(NamedTuple):
    """Idle slots for packages of an activity, and how long a batch job waits there."""

    slots: int
    queue_seconds: float


class _Coarse(NamedTuple):
    """A group whose packages wait for their turn while slots are idle."""

    group: BatchGroup
    waiting: int
    degree: float


def grain_degrees(state: EngineState, health: JobHealth) -> list[tuple[IncidentKind, ActivityHealth, float]]:
    """How much too fine, or too coarse, the grain of each activity of a job is at sites with batch jobs for packages."""
    found: list[tuple[IncidentKind, ActivityHealth, float]] = []
    for activity in health.trusted(state.healing.settings.finished_min):
        queues = _classes_of(health.job, activity)
        sites = [site for queue in queues[:1] for site in _bound_sites(state, queue)]
        waits = [wait for site in sites if (wait := site.profile.median_wait_seconds) is not None]
        if not waits:
            continue
        if (fine := too_fine(activity.times.total * activity.grouped, max(waits))) > 0.0:
            found.append(("too-fine", activity, fine))
        if coarse := _coarse_groups(health.job, activity, _idle(state, queues)):
            found.append(("too-coarse", activity, max(each.degree for each in coarse)))
    return found


def ungroup(state: EngineState, health: JobHealth, activity: ActivityHealth) -> Done:
    """Let packages leave the groups in which they wait for longest, for the slots that are idle elsewhere."""
    elsewhere = _idle(state, _classes_of(health.job, activity))
    coarse = _coarse_groups(health.job, activity, elsewhere)
    coarse = [each for each in coarse if each.degree >= COARSE_DEGREE][: max(0, elsewhere.slots)]
    actions = []
    for each in coarse:
        going = moved(
            each.waiting,
            run_seconds=activity.times.total,
            queue_seconds=elsewhere.queue_seconds,
            slots=elsewhere.slots // len(coarse),
        )
        if going:
            actions.append(_ungroup(each, going))
    return Done(actions=tuple(actions))


def _ungroup(coarse: _Coarse, going: int) -> Action:
    group = coarse.group

    def carry_out(state: EngineState, decision: int) -> None:
        count = min(going, len(group.waiting))
        take_back(state, group, message="slots elsewhere are idle", count=count, decision=decision)

    site = next(iter(group.members)).site.name
    message = f"{going} of the {coarse.waiting} packages that wait in the batch job {group.key} leave it"
    return Action(treated=Treated(treatment="ungroup", site=site, message=message), carry_out=carry_out)


def _classes_of(job: JobState, activity: ActivityHealth) -> list[QueueClass]:
    return [each for each in job.classes.values() if job.plan.templates[each.kind].activity == activity.name]


def _bound_sites(state: EngineState, queue: QueueClass) -> list[SiteState]:
    sites = state.placement.possible_sites(queue)[:_SITES_MAX]
    return [each for each in sites if is_bound(each, queue) and each.known and not each.asleep]


def _idle(state: EngineState, queues: list[QueueClass]) -> _Elsewhere:
    """The slots that are idle; none while packages wait for a site, or while a batch job waits for longer than usual."""
    slots, queue_seconds = 0, math.inf
    if not queues or any(each.ready for each in queues):
        return _Elsewhere(0, 0.0)
    for site in _bound_sites(state, queues[0]):
        usual = site.profile.median_wait_seconds or 0.0
        queued_at = min((each.created_at for each in site.bound.values() if _is_queued(each)), default=math.inf)
        if site.profile.canary or state.clock.wall_time - queued_at > usual:
            continue
        shape = queues[0].shape
        if (free := site.profile.room(shape).limit - site.used.get(shape, 0)) > 0:
            slots, queue_seconds = slots + free, min(queue_seconds, usual)
    return _Elsewhere(slots, queue_seconds if slots else 0.0)


def _is_queued(attempt: AttemptState) -> bool:
    """Whether the batch job of an attempt has not begun."""
    group = attempt.site.groups.get(attempt.group)
    return not attempt.leased and (group is None or group.began_at == math.inf)


def _coarse_groups(job: JobState, activity: ActivityHealth, elsewhere: _Elsewhere) -> list[_Coarse]:
    """The groups of an activity that have begun and whose packages wait while slots are idle; the largest first."""
    if not elsewhere.slots:
        return []
    groups = {attempt.group: attempt.site for work in job.work.values() for attempt in work.attempts.values()}
    found = []
    for key, site in groups.items():
        group = site.groups.get(key)
        waiting = group.waiting if group is not None else []
        if group is None or not waiting or group.began_at == math.inf:
            continue
        if job.plan.templates[job.kinds[waiting[0].number]].activity != activity.name:
            continue
        degree = too_coarse(len(waiting) * activity.times.total, elsewhere.queue_seconds)
        if degree > 0.0:
            found.append(_Coarse(group, len(waiting), degree))
    found.sort(key=lambda each: (-each.waiting, each.group.key))
    return found
