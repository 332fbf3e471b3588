from __future__ import annotations

import numpy as np
import pytest

from tests.reproduction.comparison import compare, lines


def latencies(count: int, *, seed: int, factor: float = 1.0) -> list[float]:
    drawn = np.random.default_rng(seed)
    return [float(each) for each in factor * (2.0 + drawn.lognormal(2.5, 0.8, count))]


def test_pilots_with_the_latencies_of_the_probes_are_inside_three_sigma() -> None:
    shares, errors = [], []
    for seed in range(20):
        probes = latencies(120, seed=seed)
        found = compare(probes, latencies(24, seed=100 + seed), until_seconds=max(probes))
        shares.append(found.within_3_sd)
        errors.append(found.error)
        assert (found.pilots, found.probes, found.started) == (24, 120, 24)
    assert np.mean(shares) > 0.93
    assert np.mean(errors) < 0.08


def test_pilots_on_a_slower_day_are_outside_and_the_day_is_named_as_the_cause() -> None:
    found = compare(latencies(200, seed=1), latencies(60, seed=2, factor=3.0), until_seconds=90.0)
    assert not found.holds
    assert found.factor == pytest.approx(3.0, rel=0.3)
    assert found.scaled_within_3_sd > 0.9
    assert found.given_error < found.plain_error_then
    told = "\n".join(lines(found))
    assert "cause: by their medians, the pilots waited" in told
    assert "start together" not in told


def test_pilots_that_start_together_are_told_so() -> None:
    together = [*[5.0] * 3, *[14.0] * 37]
    found = compare(latencies(200, seed=1), together, until_seconds=40.0)
    assert not found.holds
    assert "start together" in "\n".join(lines(found))


def test_a_pilot_that_did_not_start_counts_as_submitted() -> None:
    found = compare(latencies(200, seed=1), [*latencies(20, seed=3), np.inf], until_seconds=90.0)
    assert (found.pilots, found.started) == (21, 20)
