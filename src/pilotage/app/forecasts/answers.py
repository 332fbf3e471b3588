"""The answers of `pilotage forecast`: pilots over time, makespans, a number of pilots, total work, and how good a model was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from pilotage.app.forecasts.tables import Latencies, Measured, read_latencies, read_measured, read_runs
from pilotage.forecast.available import (
    expected_available,
    poisson_binomial,
    probability_at_least,
    sd_available,
    tail,
)
from pilotage.forecast.fit import FittedWork, MeasuredRun, fit_work, model_error, share_within
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import expected_makespan, makespan_limit_seconds, pilots_within
from pilotage.forecast.sequential import PILOTS_MAX as SEQUENTIAL_MAX
from pilotage.forecast.sequential import SequentialSubmission, sequential_submission
from pilotage.forecast.steps import Floats
from pilotage.model.errors import PilotageError

Model = Literal["paper", "full"]


class PilotsPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The number of available pilots at one time."""

    t: float
    mean: float
    sd: float
    p_at_least: float | None


class PilotsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The number of available pilots over time."""

    fault_ratio: float
    observations: int
    n: int
    submitted: int
    points: list[PilotsPoint]


class MakespanPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How long the work takes with some number of pilots, and how many of them are submitted before it is done."""

    n: int
    mean: float | None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    submitted: int


class MakespanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How long the work takes; the limit as the number of pilots grows, and the number that comes within a second of it."""

    fault_ratio: float
    observations: int
    makespan: list[MakespanPoint]
    limit: float
    limit_n: int | None


class RecommendAnswer(msgspec.Struct, frozen=True, kw_only=True):
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


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
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


class Curve(NamedTuple):
    """E_N(t) and sigma_N(t) at some times, and its asymptote."""

    at_seconds: Floats
    mean: Floats
    sd: Floats
    submitted: int
    fault_ratio: float


class Source:
    """What forecasts of one table of latencies start from: pilots that are submitted at once, or one after the other."""

    def __init__(self, table: Latencies, *, sequential: bool) -> None:
        """Build the distributions that every answer needs."""
        self.table = table
        self.sequential: SequentialSubmission | None = None
        if sequential:
            if table.submissions_seconds is None:
                raise PilotageError(
                    "has no column submission_seconds, which --sequential needs",
                    subject=f"{table.file}:1",
                    next_step="add the time that each submission took, or leave --sequential out",
                )
            self.sequential = sequential_submission(
                latencies_seconds=table.latencies_seconds, submissions_seconds=table.submissions_seconds
            )
        self._at_once = empirical_latency(table.latencies_seconds)

    @property
    def fault_ratio(self) -> float:
        """The share of pilots that never start."""
        return self._at_once.fault_ratio

    @property
    def observations(self) -> int:
        """How many pilots were observed."""
        return self.table.observations

    def latency(self, *, pilots: int, horizon_seconds: float | None = None) -> LatencyDistribution:
        """F_L of n pilots, by eq. 5 where they are submitted one after the other."""
        if self.sequential is None:
            return self._at_once
        self.refuse_too_many(pilots)
        return self.sequential.latency(pilots=pilots, horizon_seconds=horizon_seconds)

    def makespan(self, *, work_seconds: float, pilots: int) -> float:
        """E_M(n), by eq. 3 and, one after the other, eq. 5."""
        if self.sequential is None:
            return float(expected_makespan(self._at_once, work_seconds=work_seconds, pilots=pilots))
        self.refuse_too_many(pilots)
        return self.sequential.expected_makespan(work_seconds=work_seconds, pilots=pilots)

    def submitted(self, *, pilots: int, work_seconds: float | None) -> int:
        """How many of n pilots are submitted before the work is done (section 4.1); all where no work is given."""
        if self.sequential is None or work_seconds is None:
            return pilots
        end = self.makespan(work_seconds=work_seconds, pilots=pilots)
        return self.sequential.submitted(pilots=pilots, makespan_seconds=end)

    def curve(self, *, pilots: int, at_seconds: Floats, work_seconds: float | None, model: Model) -> Curve:
        """E_N(t) by eq. 1; sigma_N(t) by eq. 2, or that of ranks that differ in the full model."""
        submitted = self.submitted(pilots=pilots, work_seconds=work_seconds)
        if self.sequential is not None and model == "full":
            ranks = self.sequential.rank_probabilities(pilots=submitted, at_seconds=at_seconds)
            mean, sd = ranks.sum(axis=0), np.sqrt((ranks * (1.0 - ranks)).sum(axis=0))
        else:
            latency = self.latency(pilots=submitted, horizon_seconds=max(float(at_seconds.max()), 1e-3))
            mean = expected_available(latency, pilots=submitted, at_seconds=at_seconds)
            sd = sd_available(latency, pilots=submitted, at_seconds=at_seconds)
        return Curve(at_seconds, mean, sd, submitted, self.fault_ratio)

    def at_least(self, curve: Curve, *, at_least: int, model: Model) -> Floats:
        """P(N(t) >= k) along a curve: a binomial tail, or that of ranks that differ in the full model."""
        if self.sequential is not None and model == "full":
            ranks = self.sequential.rank_probabilities(pilots=curve.submitted, at_seconds=curve.at_seconds)
            return np.array([tail(poisson_binomial(each), at_least=at_least) for each in ranks.T])
        latency = self.latency(pilots=curve.submitted, horizon_seconds=max(float(curve.at_seconds.max()), 1e-3))
        return probability_at_least(latency, pilots=curve.submitted, at_least=at_least, at_seconds=curve.at_seconds)

    def settled_seconds(self, *, pilots: int, work_seconds: float | None) -> float:
        """A time by which nearly all pilots that start have started, and the work is done."""
        submitted = self.submitted(pilots=pilots, work_seconds=work_seconds)
        started = self.latency(pilots=submitted).started
        nearly = int(np.searchsorted(started.values, 0.99 * started.last_value))
        end = 0.0 if work_seconds is None else self.makespan(work_seconds=work_seconds, pilots=pilots)
        return max(1.1 * float(started.times_seconds[nearly]), end, 1.0)

    def refuse_too_many(self, pilots: int) -> None:
        """Refuse a number of pilots that eq. 5 is not solved for."""
        if pilots > SEQUENTIAL_MAX:
            raise PilotageError(
                "too many pilots to be submitted one after the other",
                expected=f"at most {SEQUENTIAL_MAX:,}",
                got=f"{pilots:,}",
            )


def forecast_pilots(
    latencies: str,
    *,
    pilots: int,
    at_seconds: Sequence[float],
    at_least: int | None = None,
    sequential: bool = False,
    work_seconds: float | None = None,
    model: Model = "paper",
) -> PilotsAnswer:
    """Forecast how many pilots are available at some times."""
    source = Source(read_latencies(latencies), sequential=sequential)
    curve = source.curve(
        pilots=pilots, at_seconds=np.array(at_seconds, dtype=np.float64), work_seconds=work_seconds, model=model
    )
    reached = None if at_least is None else source.at_least(curve, at_least=at_least, model=model)
    return PilotsAnswer(
        fault_ratio=source.fault_ratio,
        observations=source.observations,
        n=pilots,
        submitted=curve.submitted,
        points=[
            PilotsPoint(
                t=at,
                mean=float(curve.mean[place]),
                sd=float(curve.sd[place]),
                p_at_least=None if reached is None else float(reached[place]),
            )
            for place, at in enumerate(at_seconds)
        ],
    )


def forecast_makespan(
    latencies: str, *, work_seconds: float, pilots: Sequence[int], sequential: bool = False
) -> MakespanAnswer:
    """Forecast how long the work takes with some numbers of pilots."""
    source = Source(read_latencies(latencies), sequential=sequential)
    points = []
    for count in pilots:
        mean = source.makespan(work_seconds=work_seconds, pilots=count)
        submitted = source.submitted(pilots=count, work_seconds=work_seconds)
        points.append(MakespanPoint(n=count, mean=mean, submitted=submitted))
    if source.sequential is None:
        limit, limit_n = makespan_limit_seconds(source.latency(pilots=1)), None
    else:
        limit, limit_n = source.sequential.makespan_limit(work_seconds=work_seconds)
    return MakespanAnswer(
        fault_ratio=source.fault_ratio,
        observations=source.observations,
        makespan=points,
        limit=limit,
        limit_n=limit_n,
    )


def recommend_pilots(
    latencies: str, *, work_seconds: float, within: float, at_most: int, sequential: bool = False
) -> RecommendAnswer:
    """The smallest number of pilots whose expected makespan is within a share of that of `at_most` pilots."""
    source = Source(read_latencies(latencies), sequential=sequential)
    best = source.makespan(work_seconds=work_seconds, pilots=at_most)
    reach = best * (1.0 + within)
    if source.sequential is None:
        found = pilots_within(
            source.latency(pilots=1), work_seconds=work_seconds, makespan_seconds=reach, pilots_max=at_most
        )
    else:
        found = source.sequential.pilots_within(work_seconds=work_seconds, makespan_seconds=reach, pilots_max=at_most)
    pilots = at_most if found is None else found
    return RecommendAnswer(
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


def fitted_runs(runs: str, *, latencies: str | None, sequential: bool) -> Fitted:
    """Fit the total work to the runs of a file; each run has latencies of its own, or those of all."""
    found = read_runs(runs)
    sources: dict[str, Source] = {}
    measured = []
    for run in found:
        file = run.latencies or latencies
        if file is None:
            raise PilotageError(
                "the run names no file of latencies",
                subject=f"{runs}:{run.line}",
                next_step="name one in the column latencies, or one for all runs with --latencies",
            )
        if file not in sources:
            sources[file] = Source(read_latencies(file), sequential=sequential)
        available = sources[file].latency(pilots=run.pilots).started.scaled(run.pilots)
        measured.append(MeasuredRun(available, run.makespan_seconds))
    return Fitted([run.pilots for run in found], [run.makespan_seconds for run in found], fit_work(measured))


def fit_runs(runs: str, *, latencies: str | None, sequential: bool = False) -> FitAnswer:
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
    latencies: str,
    *,
    measured: str,
    pilots: int | None = None,
    sequential: bool = False,
    work_seconds: float | None = None,
    model: Model = "paper",
) -> ScoreAnswer:
    """Compare measured pilots with the model; without a number of pilots, it is estimated from what was measured."""
    source = Source(read_latencies(latencies), sequential=sequential)
    samples = read_measured(measured)
    count = estimated_pilots(samples, source.fault_ratio) if pilots is None else pilots
    curve = source.curve(pilots=count, at_seconds=samples.at_seconds, work_seconds=work_seconds, model=model)
    return ScoreAnswer(
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
