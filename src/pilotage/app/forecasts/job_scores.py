"""Scores of the forecasts that the book recorded for jobs: what `pilotage forecast score JOB` answers and draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pilotage.forecast.score import PastForecast, calibration, score_of

QUARTERS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Parts of the time from the first forecast of a job to its end."""
EVENTS_QUERY = "type in (ForecastMade, ForecastScored)"
"""The events that scores are made of."""
_UNSCORED = {"cancelled": "it was cancelled", "aborted": "it was aborted"}


class ScoredForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast and what came of it; seconds count from when it was made."""

    made_at: float
    left_seconds: float  # really
    median_seconds: float
    low_seconds: float
    high_seconds: float
    error: float  # of the median, by the time left
    inside: bool
    over_share: float  # of the time from the first forecast to the end
    packages: int
    basis: str


class ScoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or one of its runs if it was restarted after its end."""

    job: str
    outcome: str
    ended_at: float
    forecasts: tuple[ScoredForecast, ...]


class PartScore(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts that were made in one part of the time of their jobs."""

    from_share: float
    to_share: float
    forecasts: int
    mean_absolute_error: float
    bias: float
    inside: float


class CoveragePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The nominal coverage of intervals, and the share of them that held the end."""

    nominal: float
    observed: float


class UnscoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose forecasts cannot be compared with an end, and why."""

    job: str
    why: str


class JobScores(msgspec.Struct, frozen=True, kw_only=True):
    """How good the forecasts of some jobs were; errors are by the time that was left."""

    forecasts: int
    mean_absolute_error: float | None
    bias: float | None
    inside: float | None
    inside_by_job: float | None  # every job counts once, however many forecasts it had
    nominal: float
    parts: tuple[PartScore, ...]
    calibration: tuple[CoveragePoint, ...]
    jobs: tuple[ScoredJob, ...]
    unscored: tuple[UnscoredJob, ...]


Events = Iterable[Mapping[str, Any]]
"""Events of a job as HTTP returns them, in the order of the book."""


def score_jobs(found: Mapping[str, Events]) -> JobScores:
    """The scores of the forecasts of some jobs."""
    jobs: list[ScoredJob] = []
    unscored: list[UnscoredJob] = []
    past: list[tuple[PastForecast, float]] = []
    for job, events in found.items():
        made: list[Mapping[str, Any]] = []
        runs = 0
        for event in events:
            if event["type"] == "ForecastMade":
                made.append(event)
                continue
            runs, outcome = runs + 1, event["data"]["outcome"]
            if outcome in _UNSCORED:
                unscored.append(UnscoredJob(job=job, why=_UNSCORED[outcome]))
            else:
                scored = _job(job, made, outcome=outcome, ended_at=event["data"]["ended_at"])
                jobs.append(scored[0])
                past += scored[1]
            made = []
        if made:
            unscored.append(UnscoredJob(job=job, why="it is not over"))
        elif not runs:
            unscored.append(UnscoredJob(job=job, why="it has no forecast"))
    every = [each for each, _ in past]
    whole = score_of(every)
    return JobScores(
        forecasts=len(every),
        mean_absolute_error=whole.mean_absolute_error if whole is not None else None,
        bias=whole.bias if whole is not None else None,
        inside=whole.inside if whole is not None else None,
        inside_by_job=_by_job(jobs),
        nominal=0.9,
        parts=tuple(_parts(past)),
        calibration=tuple(CoveragePoint(nominal=x, observed=y) for x, y in calibration(every)) if every else (),
        jobs=tuple(jobs),
        unscored=tuple(unscored),
    )


def _job(
    job: str, made: Sequence[Mapping[str, Any]], *, outcome: str, ended_at: float
) -> tuple[ScoredJob, list[tuple[PastForecast, float]]]:
    forecasts, past = [], []
    first = made[0]["time"] if made else ended_at
    for event in made:
        at, data = event["time"], event["data"]
        one = PastForecast(at, data["median_at"], data["low_at"], data["high_at"], ended_at)
        share = (at - first) / max(ended_at - first, 1e-3)
        past.append((one, share))
        forecasts.append(
            ScoredForecast(
                made_at=at,
                left_seconds=one.left_seconds,
                median_seconds=one.median_at - at,
                low_seconds=one.low_at - at,
                high_seconds=one.high_at - at,
                error=one.error,
                inside=one.inside,
                over_share=share,
                packages=data["packages"],
                basis=data.get("basis", "observed"),
            )
        )
    return ScoredJob(job=job, outcome=outcome, ended_at=ended_at, forecasts=tuple(forecasts)), past


def _by_job(jobs: Sequence[ScoredJob]) -> float | None:
    shares = [sum(each.inside for each in job.forecasts) / len(job.forecasts) for job in jobs if job.forecasts]
    return sum(shares) / len(shares) if shares else None


def _parts(past: Sequence[tuple[PastForecast, float]]) -> Iterable[PartScore]:
    for low, high in QUARTERS:
        found = score_of([each for each, share in past if low <= share < high or share == high == 1.0])
        if found is not None:
            yield PartScore(
                from_share=low,
                to_share=high,
                forecasts=found.forecasts,
                mean_absolute_error=found.mean_absolute_error,
                bias=found.bias,
                inside=found.inside,
            )


# --- the drawing ------------------------------------------------------------------------------------------------------


def draw_scores(scores: JobScores) -> str:
    """Nominal against observed coverage, and errors against the time left, as an SVG."""
    from pilotage.app.forecasts.score_chart import scores_chart

    forecasts = [each for job in scores.jobs for each in job.forecasts]
    return scores_chart(
        coverage=[(each.nominal, each.observed) for each in scores.calibration],
        errors=[(each.left_seconds, each.error, each.inside) for each in forecasts],
        title=_title(scores),
    )


def _title(scores: JobScores) -> str:
    jobs = len({each.job for each in scores.jobs})
    inside = f", {100 * scores.inside:.0f} % of intervals held the end" if scores.inside is not None else ""
    return f"{scores.forecasts:,} forecasts of {jobs:,} {'job' if jobs == 1 else 'jobs'}{inside}"
