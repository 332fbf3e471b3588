"""Since when packages are ready, from what the book has: a limit on waiting goes on over a restart of the service.

The book does not say when a package became ready; it says what had to be there first: when its job was accepted or
opened again, when its producers were granted, when it was released, how its own last attempt ended. The latest of these is when it
became ready. What a package does not tell the time of (a drop) counts as having been just now: then the package has its full
term again, so nobody is given up too early. That a package was reserved meanwhile is in no event; it is ready again after a
restart, and is given the length of a lease to be reserved as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pilotage.book.registers import Register
from pilotage.book.rows import JobRow, PackageFacts
from pilotage.engine.engine_state import EngineState
from pilotage.engine.jobs import JobState, QueueClass
from pilotage.engine.timers import Due


def own_time(facts: PackageFacts, now: float) -> float:
    """Before when a package that is not over was not ready, as far as that lies with itself."""
    was_held = Register.HOLD in facts.keys
    if facts.dropped or facts.held or Register.DROP in facts.keys or (was_held and facts.hold_set_at is None):
        return now
    times = [facts.opened_at, facts.hold_set_at]
    for attempt in facts.attempts.values():
        times += [attempt.created_at, attempt.finished_at, attempt.lost_at, attempt.suspected_at]
    return max((time for time in times if time is not None), default=0.0)


def go_on_waiting(
    state: EngineState, job: JobState, row: JobRow, *, done_at: Mapping[int, float], own: Mapping[int, float]
) -> None:
    """Have what is ready wait on from when it became so; `done_at` and `own` are by package, as far as anything is known."""
    limit = state.settings.waiting_seconds_max
    now = state.clock.now
    if not limit or not job.accepted:
        return
    begun = now if job.held else max(row.accepted_at or 0.0, row.opened_at or 0.0, job.released_at)
    # Stages that were late were laid out after what they are made of was there, and others may have waited for that.
    begun = max(begun, _latest(job, (number for late in job.plan.laid_out for number in late.packages), done_at, now))
    for queue in job.classes.values():
        since = {
            number: min(now, max(begun, own.get(number, 0.0), _latest(job, job.awaited(number), done_at, now)))
            for number in queue.queue
        }
        since |= {number: now for number in job.finals if number in since}  # nobody noted when the others were over
        _put_back(queue, since)
        if since:
            queue.watched = True
            first = max(now + state.settings.lease_seconds, min(since.values()) + limit)
            state.clock.timers.at(first, Due.WAITING, job.id, queue.index)


def _latest(job: JobState, numbers: Iterable[int], done_at: Mapping[int, float], now: float) -> float:
    """When the last of some packages was granted; now, where one was dropped."""
    return max((done_at.get(number, now) if job.satisfied[number] else now for number in numbers), default=0.0)


def _put_back(queue: QueueClass, since: Mapping[int, float]) -> None:
    """Fill a queue anew, whoever was ready first in front."""
    queue.queue.clear()
    for number in sorted(since, key=lambda number: (since[number], number)):
        queue.queue.push(number, since[number])
        queue.job.ready_since[number] = since[number]
