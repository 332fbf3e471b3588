"""The answers of `pilotage forecast`: pilots over time, makespans, a number of pilots, total work, and how good a model was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from pilotage.app.forecasts.source import Model, Source
from pilotage.app.forecasts.tables import Measured, read_finished_runs, read_measured, read_observed, read_runs
from pilotage.forecast.completion import QUICK_RUNS, Application, makespan_distribution, sequential_starts, starts_of
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, learn_today, possible_days
from pilotage.forecast.fit import FittedWork, MeasuredRun, PastRun, PastRuns, fit_work, model_error, share_within
from pilotage.forecast.makespan import makespan_limit_seconds, pilots_within
from pilotage.forecast.steps import Floats
from pilotage.model.errors import PilotageError
from pilotage.reading.latencies import SiteLatencyView

__all__ = [
    "Application",
    "Model",
    "Observation",
    "fit_runs",
    "forecast_makespan",
    "forecast_pilots",
    "recommend_pilots",
    "score_pilots",
]


class PilotsPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The number of available pilots at one time; `mean_sd` is how far the mean may be off, since few latencies are known."""

    t: float
    mean: float
    sd: float
    mean_sd: float | None
    p_at_least: float | None


class FromLatencies(msgspec.Struct, frozen=True, kw_only=True):
    """What the latencies are from: a file, or pilots of a site; how many started; the hour of the week, if only it counts."""

    basis: str
    starts: int
    hour_of_week: int | None


class PilotsAnswer(FromLatencies, frozen=True, kw_only=True):
    """The number of available pilots over time."""

    fault_ratio: float
    observations: int
    n: int
    submitted: int
    points: list[PilotsPoint]


class MakespanPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How long the work takes with some number of pilots, and how many of them are submitted before it is done.

    `never` is the share of possible runs in which it is never done, in the full model; the mean is that of the others.
    """

    n: int
    mean: float | None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    never: float | None = None
    submitted: int


class MakespanAnswer(FromLatencies, frozen=True, kw_only=True):
    """How long the work takes; the limit as the number of pilots grows, and the number that comes within a second of it."""

    model: Model
    fault_ratio: float
    observations: int
    makespan: list[MakespanPoint]
    limit: float | None
    limit_n: int | None


class RecommendAnswer(FromLatencies, frozen=True, kw_only=True):
    """The smallest number of pilots that finishes nearly as soon as the most pilots would."""

    n: int
    makespan: float
    best: float
    within: float
    at_most: int


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The total work that explains measured makespans best."""

    work_seconds: float
    mean_error_seconds: float
    runs: list[FittedRun]


class FittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run beside the model."""

    n: int
    measured_seconds: float
    modelled_seconds: float


class ScoreAnswer(FromLatencies, frozen=True, kw_only=True):
    """How far the measured pilots are from the model: the paper's error, and the shares of samples inside two bands."""

    error: float
    within_sd: float
    within_3_sd: float
    samples: int
    n: int
    n_estimated: bool
    submitted: int
    fault_ratio: float
    observations: int


_NINE_OF_TEN_SDS = 1.645
POSSIBLE_RUNS_PILOTS_MAX = 100_000
"""More pilots than possible runs, or possible days, are followed for."""


class Observation(NamedTuple):
    """The file of today's pilots, and the time up to which it counts."""

    file: str
    now_seconds: float


def forecast_pilots(
    latencies: str | SiteLatencyView,
    *,
    pilots: int,
    at_seconds: Sequence[float],
    at_least: int | None = None,
    sequential: bool = False,
    work_seconds: float | None = None,
    model: Model = "paper",
    observation: Observation | None = None,
) -> PilotsAnswer:
    """Forecast how many pilots are available at some times; given an observation, from what has started by then."""
    source = Source(latencies, sequential=sequential)
    at = np.array(at_seconds, dtype=np.float64)
    reached: Floats | None = None
    mean_sd: Floats | None = None
    if observation is None:
        mean_sd = source.mean_sd(pilots=pilots, at_seconds=at)
        curve = source.curve(pilots=pilots, at_seconds=at, work_seconds=work_seconds, model=model)
        mean, sd, submitted = curve.mean, curve.sd, curve.submitted
        if at_least is not None:
            reached = source.at_least(curve, at_least=at_least, model=model)
    else:
        conditioned = _conditioned(source, observation, pilots=pilots)
        mean, sd, submitted = conditioned.mean(at), conditioned.sd(at), pilots
        if at_least is not None:
            reached = conditioned.probability_at_least(at_least, at)
    return PilotsAnswer(
        **source.origin._asdict(),
        fault_ratio=source.fault_ratio,
        observations=source.observations,
        n=pilots,
        submitted=submitted,
        points=[
            PilotsPoint(
                t=time,
                mean=float(mean[place]),
                sd=float(sd[place]),
                mean_sd=None if mean_sd is None else float(mean_sd[place]),
                p_at_least=None if reached is None else float(reached[place]),
            )
            for place, time in enumerate(at_seconds)
        ],
    )


def _refuse_too_many(pilots: int) -> None:
    if pilots > POSSIBLE_RUNS_PILOTS_MAX:
        raise PilotageError(
            "too many pilots for the full model, or for a forecast from what has started",
            expected=f"at most {POSSIBLE_RUNS_PILOTS_MAX:,}",
            got=f"{pilots:,}",
        )


def _conditioned(source: Source, observation: Observation, *, pilots: int) -> ConditionedPilots:
    _refuse_too_many(pilots)
    seen = read_observed(observation.file, now_seconds=observation.now_seconds)
    today = learn_today(source.single, seen, drift=USUAL_DRIFT)
    return ConditionedPilots(source.observed(seen, pilots=pilots), today)


def forecast_makespan(
    latencies: str | SiteLatencyView,
    *,
    application: Application,
    pilots: Sequence[int],
    sequential: bool = False,
    model: Model = "paper",
    observation: Observation | None = None,
    past_runs: str | None = None,
) -> MakespanAnswer:
    """Forecast how long the work takes with some numbers of pilots; the full model tells a median and an interval, too.

    Past runs, of packages like these, correct the full model and widen its interval.
    """
    source = Source(latencies, sequential=sequential)
    make = _paper_point if model == "paper" else _full_point
    points = [make(source, application, observation, pilots=count) for count in pilots]
    if past_runs is not None:
        past = _past_runs(source, application, past_runs)
        points = [_corrected(each, past, application) for each in points]
    limit, limit_n = _limit(source, application, observation)
    return MakespanAnswer(
        **source.origin._asdict(),
        model=model,
        fault_ratio=source.fault_ratio,
        observations=source.observations,
        makespan=points,
        limit=limit,
        limit_n=limit_n,
    )


def _paper_point(
    source: Source, application: Application, observation: Observation | None, *, pilots: int
) -> MakespanPoint:
    if observation is None:
        mean = source.makespan(work_seconds=application.work_seconds, pilots=pilots)
        submitted = source.submitted(pilots=pilots, work_seconds=application.work_seconds)
    else:
        conditioned = _conditioned(source, observation, pilots=pilots)
        mean = conditioned.makespan(application.work_seconds)
        submitted = int((conditioned.observed.submitted_seconds <= mean).sum())
    return MakespanPoint(n=pilots, mean=_finite(mean), submitted=submitted)


def _full_point(
    source: Source, application: Application, observation: Observation | None, *, pilots: int
) -> MakespanPoint:
    _refuse_too_many(pilots)
    if observation is not None:
        conditioned = _conditioned(source, observation, pilots=pilots)
        seen, today = conditioned.observed, conditioned.today
        starts = starts_of(
            today,
            pilots=pilots,
            queued_since_seconds=seen.queued_submitted_seconds,
            now_seconds=seen.now_seconds,
            started_seconds=seen.starts_seconds,
        )
        requests = seen.submitted_seconds
    else:
        starts = _possible_starts(source, pilots=pilots)
        step = 0.0 if source.sequential is None else source.sequential.mean_submission_seconds
        requests = step * np.arange(1.0, pilots + 1.0)
    found = makespan_distribution(application, starts)
    return MakespanPoint(
        n=pilots,
        mean=_finite(found.mean_seconds),
        median=_finite(found.median_seconds),
        low=_finite(found.low_seconds),
        high=_finite(found.high_seconds),
        never=found.never_share,
        submitted=max(1, int((requests <= found.median_seconds).sum())),
    )


def _possible_starts(source: Source, *, pilots: int, runs: int | None = None) -> Floats:
    """Possible starts of pilots before anything has started: at once, or one after the other; rows are runs."""
    if source.sequential is not None:
        source.refuse_too_many(pilots)
        today = possible_days(source.sequential.rest, drift=USUAL_DRIFT)
        return sequential_starts(source.sequential, today, pilots=pilots, runs=runs)
    return starts_of(
        possible_days(source.single, drift=USUAL_DRIFT),
        pilots=pilots,
        queued_since_seconds=np.zeros(pilots),
        now_seconds=-1.0,
        started_seconds=np.zeros(0),
        runs=runs,
    )


def _past_runs(source: Source, application: Application, file: str) -> PastRuns:
    """Past runs beside what latencies alone say of each, with packages like those of the application."""
    assert application.packages is not None
    each_seconds = application.work_seconds / application.packages
    starts: dict[int, Floats] = {}
    found = []
    for run in read_finished_runs(file):
        _refuse_too_many(run.pilots)
        if run.pilots not in starts:
            starts[run.pilots] = _possible_starts(source, pilots=run.pilots, runs=QUICK_RUNS)
        its_own = replace(application, work_seconds=each_seconds * run.packages, packages=run.packages, work_sd=0.0)
        median = makespan_distribution(its_own, starts[run.pilots]).median_seconds
        if math.isfinite(median):
            found.append(PastRun(run.campaign, run.pilots, run.packages, median, run.makespan_seconds))
    if not found:
        raise PilotageError("none of the past runs could have ended, by these latencies", subject=f"{file}:1")
    return PastRuns(found)


def _corrected(point: MakespanPoint, past: PastRuns, application: Application) -> MakespanPoint:
    if point.median is None or application.packages is None:
        return point
    factor, log_sd = past.correction(pilots=point.n, packages=application.packages)
    median, reach = factor * point.median, math.exp(_NINE_OF_TEN_SDS * log_sd)
    return msgspec.structs.replace(
        point, mean=median * math.exp(0.5 * log_sd**2), median=median, low=median / reach, high=median * reach
    )


def _limit(
    source: Source, application: Application, observation: Observation | None
) -> tuple[float | None, int | None]:
    """What more pilots could reach at best: with them submitted now, the smallest latency and what no pilot is spared."""
    least = 0.0 if application.packages is None else application.work_seconds / application.packages
    spared_none = application.start_cost_seconds + least / max(application.speeds)
    if observation is not None:
        alone = read_observed(observation.file, now_seconds=observation.now_seconds)
        known = len(alone.submitted_seconds)
        reached = _paper_point(source, application, observation, pilots=known).mean
        soonest = observation.now_seconds + makespan_limit_seconds(source.single) + spared_none
        return (soonest if reached is None else min(reached, soonest)), None
    if source.sequential is None:
        return makespan_limit_seconds(source.single) + spared_none, None
    limit, pilots = source.sequential.makespan_limit(work_seconds=application.work_seconds)
    return limit + spared_none, pilots


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def recommend_pilots(
    latencies: str | SiteLatencyView, *, work_seconds: float, within: float, at_most: int, sequential: bool = False
) -> RecommendAnswer:
    """The smallest number of pilots whose expected makespan is within a share of that of `at_most` pilots."""
    source = Source(latencies, sequential=sequential)
    best = source.makespan(work_seconds=work_seconds, pilots=at_most)
    reach = best * (1.0 + within)
    if source.sequential is None:
        found = pilots_within(source.single, work_seconds=work_seconds, makespan_seconds=reach, pilots_max=at_most)
    else:
        found = source.sequential.pilots_within(work_seconds=work_seconds, makespan_seconds=reach, pilots_max=at_most)
    pilots = at_most if found is None else found
    return RecommendAnswer(
        **source.origin._asdict(),
        n=pilots,
        makespan=source.makespan(work_seconds=work_seconds, pilots=pilots),
        best=best,
        within=within,
        at_most=at_most,
    )


class Fitted(NamedTuple):
    """Runs, and the work that explains them best."""

    pilots: list[int]
    measured_seconds: list[float]
    work: FittedWork


def fitted_runs(runs: str, *, latencies: str | SiteLatencyView | None, sequential: bool) -> Fitted:
    """Fit the total work to the runs of a file; each run has latencies of its own, or those of all."""
    found = read_runs(runs)
    sources: dict[str, Source] = {}  # by file; those of a site under no name
    measured = []
    for run in found:
        origin = run.latencies or latencies
        if origin is None:
            raise PilotageError(
                "the run names no file of latencies",
                subject=f"{runs}:{run.line}",
                next_step="name one in the column latencies, or one for all runs with --latencies",
            )
        file = origin if isinstance(origin, str) else ""
        if file not in sources:
            try:
                sources[file] = Source(origin, sequential=sequential)
            except OSError as fault:
                if not run.latencies:
                    raise
                reason = (fault.strerror or str(fault)).lower()
                raise PilotageError(f"{run.latencies}: {reason}", subject=f"{runs}:{run.line}") from None
        available = sources[file].latency(pilots=run.pilots).started.scaled(run.pilots)
        measured.append(MeasuredRun(available, run.makespan_seconds))
    return Fitted([run.pilots for run in found], [run.makespan_seconds for run in found], fit_work(measured))


def fit_runs(runs: str, *, latencies: str | SiteLatencyView | None, sequential: bool = False) -> FitAnswer:
    """Fit the total work to measured makespans."""
    fitted = fitted_runs(runs, latencies=latencies, sequential=sequential)
    return FitAnswer(
        work_seconds=fitted.work.work_seconds,
        mean_error_seconds=fitted.work.mean_error_seconds,
        runs=[
            FittedRun(n=pilots, measured_seconds=measured, modelled_seconds=float(modelled))
            for pilots, measured, modelled in zip(
                fitted.pilots, fitted.measured_seconds, fitted.work.makespans_seconds, strict=True
            )
        ],
    )


def score_pilots(
    latencies: str | SiteLatencyView,
    *,
    measured: str,
    pilots: int | None = None,
    sequential: bool = False,
    work_seconds: float | None = None,
    model: Model = "paper",
) -> ScoreAnswer:
    """Compare measured pilots with the model; without a number of pilots, it is estimated from what was measured."""
    source = Source(latencies, sequential=sequential)
    samples = read_measured(measured)
    count = estimated_pilots(samples, source.fault_ratio) if pilots is None else pilots
    if samples.available.max() > count:
        raise PilotageError(
            "more pilots were available than there were",
            subject=measured,
            expected=f"at most {count:,}, as -n says",
            got=f"{samples.available.max():,.0f} at {samples.at_seconds[samples.available.argmax()]:g} s",
        )
    curve = source.curve(pilots=count, at_seconds=samples.at_seconds, work_seconds=work_seconds, model=model)
    return ScoreAnswer(
        **source.origin._asdict(),
        error=model_error(modelled=curve.mean, measured=samples.available, pilots=curve.submitted),
        within_sd=share_within(modelled=curve.mean, measured=samples.available, distances=curve.sd),
        within_3_sd=share_within(modelled=curve.mean, measured=samples.available, distances=3.0 * curve.sd),
        samples=len(samples.available),
        n=count,
        n_estimated=pilots is None,
        submitted=curve.submitted,
        fault_ratio=source.fault_ratio,
        observations=source.observations,
    )


def estimated_pilots(samples: Measured, fault_ratio: float) -> int:
    """The number of pilots whose asymptote n(1 - rho) is the most that was ever available."""
    most = float(samples.available.max())
    return max(1, round(most / (1.0 - fault_ratio)))
