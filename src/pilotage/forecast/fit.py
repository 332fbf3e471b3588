"""What measured runs teach: total work, a correction of forecasts, and how far a model is from what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.steps import Floats, StepFunction
from pilotage.model.errors import PilotageError

_CANDIDATES = 513  # of each round of the search
_ROUNDS = 12
_PARABOLAS = 2
_DEVIATIONS = np.geomspace(0.1, 1.5, 9)  # of campaigns and of runs: every combination is weighed
_LINE_SD = 0.5  # of the level and of the slopes that all campaigns share, as it is believed before any run
_WEIGHT_MIN = 1e-3
_CAMPAIGNS_MAX = 30  # the last ones; earlier ones are left out


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One run: the expected number of available pilots over time, E_N(t) of eq. 1, and the makespan that was measured."""

    available: StepFunction
    makespan_seconds: float


class FittedWork(NamedTuple):
    """The total work of an application, the makespan of each run that follows from it, and their mean distance."""

    work_seconds: float
    makespans_seconds: Floats
    mean_error_seconds: float


def fit_work(runs: Sequence[MeasuredRun]) -> FittedWork:
    """w_0 with the least sum of squares between modelled and measured makespans (pilot-job-model, section 3, eq. 3).

    The work that explains one run exactly is the area below its E_N(t), so the best lies between the least and the most of these.
    """
    measured = np.array([run.makespan_seconds for run in runs])
    exact = np.array([float(run.available.area(run.makespan_seconds)) for run in runs])
    if not exact.max() > 0.0:
        raise PilotageError(
            "no run lasted longer than the smallest latency: no work is left to explain it",
            next_step="give the latencies of the same runs",
        )
    low, high = float(exact.min()), float(exact.max())
    best = high
    for _ in range(_ROUNDS if high > low else 0):
        candidates = np.linspace(low, high, _CANDIDATES)
        squares = sum((run.available.time_of_area(candidates) - run.makespan_seconds) ** 2 for run in runs)
        place = int(np.argmin(squares))
        best = float(candidates[place])
        low, high = (float(candidates[min(max(place + side, 0), _CANDIDATES - 1)]) for side in (-1, 1))
    modelled = np.array([float(run.available.time_of_area(best)) for run in runs])
    return FittedWork(best, modelled, float(np.abs(modelled - measured).mean()))


def fit_modelled(modelled: Callable[[float], Floats], *, measured_seconds: Floats, near_seconds: float) -> FittedWork:
    """The work with the least sum of squares between measured makespans and those that any model gives for it.

    The sum is nearly a parabola of the work: a few parabolas, each through three works, find its bottom, beginning `near_seconds`.
    """
    work, reach = near_seconds, 0.1 * near_seconds
    for _ in range(_PARABOLAS):
        works = np.maximum(work + reach * np.array([-1.0, 0.0, 1.0]), 1e-3 * near_seconds)
        below, at, above = (float(((modelled(float(each)) - measured_seconds) ** 2).sum()) for each in works)
        bend = below - 2.0 * at + above
        # Where it bends the wrong way, or its bottom is far away, go downhill.
        step = 0.5 * (below - above) / bend if bend > 0.0 else np.sign(below - above) * 3.0
        work = float(max(work + reach * float(np.clip(step, -3.0, 3.0)), 1e-3 * near_seconds))
        reach = reach / 3.0 if abs(step) <= 1.0 else reach
    makespans = modelled(work)
    return FittedWork(work, makespans, float(np.abs(makespans - measured_seconds).mean()))


def model_error(*, modelled: ArrayLike, measured: ArrayLike, pilots: int) -> float:
    """The mean of |m_i - e_i| / n over all samples (pilot-job-model, section 3.1)."""
    return float(np.abs(np.asarray(modelled) - np.asarray(measured)).mean() / pilots)


def share_within(*, modelled: ArrayLike, measured: ArrayLike, distances: ArrayLike) -> float:
    """The share of samples that lie no farther from the model than given: sigma or 3 sigma (pilot-job-model, section 4.1)."""
    apart = np.abs(np.asarray(modelled) - np.asarray(measured))
    return float((apart <= np.asarray(distances) + 1e-9).mean())


# --- past runs --------------------------------------------------------------------------------------------------------
#
# Runs of one campaign are more alike than runs of different ones, and many pilots get less out of each than few: they share a
# service, a network and the slowest host. So the logarithm of measured over forecast is a sum: a line in the logarithms of the number
# of pilots and of packages per pilot, a line of that kind for each campaign, and something of each run. A run to come belongs to a new
# campaign: both kinds of variation count for it.


@dataclass(frozen=True)
class PastRun:
    """A past run: its campaign, pilots and packages, the forecast by latencies alone, and the makespan that was measured."""

    campaign: str
    pilots: int
    packages: int
    forecast_seconds: float
    makespan_seconds: float


class Correction(NamedTuple):
    """The median factor on a forecast, and the standard deviation of its logarithm for a single run."""

    factor: float
    log_sd: float


class PastRuns:
    """Past runs, learned from once: a linear model with campaigns as random effects, averaged over their deviations (Bayes)."""

    def __init__(self, runs: Sequence[PastRun]) -> None:
        """Learn from some runs, at least one, in the order of their campaigns."""
        names = list(dict.fromkeys(run.campaign for run in runs))[-_CAMPAIGNS_MAX:]
        runs = [run for run in runs if run.campaign in names]
        features = np.array([_features(run.pilots, run.packages) for run in runs])
        self._centre = features.mean(axis=0)
        logs = np.log([max(run.makespan_seconds / run.forecast_seconds, 1e-9) for run in runs])
        member = np.array([[run.campaign == name for name in names] for run in runs], dtype=np.float64)
        # A campaign has a level and slopes of its own: what one campaign shows of either need not hold for the next.
        own = [member * column[:, None] for column in (np.ones(len(runs)), *(features - self._centre).T)]
        effects = np.concatenate([*own, self._line(features)], axis=1)
        owned = len(own) * len(names)
        self._campaigns = len(names)
        # Sums over runs suffice from here on: of a deviation each, one small system of equations is solved.
        products, sums, square = effects.T @ effects, effects.T @ logs, float(logs @ logs)
        found = []
        for between in _DEVIATIONS:
            scale = np.where(np.arange(len(products)) < owned, between, 1.0)
            for within in _DEVIATIONS:
                system = np.eye(len(products)) + np.outer(scale, scale) * products / within**2
                answer = np.linalg.solve(system, scale * sums) / within**2
                log_determinant = float(np.linalg.slogdet(system)[1]) + 2.0 * len(runs) * np.log(within)
                misfit = (square - float(answer @ (scale * sums))) / within**2
                evidence = -0.5 * (misfit + log_determinant)
                line = slice(owned, None)
                found.append((evidence, between**2, within**2, answer[line], np.linalg.inv(system)[line, line]))
        best = max(each[0] for each in found)
        kept = [each for each in found if each[0] > best + np.log(_WEIGHT_MIN)]
        weights = np.exp(np.array([each[0] for each in kept]) - best)
        self._weights: Floats = weights / weights.sum()
        self._between = np.array([each[1] for each in kept])
        self._within = np.array([each[2] for each in kept])
        self._means = np.array([each[3] for each in kept])
        self._covariances = np.array([each[4] for each in kept])

    def correction(self, *, pilots: int, packages: int) -> Correction:
        """The factor on the forecast of a run of a new campaign, and how far it may be off."""
        features = np.array([_features(pilots, packages)])
        asked = self._line(features)[0]
        own = 1.0 + float(((features - self._centre) ** 2).sum())
        means = self._means @ asked
        unknown = np.einsum("i,kij,j->k", asked, self._covariances, asked)
        # What a single campaign has of its own cannot be told from what all have: only its variation is learned.
        mean = float(self._weights @ means) if self._campaigns > 1 else 0.0
        variance = float(self._weights @ (unknown + own * self._between + self._within + (means - mean) ** 2))
        return Correction(float(np.exp(mean)), float(np.sqrt(variance)))

    def _line(self, features: Floats) -> Floats:
        """A level and two slopes, in units of what is believed of each before any run."""
        return _LINE_SD * np.column_stack([np.ones(len(features)), features - self._centre])


def _features(pilots: int, packages: int) -> tuple[float, float]:
    return float(np.log(pilots)), float(np.log(packages / pilots))
