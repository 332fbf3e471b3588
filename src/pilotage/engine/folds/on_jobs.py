"""Folds of events about jobs."""

from __future__ import annotations

from pilotage.book.rows.forecasts import JobForecast
from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.activities import StoppedActivity
from pilotage.engine.state.job_queries import ends, packages_of
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.engine.transitions.file_needs import add_job, check_all_disposal, close_job, forgive
from pilotage.engine.transitions.forecast_timers import may_be_over, schedule_forecast
from pilotage.engine.transitions.readiness import lay_out, move, reconsider, reopen
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.healing_payloads import ActivityGrouped, ActivityReopened, ActivityStopped


def on_job_registered(state: EngineState, job: JobState | None, event: Event, data: payloads.JobRegistered) -> None:
    """Add a job; one without a plan belongs to another engine and is ignored."""
    plans = state.jobs.plans.get(event.job or "")
    if job is not None or not plans or event.job is None:
        return
    since = event.time - (state.clock.wall_time - state.clock.now)  # the clock may have been set meanwhile
    job = JobState(event.job, owner=data.owner, plan=plans.popleft(), order=state.jobs.next_order(), since=since)
    state.jobs.by_id[job.id] = job
    add_job(state, job)


def on_job_accepted(state: EngineState, job: JobState | None, event: Event, data: payloads.JobAccepted) -> None:
    """Its packages may run."""
    if job is not None and not job.accepted:
        job.accepted = True
        if job.files is not None:
            forgive(state, job)  # files may be in place now, or this document requires another content of them
        lay_out(state, job)
        schedule_forecast(state, job)


def on_stage_expanded(state: EngineState, job: JobState | None, event: Event, data: payloads.StageExpanded) -> None:
    """A late stage was expanded: its packages exist, and nothing waits for the expansion any more."""
    plans = state.jobs.plans.get(event.job or "")
    if job is None or data.stage not in job.late or not plans:
        return
    job.take_plan(plans.popleft())
    add_job(state, job)
    lay_out(state, job)
    check_all_disposal(state, job)
    if job.activities.stopped:
        state.pending.to_stop[job] = None
    # Its packages may wait for packages that were aborted before.
    state.pending.to_abort_consumers.extend((job, number) for number in range(job.count) if job.is_dead(number))


def on_held(state: EngineState, job: JobState | None, event: Event, data: payloads.Held | payloads.Released) -> None:
    """Hold or release the job: while held, nothing of it is started."""
    if job is None:
        return
    held, job.held = job.held, isinstance(data, payloads.Held)
    job.held_why = data.message if isinstance(data, payloads.Held) else ""
    at = event.time - (state.clock.wall_time - state.clock.now)
    if job.held:
        if not held:
            job.held_since = at
        release_all(state, job)
    else:
        job.released_at = at
        if job.files is not None:
            forgive(state, job)
        if held:  # before it is reopened, its packages do not count as waiting
            job.since += max(0.0, at - max(job.since, job.held_since))
    reopen(state, job)


def release_all(state: EngineState, job: JobState) -> None:
    """Release every reservation of a job; its packages are ready again."""
    for number, work in list(job.work.items()):
        if work.bound is not None:
            move(state, job, number, PackageStatus.READY)


def on_job_cancelled(state: EngineState, job: JobState | None, event: Event, data: payloads.CancelAccepted) -> None:
    """The job is killed: nothing of it is started or granted any more."""
    if job is not None and event.epoch == job.epoch:
        job.cancelled = True
        may_be_over(state, job)
        release_all(state, job)
        close_job(state, job)
        reopen(state, job)


def on_job_aborted(state: EngineState, job: JobState | None, event: Event, data: payloads.Aborted) -> None:
    """The rest of the job was aborted."""
    if job is not None and event.epoch == job.epoch:
        job.aborted = True
        may_be_over(state, job)
        release_all(state, job)
        close_job(state, job)
        reopen(state, job)


def on_job_restarted(state: EngineState, job: JobState | None, event: Event, data: payloads.Restarted) -> None:
    """The job continues: its unfinished packages are worked on again."""
    if job is not None and event.epoch > job.epoch:
        job.epoch = event.epoch
        job.cancelled = job.aborted = job.cleared = False
        job.since = event.time - (state.clock.wall_time - state.clock.now)
        reopen(state, job)
        schedule_forecast(state, job)
        state.pending.to_expand[job] = None
        if job.activities.stopped:
            state.pending.to_stop[job] = None
        # Consumers of packages that were aborted meanwhile have not been checked.
        state.pending.to_abort_consumers.extend((job, number) for number in range(job.count) if job.is_dead(number))
        state.pending.to_commit.extend((job, number) for number, work in job.work.items() if work.candidates)
        state.pending.to_judge.update(((job, number), None) for number, work in job.work.items() if work.failures)


def on_job_cleared(state: EngineState, job: JobState | None, event: Event, data: payloads.Cleared) -> None:
    """Its outputs were handed over or removed: it is retired as soon as it is over."""
    if job is not None and event.epoch == job.epoch:
        job.cleared = True
        state.jobs.retirable[job] = None


def on_activity_stopped(state: EngineState, job: JobState | None, event: Event, data: ActivityStopped) -> None:
    """An activity cannot succeed: its unfinished packages are to be aborted."""
    if job is not None:
        stopped = StoppedActivity(
            operation=data.operation,
            at=event.time,
            failed_attempts=data.failed_attempts,
            failed_packages=data.failed_packages,
            message=data.message,
        )
        job.activities.stop(data.activity, stopped)
        state.pending.to_stop[job] = None


def on_activity_reopened(state: EngineState, job: JobState | None, event: Event, data: ActivityReopened) -> None:
    """Its packages may run again, also those that were not restarted with a producer meanwhile."""
    if job is not None:
        job.activities.reopen(data.activity, event.time)
        for number in packages_of(job, data.activity):
            if job.status[number] == PackageStatus.UPSTREAM:
                state.pending.to_revive[job, number] = None


def on_activity_grouped(state: EngineState, job: JobState | None, event: Event, data: ActivityGrouped) -> None:
    """So many packages of an activity share a batch job from now on."""
    if job is not None and state.healing.enabled:
        state.healing.of(job.id).of_activity(data.activity).grouped = data.packages


def on_forecast_made(state: EngineState, job: JobState | None, event: Event, data: payloads.ForecastMade) -> None:
    """The end of a job was forecast."""
    if job is not None:
        job.forecast = JobForecast(made_at=event.time, made=data)
        job.forecast_at = event.time - (state.clock.wall_time - state.clock.now)


def on_forecast_scored(state: EngineState, job: JobState | None, event: Event, data: payloads.ForecastScored) -> None:
    """A job that had forecasts is over."""
    if job is not None:
        job.forecast = None
        state.forecasts.forget(job)


def check_job_end(state: EngineState, job: JobState) -> None:
    """Check after a change whether all packages but the final ones are over."""
    if not job.accepted:
        return
    ending = ends(job)
    if ending != job.ending:
        job.ending = ending
        for number in job.finals:
            job.waits[number] += -1 if ending else 1
            reconsider(state, job, number)
    if (job.finals_made and not ending) or (job.ended_by and job.late and not job.unfinished):
        state.pending.ending_jobs[job] = None
