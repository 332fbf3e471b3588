"""What forecasts of one table of latencies start from."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from pilotage.app.forecasts.site_latencies import distribution_of, submission_of
from pilotage.app.forecasts.tables import Latencies, read_latencies
from pilotage.forecast.available import (
    expected_available,
    poisson_binomial,
    probability_at_least,
    sd_available,
    tail,
)
from pilotage.forecast.censoring import CensoredLatency, kaplan_meier
from pilotage.forecast.conditioning import ObservedPilots
from pilotage.forecast.history import STARTS_MIN
from pilotage.forecast.latency import LatencyDistribution, empirical_latency
from pilotage.forecast.makespan import expected_makespan
from pilotage.forecast.sequential import PILOTS_MAX as SEQUENTIAL_MAX
from pilotage.forecast.sequential import SequentialSubmission, sequential_submission
from pilotage.forecast.steps import Floats
from pilotage.model.errors import PilotageError
from pilotage.reading.latencies import SiteLatencyView

Model = Literal["paper", "full"]


class Origin(NamedTuple):
    """What a forecast is made from: a file, or pilots of a site; and the hour of the week, where only that one counts."""

    basis: str
    starts: int
    hour_of_week: int | None


class Curve(NamedTuple):
    """E_N(t) and sigma_N(t) at some times, and its asymptote."""

    at_seconds: Floats
    mean: Floats
    sd: Floats
    submitted: int
    fault_ratio: float


class Source:
    """What forecasts start from, a file of latencies or those of a site: pilots submitted at once, or one after the other."""

    def __init__(self, latencies: str | SiteLatencyView, *, sequential: bool) -> None:
        """Build the distributions that every answer needs."""
        self.sequential: SequentialSubmission | None = None
        self._estimate: CensoredLatency | None = None
        if isinstance(latencies, str):
            self._from_file(read_latencies(latencies), sequential=sequential)
        else:
            self._from_site(latencies, sequential=sequential)

    def _from_site(self, found: SiteLatencyView, *, sequential: bool) -> None:
        assert found.latency is not None
        assert found.basis is not None
        self.origin = Origin(basis=found.basis, starts=found.starts, hour_of_week=found.hour_of_week)
        self.observations = found.starts
        self._at_once = distribution_of(found.latency, starts=found.starts)
        if sequential:
            self.sequential = submission_of(found)
            if self.sequential is None:
                raise PilotageError(
                    "the book has too few submission times for --sequential",
                    subject=f"site {found.site}",
                    expected=f"the submission times of at least {STARTS_MIN} started pilots",
                    next_step="leave --sequential out, or give a file with submission_seconds: --latencies FILE",
                )

    def _from_file(self, table: Latencies, *, sequential: bool) -> None:
        self.observations = table.observations
        started = int(np.isfinite(table.latencies_seconds).sum())
        self.origin = Origin(basis="file", starts=started, hour_of_week=None)
        if sequential:
            if table.submissions_seconds is None:
                raise PilotageError(
                    "has no column submission_seconds, which --sequential needs",
                    subject=f"{table.file}:1",
                    next_step="add the time that each submission took, or leave --sequential out",
                )
            self.sequential = sequential_submission(
                latencies_seconds=table.latencies_seconds,
                submissions_seconds=table.submissions_seconds,
                censored_at_seconds=table.censored_at_seconds,
            )
        censored = table.censored_at_seconds
        self._estimate = kaplan_meier(
            latencies_seconds=table.latencies_seconds, censored_at_seconds=0.0 if censored is None else censored
        )
        self._at_once = empirical_latency(table.latencies_seconds) if censored is None else self._estimate.latency

    @property
    def fault_ratio(self) -> float:
        """The share of pilots that never start."""
        return self._at_once.fault_ratio if self.sequential is None else self.sequential.fault_ratio

    @property
    def single(self) -> LatencyDistribution:
        """The latency of one pilot from its own request on."""
        return self._at_once

    def observed(self, observed: ObservedPilots, *, pilots: int) -> ObservedPilots:
        """Pilots of today, with those that are still to be submitted: now, or from now on one after the other."""
        more = pilots - len(observed.submitted_seconds)
        if more < 0:
            raise PilotageError(
                "more pilots were submitted than the forecast is for",
                expected=f"at least {len(observed.submitted_seconds):,} pilots",
                got=f"{pilots:,}",
            )
        step = 0.0 if self.sequential is None else self.sequential.mean_submission_seconds
        later = observed.now_seconds + step * np.arange(more)
        return ObservedPilots(
            observed.now_seconds,
            np.concatenate([observed.submitted_seconds, later]),
            np.concatenate([observed.started_seconds, np.full(more, np.inf)]),
        )

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

    def mean_sd(self, *, pilots: int, at_seconds: Floats) -> Floats | None:
        """The standard deviation of E_N(t) as an estimate (Greenwood); None for a site, or one after the other."""
        if self._estimate is None or self.sequential is not None:
            return None
        return pilots * self._estimate.sd_at(at_seconds)

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
