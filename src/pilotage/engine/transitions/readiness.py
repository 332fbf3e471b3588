"""The status of each package: what it waits for, and the queues it goes through.

Every fold changes facts and then calls `reconsider`, the one place that derives the status from them.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import could_take, is_bound
from pilotage.engine.retry.policy import lacked_input
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import ends, is_under_way, may_act
from pilotage.engine.state.jobs import (
    FINAL,
    ActivePackage,
    JobState,
    LateStageState,
    PackageStatus,
    QueueClass,
    template_of,
)
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.early_start import early_site
from pilotage.engine.transitions.file_needs import check_disposal, close_needs, count_need, need_files, stop_waiting
from pilotage.engine.transitions.forecast_timers import may_be_over
from pilotage.engine.transitions.queue_classes import class_for, plain_queue_of, queue_of
from pilotage.model.jobs.plan import LatePlan

if TYPE_CHECKING:
    from pilotage.engine.selection.candidates import SelectionSnapshot

_STALE_MAX = 64  # invalid entries that a queue may have without being cleaned
# Module-level names: attributes of a class are slow to look up, and the engine spends most of its time here.
_BLOCKED, _READY, _RESERVED, _LIVE, _DROPPED, _DONE = (
    PackageStatus.BLOCKED,
    PackageStatus.READY,
    PackageStatus.RESERVED,
    PackageStatus.LIVE,
    PackageStatus.DROPPED,
    PackageStatus.DONE,
)
_BUSY = (_RESERVED, _LIVE)


def reconsider(state: EngineState, job: JobState, number: int) -> None:
    """Set the status of a package that follows from its facts."""
    if job.status[number] >= FINAL:
        return
    if job.starts_early:
        _look_for_early_start(state, job, number)
    before = job.status[number]
    work = job.work.get(number)
    after = _computed_status(job, number, work)
    if after != before:
        move(state, job, number, after)
    elif work is not None:
        count_busy(state, job, number)


def _look_for_early_start(state: EngineState, job: JobState, number: int) -> None:
    """Note where a package may start early, or that it may not any more; it leaves its queue if that changes."""
    site, work = early_site(state, job, number), job.work.get(number)
    if site is (work.early if work is not None else None):
        return
    if job.status[number] in (_READY, _RESERVED):
        move(state, job, number, _BLOCKED)
    job.work_of(number).early = site
    if site is None:
        job.forget_idle(number)


def _unblock(state: EngineState, job: JobState, number: int) -> None:
    """A package without attempts has all its inputs: as `reconsider`, with a shortcut for the usual case."""
    if job.status[number] != _BLOCKED or job.finals or job.failed_producers or job.acting or job.busy[number]:
        reconsider(state, job, number)
        return
    job.status[number] = _READY
    job.counts[_BLOCKED] -= 1
    job.counts[_READY] += 1
    queue = job.template_classes[job.last_attempt[number] > 0][job.kinds[number]]
    _put_into(state, queue if queue is not None else plain_queue_of(state, job, number), number)


def _computed_status(job: JobState, number: int, work: ActivePackage | None) -> int:
    if work is None:
        return _BLOCKED if job.waits[number] or number in job.acting else _READY
    if work.dropped:
        return PackageStatus.DROPPED
    if is_under_way(work):
        return PackageStatus.HELD if work.refused else _LIVE
    if work.held:
        return PackageStatus.HELD
    if (job.waits[number] and work.early is None) or ((job.acting or work.attempts) and may_act(job, work)):
        return _BLOCKED
    if work.delayed_until:
        return PackageStatus.DELAYED
    return _RESERVED if work.bound is not None else _READY


def move(state: EngineState, job: JobState, number: int, after: int) -> None:
    """Change the status of a package, and its queues and counters."""
    status, counts = job.status, job.counts
    before = status[number]
    if before == _READY:
        _dequeue(state, queue_of(state, job, number), number)
    elif before == _RESERVED and job.work[number].bound is not None:
        release(state, job, number)
    status[number] = after
    counts[before] -= 1
    counts[after] += 1
    if job.finals and template_of(job, number).final:
        job.count_final(before, after)
    if after >= _DROPPED and not counts[_LIVE]:
        may_be_over(state, job)
    if after > FINAL or job.failed_producers:
        _note_feeder(state, job, number, after)
    if job.files is not None and (before < _DROPPED) != (after < _DROPPED):
        count_need(state, job, number, is_open=after < _DROPPED)
    if after in _BUSY:  # these need an active record
        if not job.busy[number]:
            count_busy(state, job, number)
    else:
        _leave_active(state, job, number, after)


def _leave_active(state: EngineState, job: JobState, number: int, after: int) -> None:
    """A package is neither reserved nor live: put it into its queue if it is ready, and forget what is not needed."""
    known = number in job.work
    if known or job.busy[number]:
        count_busy(state, job, number)
    if after == _READY:
        work = job.work.get(number)
        queue = None
        if work is not None:
            queue = work.queue = class_for(state, job, work)
        _put_into(state, queue if queue is not None else plain_queue_of(state, job, number), number)
    if known:
        job.forget_idle(number)


def _note_feeder(state: EngineState, job: JobState, number: int, after: int) -> None:
    """A producer of a late stage may have failed, or be back; without any left, check the end of its job."""
    if after < FINAL:
        job.failed_producers.discard(number)
    elif after > FINAL and job.feeds_late[number] and not job.satisfied[number]:
        job.failed_producers.add(number)
        state.pending.to_expand[job] = None
    elif job.failed_producers and not job.unfinished:
        state.pending.to_expand[job] = None


def _dequeue(state: EngineState, queue: QueueClass, number: int) -> None:
    """A package is no longer ready; its number stays in the queue until it is met."""
    queue.ready -= 1
    if queue.job.ready_since:
        queue.job.ready_since.pop(number, None)
    if not queue.ready:
        state.queues.ready.pop(queue, None)
        state.queues.waiting.pop(queue, None)
        queue.queue.clear()  # all its entries are invalid


def count_busy(state: EngineState, job: JobState, number: int) -> None:
    """Count a package against the limits of its category and owner: reserved, active, or silent but not yet lost.

    One that succeeded and awaits its grant, since its outputs are being copied, uses nothing that is limited.
    """
    status = job.status[number]
    busy = status in _BUSY
    work = job.work.get(number) if status != _RESERVED and status < FINAL else None
    if work is not None and (work.attempts or work.candidates):
        busy = any(not attempt.lost for attempt in work.attempts.values())
    if busy != job.busy[number]:
        _set_busy(state, job, number, busy)


def may_start(state: EngineState, queue: QueueClass) -> bool:
    """Whether the job, its category and its owner may have one more active package."""
    job = queue.job
    if not job.open:
        return False
    limit = job.plan.limits.get(queue.category)
    if limit is not None and job.running_in.get(queue.category, 0) >= limit:
        return False
    quota = state.settings.owner_running_max
    return not quota or state.jobs.busy_by_owner.get(job.owner, 0) < quota


def _set_busy(state: EngineState, job: JobState, number: int, busy: int) -> None:
    job.busy[number] = busy
    owner, owners = job.owner, state.jobs.busy_by_owner
    if busy:
        owners[owner] = owners.get(owner, 0) + 1
    else:
        owners[owner] -= 1
        state.queues.may_bind = True
    if job.plan.limits and (category := template_of(job, number).category) in job.plan.limits:
        job.running_in[category] = job.running_in.get(category, 0) + (1 if busy else -1)


def _put_into(state: EngineState, queue: QueueClass, number: int) -> None:
    numbers = queue.queue
    numbers.push(number, state.clock.now)
    if state.settings.waiting_seconds_max:
        queue.job.ready_since[number] = state.clock.now
    ready = queue.ready = queue.ready + 1
    if numbers.size > 2 * ready + _STALE_MAX:
        _keep_ready(state, queue)
    if not state.queues.may_bind or queue not in state.queues.ready:
        look_at(state, queue)


def _keep_ready(state: EngineState, queue: QueueClass) -> None:
    """Remove invalid entries from the queue of a class."""
    job, status = queue.job, queue.job.status
    queue.queue.keep(lambda other: status[other] == PackageStatus.READY and queue_of(state, job, other) is queue)


def look_at(state: EngineState, queue: QueueClass) -> None:
    """Try to place a class with ready packages, unless its job is closed or it waits for room."""
    if queue.ready and queue.job.open and queue not in state.queues.waiting:
        state.queues.ready[queue] = None
        state.queues.may_bind = True


def reopen(state: EngineState, job: JobState) -> None:
    """A job was opened or closed: place its classes, or stop doing so."""
    for queue in job.classes.values():
        if job.open:
            look_at(state, queue)
        else:
            state.queues.ready.pop(queue, None)
            state.queues.waiting.pop(queue, None)


def release(state: EngineState, job: JobState, number: int) -> None:
    """Release a reservation."""
    state.placement.free(*unreserve(state, job.work[number]))


def unreserve(state: EngineState, work: ActivePackage) -> tuple[SiteState, int]:
    """End a reservation; returns the site and the shape whose room is still taken."""
    site, queue, number = work.bound, work.bound_as, work.number
    assert site is not None
    assert queue is not None
    reserved = state.queues.at[site].reserved
    numbers = reserved[queue]
    if numbers[0] == number:
        numbers.popleft()
    else:
        numbers.remove(number)
    if not numbers:
        del reserved[queue]
    if queue.job.files is not None:
        stop_waiting(state, work, site)
    work.bound = work.bound_as = None
    queue.reservations.count -= 1
    queue.shared_reservations.count -= 1
    return site, queue.shape


def reserve(
    state: EngineState, queue: QueueClass, number: int, site: SiteState, choice: SelectionSnapshot | None
) -> None:
    """Bind a ready package of a class to a site; `choice` is the snapshot of the sites."""
    job = queue.job
    work = job.work.get(number)
    if work is None:
        work = job.work[number] = ActivePackage(job, number, site, queue, state.clock.now, choice)
    else:
        work.bound = site
        work.bound_as = queue
        work.bound_at = state.clock.now
        work.choice = choice
    state.selection.sites.use(site.profile, queue.shape)
    queue.reservations.count += 1
    queue.shared_reservations.count += 1
    reserved = state.queues.at[site].reserved
    numbers = reserved.get(queue)
    if numbers is None:
        numbers = reserved[queue] = deque()
    numbers.append(number)
    if job.files is not None:
        need_files(state, work, site, numbers)
    if job.ready_since or queue.ready == 1:
        _dequeue(state, queue, number)
    else:
        queue.ready -= 1
    job.status[number] = _RESERVED
    counts = job.counts
    counts[_READY] -= 1
    counts[_RESERVED] += 1
    if not job.busy[number]:
        _set_busy(state, job, number, 1)


def begin(state: EngineState, job: JobState, number: int, work: ActivePackage) -> None:
    """A reserved package has an attempt: as `reconsider`, with a shortcut for the usual case."""
    unclear = work.dropped or work.refused or work.replicas or job.finals or job.failed_producers
    if unclear or job.status[number] != _RESERVED:
        reconsider(state, job, number)
        return
    job.status[number] = _LIVE
    job.counts[_RESERVED] -= 1
    job.counts[_LIVE] += 1


def finish(state: EngineState, job: JobState, number: int) -> None:
    """Set a package to done."""
    if job.status[number] != _LIVE or job.finals or job.failed_producers:
        move(state, job, number, _DONE)
        return
    job.status[number] = _DONE
    job.counts[_LIVE] -= 1
    job.counts[_DONE] += 1
    if job.files is not None:
        close_needs(state, job, number)
    if not job.counts[_LIVE]:
        may_be_over(state, job)
    if job.busy[number]:
        _set_busy(state, job, number, 0)


# --- dependencies ---------------------------------------------------------------------------------------------------


def satisfy(state: EngineState, job: JobState, number: int) -> None:
    """A package was granted or dropped: its consumers no longer wait for it."""
    if job.satisfied[number]:
        return
    job.satisfied[number] = 1
    if job.disposed:
        check_disposal(state, job, number)
    if job.failed_producers:
        job.failed_producers.discard(number)
    waits = job.waits
    for other in job.awaiting(number):
        left = waits[other] = waits[other] - 1
        if left and job.starts_early:
            reconsider(state, job, other)  # what is left of its producers may be running
        elif not left:
            work = job.work.get(other)
            if work is None:
                _unblock(state, job, other)
                continue
            if work.delayed_until and lacked_input(work.failures):
                work.delayed_until = 0.0  # its missing input was made again
            reconsider(state, job, other)
    if job.feeds_late[number]:
        _count_late(state, job, number, -1)


def unsatisfy(state: EngineState, job: JobState, number: int) -> None:
    """Consumers wait for a package again: it was restored or restarted."""
    if not job.satisfied[number]:
        return
    job.satisfied[number] = 0
    waits = job.waits
    for other in job.awaiting(number):
        waits[other] += 1
        if waits[other] == 1 or job.starts_early:
            reconsider(state, job, other)
    if job.feeds_late[number]:
        _count_late(state, job, number, 1)


def _count_late(state: EngineState, job: JobState, number: int, sign: int) -> None:
    for late in job.late.values():
        if late.holds(number):
            late.pending += sign
            late.revision += 1
            late.asked_at = None
            if not late.pending:
                state.pending.to_expand[job] = None


def lay_out(state: EngineState, job: JobState) -> None:
    """Count what every package waits for, after a job or late stage became known, and queue the ready ones."""
    plan = job.plan
    satisfied = np.frombuffer(bytes(job.satisfied), np.uint8)
    waits = np.zeros(plan.count, np.int32)
    for segment in plan.graph.segments:
        rows = segment.predecessors
        waiting = satisfied[rows.others] == 0
        counted = np.concatenate(([0], np.cumsum(waiting)))
        waits[rows.first : rows.first + len(rows.indptr) - 1] += np.diff(counted[rows.indptr]).astype(np.int32)
    for template, stages in plan.late_waits.items():
        waits[plan.template_of == template] += len(stages)
    job.given_up = {}
    before, job.late = job.late, {each.stage: _late(job, each) for each in plan.late}
    job.ending = ends(job)
    if job.finals and not job.ending:
        waits[list(job.finals)] += 1
    job.waits = array("i", waits.tobytes())
    for each in job.late.values():
        if (known := before.get(each.stage)) is not None:
            each.revision, each.asked_at = known.revision, known.asked_at
    status = np.frombuffer(bytes(job.status), np.uint8)
    ready = np.flatnonzero((waits == 0) & (status == PackageStatus.BLOCKED))
    if job.acting:  # an abandoned attempt that may act blocks its package
        ready = ready[~np.isin(ready, np.fromiter(job.acting, np.int64, len(job.acting)))]
    _queue_all(state, job, ready)
    for number in (*job.work, *job.finals):
        reconsider(state, job, number)
        if job.starts_early:
            reconsider_early(state, job, number)
    state.pending.to_expand[job] = None


def reconsider_early(state: EngineState, job: JobState, number: int) -> None:
    """Something happened to a package: others may start early beside it, or no longer, or what they read is lost."""
    for other in job.early_consumers(number):
        work = job.work.get(other)
        if work is not None and work.ties:
            state.pending.to_untie[job, other] = None
        if job.status[other] != _LIVE:
            reconsider(state, job, other)


def _late(job: JobState, about: LatePlan) -> LateStageState:
    late = LateStageState(about.stage, members=np.unique(np.array(about.packages, np.int32)), stages=about.stages)
    for number in about.packages:
        job.feeds_late[number] = 1
        late.pending += not job.satisfied[number]
    return late


def _queue_all(state: EngineState, job: JobState, numbers: NDArray[np.int64]) -> None:
    """Queue many ready packages at once; the caller handles those with a history one by one."""
    plain = numbers if not job.work else numbers[~np.isin(numbers, np.fromiter(job.work, np.int64, len(job.work)))]
    if not len(plain):
        return
    tried = np.frombuffer(job.last_attempt, np.int32)[plain] > 0
    kinds = job.plan.template_of[plain].astype(np.int64) * 2 + tried
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():  # np.unique imports numpy.ma
        chosen = plain[kinds == kind]
        queue = queue_of(state, job, int(chosen[0]))
        queue.queue.extend(chosen.astype(np.int32).tolist(), state.clock.now)
        queue.ready += len(chosen)
        look_at(state, queue)
    view = np.frombuffer(job.status, np.uint8)
    view[plain] = PackageStatus.READY
    del view
    job.counts[PackageStatus.BLOCKED] -= len(plain)
    job.counts[PackageStatus.READY] += len(plain)


# Releases reservations that no pilot could run for long, and those at unreachable sites.


def release_unfit(state: EngineState, site: SiteState) -> None:
    """Release reservations that no pilot of the site could run for long; no new ones until another pilot starts."""
    again = math.inf
    for queue, numbers in list(state.queues.at[site].reserved.items()):
        if could_take(site, queue, state.clock.now):
            continue
        oldest = queue.job.work[numbers[0]].bound_at
        if state.clock.now < oldest + state.settings.unfit_seconds:
            again = min(again, oldest + state.settings.unfit_seconds)
            continue
        bound = is_bound(site, queue)
        if not bound:
            state.placement.close(site, queue)
        for number in list(numbers):
            if not (bound and queue.job.work[number].lacks):  # no pilot is needed: only its files are missing
                move(state, queue.job, number, PackageStatus.READY)
    if again < math.inf:
        # One call for all of them: each call would otherwise handle the others too.
        state.clock.timers.at(again, Due.UNFIT, site.name)


def release_estimated(state: EngineState, site: SiteState) -> None:
    """A site was added or changed: release packages reserved where no pilot lasts long enough, if this site does."""
    for job in state.jobs.by_id.values():
        for queue in list(job.classes.values()):  # a released package may be in another class since, and a new one
            if not state.placement.recall_estimate(queue, site):
                continue
            for other in state.sites.by_name.values():
                if queue in state.queues.at[other].reserved and not state.placement.able(other, queue):
                    for number in list(state.queues.at[other].reserved[queue]):
                        move(state, job, number, PackageStatus.READY)


def release_site(state: EngineState, site: SiteState) -> None:
    """Release all reservations at a site that is unreachable."""
    for queue, numbers in list(state.queues.at[site].reserved.items()):
        for number in list(numbers):
            move(state, queue.job, number, PackageStatus.READY)
