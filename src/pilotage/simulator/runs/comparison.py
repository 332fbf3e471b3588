"""Many runs of one job: how long it takes, how certain that is, and which of several settings does better.

Every variant runs with the same seeds, so that the variants are compared and not their luck. A run that does not finish
counts as longer than all others in medians and intervals; means are over finished runs, whose number is stated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, get_args

import msgspec
import numpy as np

from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.settings.engine import EngineSettings, Order, Policy, Provisioning
from pilotage.model.settings.settings import SETTINGS
from pilotage.simulator.runs.figures import PHASES, RunFigures, SiteFigures
from pilotage.simulator.runs.run import JobSimulation, Subject

RESAMPLES = 2000
MEAN_METHOD = "95 % confidence interval of the mean, normal approximation"
DIFFERENCE_METHOD = (
    f"95 % confidence interval of the mean of paired differences, percentile bootstrap, {RESAMPLES:,} resamples"
)
_NORMAL_95 = 1.959964


class Makespan(msgspec.Struct, frozen=True, kw_only=True):
    """The makespan over all runs; None if too few of them finish."""

    mean_seconds: float | None
    mean_low_seconds: float | None  # of its confidence interval
    mean_high_seconds: float | None
    median_seconds: float | None
    low_seconds: float | None  # nine runs of ten are between these two
    high_seconds: float | None
    lower_quartile_seconds: float | None
    upper_quartile_seconds: float | None


class SiteShare(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of a site in a run, on average."""

    attempts: float
    granted: float
    failed: float
    batch_jobs: float
    seconds: dict[str, float]  # by phase
    core_seconds: float
    wasted_core_seconds: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of many runs of one variant."""

    variant: str
    runs: int
    finished: int
    unfinished: int
    held: int  # runs in which failures held the job or a package; it counts as released at once
    makespan: Makespan
    mean_method: str
    attempts: float  # from here on, averages over all runs
    packages_done: float
    packages_failed: float
    wasted_share: float
    failures: dict[str, float]  # of attempts, by reason
    phases: dict[str, float]  # seconds, over all sites
    sites: dict[str, SiteShare]
    makespans: tuple[float | None, ...]  # in the order of seeds, from 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One variant compared with the first: how much longer it takes with the same seeds."""

    variant: str
    beside: str
    pairs: int  # seeds for which both finish
    mean_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    shorter_share: float | None  # of the pairs: this one was shorter
    method: str

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return (
            self.low_seconds is not None and self.high_seconds is not None and self.low_seconds * self.high_seconds > 0
        )


def run_many(
    subject: Subject, settings: EngineSettings, *, runs: int, each: Callable[[], object] | None = None
) -> list[RunFigures]:
    """Run once with each seed from 0 on; `each` is called after every run."""
    found = []
    for seed in range(runs):
        found.append(JobSimulation(subject, seed=seed, settings=settings).run())
        if each is not None:
            each()
    return found


def summary_of(variant: str, runs: Sequence[RunFigures]) -> Summary:
    """Summarise many runs."""
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
    """Statistics of makespans; None for a run that did not finish."""
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
    """Compare one variant with the first, seed by seed."""
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(other.makespans, first.makespans, strict=True)
        if mine is not None and theirs is not None
    ]
    differences = [mine - theirs for mine, theirs in pairs]
    shorter = sum(each < 0 for each in differences) / len(pairs) if pairs else None
    mean, low, high = mean_with_interval(differences)
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


def mean_with_interval(differences: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The mean of paired differences and its confidence interval; None without any, or without two."""
    found = np.array(differences, dtype=np.float64)
    if not len(found):
        return None, None, None
    if len(found) == 1:
        return float(found[0]), None, None
    chance = np.random.default_rng(0)  # equal runs give equal intervals
    drawn = found[chance.integers(0, len(found), size=(RESAMPLES, len(found)))].mean(axis=1)
    low, high = (float(each) for each in np.quantile(drawn, (0.025, 0.975)))
    return float(found.mean()), low, high


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Interpolated between neighbours; None if that includes an unfinished run."""
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


# The variants to compare: named settings of the engine.

SELECTION = "selection"
FAIRNESS = "fairness"
POLICIES: tuple[str, ...] = get_args(Policy)
ORDERS: tuple[str, ...] = get_args(Order)
PROVISIONING = "provisioning"
PROVISIONINGS: tuple[str, ...] = get_args(Provisioning)
VARIANTS_MAX = 24


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One named set of settings."""

    name: str
    settings: EngineSettings


def with_policy(settings: EngineSettings, policy: str) -> EngineSettings:
    """The settings with another policy of site selection."""
    return msgspec.structs.replace(settings, selection=msgspec.structs.replace(settings.selection, policy=policy))


def variants_of(comparisons: Sequence[str], settings: EngineSettings) -> list[Variant]:
    """Every combination of `NAME=VALUE,VALUE…`; without any, only the given settings."""
    axes = []
    for text in comparisons:
        name, _, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not values:
            raise PilotageError(
                "nothing to compare", subject=text, expected="NAME=VALUE,VALUE such as selection=best,thompson"
            )
        if len(set(values)) < len(values):
            raise PilotageError("a value appears twice", subject=text)
        axes.append([(name.strip(), value) for value in values])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise PilotageError("compare each name once", subject=" ".join(comparisons))
    combinations = list(product(*axes))
    if len(combinations) > VARIANTS_MAX:
        raise PilotageError(f"{len(combinations):,} variants; at most {VARIANTS_MAX} are compared")
    return [_variant(combination, settings) for combination in combinations]


def _variant(combination: Sequence[tuple[str, str]], settings: EngineSettings) -> Variant:
    for name, value in combination:
        settings = _set(settings, name, value)
    if len(combination) == 1:
        return Variant(
            name=combination[0][1] if combination[0][0] == SELECTION else "=".join(combination[0]), settings=settings
        )
    return Variant(name=" ".join(f"{name}={value}" for name, value in combination) or "as it is", settings=settings)


def _set(settings: EngineSettings, name: str, value: str) -> EngineSettings:
    if name == SELECTION:
        if value not in POLICIES:
            raise PilotageError(
                "is not a policy of site selection", subject=f"{name}={value}", next_step=did_you_mean(value, POLICIES)
            )
        return with_policy(settings, value)
    if name == FAIRNESS:
        if value not in ORDERS:
            raise PilotageError(
                "is not an order of jobs", subject=f"{name}={value}", next_step=did_you_mean(value, ORDERS)
            )
        order: Any = {FAIRNESS: value}
        return msgspec.structs.replace(settings, **order)
    if name == PROVISIONING:
        if value not in PROVISIONINGS:
            next_step = did_you_mean(value, PROVISIONINGS)
            raise PilotageError("is not a way to request pilots", subject=f"{name}={value}", next_step=next_step)
        how: Any = {PROVISIONING: value}
        return msgspec.structs.replace(settings, **how)
    of_engine, of_selection = _numbers_of(settings), _numbers_of(settings.selection)
    numbers = {**of_selection, **of_engine}
    if name not in numbers:
        raise PilotageError(
            "cannot be compared",
            subject=name,
            next_step=did_you_mean(name, [SELECTION, FAIRNESS, PROVISIONING, *numbers]),
        )
    try:
        number = numbers[name](value)
    except ValueError:
        raise PilotageError("is not a number", subject=f"{name}={value}") from None
    least, most = _bounds(name)
    if not least <= number <= most:
        expected = f"a number from {least:g} to {most:g}"
        raise PilotageError("is out of range", subject=f"{name}={value}", expected=expected)
    changed: Any = {name: number}
    if name in of_engine:
        return msgspec.structs.replace(settings, **changed)
    try:
        return msgspec.structs.replace(settings, selection=msgspec.structs.replace(settings.selection, **changed))
    except ValueError as fault:
        raise PilotageError(str(fault), subject=f"{name}={value}") from None


def _bounds(name: str) -> tuple[float, float]:
    """The range of a number among the settings of site selection; any other is not negative."""
    row = SETTINGS.get(f"{SELECTION}.{name}")
    least, most = (None, None) if row is None else (row.least, row.most)
    return 0.0 if least is None else least, 1e12 if most is None else most


def _numbers_of(settings: msgspec.Struct) -> dict[str, type]:
    """The numeric settings by name, with their type."""
    found = {field: getattr(settings, field) for field in settings.__struct_fields__}
    return {field: type(value) for field, value in found.items() if isinstance(value, int | float)}
