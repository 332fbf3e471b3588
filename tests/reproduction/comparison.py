"""How far measured pilots are from the model, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pilotage.forecast.available import expected_available, sd_available
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, ObservedPilots, learn_today
from pilotage.forecast.fit import model_error, share_within
from pilotage.forecast.latency import empirical_latency

STEP_SECONDS = 1.0
SHARE_MIN = 0.9


@dataclass(frozen=True)
class Comparison:
    """N(t) beside E_N(t): the paper's error, the shares within one and three sigma, and what explains the rest.

    `factor` is how many times as long the pilots waited as the probes, by their medians, and `scaled_within_3_sd` the share that
    is inside three sigma if the latencies of the probes are that much longer: what is still outside then comes from pilots that
    start together. `given_error` is the error of the forecast that is made when a third of the pilots have started, and
    `plain_error_then` that of the model over the same times.
    """

    pilots: int
    probes: int
    pilot_quantiles: tuple[float, ...]
    probe_quantiles: tuple[float, ...]
    started: int
    error: float
    within_sd: float
    within_3_sd: float
    factor: float
    scaled_within_3_sd: float
    given_error: float
    plain_error_then: float

    @property
    def holds(self) -> bool:
        """Whether enough of the samples lie within three sigma."""
        return self.within_3_sd >= SHARE_MIN


def compare(probes_seconds: Sequence[float], starts_seconds: Sequence[float], *, until_seconds: float) -> Comparison:
    """Compare the starts of pilots with latencies of probes; infinite where one did not start."""
    latency = empirical_latency(probes_seconds)
    starts = np.sort(np.array(starts_seconds, dtype=np.float64))
    count = len(starts)
    at = np.arange(0.0, until_seconds + STEP_SECONDS, STEP_SECONDS)
    available = np.searchsorted(starts, at, side="right")
    expected, sd = (function(latency, pilots=count, at_seconds=at) for function in (expected_available, sd_available))
    factor = _median(starts[np.isfinite(starts)]) / _median(latency.started.times_seconds)
    scaled = empirical_latency(factor * np.asarray(probes_seconds))
    now = float(starts[count // 3])
    observed = ObservedPilots(now, np.zeros(count), np.where(starts <= now, starts, np.inf))
    given = ConditionedPilots(observed, learn_today(latency, observed, drift=USUAL_DRIFT))
    later = at > now
    return Comparison(
        pilots=count,
        probes=len(probes_seconds),
        pilot_quantiles=_quantiles(starts),
        probe_quantiles=_quantiles(np.asarray(probes_seconds)),
        started=int(np.isfinite(starts).sum()),
        error=model_error(modelled=expected, measured=available, pilots=count),
        within_sd=share_within(modelled=expected, measured=available, distances=sd),
        within_3_sd=share_within(modelled=expected, measured=available, distances=3.0 * sd),
        factor=factor,
        scaled_within_3_sd=share_within(
            modelled=expected_available(scaled, pilots=count, at_seconds=at),
            measured=available,
            distances=3.0 * sd_available(scaled, pilots=count, at_seconds=at),
        ),
        given_error=model_error(modelled=given.mean(at[later]), measured=available[later], pilots=count),
        plain_error_then=model_error(modelled=expected[later], measured=available[later], pilots=count),
    )


def _median(times_seconds: np.ndarray) -> float:
    return max(float(np.median(times_seconds)), 1e-3)


def _quantiles(latencies_seconds: np.ndarray) -> tuple[float, ...]:
    started = latencies_seconds[np.isfinite(latencies_seconds)]
    return tuple(float(each) for each in np.percentile(started, [10.0, 50.0, 90.0]))


def _listed(quantiles: tuple[float, ...]) -> str:
    low, middle, high = quantiles
    return f"median {middle:.1f} s, eight of ten from {low:.1f} to {high:.1f} s"


def lines(found: Comparison) -> Iterator[str]:
    """What was found, for people."""
    yield f"{found.probes} probes ({_listed(found.probe_quantiles)}), then {found.pilots} pilots ({_listed(found.pilot_quantiles)})"
    yield f"pilots that started             {found.started:5}"
    yield f"mean error of E_N(t)            {100 * found.error:5.1f} % of n"
    yield f"inside 1 sigma                  {100 * found.within_sd:5.1f} %"
    yield f"inside 3 sigma                  {100 * found.within_3_sd:5.1f} %   at least {100 * SHARE_MIN:.0f} %"
    yield f"error once a third has started  {100 * found.given_error:5.1f} %   without what has started {100 * found.plain_error_then:.1f} %"
    if found.holds:
        return
    yield f"cause: by their medians, the pilots waited {found.factor:.2f} times as long as the probes"
    yield f"       had the probes, too, {100 * found.scaled_within_3_sd:.1f} % would be inside 3 sigma"
    if found.scaled_within_3_sd < SHARE_MIN:
        yield "       the rest: pilots that are queued together start together, and the model takes them for independent"
