"""Work meets slots in two steps: a ready package is reserved for a site with room, and a pilot that asks is given one.

Binding goes by rank: the job's priority, then whoever is expected to be slowed down most (`fairness`), and within a job the
package's priority, restarts, the longest first. Higher priority displaces reservations that nobody pulled. A reservation is
no attempt: it is given back when its site cannot use it.
"""

from __future__ import annotations

import heapq

from pilotage.engine.admission import unmet
from pilotage.engine.behaviour import drain, submitting, watch_queue
from pilotage.engine.choices import noted, snapshot
from pilotage.engine.classes import queue_of
from pilotage.engine.engine_state import EngineState
from pilotage.engine.fits import could_take, emptiest, is_bound, is_in_the_way, lasts, remaining, takes
from pilotage.engine.jobs import JobState, PackageWork, QueueClass, Standing
from pilotage.engine.places import AttemptState, PilotState, SiteState
from pilotage.engine.races import end_race
from pilotage.engine.readiness import move, reserve
from pilotage.engine.rounds import Round
from pilotage.engine.selection.pools import How, SelectionSnapshot
from pilotage.engine.standings import see_to_sites
from pilotage.engine.state.queues import any_below, any_reserved
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.demand import Demand
from pilotage.model.effects import SubmitAttempt

_FETCH_SECONDS = 1.0  # so often at most a site whose pilots are idle looks for what is reserved elsewhere
_READY = Standing.READY  # an attribute of a class is slow to look up


def bind(state: EngineState) -> None:
    """Reserve ready packages for sites as long as there is room, unless nothing has changed for who found none."""
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
            site = first(queue) or displace(state, queue)
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
    """Where more is ready than all candidates have room for, each is given what it has room for: there is nothing to choose."""
    for site, free in state.placement.all_of(queue, queue.ready):
        bound = is_bound(site, queue)
        for _ in range(free):
            if bound and not site.place.has_room(queue.shape):
                break  # what was submitted there has left less of it
            number = _take(state, queue)
            if number is None:
                return
            _bind(state, queue, number, site, bound=bound, how="filled")


def _bind_fairly(state: EngineState, queues: list[QueueClass]) -> None:
    """The same among jobs: one at a time for whoever's turn it is, since each that a job gets makes its turn come later."""
    fairness = state.fairness
    fairness.look()
    turn = Round(state, queues)
    fairness.meet(turn.waiting)
    turn.leave_all_full()
    if not turn.goes_on:
        return
    turns = [(key, job) for job, key in fairness.keys(turn.waiting).items()]  # no two keys are alike
    heapq.heapify(turns)
    while turn.goes_on:
        key, job = turns[0]
        own = turn.own(job)
        if not own:
            heapq.heappop(turns)
            continue
        again = fairness.key(job)
        if again > key:  # others of its user got something meanwhile
            heapq.heapreplace(turns, (again, job))
            continue
        if len(own) > 1:
            own.sort(key=_rank_in_job)
        for queue in own:
            if _bind_one(state, queue, turn):
                heapq.heapreplace(turns, (fairness.key(job), job))
                break
            turn.leave(queue)
        else:
            heapq.heappop(turns)


def _bind_one(state: EngineState, queue: QueueClass, turn: Round) -> bool:
    """Reserve the next package of a class; whether that could be done."""
    if not queue.ready or not may_start(state, queue):
        return False
    known = turn.is_full(queue)
    site = None if known else state.placement.first(queue)
    if state.placement.woken:
        _carry_out_wakes(state)
    if site is None:
        site = displace(state, queue)
    if site is None:
        if not known:
            if _no_site(state, queue):
                return _bind_one(state, queue, turn)
            if queue.ready:  # else it was given up
                turn.fill(queue)
        return False
    number = _take(state, queue)
    if number is None:
        return False
    _bind(state, queue, number, site, bound=is_bound(site, queue))
    return True


def _carry_out_wakes(state: EngineState) -> None:
    """Record the sites that the latest choice has woken."""
    state.pending.site_changes += state.placement.woken
    state.placement.woken.clear()
    see_to_sites(state)


def _no_site(state: EngineState, queue: QueueClass) -> bool:
    """What becomes of a class for which no site was found; whether to look again at once."""
    if state.placement.is_impossible(queue):
        if state.placement.forget_estimate(queue):
            return True
        _give_up(state, queue)
    elif not queue.ordinary:
        state.placement.stick(queue)
    return False


def _give_up(state: EngineState, queue: QueueClass) -> None:
    """No site there is could ever run what a stage that was laid out late asks for: it is given up, and said why."""
    job = queue.job
    lacks = [text for site in state.sites.by_name.values() for text in unmet(site, queue.demand)]
    message = f"no site can run it: {'; '.join(lacks[:3])}" if lacks else "no site may run it"
    while (number := _take(state, queue)) is not None:
        aborted = payloads.Aborted(cause="permanent-failure", message=message)
        state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


def _rank_in_job(queue: QueueClass) -> tuple[int, int, float, int]:
    return queue.rank_in_job


def is_limited(state: EngineState, queue: QueueClass) -> bool:
    """Whether one more that is bound may be the last of a class that may start."""
    job = queue.job
    return not job.open or bool(state.settings.owner_running_max) or queue.category in job.plan.limits


def may_start(state: EngineState, queue: QueueClass) -> bool:
    """Whether the job, its category and its owner may have one more under way."""
    job = queue.job
    if not job.open:
        return False
    limit = job.plan.limits.get(queue.category)
    if limit is not None and job.running_in.get(queue.category, 0) >= limit:
        return False
    quota = state.settings.owner_running_max
    return not quota or state.jobs.busy_by_owner.get(job.owner, 0) < quota


def _take(state: EngineState, queue: QueueClass) -> int | None:
    """The next package of a class that still counts."""
    job, numbers = queue.job, queue.queue
    standing = job.standing
    while numbers.size:
        number = numbers.pop()
        if standing[number] == _READY and queue_of(state, job, number) is queue:
            return number
    return None


def _bind(
    state: EngineState, queue: QueueClass, number: int, site: SiteState, *, bound: bool, how: How = "chosen"
) -> None:
    """Give a package to a site; `bound` tells whether it gets a batch job of its own there."""
    job = queue.job
    if state.fairness.shares:
        state.fairness.note_bound(job)
    choice = queue.notes.get(how)
    if choice is None or state.clock.now >= choice.until:
        choice = noted(state, queue, how)
    if bound:
        create(state, job, number, queue.demand, site, None, choice)
        return
    reserved = state.queues.at[site].reserved
    if not reserved:
        # Nothing is before it here: where a pilot is asking, the reservation would be used at once.
        pilot = next((each for each in site.waiting.values() if takes(each, queue, state.clock.now)), None)
        if pilot is not None:
            create(state, job, number, queue.demand, site, pilot, choice)
            leave_if_full(site, pilot)
            return
    if queue not in reserved and not could_take(site, queue, state.clock.now):
        state.clock.timers.at(state.clock.now + state.settings.unfit_seconds, Due.UNFIT, site.name)
    reserve(state, queue, number, site, choice)
    state.queues.sites_to_serve[site] = None


def displace(state: EngineState, queue: QueueClass) -> SiteState | None:
    """Make room by giving back a reservation of lower rank that nobody pulled."""
    job, shape, level = queue.job, queue.shape, queue.level
    if not any_below(state.queues.reserved_counts, shape, level[0]) and not any_below(job.reservations, shape, level):
        return None
    for site in state.placement.open_sites(queue):
        if not site.known or site.asleep or site.place.canary:
            continue
        # What a job prefers of its own is no matter of others; and a slowdown changes with every reservation.
        alike = (other for other in state.queues.at[site].reserved if other.shape == shape)
        below = [each for each in alike if each.level > level and (each.job is job or each.level[0] > level[0])]
        if below:
            last = state.fairness.ordered(below)[-1]
            move(state, last.job, state.queues.at[site].reserved[last][-1], Standing.READY)
            return site
    return None


def pull(state: EngineState) -> None:
    """Give what is reserved at a site to the pilots there that ask."""
    asking = state.pilots.with_free_slots
    while asking or state.queues.sites_to_serve:
        # One that asks anew is served by itself: the others that wait were looked at when they asked.
        for pilot in list(asking):
            del asking[pilot]
            if not pilot.waiting:
                continue
            if state.queues.at[pilot.site].reserved:
                _serve(state, pilot.site, pilot)
            elif not state.queues.ready and not pilot.assigned:
                _fetch(state, pilot.site)
        if asking or not state.queues.sites_to_serve:
            continue
        site = next(iter(state.queues.sites_to_serve))
        del state.queues.sites_to_serve[site]
        for pilot in list(site.waiting.values()):
            if not state.queues.at[site].reserved:
                break
            _serve(state, site, pilot)


def _fetch(state: EngineState, site: SiteState) -> None:
    """What is reserved elsewhere and cannot begin there is begun by the pilots of a site that have nothing to do."""
    if state.clock.now < site.fetched_at + _FETCH_SECONDS or site.place.canary or site.asleep or site.removed:
        return
    if not any_reserved(state.queues.reserved_counts):
        return
    before, site.fetched_at = site.fetched_at, state.clock.now
    idle = [pilot for pilot in site.waiting.values() if not pilot.assigned]
    for other in state.sites.by_name.values():
        if (
            other is site
            or not state.queues.at[other].reserved
            or any(pilot.free_cores_hundredths > 0 for pilot in other.waiting.values())
        ):
            continue
        for queue in [each for each in state.queues.at[other].reserved if would_do(state, site, each)]:
            choice: SelectionSnapshot | None = None
            for pilot in idle:
                while (
                    queue in state.queues.at[other].reserved
                    and pilot.fits(queue.demand)
                    and takes(pilot, queue, state.clock.now)
                ):
                    if not state.placement.has_room(site, queue.shape):
                        return
                    move(state, queue.job, state.queues.at[other].reserved[queue][-1], Standing.READY)
                    number = _take(state, queue)
                    if number is None:
                        return
                    choice = choice or snapshot(state, queue, "idle")
                    reserve(state, queue, number, site, choice)
                    _serve(state, site, pilot)
                    if site.site.kind == "local":
                        site.fetched_at = before  # there may be more, and this computer waits for nobody


def would_do(state: EngineState, site: SiteState, queue: QueueClass) -> bool:
    """Whether the pilots of a site may fetch what is reserved of a class elsewhere."""
    return site.name not in queue.avoid and site.index not in queue.unfit and state.placement.able(site, queue)


def _serve(state: EngineState, site: SiteState, pilot: PilotState) -> None:
    served = False
    reserved = state.queues.at[site].reserved
    while reserved:
        if len(reserved) > 1:
            first = first_taken(state, site, pilot)
            if first is None:
                break
            queue = first
        else:
            queue = next(iter(reserved))
            if not takes(pilot, queue, state.clock.now):
                break
        job, number = queue.job, reserved[queue][0]
        create(state, job, number, queue.demand, site, pilot, job.work[number].choice)
        served = True
        if pilot.free_cores_hundredths <= 0 and not pilot.backlog:
            break  # whatever is reserved takes some of its cores
    leave_if_full(site, pilot)
    if not served and pilot.ends_at is not None and not pilot.assigned and not pilot.draining:
        fits_nothing = not any(lasts(pilot, queue, state.clock.now) for queue in state.queues.at[site].reserved)
        if fits_nothing:
            drain(state, pilot, "the time it has left is too short for what waits")
    if served and state.queues.may_bind:
        bind(state)  # what was pulled left room behind it, or is wanted once more


def first_taken(state: EngineState, site: SiteState, pilot: PilotState) -> QueueClass | None:
    """The class of the highest rank among those reserved at a site of which a pilot can take one.

    Where one is overdue that needs more at once than is free, nothing of lower rank gets what it lacks of one pilot.
    """
    now, fairness = state.clock.now, state.fairness
    overdue: list[Demand] = []
    for queue in fairness.ordered(state.queues.at[site].reserved, counted="running"):
        if takes(pilot, queue, now):
            if not any(is_in_the_way(queue.demand, each, pilot) for each in overdue):
                return queue
        elif fairness.is_overdue(queue.job) and pilot is emptiest(site, queue, now):
            overdue.append(queue.demand)
    return None


def leave_if_full(site: SiteState, pilot: PilotState) -> None:
    """A pilot that can take nothing more asks in vain: nobody looks at it until it has something free again."""
    if pilot.free_cores_hundredths <= 0 and (not pilot.backlog or pilot.in_backlog() >= pilot.backlog):
        site.waiting.pop(pilot.name, None)


def create(
    state: EngineState,
    job: JobState,
    number: int,
    demand: Demand,
    site: SiteState,
    pilot: PilotState | None,
    choice: SelectionSnapshot | None,
) -> None:
    """Write an attempt down: with a lease for a pilot, or for the batch system of the site."""
    work = job.work.get(number)
    declared = job.plan.templates[job.kinds[number]].demand
    beside = work.attempts if work is not None else None
    if pilot is not None and pilot.ends_at is None and demand is declared and not beside:  # as most are
        created, text = pilot.created(state.lease_seconds, job.drop_revision)
    else:
        created, text = _created(state, job, work, demand, site, pilot, declared), None
    attempt = job.last_attempt[number] + 1
    if state.fairness.shares:
        state.fairness.note_started(job)
    epoch = job.epoch_of(number) if job.epochs else 1
    state.log.write_of(created, job, number, attempt, epoch, text)
    begun = (work or job.work[number]).attempts[attempt]
    begun.choice = choice
    if pilot is not None:
        if work is not None and work.races:
            end_race(state, job, begun)  # with a lease it has started
        return
    submit(state, begun)
    watch_queue(state, begun.key, begun.created_at)
    state.queues.just_submitted.append(begun)


def _created(
    state: EngineState,
    job: JobState,
    work: PackageWork | None,
    demand: Demand,
    site: SiteState,
    pilot: PilotState | None,
    declared: Demand,
) -> payloads.AttemptCreated:
    """What is written of an attempt: whom it follows or runs beside, and where it may take another amount than declared."""
    over: list[int] = []
    replica = False
    if work is not None and work.attempts:
        over = [n for n, attempt in work.attempts.items() if attempt.lost]
        replica = work.replicas > work.replicated and any(each.trusted for each in work.attempts.values())
    return payloads.AttemptCreated(
        site=site.name,
        pilot=pilot.name if pilot is not None else None,
        lease_seconds=state.lease_seconds if pilot is not None else None,
        replaces=over[-1] if over else None,
        replica=replica,
        memory_bytes=demand.memory_bytes if demand.memory_bytes != declared.memory_bytes else None,
        wall_seconds=demand.wall_seconds if demand.wall_seconds != declared.wall_seconds else None,
        remaining_seconds=remaining(site, pilot, demand, state.clock.now),
        drop_revision=job.drop_revision,
    )


def submit(state: EngineState, attempt: AttemptState) -> None:
    """Have a bound attempt submitted, and look again if nothing is heard of it."""
    site, key = attempt.site, attempt.key
    state.log.effects.append(SubmitAttempt(site=site.name, key=key, ref=attempt.ref, demand=attempt.demand))
    submitting(state, site, attempt)
    state.clock.timers.at(state.clock.now + state.settings.submit_again_seconds, Due.REQUEST, key)
