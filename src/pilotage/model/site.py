"""A place that runs attempts, as the engine knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from pilotage.model.demand import Capacity

SiteMode = Literal["pilots", "bound"]

PILOT_MARGIN_SECONDS = 30.0
"""So long before the end of its wall time, or at half of it, a pilot stops everything."""
PILOT_START_SECONDS = 30.0
"""So much of its wall time may be over, or a tenth of it, before a pilot is given its first package."""


AMOUNT_UNKNOWN = 2**53 - 1
"""Of memory or scratch at a site that does not say how much it has: it is not held against it."""


LOCAL_DATA_HANDLING = ("folder",)
"""Here the files of a job are at hand: a local site handles data without anything being said about it."""


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site: how work gets there, and the largest thing it can run."""

    name: str
    kind: str = "local"
    mode: SiteMode = "pilots"
    capacity: Capacity = Capacity()  # of one node
    nodes: int = 1  # the most that one attempt may span
    wall_seconds: float = 0.0  # the longest that a pilot or a bound job may last; 0: no limit
    pilots_max: int = 1  # pilots that are asked for or live at once
    speed: float = 1.0  # relative to the standard platform: what is estimated takes so many times less
    job_throttle: float = 2.0  # swift-site-selection: room in bound mode is 1 + jobThrottle · TScore
    # What packages may ask for besides, called as in `sites.yaml`; none: not said, and mostly not held against it.
    platform: str = ""
    job_types: tuple[str, ...] = ()  # besides `normal`, which it always runs
    node_names: tuple[str, ...] = ()  # by name or pattern; none: it has no node that anybody can name
    places_nodes: bool = True  # its batch system can be told on which nodes a batch job is to run
    scratch_bytes: int | None = None  # for the files of one attempt
    data_handling: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()  # that it reaches, by the beginning of their URLs
    software: tuple[str, ...] = ()  # installed there: `ID` or `ID/VERSION`
    users: tuple[str, ...] = ()  # whose packages it runs; none: everybody's
    initial_score: float | None = None

    @property
    def package_seconds_max(self) -> float:
        """The longest that one package may ask for; 0: no limit. A pilot has never all the time left that its site gives."""
        wall = self.wall_seconds
        if self.mode == "bound":
            return wall
        return wall - min(PILOT_MARGIN_SECONDS, 0.5 * wall) - min(PILOT_START_SECONDS, 0.1 * wall)


def executors_of(sites: Iterable[Site]) -> frozenset[str]:
    """What packages may name as their executor: the sites there are, and their kinds."""
    return frozenset(name for site in sites for name in (site.name, site.kind))
