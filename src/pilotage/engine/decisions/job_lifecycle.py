"""The end of a job: final packages start when all others are over, and some exit statuses end the job.

A final package waits for one more thing than the others: that all of them are over, however they ended, and that no late
stage is left to expand. That follows from their statuses and is checked after every event. If one of them restarts, the
final packages restart too, and wait again.

An exit status listed in `abort_on` of a package ends the job: every other unfinished package except the final ones is
cancelled in the same turn. The package itself is not retried.
"""

from __future__ import annotations

from collections import deque

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import closes, is_stopped, lost_stages
from pilotage.engine.state.jobs import ActivePackage, JobState, LateStageState, PackageStatus, template_of
from pilotage.engine.transitions.occupancy import remove_abandoned
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import ExpandStage

# Late stages: expanded when all their producers are done, given up when a producer is aborted.


def expand_late_stages(state: EngineState) -> None:
    """Request the expansion of late stages that are complete; abort packages that wait for a stage that cannot be expanded."""
    while state.pending.to_expand:
        job = next(iter(state.pending.to_expand))
        del state.pending.to_expand[job]
        if not job.late or job.cancelled or job.aborted or job.ended_by:
            continue
        for late in list(job.late.values()):
            if not late.pending and not any(stage in job.late for stage in late.stages):
                _request_expansion(state, job, late)
        if job.failed_producers:
            _give_up(state, job)


def _request_expansion(state: EngineState, job: JobState, late: LateStageState) -> None:
    wait = state.settings.submit_again_seconds
    if late.asked_at is None or state.clock.now >= late.asked_at + wait:
        late.asked_at = state.clock.now
        state.log.effects.append(ExpandStage(job=job.id, stage=late.stage, revision=late.revision))
        state.clock.timers.at(state.clock.now + wait, Due.EXPANSION, job.id)


def _give_up(state: EngineState, job: JobState) -> None:
    """A late stage with a failed producer is never expanded: abort the packages that wait for it, and in the end the job."""
    lost = lost_stages(job)
    if lost != job.given_up:
        job.given_up = lost
        _give_up_all_waiting(state, job, lost)
    if lost and not job.unfinished and all(stage in lost for stage in job.late):
        cause = job.dotted(next(iter(lost.values())))
        message = f"late stages that depend on {cause} cannot be expanded"
        state.log.write(payloads.Aborted(cause="upstream", message=message, upstream=cause), job=job, epoch=job.epoch)


def _give_up_all_waiting(state: EngineState, job: JobState, lost: dict[int, int]) -> None:
    for template, stages in job.plan.late_waits.items():
        blamed = next((lost[stage] for stage in stages if stage in lost), None)
        if blamed is not None:
            _give_up_waiting(state, job, template, blamed)


def _give_up_waiting(state: EngineState, job: JobState, template: int, producer: int) -> None:
    cause = job.dotted(producer)
    for number in (job.plan.template_of == template).nonzero()[0].tolist():
        if not job.is_final(number) and job.status[number] != PackageStatus.DROPPED:
            aborted = payloads.Aborted(cause="upstream", message=f"waits for {cause}", upstream=cause)
            state.log.write(aborted, job=job, number=number, epoch=job.epoch_of(number))


_AGAIN = "its job continues, and it is a final package"


def apply_job_endings(state: EngineState) -> None:
    """Restart final packages where needed; close the late stages of a job that a package has ended."""
    while state.pending.ending_jobs:
        job = next(iter(state.pending.ending_jobs))
        del state.pending.ending_jobs[job]
        if job.cancelled or job.aborted:
            continue
        if not job.ending:
            _run_again(state, job)
        elif job.ended_by and job.late and not job.unfinished:
            cause = job.dotted(min(job.ended_by))
            message = f"late stages that were not expanded are left out: {why_it_ended(job)}"
            state.log.write(
                payloads.Aborted(cause="abort-on", message=message, upstream=cause), job=job, epoch=job.epoch
            )


def cancel_failing_jobs(state: EngineState) -> None:
    """Kill a job when as many packages failed permanently as its `max_failures` allows."""
    while state.pending.failing_jobs:
        job = next(iter(state.pending.failing_jobs))
        del state.pending.failing_jobs[job]
        failed, most = job.counts[PackageStatus.ABORTED] - len(job.stopped_packages), job.failures_max
        if failed >= most and not (job.cancelled or job.aborted) and (job.unfinished or job.late):
            kill(state, job, f"{failed} failed, which is the limit of the job (--max-failures {most})")


def kill(state: EngineState, job: JobState, message: str) -> None:
    """Cancel every unfinished package of a job."""
    cancelled = payloads.CancelAccepted(message=message)
    state.log.write(cancelled, job=job, epoch=job.epoch)
    # Packages with attempts are cancelled one by one, so that none of them can be granted in a later turn.
    for number in [number for number, work in job.work.items() if work.attempts or work.candidates]:
        if not job.is_final(number):
            state.log.write(cancelled, job=job, number=number, epoch=job.epoch_of(number))


def _run_again(state: EngineState, job: JobState) -> None:
    """Restart final packages that ran, or were adopted, before everything else was over."""
    for number in job.finals:
        work = job.work.get(number)
        made = job.status[number] in (PackageStatus.DONE, PackageStatus.ABORTED)
        if made and not (work is not None and work.dropped) and not is_stopped(job, number):
            restarted = payloads.Restarted(cause="revived", message=_AGAIN)
            state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def ends_the_job(job: JobState, number: int, status: int) -> bool:
    """Whether an exit status of a package ends its job."""
    template = template_of(job, number)
    return template.abort_on is not None and template.abort_on.exit_code == status and not template.final


def end_by_failure(state: EngineState, job: JobState, work: ActivePackage) -> bool:
    """Abort a package and end its job if an attempt failed with such a status; returns whether one did."""
    number = work.number
    abort_on = template_of(job, number).abort_on
    if abort_on is None or not abort_on.exit_code or work.dropped or job.cancelled or job.aborted:
        return False
    status = abort_on.exit_code
    found = [each.attempt for each in work.failures.values() if status in (each.exit_status, -(each.signal or 0))]
    if not found or not ends_the_job(job, number, status):
        return False
    message = f"attempt {min(found)} ended with exit status {status}, which ends the job"
    state.log.write(
        payloads.Aborted(cause="abort-on", message=message), job=job, number=number, epoch=job.epoch_of(number)
    )
    end_others(state, job, number, status)
    return True


def end_others(state: EngineState, job: JobState, number: int, status: int) -> None:
    """Cancel every other unfinished package, except the final ones."""
    cancelled = payloads.CancelAccepted(message=_ended_by(job, number, status))
    templates, kinds = job.plan.templates, job.kinds
    for other in range(job.count):
        if job.status[other] < PackageStatus.DROPPED and not templates[kinds[other]].final:
            state.log.write(cancelled, job=job, number=other, epoch=job.epoch_of(other))


def why_it_ended(job: JobState) -> str:
    """Which package ended the job, and with which status."""
    number = min(job.ended_by)
    abort_on = template_of(job, number).abort_on
    return _ended_by(job, number, abort_on.exit_code if abort_on is not None else 0)


def _ended_by(job: JobState, number: int, status: int) -> str:
    return f"{job.dotted(number)} ended with exit status {status}, which ends the job"


def result_of(job: JobState) -> int | None:
    """The exit code of a job that a package has ended, from that package's `abort_on`; None for any other job."""
    if any(job.status[number] not in (PackageStatus.DONE, PackageStatus.DROPPED) for number in job.finals):
        return None  # a final package has failed
    ended_by = min(job.ended_by) if job.ended_by else None
    if ended_by is None and job.special and job.counts[PackageStatus.CANCELLED] and not job.cancelled:
        done = (number for number in range(job.count) if job.status[number] == PackageStatus.DONE)
        ended_by = next((number for number in done if ends_the_job(job, number, 0)), None)
    abort_on = template_of(job, ended_by).abort_on if ended_by is not None else None
    if abort_on is None:
        return None
    return abort_on.result if abort_on.result is not None else abort_on.exit_code


# Finished jobs leave the engine when they are cleared or archived, and come back when an operation needs them.
#
# A finished job costs a few bytes for each package, and its plan, as long as it may be queried or restarted. Once its
# outputs were handed over or removed, it is retired: this engine no longer knows it, and neither would an engine that
# starts from the book. Later events about it are stored but change nothing. To restart it, `restore.restore_job` reads it
# from the book first. Its id stays taken: the book has it, and the engine remembers the ids of the latest retired jobs,
# which may not be in the book yet.

LEFT_MAX = 10_000
"""How many ids of retired jobs are remembered; older ones are certainly in the book."""


def retire_cleared_jobs(state: EngineState) -> None:
    """Retire every job that can be retired; keep the others for the next check."""
    for job in [job for job in state.jobs.retirable if closes(job)]:
        retire_job(state, job)


def retire_job(state: EngineState, job: JobState) -> None:
    """Forget a job. Its abandoned attempts are restored with it."""
    for pilot, ref in [
        (pilot, ref) for pilot, refs in state.abandoned.by_pilot.items() for ref in refs if ref.job == job.id
    ]:
        remove_abandoned(state, pilot, ref)
    for queue in job.classes.values():
        state.queues.ready.pop(queue, None)
        state.queues.waiting.pop(queue, None)
        for site_queues in state.queues.at.values():
            site_queues.waiting.pop(queue, None)
            site_queues.unfit.pop(queue, None)
        state.placement.release_pool(queue)
    state.pending.to_expand.pop(job, None)
    state.pending.ending_jobs.pop(job, None)
    state.pending.to_commit = deque(each for each in state.pending.to_commit if each[0] is not job)
    state.pending.to_abort_consumers = deque(each for each in state.pending.to_abort_consumers if each[0] is not job)
    for waiting in (state.pending.to_judge, state.pending.to_revive):
        for each in [each for each in waiting if each[0] is job]:
            del waiting[each]
    for failing in [each for each in state.pending.failing_activities if each[0] is job]:
        del state.pending.failing_activities[failing]
    state.pending.to_stop.pop(job, None)
    state.jobs.retirable.pop(job, None)
    state.pending.to_forecast.pop(job, None)
    state.pending.to_score.pop(job, None)
    state.pending.to_heal.pop(job, None)
    state.files.jobs.pop(job, None)
    state.fairness.forget(job)
    state.forecasts.forget(job)
    state.healing.forget(job.id)
    state.jobs.plans.pop(job.id, None)
    del state.jobs.by_id[job.id]
    state.jobs.retired[job.id] = None
    while len(state.jobs.retired) > LEFT_MAX:
        del state.jobs.retired[next(iter(state.jobs.retired))]
