"""What is treated first where activities are blocked by an unavailable store, and where they are not."""

from __future__ import annotations

from random import Random

import pytest

from pilotage.engine.engine import Engine
from pilotage.engine.healing.degrees import unavailable
from pilotage.engine.healing.healing import Drawn
from pilotage.engine.selection.sampling import Draws
from pilotage.model.events.healing_payloads import Incident, IncidentKind
from pilotage.model.jobs.plan import Template
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.messages import Submit
from pilotage.simulator.world.jobs import Definitions, big_job, registration

EPISODES = 400
HOUR, CYCLE_SECONDS = 3600.0, 60.0
JOB, STORE, ACTIVITY = "J1", "https://store", "work"
FIRST_ON_STORE_MIN, WRONGLY_ON_STORE_MAX = 0.8, 0.2


class World:
    """A job whose activity is blocked once an hour; each time, the store of its inputs may have failed a few minutes before."""

    def __init__(self, *, seed: int) -> None:
        """Begin with a job of which nothing is known."""
        sketch = big_job(JOB, packages=10, stages=1, template=Template(activity=ACTIVITY))
        plan = Definitions([sketch], seed=1).plan(JOB, ())
        self._core = Core(Engine(sites=[Site(name="site")], settings=EngineSettings()))
        self._core.step([Submit(token=1, job=JOB, registered=registration(sketch), plan=plan)], 0.0)
        state = self._core.engine.state
        self._clock, self._healing, self._health = state.clock, state.healing, state.healing.of(JOB)
        self._random, self._seed, self._decision = Random(seed), seed, 0

    def episode(self, number: int, *, store_fails: bool, is_blocked: bool) -> tuple[list[Incident], Drawn] | None:
        """What was drawn first once the activity was blocked, and from which incidents."""
        at, first = number * HOUR, 4 if self._random.random() < 0.5 else 2  # the cycle from which on the store fails
        most, decided = self._random.uniform(0.5, 0.95), None
        for cycle in range(60):
            found = []
            if store_fails and first <= cycle < 15:
                found.append(self._incident("input-unavailable", STORE, unavailable(min(5, cycle - first + 1))))
            if is_blocked and 4 <= cycle < 15:
                found.append(self._incident("blocked-activity", ACTIVITY, min(most, 0.15 * (cycle - 3))))
            self._clock.now = self._clock.wall_time = at + cycle * CYCLE_SECONDS
            self._healing.observe(self._health, found)
            incidents = [each for each in found if each.level > 1]
            self._decision += 1
            drawn = self._healing.draw(incidents, Draws(self._seed, self._decision))
            if decided is None and drawn is not None and (cycle >= 4 or not is_blocked):
                decided = (incidents, drawn)
        return decided

    def _incident(self, kind: IncidentKind, subject: str, degree: float) -> Incident:
        return self._healing.incident(self._health, kind, subject, degree)


@pytest.mark.parametrize("seed", range(5))
def test_where_a_store_blocks_nine_of_ten_activities_the_store_is_treated_first(seed: int) -> None:
    world, random = World(seed=seed), Random(seed)
    on_store = []
    for number in range(EPISODES):
        decided = world.episode(number, store_fails=random.random() < 0.9, is_blocked=True)
        assert decided is not None
        incidents, drawn = decided
        on_store.append(incidents[drawn.treated].kind == "input-unavailable")
    last = on_store[EPISODES // 2 :]
    assert sum(last) / len(last) >= FIRST_ON_STORE_MIN


@pytest.mark.parametrize("seed", range(5))
def test_where_the_store_has_nothing_to_do_with_it_a_blocked_activity_is_treated_itself(seed: int) -> None:
    world, random = World(seed=seed), Random(seed)
    began_blocked = wrongly = 0
    for number in range(EPISODES):
        fails, blocked = random.random() < 0.3, random.random() < 0.5
        decided = world.episode(number, store_fails=fails, is_blocked=blocked)
        if decided is None:
            continue
        incidents, drawn = decided
        if incidents[drawn.incident].kind == "blocked-activity":
            began_blocked += 1
            wrongly += incidents[drawn.treated].kind != "blocked-activity"
    assert began_blocked > 50
    assert wrongly / began_blocked <= WRONGLY_ON_STORE_MAX
