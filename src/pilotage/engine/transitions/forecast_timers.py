"""Timers for forecasts: the first some time after a job was accepted or restarted, then at most one a minute."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.clock import Due
from pilotage.engine.state.jobs import JobState

FIRST_SECONDS = 30.0
"""Time from the acceptance of a job to its first forecast: shorter jobs need none."""
EVERY_SECONDS = 60.0
"""Time between two forecasts of a job."""


def schedule_forecast(state: EngineState, job: JobState) -> None:
    """Set a timer for the next forecast of a job, if none is set."""
    if not job.forecast_due:
        at = state.clock.now + FIRST_SECONDS
        if job.forecast is not None:
            at = max(state.clock.now, job.forecast_at + EVERY_SECONDS)
        set_timer(state, job, at)


def set_timer(state: EngineState, job: JobState, at: float) -> None:
    """Set the timer for the next forecast of a job."""
    job.forecast_due = at
    state.clock.timers.at(at, Due.FORECAST, job.id)


def is_due(state: EngineState, job: JobState) -> bool:
    """Whether the next forecast of a job is due: a timer may be of a job that was retired and has come back."""
    return 0.0 < job.forecast_due <= state.clock.now


def may_be_over(state: EngineState, job: JobState) -> None:
    """Have the next decision check whether a job is over, if something is recorded then."""
    if job.forecast is not None or state.healing.is_recorded_at_end(job.id):
        state.pending.to_score[job] = None
