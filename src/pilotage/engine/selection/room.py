"""How much may be reserved or under way at a site at once: the smallest of what holds there.

Bound mode: 1 + jobThrottle · TScore (swift-site-selection, max_jobs_per_site). Pilot mode: 1 + ⌈min(1, TScore) · slots factor · live
slots⌉ for each shape, and what its pilots let wait besides; 1 + jobThrottle · min(1, TScore) while no slot is live. A new site
beside others: a few, until one has succeeded or run for a while. A site that was woken: one canary, beyond what was there, until
an attempt ends.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

RoomRule = Literal["bound", "pilots", "no-slots", "trial", "canary", "away"]

_FORMULAS: dict[str, str] = {
    "bound": "1 + job throttle · TScore",
    "pilots": "1 + min(1, TScore) · slots factor · live slots",
    "no-slots": "1 + job throttle · min(1, TScore), while no slot is live",
}


class Room(msgspec.Struct, frozen=True):
    """How much there may be, and what sets that limit."""

    limit: int
    rule: RoomRule

    def tell(self, used: int) -> str:
        """The same in words."""
        if self.rule == "away":
            return "it does not answer"
        if self.rule == "canary":
            return "it was woken, and one canary is out until an attempt ends"
        if self.rule == "trial":
            return f"{used} are reserved or run, and {self.limit} may until one has succeeded or run for a while"
        return f"{used} are reserved or run, and {self.limit} may ({_FORMULAS[self.rule]})"


def room_of(
    tscore: float, *, pilots: bool, job_throttle: float, slots_factor: float, live_slots: int, backlog: int
) -> Room:
    """The room that follows from a TScore for one shape."""
    if pilots and live_slots > 0:
        return Room(1 + math.ceil(min(1.0, tscore) * slots_factor * live_slots) + backlog, "pilots")
    if pilots:  # a good past makes no slots, and what is promised beyond them waits in the wrong place
        return Room(1 + math.floor(job_throttle * min(1.0, tscore)), "no-slots")
    return Room(1 + math.floor(job_throttle * tscore), "bound")
