"""Fits worlds to observations: times become lists of observed values, shares become probabilities.

Nothing is smoothed. Where there are too few observations, the world stays as it was.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice, pairwise
from statistics import fmean, median
from typing import cast, get_args

from msgspec.structs import replace

from pilotage.model.errors import PilotageError
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import (
    ActivityWorld,
    Factors,
    Observed,
    PackagesWorld,
    SiteObserved,
    SiteWorld,
    Times,
    WorldFile,
)
from pilotage.model.states import Reason

REASONS = frozenset(get_args(Reason))
VALUES_MAX = 100
"""How many values of a distribution are kept; of more, the mean of each hundredth, so that a long tail keeps its weight."""
OBSERVATIONS_MIN = 5
"""Fewer times than this are fitted by an exponential distribution with their mean."""


def fit_trace(world: WorldFile, observed: SiteObserved, *, sites: Iterable[str]) -> WorldFile:
    """The world with the observations of a trace at some sites. Its run times are for packages of unknown run time."""
    known = {each.name: each for each in world.sites}
    for name in sites:
        known[name] = fit_site(known.get(name) or SiteWorld(name=name), observed)
    packages = world.packages
    if len(observed.run_seconds) >= OBSERVATIONS_MIN:
        packages = replace(packages, run_time=times_of(observed.run_seconds))
    return replace(world, sites=tuple(known.values()), packages=packages)


def fit_jobs(world: WorldFile, observations: Observed, *, sites: Sequence[SiteEntry]) -> WorldFile:
    """The world with the observations of jobs: queues and failures of sites, and run times of activities."""
    known = {each.name: each for each in world.sites}
    speeds = _speeds(observations, {entry.name: entry.speed for entry in sites})
    for entry in sites:
        observed = observations.sites.get(entry.name)
        if observed is None:
            continue
        site = fit_site(known.get(entry.name) or SiteWorld(name=entry.name), observed)
        if entry.name in speeds:
            site = replace(site, speed=Factors(value=speeds[entry.name]))
        known[entry.name] = site
    return replace(world, sites=tuple(known.values()), packages=_fit_packages(world.packages, observations, speeds))


def fit_site(site: SiteWorld, observed: SiteObserved) -> SiteWorld:
    """A site as observed; fields without observations stay."""
    if observed.queue_seconds:
        site = replace(site, queue=times_of(observed.queue_seconds))
    if observed.attempts:
        failed = sum(observed.failures.values())
        site = replace(site, failure_probability=_rounded(min(1.0, failed / observed.attempts)))
        most = max(observed.failures, key=lambda reason: observed.failures[reason], default="")
        if most in REASONS:
            site = replace(site, failure_reason=cast("Reason", most))
    if observed.pilots:
        site = replace(site, pilot_failure_probability=_rounded(observed.dead_pilots / observed.pilots))
    if observed.node_hours > 0:
        site = replace(site, node_failures_per_hour=_rounded(observed.node_failures / observed.node_hours))
    return site


def times_of(seconds: Sequence[float]) -> Times:
    """A distribution of observed times."""
    ordered = sorted(seconds)
    if len(ordered) < OBSERVATIONS_MIN:
        return Times(distribution="exponential", mean_seconds=_rounded(math.fsum(ordered) / len(ordered)))
    if ordered[0] == ordered[-1]:
        return Times(value_seconds=_rounded(ordered[0]))
    if len(ordered) > VALUES_MAX:
        bounds = [round(number * len(ordered) / VALUES_MAX) for number in range(VALUES_MAX + 1)]
        ordered = [fmean(ordered[begin:end]) for begin, end in pairwise(bounds)]
    return Times(distribution="empirical", values=tuple(map(_rounded, ordered)))


def _fit_packages(packages: PackagesWorld, observed: Observed, speeds: Mapping[str, float]) -> PackagesWorld:
    activities = {each.name: each for each in packages.activities}
    for name, count in observed.packages.items():
        known = activities.get(name) or ActivityWorld(name=name)
        standard = [
            seconds * speeds.get(site, 1.0)
            for site, ran in observed.run_seconds.get(name, {}).items()
            for seconds in ran
        ]
        activities[name] = replace(
            known,
            run_time=times_of(standard) if standard else known.run_time,
            doomed_probability=_rounded(observed.doomed.get(name, 0) / count) if count else known.doomed_probability,
        )
    return replace(
        packages,
        setup=times_of(observed.setup_seconds) if observed.setup_seconds else packages.setup,
        inputs=times_of(observed.inputs_seconds) if observed.inputs_seconds else packages.inputs,
        outputs=times_of(observed.outputs_seconds) if observed.outputs_seconds else packages.outputs,
        activities=tuple(activities.values()),
    )


def _speeds(observed: Observed, believed: Mapping[str, float]) -> dict[str, float]:
    """The observed speed of each site: from activities that ran at several, relative to the configured speed."""
    found: dict[str, float] = {}
    ratios: dict[str, list[tuple[float, int]]] = {}
    for by_site in observed.run_seconds.values():
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
    for site, weighted in ratios.items():
        weight = sum(count for _, count in weighted)
        factor = math.exp(math.fsum(ratio * count for ratio, count in weighted) / weight)
        found[site] = _rounded(believed[site] * factor)
    return found


def _rounded(value: float) -> float:
    """Four significant digits: no more was measured."""
    return float(f"{value:.4g}")


# Public traces: the Standard Workload Format, pilots of radical.pilot, and failures of nodes.
#
# A trace is recognised by its first lines. It describes one site, without its name.

_HEAD_LINES = 200
_SWF_FIELDS = 18
_LANL_TIME = "%m/%d/%Y %H:%M"
_HOUR = 3600.0
_KNOWN = "the Standard Workload Format, radical.pilot's tables of pilots, units or sessions, LANL's failures, FTA's availability"

Row = Mapping[str, str]


class TraceError(PilotageError):
    """A trace cannot be read."""


def read_trace(lines: Iterable[str], *, name: str) -> SiteObserved:
    """The observations in a trace; raises `TraceError` if its format is unknown, or it has no usable data."""
    source = iter(lines)
    head = list(islice(source, _HEAD_LINES))
    rest = chain(head, source)
    kind = _kind(head)
    if kind is None:
        raise TraceError("is not a trace of a known format", subject=name, expected=_KNOWN)
    found = SiteObserved()
    try:
        kind(rest, found)
    except _BadLine as fault:
        raise TraceError(f"line {fault.line} cannot be read", subject=name, got=fault.text[:80].strip()) from None
    if not (found.queue_seconds or found.attempts or found.node_hours or found.run_seconds):
        raise TraceError("has no data that a world could be fitted to", subject=name)
    return found


class _BadLine(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(line)
        self.line = line
        self.text = text


Reader = Callable[[Iterable[str], SiteObserved], None]


def _kind(head: list[str]) -> Reader | None:
    lines = [line for line in head if line.strip() and not line.startswith((";", "#"))]
    first = lines[0] if lines else ""
    columns = {word.strip().strip('"') for word in first.split(",")}
    for marks, reader in _TABLES:
        if marks <= columns:
            return reader
    if len(first.split()) == _SWF_FIELDS and "," not in first:
        return _workload
    if any(line.startswith("# FTA") for line in head) or _is_availability(first):
        return _availability
    return None


# --- the Standard Workload Format: job, submit, wait, run, processors, … status (field 11) ---


def _workload(lines: Iterable[str], found: SiteObserved) -> None:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(";"):
            continue
        words = line.split()
        try:
            wait, run, status = float(words[2]), float(words[3]), int(float(words[10]))
        except (IndexError, ValueError):
            raise _BadLine(number, line) from None
        if run >= 0 and wait >= 0 and status in (0, 1):
            found.queue_seconds.append(wait)
            found.attempts += 1
            if status == 1:
                found.run_seconds.append(run)
            else:
                _count(found, "platform-failure")


# --- radical.pilot, as in the AIMES experiments ---


def _pilots(lines: Iterable[str], found: SiteObserved) -> None:
    for number, row in _rows(lines):
        submitted, active, final = (_number(row, name, number) for name in ("t_submitted", "t_active", "t_final"))
        if submitted is None:
            continue
        found.pilots += 1
        if active is None:
            # A pilot that was cancelled while queued does not show how long it would have waited.
            found.dead_pilots += row.get("final_state") == "FAILED"
            continue
        found.queue_seconds.append(max(0.0, active - submitted))
        if final is not None:
            found.node_hours += max(0.0, final - active) / _HOUR
            found.node_failures += row.get("final_state") == "FAILED"


def _units(lines: Iterable[str], found: SiteObserved) -> None:
    for number, row in _rows(lines):
        began, ended = _number(row, "t_exec_start", number), _number(row, "t_exec_end", number)
        if row.get("final_state") not in ("DONE", "FAILED"):
            continue
        tries = max(1, int(_number(row, "n_exec_attempts", number) or 1))
        found.attempts += tries
        failed = tries - (row.get("final_state") == "DONE")
        for _ in range(failed):
            _count(found, "platform-failure")
        if row.get("final_state") == "DONE" and began is not None and ended is not None and tries == 1:
            found.run_seconds.append(max(0.0, ended - began))


def _queues(lines: Iterable[str], found: SiteObserved) -> None:
    """The tables by session or pilot with a column for each state: seconds spent in it."""
    for number, row in _rows(lines):
        waited = _number(row, "P_LRMS_QUEUING", number)
        if waited is not None and waited > 0:
            found.queue_seconds.append(waited)
        done, failed = _number(row, "nunit_done", number), _number(row, "nunit_failed", number)
        if done is not None and failed is not None:
            found.attempts += int(done + failed)
            _count(found, "platform-failure", int(failed))


# --- failures of nodes ---


def _failures(lines: Iterable[str], found: SiteObserved) -> None:
    """LANL's format: the rate is over all systems, each from its first failure to its last."""
    spans: dict[str, tuple[datetime, datetime, int]] = {}
    for number, row in _rows(lines):
        began = row.get("Prob Started", "").strip()
        if not began or not row.get("nodes", "").strip():
            continue  # the file has a few lines with remarks
        try:
            at, nodes = datetime.strptime(began, _LANL_TIME), int(row["nodes"])  # noqa: DTZ007 # the file states no zone
        except (KeyError, ValueError):
            raise _BadLine(number, str(dict(row))) from None
        first, last, _ = spans.get(row["System"], (at, at, nodes))
        spans[row["System"]] = (min(first, at), max(last, at), nodes)
        found.node_failures += 1
    found.node_hours += sum((last - first).total_seconds() / _HOUR * nodes for first, last, nodes in spans.values())


def _availability(lines: Iterable[str], found: SiteObserved) -> None:
    """The Failure Trace Archive's format: node, name, 0 unavailable or 1 available, from, to."""
    up: dict[str, bool] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if not _is_availability(line):
            raise _BadLine(number, line)
        node, available, begins, ends = words[0], words[2] == "1", float(words[3]), float(words[4])
        if available:
            found.node_hours += max(0.0, ends - begins) / _HOUR
        elif up.get(node):
            found.node_failures += 1
        up[node] = available


def _is_availability(line: str) -> bool:
    words = line.split()
    return len(words) == 5 and words[2] in ("0", "1") and all(_is_number(word) for word in words[3:])


# --- small parts ---


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(lines)
    try:
        for row in reader:
            yield reader.line_num, {name: value or "" for name, value in row.items() if isinstance(name, str)}
    except csv.Error as fault:
        raise _BadLine(reader.line_num, str(fault)) from None


def _number(row: Row, name: str, line: int) -> float | None:
    text = row.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise _BadLine(line, f"{name}: {text}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _count(found: SiteObserved, reason: str, count: int = 1) -> None:
    if count:
        found.failures[reason] = found.failures.get(reason, 0) + count


_TABLES: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"t_submitted", "t_active"}), _pilots),
    (frozenset({"t_exec_start", "t_exec_end"}), _units),
    (frozenset({"P_LRMS_QUEUING"}), _queues),
    (frozenset({"Prob Started", "nodes"}), _failures),
)
