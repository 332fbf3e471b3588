"""What is done when the time of something has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.engine.classes import queue_of
from pilotage.engine.dispatch import release_unfit, submit
from pilotage.engine.jobs import JobState
from pilotage.engine.leases import check_lease
from pilotage.engine.parts import QueueClass, Standing
from pilotage.engine.provisioning import submit_pilot
from pilotage.engine.readiness import reconsider
from pilotage.engine.reports import bound_attempt
from pilotage.engine.slots import exorcise
from pilotage.engine.timers import Due
from pilotage.model import payloads

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


def wake(engine: Engine) -> None:
    """See to everything that is due."""
    while (found := engine.timers.pop(engine.now)) is not None:
        due, name, number = found
        match due:
            case Due.LEASE:
                check_lease(engine, name)
            case Due.RESTART:
                _restart(engine, name, number)
            case Due.UNFIT:
                release_unfit(engine, engine.sites[name])
            case Due.REQUEST:
                _ask_again(engine, name)
            case Due.EXPANSION:
                if (job := engine.jobs.get(name)) is not None:
                    engine.grown[job] = None
            case Due.WAITING:
                _check_waiting(engine, name, number)
            case Due.ACTING:
                exorcise(engine, name)
            case Due.SITE | Due.PROVISION:
                pass  # whoever looks at the time of it looks anyway


def _restart(engine: Engine, name: str, number: int) -> None:
    job = engine.jobs.get(name)
    work = job.work.get(number) if job is not None else None
    if job is not None and work is not None and 0 < work.delayed_until <= engine.now:
        work.delayed_until = 0.0
        reconsider(engine, job, number)


def _ask_again(engine: Engine, key: str) -> None:
    """A submission that nothing was heard of is asked for again: its key keeps it from being done twice."""
    request = engine.requests.get(key)
    if request is not None:
        if not request.native_id and not request.spoke:
            submit_pilot(engine, request.site, key)
        return
    attempt = bound_attempt(engine, key)
    if attempt is not None and not attempt.leased and not attempt.queued and not attempt.lost:
        submit(engine, attempt.site, key, attempt=attempt.ref, demand=attempt.demand)


# --- waiting limits -------------------------------------------------------------------------------------------------


def watch_waiting(engine: Engine) -> None:
    """See that somebody looks at every class whose packages may wait too long."""
    limit = engine.settings.waiting_seconds_max
    if limit:
        for queue in (*engine.active, *engine.stuck):
            if not queue.watched:
                queue.watched = True
                engine.timers.at(engine.now + limit, Due.WAITING, queue.job.id, queue.index)


def _check_waiting(engine: Engine, name: str, index: int) -> None:
    """Give up packages that were ready for too long and that no site took; look again when the next may be."""
    job = engine.jobs.get(name)
    queue = next((each for each in job.classes.values() if each.index == index), None) if job is not None else None
    if job is None or queue is None:
        return  # it was let go of meanwhile
    queue.watched = False
    limit = engine.settings.waiting_seconds_max
    if not job.open:
        if queue.ready:
            queue.watched = True
            engine.timers.at(engine.now + limit, Due.WAITING, name, index)
        return
    while queue.queue:
        number, since = queue.queue.first()
        since = max(since, job.released_at, job.ready_since.get(number, 0.0))
        counts = job.standing[number] == Standing.READY and queue_of(engine, job, number) is queue
        if counts and engine.now < since + limit:
            queue.watched = True
            engine.timers.at(since + limit, Due.WAITING, name, index)
            return
        queue.queue.pop()
        if counts:
            _give_up(engine, job, queue, number, engine.now - since)


def _give_up(engine: Engine, job: JobState, queue: QueueClass, number: int, seconds: float) -> None:
    message = f"ready for {seconds:.0f} s, and no site had room for {queue.demand.cores_hundredths / 100:g} cores"
    aborted = payloads.Aborted(cause="waited-too-long", message=message)
    engine.write(aborted, job=job, number=number, epoch=job.epoch_of(number))
