"""What is done when the time of something has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pilotage.engine.behaviour import check_queue, write_standing
from pilotage.engine.classes import queue_of
from pilotage.engine.dispatch import submit
from pilotage.engine.jobs import JobState
from pilotage.engine.leases import check_lease
from pilotage.engine.parts import QueueClass, Standing
from pilotage.engine.provisioning import submit_pilot
from pilotage.engine.races import race, watch_race
from pilotage.engine.readiness import reconsider
from pilotage.engine.releasing import release_unfit
from pilotage.engine.reports import bound_attempt
from pilotage.engine.site_changes import end_probe
from pilotage.engine.slots import exorcise
from pilotage.engine.timers import Due
from pilotage.model import payloads

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


def wake(engine: Engine) -> None:
    """See to everything that is due."""
    while (found := engine.timers.pop(engine.now)) is not None:
        due, name, number = found
        if (see_to := _DUE.get(due)) is not None:  # else whoever looks at the time of it looks anyway
            see_to(engine, name, number)


def _release_unfit(engine: Engine, name: str) -> None:
    if (site := engine.sites.get(name)) is not None:
        release_unfit(engine, site)


def _race(engine: Engine, key: str) -> None:
    if (attempt := bound_attempt(engine, key)) is not None:
        race(engine, attempt)


def _choose_again(engine: Engine) -> None:
    engine.openings.ask_again()


def _grow(engine: Engine, name: str) -> None:
    if (job := engine.jobs.get(name)) is not None:
        engine.grown[job] = None


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
        submit(engine, attempt)


def _check_queue(engine: Engine, key: str) -> None:
    """What was submitted to a site is there for long: it may be still in its queue."""
    request = engine.requests.get(key)
    if request is not None:
        if not request.spoke:
            check_queue(engine, request.site, key, request.requested_at)
        return
    attempt = bound_attempt(engine, key)
    if attempt is not None and attempt.counted and not attempt.leased:
        check_queue(engine, attempt.site, key, attempt.created_at)


# --- waiting limits -------------------------------------------------------------------------------------------------


def watch_waiting(engine: Engine) -> None:
    """See that somebody looks at every class whose packages may wait too long, and at every attempt that may queue so."""
    while engine.queued:
        watch_race(engine, engine.queued.pop())
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


_DUE: dict[int, Callable[[Engine, str, int], None]] = {
    Due.LEASE: lambda engine, name, _: check_lease(engine, name),
    Due.RESTART: _restart,
    Due.UNFIT: lambda engine, name, _: _release_unfit(engine, name),
    Due.REQUEST: lambda engine, name, _: _ask_again(engine, name),
    Due.EXPANSION: lambda engine, name, _: _grow(engine, name),
    Due.WAITING: _check_waiting,
    Due.ACTING: lambda engine, name, _: exorcise(engine, name),
    Due.CHOICE: lambda engine, _, __: _choose_again(engine),
    Due.STANDING: lambda engine, name, _: write_standing(engine, name),
    Due.REPLICA: lambda engine, name, _: _race(engine, name),
    Due.PROBE: lambda engine, name, _: end_probe(engine, name),
    Due.QUEUED: lambda engine, name, _: _check_queue(engine, name),
}
