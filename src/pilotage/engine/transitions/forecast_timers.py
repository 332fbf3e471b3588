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
        job.forecast_due = True
        at = state.clock.now + FIRST_SECONDS
        if job.forecast is not None:
            at = max(state.clock.now, job.forecast_at + EVERY_SECONDS)
        state.clock.timers.at(at, Due.FORECAST, job.id)


def may_be_over(state: EngineState, job: JobState) -> None:
    """Have the next decision check whether a job with a forecast is over."""
    if job.forecast is not None:
        state.pending.to_score[job] = None
