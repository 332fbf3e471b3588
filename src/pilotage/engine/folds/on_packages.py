"""Folds of events about packages."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.engine.transitions.file_needs import forgive
from pilotage.engine.transitions.forecast_timers import schedule_forecast
from pilotage.engine.transitions.occupancy import release_attempt
from pilotage.engine.transitions.readiness import move, reconsider, satisfy, unsatisfy
from pilotage.model.events import payloads
from pilotage.model.events.events import Event


def revive_waiting(state: EngineState, job: JobState) -> None:
    """Check again packages that were aborted because of a late stage that may be expanded after all."""
    for template in job.plan.late_waits:
        for number in (job.plan.template_of == template).nonzero()[0].tolist():
            if job.status[number] == PackageStatus.UPSTREAM:
                state.pending.to_revive[job, number] = None


def on_package_held(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.Held | payloads.Released
) -> None:
    """Hold or release the package: while held, it gets no further attempt."""
    work = job.work_of(number)
    work.held = isinstance(data, payloads.Held)
    if not work.held and job.files is not None:
        forgive(state, job)
    if work.refused and not work.held:
        work.refused = ""
        state.pending.to_commit.append((job, number))
    reconsider(state, job, number)
    job.forget_idle(number)


def on_package_cancelled(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.CancelAccepted
) -> None:
    """The package will not be done in this epoch."""
    end_package(state, job, number, event, PackageStatus.CANCELLED)


def on_package_aborted(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Aborted) -> None:
    """The package was aborted in this epoch."""
    status = PackageStatus.UPSTREAM if data.cause == "upstream" else PackageStatus.ABORTED
    if end_package(state, job, number, event, status):
        job.note_cause(number, data.cause)
        if job.failures_max and status == PackageStatus.ABORTED and data.cause != "activity-stopped":
            state.pending.failing_jobs[job] = None


def on_package_cleared(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Cleared) -> None:
    """The package is cleared, and over with that; the last one clears its job."""
    if event.epoch != job.epoch_of(number):
        return
    if not job.is_final(number):
        end_package(state, job, number, event, PackageStatus.CANCELLED)
    job.cleared_packages.add(number)
    state.jobs.retirable[job] = None


def end_package(state: EngineState, job: JobState, number: int, event: Event, status: int) -> bool:
    """End a package in this epoch; returns whether it was unfinished."""
    if event.epoch != job.epoch_of(number) or job.is_final(number):
        return False
    move(state, job, number, status)
    forget_epoch(state, job, number)
    state.pending.to_abort_consumers.append((job, number))
    return True


def forget_epoch(state: EngineState, job: JobState, number: int) -> None:
    """Release the attempts of the epoch: their pilots are told to stop them."""
    work = job.work.get(number)
    if work is None:
        return
    work.early = None
    if not (work.attempts or work.bound or work.held or work.dropped):
        del job.work[number]  # nothing of it needs to be remembered
        return
    if work.attempts:
        for attempt in list(work.attempts.values()):
            release_attempt(state, attempt)
    work.forget()
    work.refused = ""
    work.verdict = work.queue = None
    work.delayed_until = 0.0
    work.replicas = work.replicated = 0
    work.races = work.heals = False
    work.storing = work.stored = 0
    job.forget_idle(number)


def on_package_restarted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.Restarted
) -> None:
    """A new epoch of the package begins: results of earlier ones no longer count."""
    if event.epoch <= job.epoch_of(number):
        return
    if job.status[number] in (PackageStatus.READY, PackageStatus.RESERVED):
        # Its history determines its queue: it leaves that queue before the history is cleared.
        move(state, job, number, PackageStatus.BLOCKED)
    forget_epoch(state, job, number)
    fed_late = number in job.failed_producers
    job.epochs[number] = event.epoch
    job.granted[number] = 0
    if job.disposed:
        job.disposed[number] = 0
        state.files.to_remake[job, number] = None
    job.cleared_packages.discard(number)
    if number in job.ended_by:
        del job.ended_by[number]
        state.pending.to_expand[job] = None
    job.stopped_packages.discard(number)
    if job.activities.stopped:
        state.pending.to_stop[job] = None
    move(state, job, number, PackageStatus.BLOCKED)
    schedule_forecast(state, job)
    work = job.work.get(number)
    if work is None or not work.dropped:
        unsatisfy(state, job, number)
    reconsider(state, job, number)
    _revive(state, job, number, fed_late=fed_late)
    _recheck_failed_producers(state, job, number)


def _revive(state: EngineState, job: JobState, number: int, *, fed_late: bool) -> None:
    for other in job.awaiting(number):
        if job.status[other] == PackageStatus.UPSTREAM:
            state.pending.to_revive[job, other] = None
    if fed_late:
        job.given_up = {}  # stages that depend on it may be expanded after all, or be given up again
        revive_waiting(state, job)
        state.pending.to_expand[job] = None


def on_dropped(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Dropped) -> None:
    """The package is left out: its consumers go on without it, and it is neither started nor granted. Its attempts are lost already."""
    job.drop_revision = max(job.drop_revision, data.operation)
    job.work_of(number).dropped = data.operation
    fed_late = number in job.failed_producers
    reconsider(state, job, number)
    satisfy(state, job, number)
    _revive(state, job, number, fed_late=fed_late)


def on_restored(state: EngineState, job: JobState, number: int, event: Event, data: payloads.Restored) -> None:
    """The package is part of the job again."""
    job.drop_revision = max(job.drop_revision, data.operation)
    work = job.work_of(number)
    work.dropped = 0
    if job.activities.stopped:
        state.pending.to_stop[job] = None
    if job.disposed:
        state.files.to_remake[job, number] = None
    if not job.granted[number]:
        unsatisfy(state, job, number)
    if work.candidates:
        state.pending.to_commit.append((job, number))
    if work.failures or work.attempts:
        state.pending.to_judge[job, number] = None  # failures while it was dropped were not judged
    reconsider(state, job, number)
    _recheck_failed_producers(state, job, number)
    if job.is_dead(number):
        if job.feeds_late[number]:
            job.failed_producers.add(number)
        state.pending.to_abort_consumers.append((job, number))
    job.forget_idle(number)


def _recheck_failed_producers(state: EngineState, job: JobState, number: int) -> None:
    """Check the producers of packages that wait again: one may have been aborted meanwhile."""
    if job.is_final(number):
        return
    state.pending.to_abort_consumers.extend((job, other) for other in job.awaited(number) if job.is_dead(other))
    if job.failed_producers:
        job.given_up = {}  # it may wait for a late stage that was given up before
        state.pending.to_expand[job] = None


def on_replica_wanted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.ReplicaWanted
) -> None:
    """Further attempts shall run beside the current one."""
    if event.epoch == job.epoch_of(number) and not job.is_final(number):
        work = job.work_of(number)
        work.replicas = data.replicas
        work.races |= data.cause == "queue"
        if data.cause == "healing":
            work.heals = True
            for attempt in work.attempts.values():
                attempt.raced_at = min(attempt.raced_at, event.time)
        reconsider(state, job, number)
