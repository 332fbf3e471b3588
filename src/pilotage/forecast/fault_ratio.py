"""The share of pilots that never start, as it is now: follows a change that stays, forgets an outage that is over."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pilotage.forecast.steps import Floats

_PIECES_MAX = 120  # of the window, between which the ratio may have changed


@dataclass(frozen=True)
class FaultHistory:
    """What is believed of changes before anything was seen.

    The ratio stayed as it was, or it changed for good, or there was one outage; an outage lasts about so long. The prior of
    every ratio is Beta(1/2, 1/2).
    """

    window_seconds: float
    outage_seconds: float
    change_probability: float
    outage_probability: float


USUAL_HISTORY = FaultHistory(
    window_seconds=3600.0, outage_seconds=720.0, change_probability=0.1, outage_probability=0.5
)
"""An hour, as the paper looks back, and outages of minutes, "for instance when a service is restarted" (section 4.1).

An outage is thought five times as likely as a change that stays: if a change is thought likelier, it is followed sooner, and
an outage forgotten later.
"""


def current_fault_ratio(
    *, known_at_seconds: ArrayLike, faults: ArrayLike, now_seconds: float, history: FaultHistory
) -> float:
    """The fault ratio that pilots submitted now will meet, averaged over all explanations of what was seen.

    Pilots are known to have started or to be faults at some times. Explanations are: one ratio for the whole window; two
    ratios with a change at any time, of which the later holds; an outage from any time to any later one, perhaps until now, with a
    ratio of its own, outside which one ratio holds. Each counts by its marginal likelihood. After an outage the ratio is the one
    outside it (pilot-job-model, section 4.1: experiments 16 to 19).
    """
    ends = np.asarray(known_at_seconds, dtype=np.float64)
    failed = np.asarray(faults, dtype=np.float64)
    inside = (ends > now_seconds - history.window_seconds) & (ends <= now_seconds)
    order = np.argsort(ends[inside], kind="stable")
    times, failed = ends[inside][order], failed[inside][order]
    if not len(times):
        return 0.5
    bounds = np.unique(np.linspace(0, len(times), min(len(times), _PIECES_MAX) + 1).astype(np.int64))
    seen = _Seen(bounds, np.concatenate([[0.0], np.cumsum(failed)])[bounds])
    began = np.concatenate([times[bounds[:-1]], [now_seconds]])
    began[0] = min(began[0], now_seconds - history.window_seconds)
    return _averaged(seen, began, history)


class _Seen:
    """How many pilots, and how many faults, were seen before each bound."""

    def __init__(self, pilots: NDArray[np.int64], faults: Floats) -> None:
        self.pilots = pilots
        self.faults = faults
        # Marginal likelihoods need the logarithm of the gamma function at halves and at whole numbers.
        count = int(pilots[-1]) + 1
        self._halves = np.array([math.lgamma(each + 0.5) for each in range(count)])
        self._wholes = np.array([math.lgamma(each + 1.0) for each in range(count)])

    def evidence(self, pilots: NDArray[np.int64], faults: Floats) -> Floats:
        """The logarithm of the marginal likelihood of so many faults under one ratio."""
        failed = faults.astype(np.int64)
        found: Floats = self._halves[failed] + self._halves[pilots - failed] - self._wholes[pilots]
        return found - math.log(math.pi)


def _averaged(seen: _Seen, began: Floats, history: FaultHistory) -> float:
    pilots, faults = seen.pilots, seen.faults
    total, failed = pilots[-1], faults[-1]
    last = len(pilots) - 1
    logs = [np.array([math.log1p(-history.change_probability - history.outage_probability)])]
    logs[0] = logs[0] + seen.evidence(np.array([total]), np.array([failed]))
    ratios = [np.array([(failed + 0.5) / (total + 1.0)])]
    if last > 1:
        cut = np.arange(1, last)
        before, after = pilots[cut], total - pilots[cut]
        log = seen.evidence(before, faults[cut]) + seen.evidence(after, failed - faults[cut])
        # A change that stays is as likely at any time.
        logs.append(log + math.log(history.change_probability) - math.log(len(cut)))
        ratios.append((failed - faults[cut] + 0.5) / (after + 1.0))
        first, end = np.triu_indices(last + 1, 1)
        part = (first > 0) | (end < last)
        first, end = first[part], end[part]
        inside, inside_failed = pilots[end] - pilots[first], faults[end] - faults[first]
        log = seen.evidence(inside, inside_failed) + seen.evidence(total - inside, failed - inside_failed)
        # Where an outage lasts until now, it is known to have lasted at least so long.
        shortest = np.maximum(began[end - 1] - began[first], 0.0)
        beyond = np.exp(-(((began[end] - began[first]) / history.outage_seconds) ** 2))
        ended = np.exp(-((shortest / history.outage_seconds) ** 2)) - beyond
        log += np.log(np.maximum(np.where(end == last, beyond, ended), 1e-300))
        logs.append(log + math.log(history.outage_probability) - math.log(last))
        ratios.append((failed - inside_failed + 0.5) / (total - inside + 1.0))
    weights = np.concatenate(logs)
    weights = np.exp(weights - weights.max())
    return float((weights * np.concatenate(ratios)).sum() / weights.sum())
