"""A package that names its nodes runs on one of them and nowhere else."""

from __future__ import annotations

from typing import Any

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Accepted, Refused, SubmitAttempt, SubmitPilot
from pilotage.model.site import Site
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, kind, plan, site, stage

ON_17 = kind("there", node_restriction=("n17",))


def farm(name: str = "a", *, kind: str = "pbs", **more: Any) -> Site:
    """A cluster of which nobody can say where a pilot comes up, unless it is a Slurm."""
    return site(name, kind=kind, node_names=("n*",), places_nodes=kind == "slurm", **more)


def test_a_pilot_elsewhere_is_not_given_it_and_one_there_is() -> None:
    with Small(farm(pilots=4)) as small:
        small.submit(plan(stage(2, ON_17), stage(1, kind("any"))))
        away = small.pilot(node="n16", capacity=site(cores=4).capacity)
        assert away.packages == ["2.1.1"]
        small.wait(2.0, away)
        there = small.pilot(node="n17.lyon.example", capacity=site(cores=4).capacity)
        assert there.packages == ["1.1.1", "1.2.1"]
        there.succeed("1.1.1", "1.2.1")
        away.succeed("2.1.1")
        small.take(SubmitPilot)


def test_in_a_backlog_it_does_not_wait_where_it_may_not_run_either() -> None:
    with Small(farm()) as small:
        small.submit(bag(3, ON_17))
        assert small.pilot(node="n16", backlog=8).packages == []


def test_it_is_looked_for_again_by_the_pilot_that_comes_up_on_its_node_and_by_no_other() -> None:
    with Small(farm(pilots=3)) as small:
        small.submit(bag(1, ON_17))
        away = small.pilot(node="n16")
        small.wait(70.0, away)
        assert small.status("1.1.1") == "ready"
        told = {each.code: each.message for each in small.explain("1.1.1").reasons}
        assert told["site-closed"] == "a had no pilot on n17, the only nodes where it may run for 60 s"
        small.wait(5.0, away)
        other = small.pilot(node="n18")
        assert small.status("1.1.1") == "ready"
        small.wait(5.0, away, other)
        assert small.pilot(node="n17").packages == ["1.1.1"]


def test_why_it_waits_is_told() -> None:
    with Small(farm(pilots=2)) as small:
        small.submit(bag(1, ON_17))
        away = small.pilot(node="n16")
        assert away.packages == []
        small.wait(2.0, away)
        told = {each.code: each.message for each in small.explain("1.1.1").reasons}
        assert (
            told["no-slot"]
            == "a has no pilot on n17, the only nodes where it may run; 1 run on other nodes, 1 are requested"
        )
        small.take(SubmitPilot)


def test_sites_that_have_no_such_node_or_name_none_are_refused_by_name() -> None:
    with Small(site("a"), site("b", kind="slurm", node_names=("m*",))) as small:
        refused = small.submit(bag(1, ON_17))
        assert isinstance(refused, Refused)
        assert refused.message == "no site can run there: it may run on n17 only, and a does not name its nodes"


def test_as_a_batch_job_of_its_own_it_goes_with_its_nodes_to_where_they_can_be_told() -> None:
    mute = farm("a", mode="bound")
    with Small(mute, farm("b", kind="slurm", mode="bound")) as small:
        small.submit(bag(1, ON_17))
        [effect] = small.take(SubmitAttempt)
        assert (effect.site, effect.demand.node_restriction) == ("b", ("n17",))
        small.bound(effect).succeed("1.1.1")
    with Small(mute) as small:
        refused = small.submit(bag(1, ON_17))
        assert isinstance(refused, Refused)
        assert refused.message.endswith("a cannot choose the nodes of a batch job: pbs does not support it")
    with Small(farm("a", nodes=4)) as small:
        assert isinstance(small.submit(bag(1, kind(nodes=2, node_restriction=("n17", "n18")))), Refused)
        assert isinstance(small.submit(bag(1, ON_17), job="pilots"), Accepted)
        small.take(SubmitPilot)


def test_a_computer_that_is_a_site_is_its_node_by_whatever_name_it_is_said_to_have() -> None:
    with Small(site("local", kind="local", node_names=("desk",))) as small:
        small.submit(bag(1, kind(node_restriction=("desk",))))
        assert small.pilot("local", node="workstation-4").packages == ["1.1.1"]


def test_a_restarted_engine_knows_where_its_pilots_are() -> None:
    with Small(farm(pilots=2)) as small:
        small.submit(bag(1, ON_17))
        away = small.pilot(node="n16")
        small.restart()
        away.exchange()
        assert away.packages == []
        small.wait(2.0, away)
        there = small.pilot(node="n17")
        assert there.packages == ["1.1.1"]
        assert [one.data.pilot for one in small.book if isinstance(one.data, payloads.AttemptCreated)] == [there.name]


def test_where_pilots_come_up_elsewhere_it_has_a_batch_job_of_its_own_that_says_where() -> None:
    with Small(farm(kind="slurm", pilots=3)) as small:
        small.submit(plan(stage(4, ON_17), stage(1, kind("any"))))
        first = small.take(SubmitAttempt)
        assert [each.ref.package for each in first] == [
            "1.1.1",
            "1.2.1",
            "1.3.1",
        ]  # as many as fit before a site is known
        assert {each.demand.node_restriction for each in first} == {("n17",)}
        away = small.pilot(node="n16")
        assert away.packages == ["2.1.1"]
        small.take(SubmitPilot)
        small.wait(3.0, away)
        assert small.take(SubmitPilot) == []  # it would come up nobody knows where
        small.bound(first[0]).succeed("1.1.1")
        [fourth] = small.take(SubmitAttempt)
        assert fourth.ref.package == "1.4.1"
        for each in (*first[1:], fourth):
            small.bound(each).succeed(each.ref.package)
        away.succeed("2.1.1")


def test_where_a_pilot_is_on_its_node_it_is_pulled_and_goes_on_without_it_when_that_is_gone() -> None:
    with Small(farm(kind="slurm", pilots=1)) as small:
        small.submit(bag(1, kind("any")), job="first")
        there = small.pilot(node="n17")
        small.submit(bag(2, ON_17))
        assert small.take(SubmitAttempt) == []
        assert small.standings() == {"reserved": ["1.1.1", "1.2.1"]}
        there.end(there.ref("1.1.1"))
        there.say(payloads.PilotEnded(reason="idle"))
        there.exchange()
        small.wait(70.0)
        assert {each.ref.package for each in small.take(SubmitAttempt)} == {"1.1.1", "1.2.1"}
        small.effects.clear()
