"""Two users on shared sites, doubted all the way: the one with little to do is not stuck behind the one with much."""

from __future__ import annotations

import re

from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings, Order
from pilotage.model.site import Site
from pilotage.simulator.trials.definition import SiteSketch, World
from pilotage.simulator.trials.trial import Result, simulate
from pilotage.simulator.world.behaviour import Habits
from pilotage.simulator.world.jobs import JobSketch, LineSketch, StageSketch
from pilotage.simulator.world.randomness import Fixed, LogNormal

GRANTED = re.compile(r"\d+ at (?P<at>[0-9.]+): engine \d+, epoch 1: CommitGranted (?P<job>[a-z]+)/")
LARGE, SMALL = 1000, 10


def job(name: str, owner: str, packages: int, at_seconds: float) -> JobSketch:
    lines = (LineSketch(count=packages, templates=(0,)),)
    stages = (StageSketch(lines=lines),)
    templates = (Template(activity="work"),)
    return JobSketch(job=name, owner=owner, templates=templates, stages=stages, submit_seconds=at_seconds)


def run(fairness: Order, *, seed: int, large: int = LARGE) -> Result:
    capacity = Capacity(cores_hundredths=1000)
    sites = tuple(
        SiteSketch(site=Site(name=f"site-{n}", capacity=capacity, pilots_max=2), queue=Fixed(10.0)) for n in (1, 2)
    )
    world = World(
        seed=seed,
        sites=sites,
        jobs=(job("large", "ada", large, 0.0), job("small", "emmy", SMALL, 120.0)),
        packages=Habits(application_seconds=LogNormal(median=60.0, sigma=0.3)),
        settings=EngineSettings(fairness=fairness),
        faults_seconds=60.0,
    )
    return simulate(world, trace=True, check_every=200)


def ends(result: Result) -> dict[str, float]:
    """When the last package of each job was granted."""
    found = [match for line in result.last_events if (match := GRANTED.match(line)) is not None]
    assert len(found) == LARGE + SMALL
    return {match["job"]: float(match["at"]) for match in found}


def test_the_small_one_is_not_stuck_behind_the_large_one() -> None:
    fair, first_come = run("slowdown", seed=1), run("first-come", seed=1)
    assert (fair.violation, first_come.violation) == (None, None)
    by_slowdown, by_coming = ends(fair), ends(first_come)
    assert by_slowdown["small"] < by_slowdown["large"] - 600.0
    assert by_coming["small"] > by_coming["large"] - 120.0
    assert by_slowdown["large"] < by_coming["large"] + 120.0  # the large one loses hardly anything by it


def test_the_same_seed_gives_the_same_events() -> None:
    one, other = (run("slowdown", seed=3, large=60) for _ in range(2))
    assert one.violation is None
    assert one.event_hash == other.event_hash
