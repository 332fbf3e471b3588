"""How bad worlds are: the kinds of faults in groups, each with its probability in the worst world."""

from __future__ import annotations

import random

HEAT: dict[str, dict[str, float]] = {
    # Groups of related faults: the probability of each in the worst world.
    "network": {
        "message_lost": 0.2,
        "message_duplicated": 0.2,
        "message_delayed": 0.1,
        "message_reordered": 0.1,
    },
    "agents": {"agent_killed": 0.02, "agent_paused": 0.02, "clock_skewed": 0.5},
    "service": {"service_crashed": 0.01, "tail_torn": 1.0},
    "disks": {"disk_full": 0.05, "input_vanishes": 0.1},
    "batch": {
        "batch_unreachable": 0.05,
        "batch_forgets": 0.15,
        "batch_reuses_id": 0.2,
        "batch_starts_twice": 0.2,
    },
    "sites": {"site_down": 0.01, "black_hole": 0.02},
    "user": {
        "user_kills": 0.02,
        "user_holds": 0.02,
        "user_drops": 0.02,
        "user_restores": 0.5,
        "user_restarts": 0.04,
        "user_reschedules": 0.04,
        "user_replicates": 0.06,
    },
}

LATER_HEAT: dict[str, dict[str, float]] = {
    # Later kinds have their own random stream, so that earlier worlds keep their other faults.
    "agents": {"agent_rogue": 0.05},
    "disks": {"journal_full": 0.02},
    "packages": {"package_loops": 0.1, "package_kills": 0.05},
    "user": {"user_clears": 0.5, "user_revives": 1.0, "user_rambles": 1.0},
    "clock": {"service_clock_set": 0.005},
}

OF_FEW = ("tail_torn", "user_revives")
"""Faults whose probability does not depend on how bad the rest is: a torn tail of few crashes, a revival of few cleared jobs."""


def drawn_faults(dice: random.Random, groups: dict[str, dict[str, float]]) -> dict[str, float]:
    """Draw the probability of each fault: some groups are calm, some are as bad as they get."""
    chosen: dict[str, float] = {}
    for kinds in groups.values():
        heat = dice.choice([0.0, 0.0, 0.1, 0.3, 1.0])
        for kind, most in kinds.items():
            share = most * dice.uniform(0.1, 1.0)
            often = (0.5 + 0.5 * share) * bool(heat) if kind in OF_FEW else share * heat
            if probability := round(often, 5):
                chosen[kind] = probability
    return chosen
