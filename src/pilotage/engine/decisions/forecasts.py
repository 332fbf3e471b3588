"""Records when jobs are expected to be over, and how they ended: so the book can tell how good forecasts were."""

from __future__ import annotations

from typing import Literal

from pilotage.engine.decisions.healing import record_at_end
from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.job_queries import is_over
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.engine.transitions.forecast_timers import EVERY_SECONDS, set_timer
from pilotage.model.events import payloads

PAUSE_SECONDS_MAX = 600.0
"""Longest time between two forecasts of a job whose end is far away."""
_PAUSE_SHARE = 0.02  # of the time left
ACTIVITIES_MAX = 16
"""Activities whose run times a forecast records."""
_MEDIAN_CHANGE, _BOUND_CHANGE = 0.05, 0.15  # of the time left: smaller changes are no news
_ELAPSED_SHARE = 0.2  # of the time since the job came: changes count as if at least so much were left


def forecast_jobs(state: EngineState) -> None:
    """Write the forecasts that are due and say something new, and the outcome of jobs that are over."""
    pending = state.pending
    while pending.to_forecast:
        job = next(iter(pending.to_forecast))
        del pending.to_forecast[job]
        _forecast(state, job)
    while pending.to_score:
        job = next(iter(pending.to_score))
        del pending.to_score[job]
        if job.cancelled or job.aborted or is_over(job):
            if job.forecast is not None:
                _score(state, job, job.forecast.made.number)
            record_at_end(state, job)


def _forecast(state: EngineState, job: JobState) -> None:
    if job.cancelled or job.aborted or is_over(job):
        return  # a restart sets the next timer
    found = state.forecasts.expectation(job) if job.open else None
    pause = EVERY_SECONDS
    if found is not None:  # an end that is far away moves slowly
        pause = max(pause, min(_PAUSE_SHARE * found.left.median_seconds, PAUSE_SECONDS_MAX))
    set_timer(state, job, state.clock.now + pause)
    if found is None:
        return
    last = job.forecast.made if job.forecast is not None else None
    now = state.clock.wall_time
    made = payloads.ForecastMade(
        median_at=round(now + found.left.median_seconds, 3),
        low_at=round(now + found.left.low_seconds, 3),
        high_at=round(now + found.left.high_seconds, 3),
        mean_at=round(now + found.left.mean_seconds, 3),
        packages=found.packages,
        number=last.number + 1 if last is not None else 1,
        basis=found.basis,
        run_times=job.run_times.record(job.plan, most=ACTIVITIES_MAX),
    )
    if last is None or _is_news(
        last, made, max(found.left.median_seconds, _ELAPSED_SHARE * (state.clock.now - job.since))
    ):
        state.log.write(made, job=job, epoch=job.epoch)


def _is_news(last: payloads.ForecastMade, made: payloads.ForecastMade, scale: float) -> bool:
    return (
        abs(made.median_at - last.median_at) > _MEDIAN_CHANGE * scale
        or abs(made.low_at - last.low_at) > _BOUND_CHANGE * scale
        or abs(made.high_at - last.high_at) > _BOUND_CHANGE * scale
        or made.basis != last.basis
    )


def _score(state: EngineState, job: JobState, forecasts: int) -> None:
    scored = payloads.ForecastScored(ended_at=state.clock.wall_time, outcome=_outcome(job), forecasts=forecasts)
    state.log.write(scored, job=job, epoch=job.epoch)


def _outcome(job: JobState) -> Literal["done", "failed", "cancelled", "aborted"]:
    if job.cancelled:
        return "cancelled"
    if job.aborted:
        return "aborted"
    return "failed" if any(job.counts[PackageStatus.ABORTED :]) else "done"
