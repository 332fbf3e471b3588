"""What is known of a site lasts as it should: over a restart of the service, over its going and coming, and no longer."""

from __future__ import annotations

import pytest

from pilotage.model import payloads
from pilotage.model.effects import SubmitPilot
from pilotage.model.operations import AnySiteOperation, HibernateSite, ProbeSite
from pilotage.model.reports import Gone
from pilotage.service.messages import AskedOfSite, SitesChanged
from pilotage.service.running.probing import probes_under_way, sites_to_probe
from pilotage.service.running.site_stands import stand_of_site
from tests.small_engine import Agent, Small
from tests.small_plans import bag, site


def ask(small: Small, operation: AnySiteOperation) -> None:
    small.step(AskedOfSite(token=1, operation=operation))
    small.answers.clear()


def settle(small: Small, *agents: Agent) -> None:
    """Nobody looks at what is left over."""
    small.effects.clear()
    for agent in agents:
        agent.unread.clear()


# --- probes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lab-probe", "lab-probe-1", "probe"])
def test_a_site_that_is_named_like_a_probe_runs_what_it_is_given_and_can_be_probed(name: str) -> None:
    with Small(site("lab"), site(name)) as small:
        small.sites = (site("lab"), site(name))
        ask(small, HibernateSite(site="lab"))
        small.submit(bag(1))
        assert probes_under_way(small.engine) == []
        pilot = small.pilot(name)
        assert pilot.packages == ["1.1.1"]
        pilot.succeed("1.1.1")
        assert not pilot.left
        ask(small, ProbeSite(site=name))
        assert probes_under_way(small.engine) == [name]
        [wanted] = small.take(SubmitPilot)
        probe = small.agent("probe.1", site=name, request=wanted.key)
        probe.exchange()
        assert probe.left
        settle(small, pilot, probe)


def test_a_probe_that_came_before_a_restart_is_given_nothing_after_it() -> None:
    with Small(site("a")) as small:
        ask(small, ProbeSite(site="a"))
        [wanted] = small.take(SubmitPilot)
        probe = small.agent("probe.1", site="a", request=wanted.key)
        small.step(probe.message())
        probe.unread.clear()
        probe.left = False
        small.restart()
        small.submit(bag(1))
        probe.exchange(after=1.0)
        assert (probe.packages, probe.left) == ([], True)
        settle(small, probe)


def test_a_probe_that_is_under_way_at_a_restart_fails_in_its_time() -> None:
    with Small(site("lab-probe"), probe_seconds=100.0) as small:
        ask(small, ProbeSite(site="lab-probe"))
        small.wait(60)
        small.restart()
        small.wait(41)
        [told] = [one.data for one in small.book if isinstance(one.data, payloads.SiteProbed)]
        assert not told.passed
        settle(small)


def test_sites_that_somebody_put_to_sleep_are_not_probed_by_themselves() -> None:
    here, a, b, c = site("here", kind="local"), *(site(name, kind="slurm") for name in "abc")
    with Small(here, a, b, c) as small:
        ask(small, HibernateSite(site="a", message="for repair"))
        ask(small, ProbeSite(site="b"))
        [wanted] = small.take(SubmitPilot)
        small.step(Gone(site="b", key=wanted.key, reason="failed"))
        assert small.engine.sites["b"].asleep
        assert sites_to_probe(small.engine) == ["b", "c"]
        small.step(SitesChanged(sites=(here, a, b)))
        assert sites_to_probe(small.engine) == ["b"]
        settle(small)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_when_a_site_is_woken_is_told_by_the_clock_that_it_fell_asleep_by() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(2))
        pilot = small.pilot("a")
        small.engine.sites["a"].place.times = 3  # so it sleeps for long
        pilot.fail("1.1.1", "platform-failure")
        small.step(after=8 * 3600.0)  # the computer slept: its own time stood still
        assert small.engine.stamp - small.engine.now > 3600.0
        stand, why = stand_of_site(small.engine, "a"), small.engine.explain_site("a")
        assert stand is not None
        assert why is not None
        [told] = [each.message for each in stand.reasons if each.stage == "status"]
        assert [told] == [each.message for each in why.stages if each.stage == "status"]
        settle(small, pilot)
