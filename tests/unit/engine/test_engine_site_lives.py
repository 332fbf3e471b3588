"""What is known of a site lasts as it should: over a restart of the service, over its going and coming, and no longer."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    Accepted,
    AnySiteOperation,
    CancelSubmitted,
    HibernateSite,
    ProbeSite,
    Refused,
    SubmitPilot,
    TrySite,
    WakeSite,
)
from pilotage.model.exchange.reports import Gone, Submitted
from pilotage.service.messages import SiteOperationRequest, SitesChanged
from pilotage.service.sites.pool import probes_under_way, sites_to_probe
from pilotage.service.sites.status import status_of_site
from tests.kit.small_engine import Agent, Small
from tests.kit.small_plans import IN_ORDER, bag, kind, site


def ask(small: Small, operation: AnySiteOperation) -> None:
    small.step(SiteOperationRequest(token=1, operation=operation))
    small.answers.clear()


def number_of(small: Small, operation: AnySiteOperation) -> int:
    """Have it done; its number."""
    [answer] = small.step(SiteOperationRequest(token=1, operation=operation)).answers
    small.answers.remove(answer)
    assert isinstance(answer.outcome, Accepted)
    return answer.outcome.operation


def settle(small: Small, *agents: Agent) -> None:
    """Nobody looks at what is left over."""
    small.effects.clear()
    for agent in agents:
        agent.unread.clear()


# --- probes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lab-probe", "lab-probe-1", "probe"])
def test_a_site_that_is_named_like_a_probe_runs_what_it_is_given_and_can_be_probed(name: str) -> None:
    with Small(site("lab"), site(name)) as small:
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
    with Small(site("lab-probe"), probe_timeout_seconds=100.0) as small:
        ask(small, ProbeSite(site="lab-probe"))
        small.wait(60)
        small.restart()
        small.wait(41)
        [told] = [one.data for one in small.book if isinstance(one.data, payloads.SiteProbed)]
        assert not told.passed
        settle(small)


def test_a_probe_that_comes_to_a_site_that_somebody_put_to_sleep_changes_neither_its_sleep_nor_its_score() -> None:
    with Small(site("a")) as small:
        ask(small, HibernateSite(site="a"))
        ask(small, ProbeSite(site="a"))
        [wanted] = small.take(SubmitPilot)
        small.step(Submitted(site="a", key=wanted.key, native_id="1", seconds=0.1))
        probe = small.agent("probe.1", site="a", request=wanted.key)
        probe.exchange()
        state = small.engine.state.sites.by_name["a"]
        assert (state.asleep, state.profile.score.value) == (True, 0.0)
        settle(small, probe)


@pytest.mark.parametrize("name", ["a", "a-trial"])
def test_a_pilot_that_is_tried_beside_others_comes_is_given_nothing_and_says_nothing_of_its_site(name: str) -> None:
    with Small(site(name, cores=1)) as small:
        small.submit(bag(2))
        pilot = small.pilot(name)
        tried = number_of(small, TrySite(site=name))
        [wanted] = small.take(SubmitPilot)
        assert wanted.key == f"{name}-trial-{tried}"
        trial = small.agent("trial.1", site=name, request=wanted.key)
        trial.exchange()
        assert (trial.packages, trial.left) == ([], True)
        assert not any(isinstance(one.data, payloads.SiteProbed) for one in small.book)
        pilot.succeed("1.1.1")
        assert pilot.packages == ["1.2.1"]
        settle(small, pilot, trial)


def test_a_pilot_that_is_tried_and_dies_or_does_not_come_does_its_site_no_harm() -> None:
    with Small(site("a"), probe_timeout_seconds=100.0) as small:
        number_of(small, TrySite(site="a"))
        [wanted] = small.take(SubmitPilot)
        small.step(Gone(site="a", key=wanted.key, reason="failed", stderr="no python"))
        number_of(small, TrySite(site="a"))
        [late] = small.take(SubmitPilot)
        small.wait(60)  # nothing waits for it, and it is not withdrawn
        assert small.take(CancelSubmitted) == []
        small.wait(41)
        assert [each.key for each in small.take(CancelSubmitted)] == [late.key]
        state = small.engine.state.sites.by_name["a"]
        assert (state.dead_starts, state.asleep, state.expected) == (0, False, 0)
        assert not any(isinstance(one.data, payloads.SiteProbed) for one in small.book)
        settle(small)


def test_a_site_without_pilots_is_not_tried_by_one() -> None:
    with Small(site("a", mode="bound")) as small:
        [answer] = small.step(SiteOperationRequest(token=1, operation=TrySite(site="a"))).answers
        small.answers.remove(answer)
        assert isinstance(answer.outcome, Refused)
        assert answer.outcome.code == "no-pilots"


def test_what_cannot_be_done_with_a_site_is_refused_with_what_to_do() -> None:
    with Small(site("a")) as small:
        ask(small, HibernateSite(site="a"))
        ask(small, ProbeSite(site="a"))
        told = {HibernateSite: "site wake a", ProbeSite: "site show a", WakeSite: "site explain a"}
        for kind, words in told.items():
            if kind is WakeSite:
                ask(small, WakeSite(site="a"))
            [answer] = small.step(SiteOperationRequest(token=1, operation=kind(site="a"))).answers
            small.answers.remove(answer)
            assert isinstance(answer.outcome, Refused)
            assert words in answer.outcome.next_step
        settle(small)


def test_sites_that_somebody_put_to_sleep_are_not_probed_by_themselves() -> None:
    here, a, b, c = site("here", kind="local"), *(site(name, kind="slurm") for name in "abc")
    with Small(here, a, b, c) as small:
        ask(small, HibernateSite(site="a", message="for repair"))
        ask(small, ProbeSite(site="b"))
        [wanted] = small.take(SubmitPilot)
        small.step(Gone(site="b", key=wanted.key, reason="failed"))
        assert small.engine.state.sites.by_name["b"].asleep
        assert sites_to_probe(small.engine) == ["b", "c"]
        small.step(SitesChanged(sites=(here, a, b)))
        assert sites_to_probe(small.engine) == ["b"]
        settle(small)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_when_a_site_is_woken_is_told_by_the_clock_that_it_fell_asleep_by() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(2))
        pilot = small.pilot("a")
        small.engine.state.sites.by_name["a"].profile.times = 3  # so it sleeps for long
        pilot.fail("1.1.1", "platform-failure")
        small.step(after=8 * 3600.0)  # the computer slept: its own time stood still
        assert small.engine.state.clock.wall_time - small.engine.state.clock.now > 3600.0
        stand = status_of_site(small.engine, "a")
        why = small.engine.state.selection.explain("a", now=small.engine.state.clock.wall_time)
        assert stand is not None
        [told] = [each.message for each in stand.reasons if each.stage == "status"]
        assert [told] == [each.message for each in why.stages if each.stage == "status"]
        settle(small, pilot)


# --- draining ---------------------------------------------------------------------------------------------------------

STREAK = msgspec.structs.replace(IN_ORDER, black_hole_streak=2)


def on_nodes(small: Small, *nodes: str) -> list[Agent]:
    """A pilot on each node of the site, each of which has got what it can take."""
    started, capacity = [], small.engine.state.sites.by_name["a"].site.capacity
    for number, node in enumerate(nodes):
        pilot = small.agent(f"a-{number}.{number}", site="a", request=f"a-{number}", capacity=capacity)
        pilot.unacknowledged.clear()
        pilot.n = 0
        pilot.say(payloads.PilotStarted(site="a", request=pilot.request, node=node or None))
        pilot.exchange()
        pilot.unread.clear()
        started.append(pilot)
    return started


def drained(small: Small) -> list[tuple[str, str]]:
    found = [one.data for one in small.book if isinstance(one.data, payloads.SiteDrained)]
    return [(each.kind, each.name) for each in found]


def draining(small: Small) -> list[str]:
    return sorted(name for name, pilot in small.engine.state.pilots.by_name.items() if pilot.draining)


@pytest.mark.parametrize("ended_well", [0, 1])
def test_a_pilot_that_is_drained_stays_so_over_a_restart(ended_well: int) -> None:
    with Small(site("a", cores=4, pilots=2), selection=STREAK) as small:
        small.submit(bag(8))
        bad, good = on_nodes(small, "", "")
        for package in bad.packages[:2]:
            bad.fail(package, "platform-failure")
        assert drained(small) == [("pilot", bad.name)]
        bad.succeed(*bad.packages[:ended_well])
        before = bad.packages
        small.restart()
        assert draining(small) == [bad.name]
        good.succeed(*good.packages)
        small.wait(30, bad, good)
        assert bad.packages == before
        assert good.packages
        bad.succeed(*bad.packages)
        assert bad.left
        settle(small, bad, good)


def test_the_pilots_of_a_node_that_is_drained_stay_so_over_a_restart() -> None:
    with Small(site("a", cores=2, pilots=3), selection=STREAK) as small:
        small.submit(bag(6))
        first, second, elsewhere = on_nodes(small, "n1", "n1", "n2")
        ask(small, HibernateSite(site="a"))  # nothing else is written down of it soon
        first.fail(first.packages[0], "platform-failure")
        assert not drained(small)
        second.fail(second.packages[0], "platform-failure")
        assert drained(small) == [("node", "n1")]
        assert draining(small) == [first.name, second.name]
        small.restart()
        assert draining(small) == [first.name, second.name]
        settle(small, first, second, elsewhere)


def test_what_comes_to_a_drained_node_is_a_canary_and_one_success_clears_it() -> None:
    with Small(site("a", cores=2, pilots=9), selection=STREAK) as small:
        small.submit(bag(20))
        pilots = on_nodes(small, "n1", "n1", "n2")
        ask(small, HibernateSite(site="a"))  # and not what fails there puts it to sleep
        for each in pilots[:2]:
            each.fail(each.packages[0], "platform-failure")
        assert drained(small) == [("node", "n1")]
        assert small.engine.state.sites.by_name["a"].profile.nodes.counts() == {"n1": 1}
        small.restart()
        place = small.engine.state.sites.by_name["a"].profile
        assert not place.nodes.is_due("n1")
        assert place.nodes.ended("n1", "platform")  # one is enough this time
        place.nodes.put_on_trial("n1")
        assert not place.nodes.ended("n1", "success")
        assert place.nodes.counts() == {}
        place.nodes.put_on_trial("n1")  # as it stands in the book
        settle(small, *pilots)


def test_the_only_node_of_a_site_is_not_drained_and_not_after_a_restart_either() -> None:
    with Small(site("a", cores=2, pilots=3), selection=STREAK) as small:
        small.submit(bag(9))
        first, second = on_nodes(small, "n1", "n1")
        first.fail(first.packages[0], "platform-failure")
        second.fail(second.packages[0], "platform-failure")
        assert (drained(small), draining(small)) == ([], [])
        small.restart()
        assert draining(small) == []
        settle(small, first, second)


# --- going and coming back --------------------------------------------------------------------------------------------


def test_a_site_that_is_alone_is_not_compared_with_one_that_was_removed() -> None:
    a, b = site("a", cores=4), site("b", cores=4)
    with Small(a, b) as small:
        small.submit(bag(40))
        leaving = small.pilot("a")
        small.wait(65, leaving)
        staying = small.pilot("b")
        leaving.succeed(leaving.packages[0])
        small.step(SitesChanged(sites=(b,)))
        leaving.succeed(*leaving.packages, after=500.0)
        small.step(after=100.0)
        for _ in range(20):
            staying.exchange(after=0.1)
            staying.fail(staying.packages[0], "application-error", after=0.01)
        assert staying.packages
        assert small.engine.state.sites.by_name["b"].profile.sleep is None
        everyone = small.engine.state.selection.sites.everyone
        assert everyone.tally() == small.engine.state.sites.by_name["b"].profile.ends.tally()
        settle(small, leaving, staying)


def test_what_fails_at_a_site_that_was_removed_puts_nobody_to_sleep() -> None:
    a, b = site("a", cores=2), site("b")
    with Small(a, b) as small:
        small.submit(bag(3))
        pilot = small.pilot("a")
        small.step(SitesChanged(sites=(b,)))
        pilot.fail(pilot.packages[0], "platform-failure")
        assert not small.engine.state.selection.sites.asleep.queue
        settle(small, pilot)


def test_a_site_that_comes_back_knows_what_runs_there() -> None:
    a, b = site("a", cores=4, pilots=2), site("b", cores=4)
    with Small(a, b) as small:
        small.submit(bag(10, kind(run_seconds=0.01)))
        pilot = small.pilot("a")
        pilot.say(payloads.PhaseEntered(phase="inputs"), pilot.ref(pilot.packages[0]))
        pilot.exchange()
        pilot.exchange(after=1.0, backlog=2)
        before = small.engine.state.sites.by_name["a"].profile
        running, load = before.ends.tally(), before.score.underway("transfer")
        assert (running.running, load, before.live, before.backlog) == (6, 1, 6, 2)
        small.step(SitesChanged(sites=(b,)))
        small.step(SitesChanged(sites=(a, b)))
        place = small.engine.state.sites.by_name["a"].profile
        assert place is not before
        assert (place.ends.tally(), place.live, place.backlog) == (running, 6, 2)
        assert place.score.underway("transfer") == load
        assert place.score.underway("submission") == sum(
            each.submitting for each in small.engine.state.sites.by_name["a"].requests.values()
        )
        small.step(after=1000.0)
        pilot.exchange(backlog=0)
        while pilot.packages:
            pilot.succeed(*pilot.packages, after=1.0)
        assert place.ends.tally().began == 0
        assert place.score.underway("transfer") == 0
        settle(small, pilot)


def test_the_pilots_of_a_site_that_comes_back_are_given_work_again_but_not_those_that_were_drained() -> None:
    a = site("a", cores=2, pilots=3)
    with Small(a, selection=STREAK) as small:
        small.submit(bag(12))
        bad, good = on_nodes(small, "", "")
        ask(small, ProbeSite(site="a"))
        [key] = [each.key for each in small.take(SubmitPilot) if "probe" in each.key]
        probe = small.agent("probe.1", site="a", request=key)
        probe.exchange()
        for _ in range(2):
            bad.fail(bad.packages[0], "platform-failure")
        assert draining(small) == sorted([bad.name, probe.name])
        small.step(SitesChanged(sites=()))
        assert draining(small) == sorted([bad.name, good.name, probe.name])
        small.step(SitesChanged(sites=(a,)))
        assert draining(small) == sorted([bad.name, probe.name])
        good.succeed(*good.packages)
        small.wait(30, good)
        assert good.packages
        settle(small, bad, good, probe)
