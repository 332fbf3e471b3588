"""Forecasts on pilots that really ran: what docs/explanation/forecast.md says of them holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.forecast_report import (
    LATER,
    available_at,
    compared,
    observed_at,
    pilots_error,
    sessions_in,
)
from pilotage.forecast.conditioning import USUAL_DRIFT, ConditionedPilots, learn_today
from pilotage.forecast.latency import empirical_latency

DIRECTIONS = [("osg1", "osg2"), ("osg2", "osg1")]


@pytest.mark.parametrize("history, test", DIRECTIONS)
def test_given_what_has_started_ours_beats_the_paper_by_a_third_of_its_excess(
    reference_data: Path, history: str, test: str
) -> None:
    _, starts = sessions_in(reference_data / "pilots")
    latency, own = (empirical_latency(np.concatenate(starts[name])) for name in (history, test))
    paper, floor = (pilots_error(starts[test], each, LATER) for each in (latency, own))
    ours = []
    for each in starts[test]:
        observed = observed_at(each)
        found = ConditionedPilots(observed, learn_today(latency, observed, drift=USUAL_DRIFT))
        ours.append(np.abs(found.mean(LATER) - available_at(each, LATER)).mean() / len(each))
    assert np.mean(ours) <= paper - (paper - floor) / 3.0


@pytest.mark.parametrize("history, test", DIRECTIONS)
def test_so_does_the_time_to_completion(reference_data: Path, history: str, test: str) -> None:
    sessions, _ = sessions_in(reference_data / "pilots")
    tested, train = ([each for each in sessions if each.pilots_table == name] for name in (test, history))
    paper, floor, ours, _ = compared(tested, train, is_conditioned=True)
    assert ours <= paper - (paper - floor) / 3.0
