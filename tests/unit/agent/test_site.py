"""What a site gives to one package."""

from __future__ import annotations

import pytest

from pilotage.agent.pilot.pilot import PilotSettings
from pilotage.model.site import PILOT_MARGIN_SECONDS, Site


@pytest.mark.parametrize(
    "wall_seconds, longest_seconds", [(0.0, 0.0), (60.0, 24.0), (600.0, 540.0), (3600.0, 3540.0), (86400.0, 86340.0)]
)
def test_a_pilot_keeps_some_of_its_time_to_begin_and_to_end(wall_seconds: float, longest_seconds: float) -> None:
    assert Site(name="lyon", wall_seconds=wall_seconds).package_seconds_max == pytest.approx(longest_seconds)
    assert Site(name="lyon", mode="bound", wall_seconds=wall_seconds).package_seconds_max == wall_seconds


def test_agents_keep_the_margin_that_the_engine_reckons_with() -> None:
    assert PilotSettings._field_defaults["wall_margin_seconds"] == PILOT_MARGIN_SECONDS
