"""Work meets slots in two steps: a ready package is reserved for a site with room, and a pilot that asks is given one.

Binding goes by rank: the job's priority, then whoever is expected to be slowed down most (`fairness`), and within a job the
package's priority, restarts, the longest first. Higher priority displaces reservations that nobody pulled. A reservation is
no attempt: it is given back when its site cannot use it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from pilotage.engine.admission import unmet
from pilotage.engine.behaviour import drain, submitting, watch_queue
from pilotage.engine.choices import ChoiceNote, How, noted
from pilotage.engine.classes import queue_of
from pilotage.engine.fits import could_take, first_taken, is_bound, lasts, remaining, takes
from pilotage.engine.jobs import JobState
from pilotage.engine.parts import AttemptState, PackageWork, QueueClass, Standing
from pilotage.engine.places import PilotState, SiteState
from pilotage.engine.races import end_race
from pilotage.engine.readiness import move, reserve
from pilotage.engine.rounds import Round, any_below, any_reserved
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.demand import Demand
from pilotage.model.effects import SubmitAttempt

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


_FETCH_SECONDS = 1.0  # so often at most a site whose pilots are idle looks for what is reserved elsewhere
_READY = Standing.READY  # an attribute of a class is slow to look up


def bind(engine: Engine) -> None:
    """Reserve ready packages for sites as long as there is room, unless nothing has changed for who found none."""
    stirred, engine.stirred = engine.stirred, False
    if not stirred or not engine.active:
        return
    queues = list(engine.active)
    if len(queues) > 1:
        if engine.fairness.by_slowdown:
            job = queues[0].job
            if any(queue.job is not job for queue in queues):
                _bind_fairly(engine, queues)
                return
        queues = engine.fairness.ordered(queues)
    first = engine.openings.first
    for queue in queues:
        limited = is_limited(engine, queue)
        if not limited:
            _fill(engine, queue)
        while queue.ready and (not limited or may_start(engine, queue)):
            site = first(queue) or displace(engine, queue)
            if site is None:
                if _no_site(engine, queue):
                    continue
                break
            number = _take(engine, queue)
            if number is None:
                break
            _bind(engine, queue, number, site, bound=is_bound(site, queue))


def _fill(engine: Engine, queue: QueueClass) -> None:
    """Where more is ready than all candidates have room for, each is given what it has room for: there is nothing to choose."""
    for site, free in engine.openings.all_of(queue, queue.ready):
        bound = is_bound(site, queue)
        for _ in range(free):
            if bound and not site.place.has_room(queue.shape):
                break  # what was submitted there has left less of it
            number = _take(engine, queue)
            if number is None:
                return
            _bind(engine, queue, number, site, bound=bound, how="filled")


def _bind_fairly(engine: Engine, queues: list[QueueClass]) -> None:
    """The same among jobs: one at a time for whoever's turn it is, since each that a job gets makes its turn come later."""
    fairness = engine.fairness
    fairness.look()
    turn = Round(engine, queues)
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
            if _bind_one(engine, queue, turn):
                heapq.heapreplace(turns, (fairness.key(job), job))
                break
            turn.leave(queue)
        else:
            heapq.heappop(turns)


def _bind_one(engine: Engine, queue: QueueClass, turn: Round) -> bool:
    """Reserve the next package of a class; whether that could be done."""
    if not queue.ready or not may_start(engine, queue):
        return False
    known = turn.is_full(queue)
    site = None if known else engine.openings.first(queue)
    if site is None:
        site = displace(engine, queue)
    if site is None:
        if not known:
            if _no_site(engine, queue):
                return _bind_one(engine, queue, turn)
            if queue.ready:  # else it was given up
                turn.fill(queue)
        return False
    number = _take(engine, queue)
    if number is None:
        return False
    _bind(engine, queue, number, site, bound=is_bound(site, queue))
    return True


def _no_site(engine: Engine, queue: QueueClass) -> bool:
    """What becomes of a class for which no site was found; whether to look again at once."""
    if engine.openings.is_impossible(queue):
        if engine.openings.forget_estimate(queue):
            return True
        _give_up(engine, queue)
    elif not queue.ordinary:
        engine.openings.stick(queue)
    return False


def _give_up(engine: Engine, queue: QueueClass) -> None:
    """No site there is could ever run what a stage that was laid out late asks for: it is given up, and said why."""
    job = queue.job
    lacks = [text for site in engine.sites.values() for text in unmet(site, queue.demand)]
    message = f"no site can run it: {'; '.join(lacks[:3])}" if lacks else "no site may run it"
    while (number := _take(engine, queue)) is not None:
        aborted = payloads.Aborted(cause="permanent-failure", message=message)
        engine.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


def _rank_in_job(queue: QueueClass) -> tuple[int, int, float, int]:
    return queue.rank_in_job


def is_limited(engine: Engine, queue: QueueClass) -> bool:
    """Whether one more that is bound may be the last of a class that may start."""
    job = queue.job
    return not job.open or bool(engine.settings.owner_running_max) or queue.category in job.plan.limits


def may_start(engine: Engine, queue: QueueClass) -> bool:
    """Whether the job, its category and its owner may have one more under way."""
    job = queue.job
    if not job.open:
        return False
    limit = job.plan.limits.get(queue.category)
    if limit is not None and job.running_in.get(queue.category, 0) >= limit:
        return False
    quota = engine.settings.owner_running_max
    return not quota or engine.owners.get(job.owner, 0) < quota


def _take(engine: Engine, queue: QueueClass) -> int | None:
    """The next package of a class that still counts."""
    job, numbers = queue.job, queue.queue
    standing = job.standing
    while numbers.size:
        number = numbers.pop()
        if standing[number] == _READY and queue_of(engine, job, number) is queue:
            return number
    return None


def _bind(engine: Engine, queue: QueueClass, number: int, site: SiteState, *, bound: bool, how: How = "chosen") -> None:
    """Give a package to a site; `bound` tells whether it gets a batch job of its own there."""
    job = queue.job
    if job.share is not None:
        job.share.waiting_since = engine.now
    choice = queue.notes.get(how)
    if choice is None or engine.now >= choice.until:
        choice = noted(engine, queue, how)
    if bound:
        create(engine, job, number, queue.demand, site, None, choice)
        return
    reserved = site.reserved
    if not reserved:
        # Nothing is before it here: where a pilot is asking, the reservation would be used at once.
        pilot = next((each for each in site.waiting.values() if takes(each, queue, engine.now)), None)
        if pilot is not None:
            create(engine, job, number, queue.demand, site, pilot, choice)
            leave_if_full(site, pilot)
            return
    if queue not in reserved and not could_take(site, queue, engine.now):
        engine.timers.at(engine.now + engine.settings.unfit_seconds, Due.UNFIT, site.name)
    reserve(engine, queue, number, site, choice)
    engine.pulled[site] = None


def displace(engine: Engine, queue: QueueClass) -> SiteState | None:
    """Make room by giving back a reservation of lower rank that nobody pulled."""
    job, shape, level = queue.job, queue.shape, queue.level
    if not any_below(engine.reservations, shape, level[0]) and not any_below(job.reservations, shape, level):
        return None
    for site in engine.openings.open_sites(queue):
        if not site.known or site.asleep or site.place.canary:
            continue
        # What a job prefers of its own is no matter of others; and a slowdown changes with every reservation.
        alike = (other for other in site.reserved if other.shape == shape)
        below = [each for each in alike if each.level > level and (each.job is job or each.level[0] > level[0])]
        if below:
            last = engine.fairness.ordered(below)[-1]
            move(engine, last.job, site.reserved[last][-1], Standing.READY)
            return site
    return None


def pull(engine: Engine) -> None:
    """Give what is reserved at a site to the pilots there that ask."""
    asking = engine.asking
    while asking or engine.pulled:
        # One that asks anew is served by itself: the others that wait were looked at when they asked.
        for pilot in list(asking):
            del asking[pilot]
            if not pilot.waiting:
                continue
            if pilot.site.reserved:
                _serve(engine, pilot.site, pilot)
            elif not engine.active and not pilot.assigned:
                _fetch(engine, pilot.site)
        if asking or not engine.pulled:
            continue
        site = next(iter(engine.pulled))
        del engine.pulled[site]
        for pilot in list(site.waiting.values()):
            if not site.reserved:
                break
            _serve(engine, site, pilot)


def _fetch(engine: Engine, site: SiteState) -> None:
    """What is reserved elsewhere and cannot begin there is begun by the pilots of a site that have nothing to do."""
    if engine.now < site.fetched_at + _FETCH_SECONDS or site.place.canary or site.asleep or site.removed:
        return
    if not any_reserved(engine.reservations):
        return
    before, site.fetched_at = site.fetched_at, engine.now
    idle = [pilot for pilot in site.waiting.values() if not pilot.assigned]
    for other in engine.sites.values():
        if (
            other is site
            or not other.reserved
            or any(pilot.free_cores_hundredths > 0 for pilot in other.waiting.values())
        ):
            continue
        for queue in [each for each in other.reserved if would_do(engine, site, each)]:
            choice: ChoiceNote | None = None
            for pilot in idle:
                while queue in other.reserved and pilot.fits(queue.demand) and takes(pilot, queue, engine.now):
                    if not engine.openings.has_room(site, queue.shape):
                        return
                    move(engine, queue.job, other.reserved[queue][-1], Standing.READY)
                    number = _take(engine, queue)
                    if number is None:
                        return
                    choice = choice or ChoiceNote(engine, queue, "idle")
                    reserve(engine, queue, number, site, choice)
                    _serve(engine, site, pilot)
                    if site.site.kind == "local":
                        site.fetched_at = before  # there may be more, and this computer waits for nobody


def would_do(engine: Engine, site: SiteState, queue: QueueClass) -> bool:
    """Whether the pilots of a site may fetch what is reserved of a class elsewhere."""
    return site.name not in queue.avoid and site.index not in queue.unfit and engine.openings.able(site, queue)


def _serve(engine: Engine, site: SiteState, pilot: PilotState) -> None:
    served = False
    reserved = site.reserved
    while reserved:
        if len(reserved) > 1:
            first = first_taken(engine, site, pilot)
            if first is None:
                break
            queue = first
        else:
            queue = next(iter(reserved))
            if not takes(pilot, queue, engine.now):
                break
        job, number = queue.job, reserved[queue][0]
        create(engine, job, number, queue.demand, site, pilot, job.work[number].choice)
        served = True
        if pilot.free_cores_hundredths <= 0 and not pilot.backlog:
            break  # whatever is reserved takes some of its cores
    leave_if_full(site, pilot)
    if not served and pilot.ends_at is not None and not pilot.assigned and not pilot.draining:
        fits_nothing = not any(lasts(pilot, queue, engine.now) for queue in site.reserved)
        if fits_nothing:
            drain(engine, pilot, "the time it has left is too short for what waits")
    if served and engine.stirred:
        bind(engine)  # what was pulled left room behind it, or is wanted once more


def leave_if_full(site: SiteState, pilot: PilotState) -> None:
    """A pilot that can take nothing more asks in vain: nobody looks at it until it has something free again."""
    if pilot.free_cores_hundredths <= 0 and (not pilot.backlog or pilot.in_backlog() >= pilot.backlog):
        site.waiting.pop(pilot.name, None)


def create(
    engine: Engine,
    job: JobState,
    number: int,
    demand: Demand,
    site: SiteState,
    pilot: PilotState | None,
    choice: ChoiceNote | None,
) -> None:
    """Write an attempt down: with a lease for a pilot, or for the batch system of the site."""
    work = job.work.get(number)
    declared = job.plan.templates[job.kinds[number]].demand
    beside = work.attempts if work is not None else None
    if pilot is not None and pilot.ends_at is None and demand is declared and not beside:  # as most are
        created, text = pilot.created(engine.lease_seconds, job.drop_revision)
    else:
        created, text = _created(engine, job, work, demand, site, pilot, declared), None
    attempt = job.last_attempt[number] + 1
    if job.share is not None:
        job.share.unstarted_since = engine.now
    epoch = job.epoch_of(number) if job.epochs else 1
    engine.write_of(created, job, number, attempt, epoch, text)
    state = (work or job.work[number]).attempts[attempt]
    state.choice = choice
    if pilot is not None:
        if work is not None and work.races:
            end_race(engine, job, state)  # with a lease it has started
        return
    submit(engine, state)
    watch_queue(engine, state.key, state.created_at)
    engine.queued.append(state)


def _created(
    engine: Engine,
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
        lease_seconds=engine.lease_seconds if pilot is not None else None,
        replaces=over[-1] if over else None,
        replica=replica,
        memory_bytes=demand.memory_bytes if demand.memory_bytes != declared.memory_bytes else None,
        wall_seconds=demand.wall_seconds if demand.wall_seconds != declared.wall_seconds else None,
        remaining_seconds=remaining(engine, site, pilot, demand),
        drop_revision=job.drop_revision,
    )


def submit(engine: Engine, attempt: AttemptState) -> None:
    """Have a bound attempt submitted, and look again if nothing is heard of it."""
    site, key = attempt.site, attempt.key
    engine.effects.append(SubmitAttempt(site=site.name, key=key, ref=attempt.ref, demand=attempt.demand))
    submitting(engine, site, attempt)
    engine.timers.at(engine.now + engine.settings.submit_again_seconds, Due.REQUEST, key)
