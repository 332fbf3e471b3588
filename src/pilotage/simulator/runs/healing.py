"""Runs the experiment of figure 8 in virtual time: two activities, with and without healing, in worlds with and without stalls.

The production engine decides about copies, or one of the policies of others in its place. Copies are made, paid and accounted
for by the engine in each case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Literal, get_args

import msgspec

from pilotage.engine.healing.replication import ReplicationPolicy
from pilotage.model.jobs.plan import Template
from pilotage.model.settings.engine import EngineSettings, Healing
from pilotage.model.sites.healing_experiment import (
    INTERVAL_SECONDS,
    PILOTS,
    SITES,
    HealedActivity,
    WorldName,
    sites,
    world_of,
)
from pilotage.simulator.runs.comparison import mean_with_interval
from pilotage.simulator.runs.replication_policies import LongestTimeToEnd, SlowerThanMean
from pilotage.simulator.runs.run import JobSimulation, Subject, usual_settings
from pilotage.simulator.world.jobs import big_job, plan_of, registration

Policy = Literal["off", "paper", "predictive", "slower-than-mean", "late"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
_OF_THE_ENGINE: dict[Policy, Healing] = {"off": "off", "paper": "paper", "predictive": "predictive"}


class HealingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its makespan, its slot time, the copies that healing made, and the share of slot time that they cost."""

    world: WorldName
    activity: str
    policy: Policy
    seed: int
    makespan_seconds: float
    slot_seconds: float
    copies: int
    waste: float


class HealingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one policy with one activity in one world, beside those without healing of the same seeds: medians, but for `longer`."""

    world: WorldName
    activity: str
    policy: Policy
    makespan_seconds: float
    speed_up: float
    speed_up_least: float
    speed_up_most: float
    longer: float  # by how much the mean makespan is longer, as a share of that without healing
    longer_low: float | None  # of its 95 % confidence interval, over pairs of runs with the same seed
    longer_high: float | None
    slot_time: float  # relative to that without healing
    copies: float
    waste: float
    waste_most: float


def run_healing(world: WorldName, activity: HealedActivity, policy: Policy, *, seed: int) -> HealingRun:
    """Simulate one run."""
    simulation = simulation_of(world, activity, policy, seed=seed)
    figures = simulation.run()
    if figures.makespan_seconds is None:
        raise ValueError(f"{activity.name} in {world} with {policy} and seed {seed} did not end")
    return HealingRun(
        world=world,
        activity=activity.name,
        policy=policy,
        seed=seed,
        makespan_seconds=figures.makespan_seconds,
        slot_seconds=figures.core_seconds,
        copies=simulation.copies,
        waste=figures.healing_share,
    )


def simulation_of(world: WorldName, activity: HealedActivity, policy: Policy, *, seed: int) -> JobSimulation:
    """A run that has not begun."""
    template = Template(activity=activity.name, run_seconds=activity.run_seconds)
    job = big_job("experiment", packages=activity.packages, stages=1, template=template)
    behaviour = world_of(world, activity)
    subject = Subject(plan=plan_of(job, seed=0), registered=registration(job), sites=sites(), world=behaviour)
    settings = msgspec.structs.replace(
        usual_settings(behaviour, EngineSettings(healing=_OF_THE_ENGINE.get(policy, "paper"))),
        interval_seconds=INTERVAL_SECONDS,
        lease_intervals=2,
    )
    return JobSimulation(subject, seed=seed, settings=settings, replication=_others(policy))


def _others(policy: Policy) -> ReplicationPolicy | None:
    if policy == "slower-than-mean":
        return SlowerThanMean()
    return LongestTimeToEnd(slots=len(SITES) * PILOTS) if policy == "late" else None


def run_all(
    worlds: Iterable[WorldName],
    activities: Iterable[HealedActivity],
    *,
    seeds: Sequence[int],
    policies: Iterable[Policy] = POLICIES,
    each: Callable[[], object] | None = None,
) -> list[HealingRun]:
    """Every policy with every activity in every world, with each seed; `each` is called after every run."""
    activities, policies = tuple(activities), tuple(policies)
    found = []
    for world in worlds:
        for activity in activities:
            for policy in policies:
                for seed in seeds:
                    found.append(run_healing(world, activity, policy, seed=seed))
                    if each is not None:
                        each()
    return found


def figures_of(runs: Sequence[HealingRun]) -> list[HealingFigures]:
    """The figures of each policy, activity and world, in the order of the runs."""
    without = {(run.world, run.activity, run.seed): run for run in runs if run.policy == "off"}
    cells: dict[tuple[WorldName, str, Policy], list[HealingRun]] = {}
    for run in runs:
        cells.setdefault((run.world, run.activity, run.policy), []).append(run)
    found = []
    for (world, activity, policy), cell in cells.items():
        beside = [without[world, activity, run.seed] for run in cell]
        speed_ups = [off.makespan_seconds / run.makespan_seconds for run, off in zip(cell, beside, strict=True)]
        slot_times = [run.slot_seconds / off.slot_seconds for run, off in zip(cell, beside, strict=True)]
        usual = fmean(run.makespan_seconds for run in beside)
        differences = [
            (run.makespan_seconds - off.makespan_seconds) / usual for run, off in zip(cell, beside, strict=True)
        ]
        longer, longer_low, longer_high = mean_with_interval(differences)
        found.append(
            HealingFigures(
                world=world,
                activity=activity,
                policy=policy,
                makespan_seconds=median(run.makespan_seconds for run in cell),
                speed_up=median(speed_ups),
                speed_up_least=min(speed_ups),
                speed_up_most=max(speed_ups),
                longer=longer or 0.0,
                longer_low=longer_low,
                longer_high=longer_high,
                slot_time=median(slot_times),
                copies=median(run.copies for run in cell),
                waste=median(run.waste for run in cell),
                waste_most=max(run.waste for run in cell),
            )
        )
    return found
