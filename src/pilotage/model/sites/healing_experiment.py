"""The experiment of figure 8 of *The VIP execution service* as it can be run again: two activities, and the worlds they run in.

The worlds were written down before anything ran in them. Measured are the pilots of the AIMES experiments on the Open Science
Grid: how long they queued and how many never started, how long a task took on a host beside other hosts of its session, and beside
the other tasks of its host. The tasks there fetched no inputs: how long these take here is assumed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.sites.entry import SiteEntry
from pilotage.model.sites.world import Factors, PackagesWorld, SiteWorld, Times, WorldFile

WorldName = Literal["calm", "measured", "blocked"]

SITES = ("one", "two", "three", "four", "five")
PILOTS = 10
"""Pilots of one slot at each site: fifty packages at once."""
STALL_PROBABILITY = 0.03
"""Of an attempt in *blocked*: an assumption about production grids, which the measured ones do not show."""
STALL_FACTOR = Factors(distribution="uniform", low=10.0, high=30.0)
REPETITIONS = 5
INTERVAL_SECONDS = 30.0
"""Between two exchanges of an idle agent, as in other simulations."""

# Middles of tenths, or of twentieths, of what 119 pilots and 976 tasks took.
_QUEUE = Times(distribution="empirical", values=(133, 158, 174, 189, 207, 220, 231, 246, 270, 449))
_NEVER_STARTED = 13 / 132
_SETUP = Times(distribution="empirical", values=(2.0, 4.5, 5.9, 7.7, 8.2, 9.6, 10.7, 12.0, 14.2, 15.9))
_OUTPUTS = Times(distribution="empirical", values=(1.6, 1.8, 2.0, 2.1, 2.2, 2.4, 2.5, 2.6, 2.8, 3.1))
_SPEED = Factors(
    distribution="empirical",
    values=(
        0.353, 0.506, 0.606, 0.684, 0.83, 0.906, 0.931, 0.954, 0.983, 0.997,
        1.0, 1.005, 1.018, 1.031, 1.043, 1.052, 1.086, 1.124, 1.205, 1.397,
    ),
)  # fmt: skip
_RUN_TIME_FACTOR = Factors(
    distribution="empirical",
    values=(
        0.796, 0.892, 0.926, 0.947, 0.969, 0.983, 0.99, 0.995, 0.997, 1.0,
        1.0, 1.003, 1.007, 1.015, 1.029, 1.049, 1.068, 1.09, 1.125, 1.243,
    ),
)  # fmt: skip


class HealedActivity(msgspec.Struct, frozen=True, kw_only=True):
    """An activity of the experiment: so many packages, each with inputs to fetch and an application to run."""

    name: str
    packages: int
    inputs: Times
    run_seconds: float


SHORT = HealedActivity(
    name="short",
    packages=100,
    inputs=Times(distribution="log-normal", median_seconds=300.0, sigma=0.2),
    run_seconds=600.0,
)
"""As FIELD-II: a quarter of an hour, a third of it for inputs."""
LONG = HealedActivity(
    name="long",
    packages=250,
    inputs=Times(distribution="log-normal", median_seconds=60.0, sigma=0.2),
    run_seconds=3540.0,
)
"""As Mean-Shift: an hour, a minute of it for inputs."""
ACTIVITIES = (SHORT, LONG)


def sites() -> tuple[SiteEntry, ...]:
    """The sites, all alike."""
    return tuple(SiteEntry(name=name, kind="slurm", slots=1, pilots_max=PILOTS) for name in SITES)


def world_of(name: WorldName, activity: HealedActivity) -> WorldFile:
    """One of the worlds, for one activity.

    *measured* is as measured. *blocked* is the same, but that the inputs of some attempts stall. In *calm* all hosts are equally fast,
    and nothing stalls: no attempt is late.
    """
    site = SiteWorld(name="", queue=_QUEUE, pilot_failure_probability=_NEVER_STARTED)
    if name != "calm":
        site = msgspec.structs.replace(site, speed=_SPEED)
    if name == "blocked":
        site = msgspec.structs.replace(site, stall_probability=STALL_PROBABILITY, stall_factor=STALL_FACTOR)
    packages = PackagesWorld(run_time_factor=_RUN_TIME_FACTOR, setup=_SETUP, inputs=activity.inputs, outputs=_OUTPUTS)
    return WorldFile(sites=tuple(msgspec.structs.replace(site, name=each) for each in SITES), packages=packages)
