"""Pilots that are submitted one after the other: each waits for the submissions before its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pilotage.forecast.censoring import kaplan_meier
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.steps import Floats, StepFunction

PILOTS_MAX = 10_000
"""The largest number of pilots that eq. 5 is solved for; the limit of the makespan is the one of so many."""

LIMIT_TOLERANCE_SECONDS = 1.0
"""How near to the limit a makespan counts as having reached it."""

_STEP_SECONDS = 1.0 / 16.0  # of the time grid on which submission times are added up, where so many points suffice
_POINTS_MIN, _POINTS_MAX = 1 << 14, 1 << 19
_RANK_POINTS = 1 << 15  # where every rank has a distribution of its own
_EXACT_RANKS = 256  # the sum of more submissions is as good as normal, but for its skewness
_QUANTILES = 101
_DAMPING = 20.0  # the exponent by which what would wrap around the grid is damped
_SOLVED_MAX = 16  # numbers of pilots whose solution is kept
_LONGER_MAX = 4.0  # a solution is used again up to so much shorter a horizon: its steps are longer


class MakespanLimit(NamedTuple):
    """The makespan that more pilots hardly shorten, and the smallest number of pilots that comes near to it."""

    seconds: float
    pilots: int


@dataclass(frozen=True, eq=False)
class SequentialSubmission:
    """Latencies of single pilots, taken apart into the submission S and the rest G: M = S + G (pilot-job-model, 2.5).

    The pilot of rank k starts after the submissions of ranks 1 to k, then G: R_k = T_k + G.
    """

    submissions_seconds: Floats
    rest: LatencyDistribution
    _solved: dict[int, LatencyDistribution] = field(init=False, repr=False, default_factory=dict)

    @property
    def mean_submission_seconds(self) -> float:
        """The mean of S."""
        return float(self.submissions_seconds.mean())

    @property
    def fault_ratio(self) -> float:
        """The share of pilots that never start."""
        return self.rest.fault_ratio

    def whole_horizon_seconds(self, pilots: int) -> float:
        """A time by which the last of n pilots has started, unless it never does."""
        spread = 8.0 * float(np.sqrt(pilots)) * float(self.submissions_seconds.std())
        last = pilots * self.mean_submission_seconds + spread + float(self.submissions_seconds.max())
        return (last + float(self.rest.started.times_seconds[-1])) * 1.01 + 1e-6

    def latency(self, *, pilots: int, horizon_seconds: float | None = None) -> LatencyDistribution:
        """F_L for sequential submission of n pilots, up to a horizon or as a whole (pilot-job-model, eq. 5).

        The convolution powers of f_S are summed as a geometric series in the frequency domain. The last solution of each number
        of pilots is kept, and used again where it reaches as far.
        """
        whole = self.whole_horizon_seconds(pilots)
        horizon = whole if horizon_seconds is None else min(horizon_seconds, whole)
        known = self._solved.pop(pilots, None)
        if known is None or not horizon <= min(known.started.horizon_seconds, whole) <= _LONGER_MAX * horizon:
            known = self._solve(pilots, horizon, is_whole=horizon >= whole)
        self._solved[pilots] = known
        if len(self._solved) > _SOLVED_MAX:
            del self._solved[next(iter(self._solved))]
        return known

    def _solve(self, pilots: int, horizon: float, *, is_whole: bool) -> LatencyDistribution:
        points = 1 << int(2.0 * horizon / _STEP_SECONDS).bit_length()
        grid = _Grid(horizon, points=min(max(points, _POINTS_MIN), _POINTS_MAX))
        one = self._submission_spectrum(grid)
        left = 1.0 - one
        near = np.abs(left) < 1e-13  # a submission that takes no time
        series = np.where(near, pilots, one * (1.0 - one**pilots) / np.where(near, 1.0, left))
        times, values = grid.cumulative(series * self._rest_spectrum(grid) / pilots)
        ratio = 1.0 - self.rest.fault_ratio
        if is_whole:
            values = np.minimum(values * (ratio / values[-1]), ratio)
        started = StepFunction(times, np.minimum(values, ratio), np.inf if is_whole else horizon)
        return LatencyDistribution(started, self.rest.observations)

    def rank_probabilities(self, *, pilots: int, at_seconds: ArrayLike) -> Floats:
        """The probability of each rank to have started by some times, as rows of ranks (pilot-job-model, section 2.5)."""
        at = np.atleast_1d(np.asarray(at_seconds, dtype=np.float64))
        found = self._first_ranks(min(pilots, _EXACT_RANKS), at)
        if pilots > _EXACT_RANKS:
            later = np.arange(_EXACT_RANKS + 1.0, pilots + 1.0)
            found = np.concatenate([found, self._later_ranks(later, at)])
        return np.clip(found, 0.0, 1.0 - self.rest.fault_ratio)

    def _first_ranks(self, pilots: int, at: Floats) -> Floats:
        """By convolution."""
        horizon = min(max(float(at.max()), 1e-6), self.whole_horizon_seconds(pilots))
        grid = _Grid(horizon, points=_RANK_POINTS)
        one = self._submission_spectrum(grid)
        powers = np.cumprod(np.broadcast_to(one, (pilots, len(one))), axis=0)
        times, values = grid.cumulative(powers * self._rest_spectrum(grid))
        found = np.searchsorted(times, np.minimum(at, horizon), side="right") - 1
        return np.where(found < 0, 0.0, values[:, found])

    def _later_ranks(self, ranks: Floats, at: Floats) -> Floats:
        """By the central limit theorem, corrected for skewness (Cornish and Fisher)."""
        mean, sd = self.mean_submission_seconds, float(self.submissions_seconds.std())
        skewness = float(((self.submissions_seconds - mean) ** 3).mean()) / sd**3 if sd > 0.0 else 0.0
        normal = NormalDist()
        drawn = np.array([normal.inv_cdf((each + 0.5) / _QUANTILES) for each in range(_QUANTILES)])
        shares = drawn + skewness / 6.0 / np.sqrt(ranks)[:, None] * (drawn**2 - 1.0)
        submitted = ranks[:, None] * mean + np.sqrt(ranks)[:, None] * sd * shares
        return np.stack([self.rest.at(time * (1.0 + 1e-12) - submitted).mean(axis=1) for time in at], axis=1)

    def expected_makespan(self, *, work_seconds: float, pilots: int) -> float:
        """E_M(n) with F_L of eq. 5 (pilot-job-model, eq. 3 and 5)."""
        at_once = expected_makespan(self.rest, work_seconds=work_seconds, pilots=pilots)
        horizon = 2.0 * (float(at_once) + self.mean_submission_seconds) + 1e-6
        whole = self.whole_horizon_seconds(pilots)
        while horizon < whole:
            latency = self.latency(pilots=pilots, horizon_seconds=horizon)
            found = float(expected_makespan(latency, work_seconds=work_seconds, pilots=pilots))
            if np.isfinite(found):
                return found
            horizon *= 2.0
        return float(expected_makespan(self.latency(pilots=pilots), work_seconds=work_seconds, pilots=pilots))

    def makespan_limit(self, *, work_seconds: float) -> MakespanLimit:
        """E_M(10,000), and the smallest n within a second of it (pilot-job-model, eq. 4 with eq. 5)."""
        limit = self.expected_makespan(work_seconds=work_seconds, pilots=PILOTS_MAX)
        near = limit + LIMIT_TOLERANCE_SECONDS
        return MakespanLimit(limit, self.pilots_within(work_seconds=work_seconds, makespan_seconds=near) or PILOTS_MAX)

    def pilots_within(
        self, *, work_seconds: float, makespan_seconds: float, pilots_max: int = PILOTS_MAX
    ) -> int | None:
        """The smallest n with E_M(n) at most a given makespan; None where `pilots_max` are too few (eq. 3 and 5)."""
        if self.expected_makespan(work_seconds=work_seconds, pilots=pilots_max) > makespan_seconds:
            return None
        low, high = 0, pilots_max
        while high - low > 1:  # E_M falls in n: a pilot more delays none before it
            middle = (low + high) // 2
            if self.expected_makespan(work_seconds=work_seconds, pilots=middle) <= makespan_seconds:
                high = middle
            else:
                low = middle
        return high

    def submitted(self, *, pilots: int, makespan_seconds: float) -> int:
        """How many of n pilots are submitted before the work is done, by the mean of S (pilot-job-model, section 4.1)."""
        mean = self.mean_submission_seconds
        return pilots if mean <= 0.0 else max(1, min(pilots, int(np.floor(makespan_seconds / mean))))

    def _submission_spectrum(self, grid: _Grid) -> NDArray[np.complex128]:
        count = len(self.submissions_seconds)
        return grid.spectrum(self.submissions_seconds, np.full(count, 1.0 / count))

    def _rest_spectrum(self, grid: _Grid) -> NDArray[np.complex128]:
        masses = np.diff(self.rest.started.values, prepend=0.0)
        return grid.spectrum(self.rest.started.times_seconds, masses)


def sequential_submission(
    *, latencies_seconds: ArrayLike, submissions_seconds: ArrayLike, censored_at_seconds: ArrayLike | None = None
) -> SequentialSubmission:
    """Take measured latencies apart, M = S + G (pilot-job-model, section 2.5).

    A fault has an infinite latency; where its submission is not a number, it does not count among the submissions. The latency
    of a pilot that is still queued is not a number either, and it had waited for `censored_at_seconds`.
    """
    latencies = np.asarray(latencies_seconds, dtype=np.float64)
    submissions = np.asarray(submissions_seconds, dtype=np.float64)
    rest = np.where(np.isinf(latencies), np.inf, np.maximum(latencies - submissions, 0.0))
    known = submissions[~np.isnan(submissions)]
    if censored_at_seconds is None:
        return SequentialSubmission(known, empirical_latency(rest))
    waited = np.maximum(np.asarray(censored_at_seconds, dtype=np.float64) - submissions, 0.0)
    return SequentialSubmission(known, kaplan_meier(latencies_seconds=rest, censored_at_seconds=waited).latency)


class _Grid:
    """Equally spaced times over twice a horizon, on which distributions are convolved through the FFT.

    Sums beyond the grid would wrap around to its beginning: masses are damped exponentially, so that they vanish. The
    step is a power of two, so that whole seconds lie on the grid and add up exactly.
    """

    def __init__(self, horizon_seconds: float, *, points: int) -> None:
        self.points = points
        self.step_seconds = 2.0 ** np.ceil(np.log2(2.0 * horizon_seconds / points))
        self.damping = np.exp(-_DAMPING / points * np.arange(points))
        self.kept = int(horizon_seconds / self.step_seconds) + 1

    def spectrum(self, times_seconds: Floats, masses: Floats) -> NDArray[np.complex128]:
        """The transform of point masses; each is divided between two neighbours so that its mean stays."""
        places = times_seconds / self.step_seconds
        below = np.floor(places)
        inside = below < self.points - 1
        index, share = below[inside].astype(np.int64), (places - below)[inside]
        spread = np.bincount(index, masses[inside] * (1.0 - share), self.points)
        spread += np.bincount(index + 1, masses[inside] * share, self.points)
        return np.fft.rfft(spread * self.damping)

    def cumulative(self, spectrum: NDArray[np.complex128]) -> tuple[Floats, Floats]:
        """The times up to the horizon, and the mass up to each."""
        masses = np.fft.irfft(spectrum, self.points)[..., : self.kept] / self.damping[: self.kept]
        values = np.maximum.accumulate(np.cumsum(np.maximum(masses, 0.0), axis=-1), axis=-1)
        return np.arange(self.kept) * self.step_seconds, values
