"""Planted bugs in forecasts of the ends of jobs, and in their outcomes."""

from __future__ import annotations

from pilotage.book.rows.rows import JobRow
from pilotage.engine import restore
from pilotage.engine.decisions import forecasts
from pilotage.engine.engine_state import EngineState
from pilotage.engine.forecasts import Expectation, Forecasts
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.engine.transitions.forecast_timers import schedule_forecast
from tests.simulation.mutants import Patch, graft, mutant


@mutant(first_seed=2, by="forecasts")
def a_forecast_comes_every_twenty_seconds(patch: Patch) -> None:
    """The timer is set too early, and every forecast is news."""
    patch.setattr(forecasts, "EVERY_SECONDS", 20.0)
    graft(patch, forecasts._is_news, lambda last, made, scale: True)


@mutant(first_seed=2, by="forecasts")
def the_bounds_of_a_forecast_are_exchanged(patch: Patch) -> None:
    """The earliest end is later than the latest."""
    expected = Forecasts.expectation

    def expectation(self: Forecasts, job: JobState) -> Expectation | None:
        if (found := expected(self, job)) is None:
            return None
        left = found.left._replace(low_seconds=found.left.high_seconds, high_seconds=found.left.low_seconds)
        return found._replace(left=left)

    patch.setattr(Forecasts, "expectation", expectation)


@mutant(first_seed=8, by="restoring forecasts")
def an_engine_that_starts_again_knows_no_forecast(patch: Patch) -> None:
    """After a restart forecasts are counted from one, and their job has no outcome."""

    def restored(state: EngineState, job: JobState, row: JobRow) -> None:
        schedule_forecast(state, job)

    graft(patch, restore._restore_forecast, restored)


@mutant(first_seed=2, by="forecasts")
def nobody_says_how_a_job_with_forecasts_ended(patch: Patch) -> None:
    """The outcome is left out."""
    graft(patch, forecasts._score, lambda state, job, count: None)


@mutant(first_seed=2, by="forecasts")
def the_outcome_is_written_when_nothing_runs_for_a_moment(patch: Patch) -> None:
    """A job without a running package is taken for over."""
    patch.setattr(forecasts, "is_over", lambda job: not job.counts[PackageStatus.LIVE])


@mutant(first_seed=2, by="forecasts")
def the_outcome_counts_one_forecast_too_many(patch: Patch) -> None:
    """Off by one: the number of the next forecast is written."""
    scored = forecasts._score
    graft(patch, scored, lambda state, job, count: scored(state, job, count + 1))
