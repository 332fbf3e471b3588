"""A place that runs attempts, as the engine knows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.demand import Capacity

SiteMode = Literal["pilots", "bound"]


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site: how work gets there, and the largest thing it can run."""

    name: str
    kind: str = "local"
    mode: SiteMode = "pilots"
    capacity: Capacity = Capacity()  # of one node
    nodes: int = 1  # the most that one attempt may span
    wall_seconds: float = 0.0  # the longest that a pilot or a bound job may last; 0: no limit
    pilots_max: int = 1  # pilots that are asked for or live at once
    job_throttle: float = 2.0  # swift-site-selection: room in bound mode is 1 + jobThrottle · TScore
