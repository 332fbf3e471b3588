"""Worlds fitted to what was seen. Times become lists of what was seen, shares become probabilities.

Nothing is made smoother than it was. Where too little was seen to say anything, what the world said before stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import cast, get_args

from msgspec.structs import replace

from pilotage.model.observed import Observed, SiteObserved
from pilotage.model.reasons import Reason
from pilotage.model.site_entry import SiteEntry
from pilotage.model.site_world import ActivityWorld, Factors, PackagesWorld, SiteWorld, Times, WorldFile

REASONS = frozenset(get_args(Reason))
VALUES_MAX = 100
"""How many values of a distribution are kept; of more, the mean of each hundredth, so that a long tail weighs what it weighed."""
SEEN_MIN = 5
"""So many times at least make a distribution of their own; fewer are taken as the mean of an exponential one."""


def fit_trace(world: WorldFile, seen: SiteObserved, *, sites: Iterable[str]) -> WorldFile:
    """The world with what a trace told, at some of its sites. Its run times are those of packages that nothing is known of."""
    known = {each.name: each for each in world.sites}
    for name in sites:
        known[name] = fit_site(known.get(name) or SiteWorld(name=name), seen)
    packages = world.packages
    if len(seen.run_seconds) >= SEEN_MIN:
        packages = replace(packages, run_time=times_of(seen.run_seconds))
    return replace(world, sites=tuple(known.values()), packages=packages)


def fit_jobs(world: WorldFile, seen: Observed, *, sites: Sequence[SiteEntry]) -> WorldFile:
    """The world with what was seen of jobs: queues and failures of sites, and how long each activity runs."""
    known = {each.name: each for each in world.sites}
    speeds = _speeds(seen, {entry.name: entry.speed for entry in sites})
    for entry in sites:
        observed = seen.sites.get(entry.name)
        if observed is None:
            continue
        site = fit_site(known.get(entry.name) or SiteWorld(name=entry.name), observed)
        if entry.name in speeds:
            site = replace(site, speed=Factors(value=speeds[entry.name]))
        known[entry.name] = site
    return replace(world, sites=tuple(known.values()), packages=_fit_packages(world.packages, seen, speeds))


def fit_site(site: SiteWorld, seen: SiteObserved) -> SiteWorld:
    """A site as it was seen; of what was not looked at, it stays as it is."""
    if seen.queue_seconds:
        site = replace(site, queue=times_of(seen.queue_seconds))
    if seen.attempts:
        failed = sum(seen.failures.values())
        site = replace(site, failure_probability=_rounded(min(1.0, failed / seen.attempts)))
        most = max(seen.failures, key=lambda reason: seen.failures[reason], default="")
        if most in REASONS:
            site = replace(site, failure_reason=cast("Reason", most))
    if seen.pilots:
        site = replace(site, pilot_failure_probability=_rounded(seen.dead_pilots / seen.pilots))
    if seen.node_hours > 0:
        site = replace(site, node_failures_per_hour=_rounded(seen.node_failures / seen.node_hours))
    return site


def times_of(seconds: Sequence[float]) -> Times:
    """A distribution of times as they were seen."""
    ordered = sorted(seconds)
    if len(ordered) < SEEN_MIN:
        return Times(distribution="exponential", mean_seconds=_rounded(math.fsum(ordered) / len(ordered)))
    if ordered[0] == ordered[-1]:
        return Times(value_seconds=_rounded(ordered[0]))
    if len(ordered) > VALUES_MAX:
        bounds = [round(number * len(ordered) / VALUES_MAX) for number in range(VALUES_MAX + 1)]
        ordered = [fmean(ordered[begin:end]) for begin, end in pairwise(bounds)]
    return Times(distribution="empirical", values=tuple(map(_rounded, ordered)))


def _fit_packages(packages: PackagesWorld, seen: Observed, speeds: Mapping[str, float]) -> PackagesWorld:
    activities = {each.name: each for each in packages.activities}
    for name, count in seen.packages.items():
        known = activities.get(name) or ActivityWorld(name=name)
        standard = [
            seconds * speeds.get(site, 1.0) for site, ran in seen.run_seconds.get(name, {}).items() for seconds in ran
        ]
        activities[name] = replace(
            known,
            run_time=times_of(standard) if standard else known.run_time,
            doomed_probability=_rounded(seen.doomed.get(name, 0) / count) if count else known.doomed_probability,
        )
    return replace(
        packages,
        inputs=times_of(seen.inputs_seconds) if seen.inputs_seconds else packages.inputs,
        outputs=times_of(seen.outputs_seconds) if seen.outputs_seconds else packages.outputs,
        activities=tuple(activities.values()),
    )


def _speeds(seen: Observed, believed: Mapping[str, float]) -> dict[str, float]:
    """How fast each site really was: by the activities that ran at several, beside what it was believed to be."""
    found: dict[str, float] = {}
    ratios: dict[str, list[tuple[float, int]]] = {}
    for by_site in seen.run_seconds.values():
        standard = {
            site: [seconds * believed[site] for seconds in ran]
            for site, ran in by_site.items()
            if ran and site in believed
        }
        for site in standard:
            found.setdefault(site, believed[site])
        usual = median([seconds for ran in standard.values() for seconds in ran]) if standard else 0.0
        for site, ran in standard.items():
            here = median(ran)
            if len(standard) > 1 and usual > 0 and here > 0:
                ratios.setdefault(site, []).append((math.log(usual / here), len(ran)))
    for site, told in ratios.items():
        weight = sum(count for _, count in told)
        factor = math.exp(math.fsum(ratio * count for ratio, count in told) / weight)
        found[site] = _rounded(believed[site] * factor)
    return found


def _rounded(value: float) -> float:
    """Four significant digits: more was never measured."""
    return float(f"{value:.4g}")
