"""Jobs that are over leave the engine when they are cleared or put away, and come back when somebody wants more of them.

A job that is over costs a few bytes for each package and its plan, as long as somebody may ask about it or restart it.
When its outputs were handed over or removed it goes: the engine knows it no longer, as an engine that starts from the book
would not. Whatever is said of it then is noted and believed by nobody. To restart it, it is laid out again from the book
first (`restore.restore_job`). Its id stays taken: the book has it, and the latest that left are remembered here for what
is not yet in the book.
"""

from __future__ import annotations

from collections import deque

from pilotage.engine.engine_state import EngineState
from pilotage.engine.jobs import JobState, Standing
from pilotage.engine.slots import stop_acting

LEFT_MAX = 10_000
"""Ids of jobs that left which are remembered; those before them are surely in the book."""


def is_over(job: JobState) -> bool:
    """Whether nothing of a job is under way or will be, unless somebody restarts it."""
    if not (job.cancelled or job.aborted) and (job.unfinished or job.late):
        return False
    return not any(
        (work.candidates and not work.dropped) or any(not attempt.lost for attempt in work.attempts.values())
        for work in job.work.values()
    )


def standing_of(job: JobState, number: int) -> int:
    """Where a package is; with a job that was killed or given up is over what is not under way, as the book has it."""
    standing = job.standing[number]
    if standing >= Standing.DROPPED or not (job.cancelled or job.aborted):
        return standing
    work = job.work.get(number)
    if work is not None and (work.candidates or any(not attempt.lost for attempt in work.attempts.values())):
        return standing
    return Standing.CANCELLED if job.cancelled else Standing.ABORTED


def closes(job: JobState) -> bool:
    """Whether a job is cleared as a whole, or in all that is not dropped, and over."""
    if not job.cleared:
        if not job.cleared_packages or len(job.cleared_packages) < job.count - job.counts[Standing.DROPPED]:
            return False
        kept = (number for number in range(job.count) if job.standing[number] != Standing.DROPPED)
        if not all(number in job.cleared_packages for number in kept):
            return False
    return is_over(job)


def let_go_of_cleared(state: EngineState) -> None:
    """Every job that can go goes; the others are looked at again."""
    for job in [job for job in state.jobs.retirable if closes(job)]:
        let_go_of(state, job)


def let_go_of(state: EngineState, job: JobState) -> None:
    """Know a job no longer. What may still act of it is known again when it comes back."""
    for pilot, ref in [
        (pilot, ref) for pilot, refs in state.abandoned.by_pilot.items() for ref in refs if ref.job == job.id
    ]:
        stop_acting(state, pilot, ref)
    for queue in job.classes.values():
        state.queues.ready.pop(queue, None)
        state.queues.waiting.pop(queue, None)
        for site_queues in state.queues.at.values():
            site_queues.waiting.pop(queue, None)
            site_queues.unfit.pop(queue, None)
        state.placement.leave_pool(queue)
    state.pending.to_expand.pop(job, None)
    state.pending.ending_jobs.pop(job, None)
    state.pending.to_commit = deque(each for each in state.pending.to_commit if each[0] is not job)
    state.pending.to_abort_consumers = deque(each for each in state.pending.to_abort_consumers if each[0] is not job)
    for waiting in (state.pending.to_judge, state.pending.to_revive):
        for each in [each for each in waiting if each[0] is job]:
            del waiting[each]
    state.jobs.retirable.pop(job, None)
    state.fairness.forget(job)
    state.jobs.plans.pop(job.id, None)
    del state.jobs.by_id[job.id]
    state.jobs.retired[job.id] = None
    while len(state.jobs.retired) > LEFT_MAX:
        del state.jobs.retired[next(iter(state.jobs.retired))]
