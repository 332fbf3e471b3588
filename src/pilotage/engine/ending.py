"""How a job ends: what runs last begins when everything else is over, and some exit statuses end everything else.

A package that runs last waits for one thing more than the others: that all of them are over, whatever came of them, and no
stage is still to come. That follows from where they stand, and is looked at after every event. When one of them begins
anew, what ran last does so too, and waits again.

An exit status that a package has in `abort_on` ends the job: every other package that is not over is cancelled in the same
turn, but not those that run last. What the package has done by that is not tried again by itself.
"""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.growth import ends
from pilotage.engine.jobs import JobState, PackageWork, Standing, template_of
from pilotage.engine.readiness import reconsider
from pilotage.model import payloads

_AGAIN = "its job goes on, and it runs last"


def look_at_end(state: EngineState, job: JobState) -> None:
    """See whether everything but what runs last is over, after something has changed."""
    if not job.accepted:
        return
    ending = ends(job)
    if ending != job.ending:
        job.ending = ending
        for number in job.finals:
            job.waits[number] += -1 if ending else 1
            reconsider(state, job, number)
    if (job.finals_made and not ending) or (job.enders and job.late and not job.unfinished):
        state.pending.ending_jobs[job] = None


def see_to_ends(state: EngineState) -> None:
    """What ran last and runs again; a job that a package has ended, and of which stages will never be known."""
    while state.pending.ending_jobs:
        job = next(iter(state.pending.ending_jobs))
        del state.pending.ending_jobs[job]
        if job.cancelled or job.aborted:
            continue
        if not job.ending:
            _run_again(state, job)
        elif job.enders and job.late and not job.unfinished:
            cause = job.dotted(min(job.enders))
            message = f"stages that were not known yet are left out: {why_it_ended(job)}"
            state.log.write(
                payloads.Aborted(cause="abort-on", message=message, upstream=cause), job=job, epoch=job.epoch
            )


def stop_what_fails(state: EngineState) -> None:
    """Kill a job of which as many packages have failed for good as whoever submitted it allows for."""
    while state.pending.failing_jobs:
        job = next(iter(state.pending.failing_jobs))
        del state.pending.failing_jobs[job]
        failed, most = job.counts[Standing.ABORTED], job.failures_max
        if failed >= most and not (job.cancelled or job.aborted) and (job.unfinished or job.late):
            kill(state, job, f"{failed} failed, and the job was to end when {most} had (--max-failures {most})")


def kill(state: EngineState, job: JobState, message: str) -> None:
    """Cancel everything of a job that is not over."""
    cancelled = payloads.CancelAccepted(message=message)
    state.log.write(cancelled, job=job, epoch=job.epoch)
    # What was tried and is not over is cancelled by itself, so that nothing of it can be granted in a later turn.
    for number in [number for number, work in job.work.items() if work.attempts or work.candidates]:
        if not job.is_final(number):
            state.log.write(cancelled, job=job, number=number, epoch=job.epoch_of(number))


def _run_again(state: EngineState, job: JobState) -> None:
    """What ran last, or was made by an earlier run, has not seen what is still to come."""
    for number in job.finals:
        work = job.work.get(number)
        if job.standing[number] in (Standing.DONE, Standing.ABORTED) and not (work is not None and work.dropped):
            restarted = payloads.Restarted(cause="revived", message=_AGAIN)
            state.log.write(restarted, job=job, number=number, epoch=job.epoch_of(number) + 1)


def ends_the_job(job: JobState, number: int, status: int) -> bool:
    """Whether a package ends its job by ending with a status."""
    template = template_of(job, number)
    return template.abort_on is not None and template.abort_on.exit_code == status and not template.final


def end_by_failure(state: EngineState, job: JobState, work: PackageWork) -> bool:
    """Give a package up, and end its job, if an attempt failed with the status that says so; whether one did."""
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
    """Cancel every other package that is not over, but not those that run last."""
    cancelled = payloads.CancelAccepted(message=_ended_by(job, number, status))
    templates, kinds = job.plan.templates, job.kinds
    for other in range(job.count):
        if job.standing[other] < Standing.DROPPED and not templates[kinds[other]].final:
            state.log.write(cancelled, job=job, number=other, epoch=job.epoch_of(other))


def why_it_ended(job: JobState) -> str:
    """Which package has ended a job, and by which status."""
    number = min(job.enders)
    abort_on = template_of(job, number).abort_on
    return _ended_by(job, number, abort_on.exit_code if abort_on is not None else 0)


def _ended_by(job: JobState, number: int, status: int) -> str:
    return f"{job.dotted(number)} ended with exit status {status}, which ends the job"


def result_of(job: JobState) -> int | None:
    """The exit code of a job that a package has ended, as that package's `abort_on` says; None where none has."""
    if any(job.standing[number] not in (Standing.DONE, Standing.DROPPED) for number in job.finals):
        return None  # what ran last has failed
    ended_by = min(job.enders) if job.enders else None
    if ended_by is None and job.special and job.counts[Standing.CANCELLED] and not job.cancelled:
        done = (number for number in range(job.count) if job.standing[number] == Standing.DONE)
        ended_by = next((number for number in done if ends_the_job(job, number, 0)), None)
    abort_on = template_of(job, ended_by).abort_on if ended_by is not None else None
    if abort_on is None:
        return None
    return abort_on.result if abort_on.result is not None else abort_on.exit_code
