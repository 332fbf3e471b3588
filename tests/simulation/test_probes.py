"""A constant number of probes in virtual time: at a bounded cost, whatever strikes, and each with an end in the book."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from pilotage.book.codec import Checked
from pilotage.engine.transitions.site_observations import is_probe
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import ProbeSite
from pilotage.service.messages import SiteOperationRequest
from pilotage.service.sites.pool import Prober, probes_under_way
from pilotage.simulator.trials.checked_world import CheckedWorld
from pilotage.simulator.trials.definition import World
from pilotage.simulator.trials.trial import _run
from pilotage.simulator.world.faults import Faults
from tests.simulation.test_sites import NEVER, sketch, world

EVERY_SECONDS = 1000.0
LOOK_SECONDS = 3.0


class Probed:
    """A world in which a service keeps probes under way, and what its book says of them."""

    def __init__(self, about: World, *, at_once: int) -> None:
        self.checked_world = CheckedWorld(about, on_durable=self.note)
        self.names = [each.site.name for each in about.sites]
        self.asked: list[str] = []
        self.ended: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.at_once = 0
        self._token = 10**9
        clock = self.checked_world.schedule
        self._prober = Prober(self.probe, at_once=at_once, every_seconds=EVERY_SECONDS, clock=lambda: clock.now)

    def note(self, checked: Checked, _: float) -> None:
        event = checked.event
        if isinstance(checked.data, payloads.PilotRequested) and is_probe(event.pilot or "", site=checked.data.site):
            if event.pilot not in self.asked:
                self.asked.append(event.pilot or "")
        elif isinstance(checked.data, payloads.SiteProbed):
            self.ended[event.site or ""] += 1
            self.passed[event.site or ""] += checked.data.passed
        self.at_once = max(self.at_once, len(self.asked) - self.ended.total())

    def probe(self, site: str) -> None:
        self._token += 1
        self.checked_world.driver.receive(SiteOperationRequest(token=self._token, operation=ProbeSite(site=site)))

    def look(self) -> None:
        core = self.checked_world.driver.core
        if core is not None:
            self._prober.look(self.names, under_way=probes_under_way(core.engine))
        self.checked_world.schedule.after(LOOK_SECONDS, self.look)

    def run(self) -> None:
        self.checked_world.begin()
        self.look()
        _run(self.checked_world, stops_at=self.checked_world.world.faults_seconds, steps_max=2_000_000, check_every=500)


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_many_probes_are_under_way_and_no_site_is_asked_more_often_than_it_may(at_once: int) -> None:
    sites = (sketch("a"), sketch("b"), sketch("stuck", queue=NEVER))
    probed = Probed(world(*sites, packages=2500), at_once=at_once)
    probed.run()
    seconds = probed.checked_world.elapsed_seconds
    assert seconds > 2 * EVERY_SECONDS
    assert probed.at_once == at_once
    assert {name for name in probed.ended if probed.ended[name] < 2} == set()
    assert all(count <= 1 + seconds / EVERY_SECONDS for count in probed.ended.values())
    assert (probed.passed["a"], probed.passed["b"], probed.passed["stuck"]) == (probed.ended["a"], probed.ended["b"], 0)


def test_every_probe_comes_to_an_end_whatever_strikes() -> None:
    faults = Faults(service_crashed=0.002, message_lost=0.02, agent_killed=0.01, batch_forgets=0.05, site_down=0.01)
    for seed in (1, 2, 3):
        about = world(sketch("a"), sketch("b"), packages=400, seed=seed)
        probed = Probed(msgspec.structs.replace(about, faults=faults, faults_seconds=2500.0), at_once=2)
        probed.run()
        left = (
            probes_under_way(probed.checked_world.driver.core.engine)
            if probed.checked_world.driver.core is not None
            else []
        )
        assert len(probed.asked) - probed.ended.total() <= len(left)
        assert probed.ended.total() >= 2
