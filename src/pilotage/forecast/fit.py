"""Total work from measured makespans, and how far a model is from what was measured."""

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
