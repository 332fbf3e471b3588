"""How many of the submitted pilots are available some time after their submission."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.steps import Floats

_DIRECT_MAX = 64  # shorter vectors are convolved directly, longer ones through the FFT


def expected_available(latency: LatencyDistribution, *, pilots: int, at_seconds: ArrayLike) -> Floats:
    """E_N(t) = n F_L(t) (pilot-job-model, eq. 1)."""
    return pilots * latency.at(at_seconds)


def sd_available(latency: LatencyDistribution, *, pilots: int, at_seconds: ArrayLike) -> Floats:
    """sigma_N(t), where sigma_N(t)^2 = n (1 - F_L(t)) F_L(t) (pilot-job-model, eq. 2)."""
    ratio = latency.at(at_seconds)
    return np.sqrt(pilots * np.clip((1.0 - ratio) * ratio, 0.0, None))


def probability_available(latency: LatencyDistribution, *, pilots: int, at_seconds: float) -> Floats:
    """f_N(k, t) for every k from 0 to n: a binomial distribution (pilot-job-model, section 2.3)."""
    return binomial(pilots, float(latency.at(at_seconds)))


def probability_at_least(latency: LatencyDistribution, *, pilots: int, at_least: int, at_seconds: ArrayLike) -> Floats:
    """P(N(t) >= k): the sum of f_N(j, t) for all j from k on (pilot-job-model, section 2.3)."""
    ratios = np.atleast_1d(latency.at(at_seconds))
    return np.array([tail(binomial(pilots, float(ratio)), at_least=at_least) for ratio in ratios])


def binomial(count: int, probability: float) -> Floats:
    """The probabilities of 0 to `count` successes among equal trials."""
    found = np.zeros(count + 1)
    if probability <= 0.0:
        found[0] = 1.0
        return found
    if probability >= 1.0:
        found[-1] = 1.0
        return found
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    successes = np.arange(count + 1)
    ways = log_factorials[-1] - log_factorials - log_factorials[::-1]
    found[:] = np.exp(ways + successes * np.log(probability) + successes[::-1] * np.log1p(-probability))
    found /= found.sum()
    return found


def poisson_binomial(probabilities: ArrayLike) -> Floats:
    """The probabilities of 0 to n successes among n independent trials, each with a probability of its own.

    With sequential submission the ranks of pilots differ (pilot-job-model, eq. 5), and N(t) is such a sum.
    """
    chances = np.asarray(probabilities, dtype=np.float64)
    found = [np.array([1.0 - chance, chance]) for chance in chances] or [np.ones(1)]
    while len(found) > 1:
        pairs = [_convolved(*found[place : place + 2]) for place in range(0, len(found) - 1, 2)]
        found = pairs + found[2 * len(pairs) :]
    return found[0]


def tail(probabilities: Floats, *, at_least: int) -> float:
    """The probability of at least so many successes, from the shorter side of the distribution."""
    if at_least <= 0:
        return 1.0
    if at_least >= len(probabilities):
        return 0.0
    above, below = probabilities[at_least:], probabilities[:at_least]
    return float(above.sum()) if len(above) <= len(below) else max(0.0, 1.0 - float(below.sum()))


def _convolved(one: Floats, other: Floats) -> Floats:
    if min(len(one), len(other)) <= _DIRECT_MAX:
        return np.convolve(one, other)
    length = len(one) + len(other) - 1
    size = 1 << (length - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size)
    return np.clip(product[:length], 0.0, 1.0)
