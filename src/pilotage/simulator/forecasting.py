"""Many runs of one job: how long it takes and how sure that is, and which of several ways of choosing does better.

Every variant is run with the same seeds, so that what is compared is the variant and not the luck. A run that does not
finish counts as longer than all others in medians and intervals; means are over those that finish, and it is said how many do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from pilotage.engine.settings import EngineSettings
from pilotage.simulator.forecast import Forecast, Subject
from pilotage.simulator.forecast_figures import PHASES, RunFigures, SiteFigures

RESAMPLES = 2000
MEAN_METHOD = "95 % confidence interval of the mean, normal approximation"
DIFFERENCE_METHOD = (
    f"95 % confidence interval of the mean of paired differences, percentile bootstrap, {RESAMPLES:,} resamples"
)
_NORMAL_95 = 1.959964


class Makespan(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job takes, over all runs; None where too few of them finish to tell."""

    mean_seconds: float | None
    mean_low_seconds: float | None  # of its confidence interval
    mean_high_seconds: float | None
    median_seconds: float | None
    low_seconds: float | None  # nine runs of ten lie between these two
    high_seconds: float | None
    lower_quartile_seconds: float | None
    upper_quartile_seconds: float | None


class SiteShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a site does in a run, on average."""

    attempts: float
    granted: float
    failed: float
    batch_jobs: float
    seconds: dict[str, float]  # by phase
    core_seconds: float
    wasted_core_seconds: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What many runs of one variant came to."""

    variant: str
    runs: int
    finished: int
    unfinished: int
    held: int  # runs in which the job or a package was held for its failures; it is taken to be released at once
    makespan: Makespan
    mean_method: str
    attempts: float  # from here on, on average over all runs
    packages_done: float
    packages_failed: float
    wasted_share: float
    failures: dict[str, float]  # of attempts, by reason
    phases: dict[str, float]  # seconds, over all sites
    sites: dict[str, SiteShare]
    makespans: tuple[float | None, ...]  # in the order of seeds, from 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One variant beside the first: by how much it takes longer under the same seeds."""

    variant: str
    beside: str
    pairs: int  # seeds with which both finish
    mean_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    shorter_share: float | None  # of the pairs: this one was over earlier
    method: str

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves no doubt about which of the two is shorter."""
        return (
            self.low_seconds is not None and self.high_seconds is not None and self.low_seconds * self.high_seconds > 0
        )


def run_many(
    subject: Subject, settings: EngineSettings, *, runs: int, each: Callable[[], object] | None = None
) -> list[RunFigures]:
    """A run with each seed from 0 on; `each` is called after every one."""
    found = []
    for seed in range(runs):
        found.append(Forecast(subject, seed=seed, settings=settings).run())
        if each is not None:
            each()
    return found


def summary_of(variant: str, runs: Sequence[RunFigures]) -> Summary:
    """What many runs came to."""
    outcomes = Counter(run.outcome for run in runs)
    sites = {name: _share([run.sites[name] for run in runs]) for name in runs[0].sites}
    reasons = sorted({reason for run in runs for reason in run.failures})
    return Summary(
        variant=variant,
        runs=len(runs),
        finished=outcomes["finished"],
        unfinished=outcomes["unfinished"],
        held=sum(run.holds > 0 for run in runs),
        makespan=makespan_of([run.makespan_seconds for run in runs]),
        mean_method=MEAN_METHOD,
        attempts=_mean(run.attempts for run in runs),
        packages_done=_mean(run.done for run in runs),
        packages_failed=_mean(run.failed for run in runs),
        wasted_share=_mean(run.wasted_share for run in runs),
        failures={reason: _mean(run.failures.get(reason, 0) for run in runs) for reason in reasons},
        phases={phase: sum(site.seconds[phase] for site in sites.values()) for phase in PHASES},
        sites=sites,
        makespans=tuple(run.makespan_seconds for run in runs),
    )


def makespan_of(makespans: Sequence[float | None]) -> Makespan:
    """The statistics of some makespans, None for each run that did not finish."""
    finished = np.array([each for each in makespans if each is not None], dtype=np.float64)
    mean = half = None
    if len(finished):
        mean = float(finished.mean())
    if len(finished) > 1:
        half = _NORMAL_95 * float(finished.std(ddof=1)) / math.sqrt(len(finished))
    ordered = sorted(math.inf if each is None else each for each in makespans)
    return Makespan(
        mean_seconds=mean,
        mean_low_seconds=None if mean is None or half is None else mean - half,
        mean_high_seconds=None if mean is None or half is None else mean + half,
        median_seconds=_quantile(ordered, 0.5),
        low_seconds=_quantile(ordered, 0.05),
        high_seconds=_quantile(ordered, 0.95),
        lower_quartile_seconds=_quantile(ordered, 0.25),
        upper_quartile_seconds=_quantile(ordered, 0.75),
    )


def difference_of(first: Summary, other: Summary) -> Difference:
    """One variant beside the first, seed by seed."""
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(other.makespans, first.makespans, strict=True)
        if mine is not None and theirs is not None
    ]
    differences = np.array([mine - theirs for mine, theirs in pairs], dtype=np.float64)
    mean = low = high = shorter = None
    if pairs:
        mean, shorter = float(differences.mean()), float((differences < 0).mean())
    if len(pairs) > 1:
        chance = np.random.default_rng(0)  # the same runs give the same interval
        drawn = differences[chance.integers(0, len(pairs), size=(RESAMPLES, len(pairs)))].mean(axis=1)
        low, high = (float(each) for each in np.quantile(drawn, (0.025, 0.975)))
    return Difference(
        variant=other.variant,
        beside=first.variant,
        pairs=len(pairs),
        mean_seconds=mean,
        low_seconds=low,
        high_seconds=high,
        shorter_share=shorter,
        method=DIFFERENCE_METHOD,
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """By interpolation between neighbours; None where that reaches a run that did not finish."""
    if not ordered:
        return None
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    if math.isinf(ordered[below]) or (at > below and math.isinf(ordered[above])):
        return None
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below) if at > below else ordered[below]


def _share(figures: Sequence[SiteFigures]) -> SiteShare:
    return SiteShare(
        attempts=_mean(each.attempts for each in figures),
        granted=_mean(each.granted for each in figures),
        failed=_mean(each.failed for each in figures),
        batch_jobs=_mean(each.batch_jobs for each in figures),
        seconds={phase: _mean(getattr(each, f"{phase}_seconds") for each in figures) for phase in PHASES},
        core_seconds=_mean(each.core_seconds for each in figures),
        wasted_core_seconds=_mean(each.wasted_core_seconds for each in figures),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0
