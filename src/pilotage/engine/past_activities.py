"""Which activities were stopped, and how their attempts failed since they were opened, from the rows of the book."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.book.fold.finals import FailedAttempt, FinalPackage, failed_attempts
from pilotage.book.rows.activities import read_activities
from pilotage.book.rows.rows import JobRow, PackageFacts
from pilotage.engine.engine_state import EngineState
from pilotage.engine.retry.policy import FAILURE_MESSAGE_MAX, Failure
from pilotage.engine.state.activities import StoppedActivity
from pilotage.engine.state.jobs import JobState, template_of
from pilotage.model.states import ExitCodeGasw


def restore_activities(job: JobState, row: JobRow) -> None:
    """Restore which activities are stopped, and from when on the failures of each count."""
    for name, known in read_activities(row.activities).items():
        job.activities.reopen(name, known.at)
        if known.stopped:
            stopped = StoppedActivity(
                operation=known.operation,
                at=known.at,
                failed_attempts=known.failed_attempts,
                failed_packages=known.failed_packages,
                message=known.message,
            )
            job.activities.stop(name, stopped)


def count_final(job: JobState, number: int | None, final: FinalPackage) -> None:
    """Count the attempts of a package that is over."""
    if number is not None and (final.granted or final.failures):
        _count(job, number, final.failures, succeeded_at=final.done_at if final.granted else 0.0)


def count_unfinished(job: JobState, number: int, facts: PackageFacts) -> None:
    """Count the attempts of a package that is not over."""
    ends = (each.finished_at for each in facts.attempts.values() if each.exit_code == ExitCodeGasw.SUCCESS)
    _count(job, number, failed_attempts(facts), succeeded_at=max((at for at in ends if at is not None), default=0.0))


def _count(job: JobState, number: int, failures: Iterable[FailedAttempt], *, succeeded_at: float) -> None:
    """Count the attempts of a package for its activity: those since it was opened."""
    activity = template_of(job, number).activity
    opened_at = job.activities.opened_at(activity)
    if succeeded_at > max(0.0, opened_at):
        job.activities.succeeded(activity)
    for each in failures:
        if each.ended_at > opened_at:
            failure = Failure(
                attempt=each.attempt,
                site=each.site,
                reason=each.reason,
                exit_status=each.exit_status,
                signal=each.signal,
                message=each.message[:FAILURE_MESSAGE_MAX],
            )
            job.activities.failed(activity, number, failure, max(0.0, each.ended_at - each.began_at))


def resume_stops(state: EngineState, job: JobState) -> None:
    """Finish what an earlier engine may have begun: abort packages of stopped activities, and judge the others again."""
    if job.activities.stopped:
        state.pending.to_stop[job] = None
    for activity in job.activities.names:
        state.pending.failing_activities[job, activity] = None
