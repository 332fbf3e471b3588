"""Run times of the packages of a job: observed, recorded by an earlier engine, or as the document estimates them.

A run time is the time for inputs, application and outputs, in seconds of the standard platform: at a site of speed 2 a package
takes half of it. Older observations count less and less, so that a job whose packages change is followed.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pilotage.model.events.payloads import ActivityRunTimes
from pilotage.model.jobs.estimates import EarlierRunTime
from pilotage.model.jobs.plan import JobPlan

LEARNED_MIN = 5
"""After this many packages of a kind, their mean replaces the estimate of the document."""
EARLIER_COUNT = LEARNED_MIN - 1.0
"""As many packages count those of earlier runs: too few to replace an estimate of the document."""
LEARNED_MAX = 256
"""As many packages of a kind count at most; when there are more, all earlier ones count half."""

REPEATS_MAX = 10.0
"""A package is not expected to be repeated more often than this."""

_DOCUMENT_SPREAD = 0.02  # standard deviation of run times around an estimate of the document, by that estimate
_FEW_SPREAD = 0.5  # the same around the mean of a single package

Known = Literal["observed", "document", "unknown"]


class ExpectedSeconds(NamedTuple):
    """Run time of a package of one kind: mean, standard deviation between packages, and how it is known.

    `observed` packages count; the mean itself is uncertain by `sd_seconds / sqrt(observed)`. Before it succeeds, a package fails
    and is repeated `repeats` times on average, and a failed attempt takes `failed_seconds`.
    """

    mean_seconds: float
    sd_seconds: float
    known: Known
    observed: float
    repeats: float = 0.0
    failed_seconds: float = 0.0


UNKNOWN = ExpectedSeconds(0.0, 0.0, "unknown", 0.0)


class RunTimes:
    """Observed run times of one job, by kind of package."""

    __slots__ = ("by_kind", "failed", "recorded")

    def __init__(self) -> None:
        """Start with no observation."""
        self.by_kind: dict[int, list[float]] = {}  # packages, their seconds, and the squares of these
        # By kind: repeated attempts; failed attempts, and their seconds. An engine that takes over counts anew.
        self.failed: dict[int, list[float]] = {}
        self.recorded: Mapping[str, ActivityRunTimes] = {}  # by activity, from an earlier engine

    def add(self, kind: int, seconds: float) -> None:
        """Add the run time of a finished package."""
        known = self.by_kind.get(kind)
        if known is None:
            known = self.by_kind[kind] = [0.0, 0.0, 0.0]
        elif known[0] >= LEARNED_MAX:
            known[0] *= 0.5
            known[1] *= 0.5
            known[2] *= 0.5
            if kind in self.failed:
                self.failed[kind] = [0.5 * each for each in self.failed[kind]]
        known[0] += 1.0
        known[1] += seconds
        known[2] += seconds * seconds

    def add_repeat(self, kind: int) -> None:
        """Add an attempt of a package that was tried before."""
        self.failed.setdefault(kind, [0.0, 0.0, 0.0])[0] += 1.0

    def add_failed(self, kind: int, seconds: float) -> None:
        """Add the time of an attempt that failed or was lost."""
        known = self.failed.setdefault(kind, [0.0, 0.0, 0.0])
        known[1] += 1.0
        known[2] += seconds

    @property
    def observed(self) -> float:
        """How many packages were observed, as far as they still count."""
        return math.fsum(each[0] for each in self.by_kind.values())

    @property
    def typical_seconds(self) -> float:
        """The mean over all observed packages; 0 if there is none."""
        totals = [
            *self.by_kind.values(),
            *([each.count, each.count * each.mean_seconds] for each in self.recorded.values()),
        ]
        count = math.fsum(each[0] for each in totals)
        return math.fsum(each[1] for each in totals) / count if count else 0.0

    def expected(self, plan: JobPlan) -> list[ExpectedSeconds]:
        """The run time of each kind: its own packages, those of its activity, or the estimate of the document."""
        templates = plan.templates
        pooled = self._by_activity(plan)
        failures = self._failures_by_activity(plan) if self.failed else None
        found = []
        for kind, template in enumerate(templates):
            own = self.by_kind.get(kind)
            totals = own if own is not None and own[0] >= LEARNED_MIN else pooled.get(template.activity)
            if totals is not None and (totals[0] >= LEARNED_MIN or not template.run_seconds):
                found.append(_of_totals(totals))
            elif template.run_seconds:
                seconds = template.run_seconds
                found.append(ExpectedSeconds(seconds, _DOCUMENT_SPREAD * seconds, "document", 1.0))
            else:
                found.append(UNKNOWN)
            if failures and (failed := failures.get(template.activity)) is not None:
                found[-1] = found[-1]._replace(repeats=failed[0], failed_seconds=failed[1])
        return found

    def record(self, plan: JobPlan, *, most: int) -> tuple[ActivityRunTimes, ...]:
        """What is known of each activity, the most observed ones first."""
        totals = sorted(self._by_activity(plan).items(), key=lambda each: (-each[1][0], each[0]))
        made = ((activity, _of_totals(each)) for activity, each in totals[:most])
        return tuple(
            ActivityRunTimes(
                activity=activity,
                count=each.observed,
                mean_seconds=round(each.mean_seconds, 6),
                sd_seconds=round(each.sd_seconds, 6),
            )
            for activity, each in made
        )

    def restore(self, recorded: Iterable[ActivityRunTimes]) -> None:
        """Start from what an earlier engine recorded."""
        self.recorded = {each.activity: each for each in recorded}

    def expect(self, earlier: Iterable[EarlierRunTime]) -> None:
        """Start from earlier runs of other jobs; few packages of the job itself outweigh them, and so does the document."""
        self.recorded = {
            each.activity: ActivityRunTimes(
                activity=each.activity,
                count=EARLIER_COUNT,
                mean_seconds=each.mean_seconds,
                sd_seconds=each.sd_seconds,
            )
            for each in earlier
        }

    def _by_activity(self, plan: JobPlan) -> dict[str, list[float]]:
        found = {
            each.activity: [
                each.count,
                each.count * each.mean_seconds,
                each.count * (each.mean_seconds**2 + each.sd_seconds**2),
            ]
            for each in self.recorded.values()
        }
        for kind, totals in self.by_kind.items():
            pool = found.setdefault(plan.templates[kind].activity, [0.0, 0.0, 0.0])
            for at in range(3):
                pool[at] += totals[at]
        return found

    def _failures_by_activity(self, plan: JobPlan) -> dict[str, tuple[float, float]]:
        """Repeated attempts for each package that succeeds, and the mean time of a failed one, where there were any."""
        totals: dict[str, list[float]] = {}
        for kind, failed in self.failed.items():
            known = totals.setdefault(plan.templates[kind].activity, [0.0, 0.0, 0.0])
            for at in range(3):
                known[at] += failed[at]
        succeeded = dict.fromkeys(totals, 1.0)  # what an earlier engine saw does not count: its failures are not known
        for kind, observed in self.by_kind.items():
            if plan.templates[kind].activity in succeeded:
                succeeded[plan.templates[kind].activity] += observed[0]
        return {
            activity: (min(repeats / succeeded[activity], REPEATS_MAX), seconds / max(count, 1.0))
            for activity, (repeats, count, seconds) in totals.items()
        }


def _of_totals(totals: Sequence[float]) -> ExpectedSeconds:
    count, seconds, squares = totals
    mean = max(seconds / count, 1e-3)
    spread = math.sqrt(max(squares / count - mean * mean, 0.0))
    if count < LEARNED_MIN:  # so few may be alike by chance
        spread = max(spread, _FEW_SPREAD * mean / count)
    return ExpectedSeconds(mean, spread, "observed", count)


SAMPLES_MAX = 32
"""Attempts of an activity that the start cost at a site follows from: the latest first ones, and the first later ones."""
_SAMPLES_MIN = 3


class StartCosts:
    """What the start of a pilot costs at a site: setup and inputs of its first attempt, beyond those of later ones.

    A pilot that has just started has no software and no shared input yet (pilot-job-model, section 5: application latency).
    """

    __slots__ = ("_first", "_later")

    def __init__(self) -> None:
        """Start with no observation."""
        self._first: dict[str, deque[float]] = {}  # by activity
        self._later: dict[str, list[float]] = {}

    def add_first(self, activity: str, seconds: float) -> None:
        """Add setup and inputs of the first attempt of a pilot."""
        self._first.setdefault(activity, deque(maxlen=SAMPLES_MAX)).append(seconds)

    def add_later(self, activity: str, seconds: float) -> None:
        """Add setup and inputs of a later attempt, if there are not enough."""
        known = self._later.setdefault(activity, [])
        if len(known) < SAMPLES_MAX:
            known.append(seconds)

    def seconds(self) -> float | None:
        """The difference of the medians, over all activities; None while too few attempts were seen."""
        costs = []
        for activity, first in self._first.items():
            later = self._later.get(activity, ())
            if len(first) >= _SAMPLES_MIN and len(later) >= _SAMPLES_MIN:
                costs.append((len(first), statistics.median(first) - statistics.median(later)))
        total = sum(count for count, _ in costs)
        return max(0.0, math.fsum(count * cost for count, cost in costs) / total) if total else None
