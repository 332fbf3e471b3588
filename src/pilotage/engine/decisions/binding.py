"""Binding: reserves ready packages for sites with room; pilots then pull them (`pulling`).

The order is by rank: the job's priority, then the job with the largest expected slowdown (`fairness`); within a job the
package's priority, restarts, the longest first. A job of higher priority takes over reservations that no pilot has pulled.
A reservation is no attempt: it is released when its site cannot use it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pilotage.engine.decisions.attempts import create, remove_if_full, submit
from pilotage.engine.decisions.grouping import may_share, packages_each
from pilotage.engine.decisions.site_status import apply_site_changes
from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import could_take, is_bound, takes, unmet
from pilotage.engine.selection.candidates import CandidateSet, How, SelectionSnapshot
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.queues import any_below
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.queue_classes import queue_of, recent_snapshot
from pilotage.engine.transitions.readiness import may_start, move, reserve
from pilotage.engine.transitions.site_observations import watch_queue
from pilotage.model.events import payloads

# One round of binding among jobs: a class that finds no room leaves the round, with all classes that need the same.
#
# Thousands of jobs may wait for one free slot. Once it is taken, all of them leave the round at once.

Kind = tuple[int, str, float] | CandidateSet
"""Shape, owner and expected run time; for classes that cannot use every site, also their sites."""


class Round:
    """The classes of a round, by job. A class that could preempt a reservation stays even if all sites are full."""

    __slots__ = ("_alike", "_full", "_left", "_private", "_state", "waiting")

    def __init__(self, state: EngineState, queues: Sequence[QueueClass]) -> None:
        """Start with all of these classes."""
        self._state = state
        self.waiting: dict[JobState, list[QueueClass]] = {}
        self._left = dict.fromkeys(queues)
        self._full: set[Kind] = set()
        self._private = any(site.site.users for site in state.sites.by_name.values())
        self._alike: dict[Kind, list[QueueClass]] = {}
        waiting, alike = self.waiting, self._alike
        for queue in queues:
            waiting.setdefault(queue.job, []).append(queue)
            if (kind := self._kind(queue)) is not None:
                alike.setdefault(kind, []).append(queue)

    def _kind(self, queue: QueueClass) -> Kind | None:
        """What a class needs; None if no other class needs the same."""
        if queue.prefer or queue.avoid or queue.unfit:
            return None
        if queue.narrow:
            return self._state.placement.pool(queue)
        # If no site is reserved for some users, a site without room for this class has none for an equal one.
        return (queue.shape, queue.job.owner if self._private else "", queue.requirements.run_seconds)

    @property
    def has_classes(self) -> bool:
        """Whether any class is left."""
        return bool(self._left)

    def classes_of(self, job: JobState) -> list[QueueClass]:
        """The classes of a job that are left."""
        return [queue for queue in self.waiting[job] if queue in self._left]

    def remove(self, queue: QueueClass) -> None:
        """Remove a class: it gets nothing in this round."""
        self._left.pop(queue, None)

    def is_full(self, queue: QueueClass) -> bool:
        """Whether no site has room for what a class needs."""
        return self._kind(queue) in self._full

    def remove_full(self) -> None:
        """Remove the classes that have only full sites, before any turn is taken."""
        placement = self._state.placement
        for alike in [each for each in self._alike.values() if placement.is_full(each[0])]:
            self.fill(alike[0])

    def fill(self, queue: QueueClass) -> None:
        """Remove a class that no site has room for, and all classes that need the same."""
        kind, state, left = self._kind(queue), self._state, self._left
        if kind is None or kind in self._full:
            return
        self._full.add(kind)
        below: dict[int, bool] = {}  # by priority of the job, for one shape
        for each in self._alike.get(kind, ()):
            if each not in left:
                continue
            shape, level, job = each.shape, each.level, each.job
            if level[0] not in below:
                below[level[0]] = any_below(state.queues.reserved_counts, shape, level[0])
            if below[level[0]] or (len(job.reservations) > 1 and any_below(job.reservations, shape, level)):
                continue
            del left[each]
            if each.narrow and each.ready and job.open:
                state.placement.wait_for_room(each)


_READY = PackageStatus.READY  # an attribute of a class is slow to look up


def bind(state: EngineState) -> None:
    """Reserve ready packages for sites while there is room. Does nothing if nothing changed since the last time."""
    stirred, state.queues.may_bind = state.queues.may_bind, False
    if not stirred or not state.queues.ready:
        return
    queues = list(state.queues.ready)
    if len(queues) > 1:
        if state.fairness.by_slowdown:
            job = queues[0].job
            if any(queue.job is not job for queue in queues):
                _bind_fairly(state, queues)
                return
        queues = state.fairness.ordered(queues)
    placement = state.placement
    first = placement.first
    for queue in queues:
        limited = is_limited(state, queue)
        if not limited:
            _fill(state, queue)
        while queue.ready and (not limited or may_start(state, queue)):
            site = first(queue) or preempt_reservation(state, queue)
            if placement.woken:
                _carry_out_wakes(state)
            if site is None:
                if _no_site(state, queue):
                    continue
                break
            number = _take(state, queue)
            if number is None:
                break
            _bind(state, queue, number, site, bound=is_bound(site, queue))


def _fill(state: EngineState, queue: QueueClass) -> None:
    """If more packages are ready than all candidates have room for, fill each candidate; no choice is needed."""
    for site, free in state.placement.all_of(queue, queue.ready):
        bound = is_bound(site, queue)
        for _ in range(free):
            if bound and not site.profile.has_room(queue.shape):
                break  # packages submitted there have used up room
            number = _take(state, queue)
            if number is None:
                return
            _bind(state, queue, number, site, bound=bound, how="filled")


def _bind_fairly(state: EngineState, queues: list[QueueClass]) -> None:
    """Bind for several jobs: one package at a time for the job whose turn it is, since each binding delays its next turn."""
    fairness = state.fairness
    fairness.refresh()
    current = Round(state, queues)
    fairness.add_jobs(current.waiting)
    current.remove_full()
    if not current.has_classes:
        return
    turns = [(key, job) for job, key in fairness.keys(current.waiting).items()]  # no two keys are equal
    heapq.heapify(turns)
    while current.has_classes:
        key, job = turns[0]
        classes = current.classes_of(job)
        if not classes:
            heapq.heappop(turns)
            continue
        again = fairness.key(job)
        if again > key:  # other jobs of the same user got something meanwhile
            heapq.heapreplace(turns, (again, job))
            continue
        if len(classes) > 1:
            classes.sort(key=_rank_in_job)
        for queue in classes:
            if _bind_one(state, queue, current):
                heapq.heapreplace(turns, (fairness.key(job), job))
                break
            current.remove(queue)
        else:
            heapq.heappop(turns)


def _bind_one(state: EngineState, queue: QueueClass, current: Round) -> bool:
    """Reserve the next package of a class; returns whether it could."""
    if not queue.ready or not may_start(state, queue):
        return False
    known = current.is_full(queue)
    site = None if known else state.placement.first(queue)
    if state.placement.woken:
        _carry_out_wakes(state)
    if site is None:
        site = preempt_reservation(state, queue)
    if site is None:
        if not known:
            if _no_site(state, queue):
                return _bind_one(state, queue, current)
            if queue.ready:  # else it was given up
                current.fill(queue)
        return False
    number = _take(state, queue)
    if number is None:
        return False
    _bind(state, queue, number, site, bound=is_bound(site, queue))
    return True


def _carry_out_wakes(state: EngineState) -> None:
    """Record the sites that the latest choice woke."""
    state.pending.site_changes += state.placement.woken
    state.placement.woken.clear()
    apply_site_changes(state)


def _no_site(state: EngineState, queue: QueueClass) -> bool:
    """Handle a class without a site; returns whether to try again at once."""
    if state.placement.is_impossible(queue) and not queue.requirements.beside:
        if state.placement.forget_estimate(queue):
            return True
        _give_up(state, queue)
    elif not queue.ordinary:
        state.placement.wait_for_room(queue)
    return False


def _give_up(state: EngineState, queue: QueueClass) -> None:
    """Give up a package of a late stage that no site could ever run, with the reason."""
    job = queue.job
    lacks = [text for site in state.sites.by_name.values() for text in unmet(site, queue.demand)]
    message = f"no site can run it: {'; '.join(lacks[:3])}" if lacks else "no site may run it"
    while (number := _take(state, queue)) is not None:
        aborted = payloads.Aborted(cause="permanent-failure", message=message)
        state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


def _rank_in_job(queue: QueueClass) -> tuple[int, int, float, int]:
    return queue.rank_in_job


def is_limited(state: EngineState, queue: QueueClass) -> bool:
    """Whether the next package of a class that is bound may reach a limit."""
    job = queue.job
    return not job.open or bool(state.settings.owner_running_max) or queue.category in job.plan.limits


def _take(state: EngineState, queue: QueueClass) -> int | None:
    """Take the next valid package from the queue of a class."""
    job, numbers = queue.job, queue.queue
    status = job.status
    while numbers.size:
        number = numbers.pop()
        if status[number] == _READY and queue_of(state, job, number) is queue:
            return number
    return None


def _bind(
    state: EngineState, queue: QueueClass, number: int, site: SiteState, *, bound: bool, how: How = "chosen"
) -> None:
    """Bind a package to a site; `bound` means with a batch job of its own."""
    job = queue.job
    if state.fairness.shares:
        state.fairness.note_bound(job)
    choice = queue.snapshots.get(how)
    if choice is None or state.clock.now >= choice.until:
        choice = recent_snapshot(state, queue, how)
    if bound:
        if job.files is None:
            size = packages_each(state, queue, site, number)
            if size > 1:
                _bind_group(state, queue, number, site, choice, size=size)
            else:
                create(state, job, number, queue.demand, site, None, choice)
            return
        reserve(state, queue, number, site, choice)  # until its files are there
        if not job.work[number].lacks:
            state.files.to_submit[job.work[number]] = None
        return
    reserved = state.queues.at[site].reserved
    if not reserved and job.files is None:
        # No reservation is ahead of it, and a pilot is asking: the reservation would be used at once.
        pilot = next((each for each in site.waiting.values() if takes(each, queue, state.clock.now)), None)
        if pilot is not None:
            create(state, job, number, queue.demand, site, pilot, choice)
            remove_if_full(site, pilot)
            return
    if queue not in reserved and not could_take(site, queue, state.clock.now):
        state.clock.timers.at(state.clock.now + state.settings.unfit_seconds, Due.UNFIT, site.name)
    reserve(state, queue, number, site, choice)
    state.queues.sites_to_serve[site] = None


def _bind_group(
    state: EngineState,
    queue: QueueClass,
    number: int,
    site: SiteState,
    choice: SelectionSnapshot | None,
    *,
    size: int,
) -> None:
    """Bind several packages of a class to a site, with one batch job, as many as may start."""
    job, limited = queue.job, is_limited(state, queue)
    group = f"{job.id}:{job.dotted(number)}:{job.last_attempt[number] + 1}"
    create(state, job, number, queue.demand, site, None, choice, group=group)
    for _ in range(size - 1):
        if not queue.queue or (limited and not may_start(state, queue)):
            break
        if not may_share(job.work.get(queue.queue.first()[0])) or (following := _take(state, queue)) is None:
            break
        create(state, job, following, queue.demand, site, None, choice, group=group)
        if state.fairness.shares:
            state.fairness.note_bound(job)
    first = next(iter(site.groups[group].members))
    submit(state, first)
    watch_queue(state, group, first.created_at)


def submit_prefetched(state: EngineState) -> None:
    """Submit the reserved packages that get batch jobs of their own and whose files have come."""
    state.files.again = False
    while state.files.to_submit:
        work = next(iter(state.files.to_submit))
        del state.files.to_submit[work]
        site, queue = work.bound, work.bound_as
        if site is None or queue is None or work.lacks:
            continue
        if is_bound(site, queue):
            create(state, work.job, work.number, queue.demand, site, None, work.choice)
        else:  # a pilot has started on a node that it names
            state.queues.sites_to_serve[site] = None


def preempt_reservation(state: EngineState, queue: QueueClass) -> SiteState | None:
    """Release a reservation of lower rank that no pilot has pulled, to make room."""
    job, shape, level = queue.job, queue.shape, queue.level
    if not any_below(state.queues.reserved_counts, shape, level[0]) and not any_below(job.reservations, shape, level):
        return None
    for site in state.placement.open_sites(queue):
        if not site.known or site.asleep or site.profile.canary:
            continue
        # Priorities within a job do not count against other jobs; and a slowdown changes with every reservation.
        alike = (other for other in state.queues.at[site].reserved if other.shape == shape)
        below = [each for each in alike if each.level > level and (each.job is job or each.level[0] > level[0])]
        if below:
            last = state.fairness.ordered(below)[-1]
            move(state, last.job, state.queues.at[site].reserved[last][-1], PackageStatus.READY)
            return site
    return None
