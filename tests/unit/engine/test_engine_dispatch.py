"""Which package goes where, and when: rank, room, what fits a pilot, and what is given back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Hold, Kill, Release, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import SiteSeen
from pilotage.model.resources import Capacity, Demand
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, kind, plan, site, stage

GIB = 2**30


# --- who goes first -------------------------------------------------------------------------------------------------


def test_the_job_with_the_higher_priority_goes_first() -> None:
    with Small(site()) as small:
        small.submit(bag(1, hold=True), job="low")
        small.submit(bag(1, priority=5, hold=True), job="high")
        small.submit(bag(1, priority=-5, hold=True), job="lowest")
        for job in ("lowest", "low", "high"):
            small.ask(Release(job=job))
        small.wait(1)
        pilot = small.pilot()
        order = []
        while pilot.held:
            [ref] = pilot.held
            order.append(ref.job)
            pilot.succeed(ref.package)
        assert order == ["high", "low", "lowest"]


def test_within_a_job_the_higher_priority_then_the_longest_then_the_first_goes_first() -> None:
    stages = [
        stage(1, kind("short", run_seconds=10.0)),
        stage(1, kind("unknown")),
        stage(1, kind("long", run_seconds=100.0)),
        stage(1, kind("urgent", priority=1)),
        stage(1, kind("unknown-too")),
    ]
    with Small(site()) as small:
        small.submit(plan(*stages))
        pilot = small.pilot()
        order = []
        while pilot.held:
            order += pilot.packages
            pilot.succeed(*pilot.packages)
        assert order == ["4.1.1", "3.1.1", "1.1.1", "2.1.1", "5.1.1"]


def test_where_more_is_ready_than_sites_have_room_for_each_is_filled_and_nothing_is_drawn() -> None:
    with Small(site("a"), site("b")) as small:
        chosen: list[object] = []
        choose = small.engine.state.selection.choose

        def noted(*asked: Any) -> Any:
            chosen.append(asked)
            return choose(*asked)

        small.engine.state.selection.choose = noted  # type: ignore[method-assign, assignment]
        small.submit(bag(20))
        rooms = {name: small.engine.state.selection.profile(name).room(0).limit for name in ("a", "b")}
        assert {
            name: sum(map(len, small.reserved(name).values())) for name in small.engine.state.sites.by_name
        } == rooms
        assert not chosen
        small.ask(Kill(job=JOB))
        small.submit(bag(1), job="another")
        assert len(chosen) == 1  # for one of them there is a choice
        small.effects.clear()


def test_a_restart_goes_before_what_was_not_tried_yet() -> None:
    with Small(site()) as small:
        small.submit(bag(6))
        pilot = small.pilot()
        pilot.fail("1.1.1", "platform-failure")
        assert pilot.packages == ["1.1.1"]


def test_packages_of_one_kind_go_in_order() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(7))
        pilot = small.pilot()
        while pilot.held:
            pilot.succeed(*pilot.packages)
        assert [package for package, _, _ in small.created()] == [f"1.{line}.1" for line in range(1, 8)]


# --- room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5, 8, 13])
def test_room_in_pilot_mode_is_one_and_a_quarter_of_the_live_slots_rounded_up_and_one(cores: int) -> None:
    with Small(site(cores=cores)) as small:
        small.submit(bag(40))
        assert len(small.standings()["reserved"]) == 3
        pilot = small.pilot()
        assert len(pilot.held) == cores
        busy = small.standings()
        assert len(busy["reserved"]) + len(busy["live"]) == 1 + math.ceil(1.25 * cores)
        pilot.succeed(pilot.packages[0])
        busy = small.standings()
        assert len(busy["reserved"]) + len(busy["live"]) == 1 + math.ceil(1.25 * cores)


@pytest.mark.parametrize("throttle, room", [(2.0, 3), (0.0, 1), (0.5, 1), (9.0, 10)])
def test_room_in_bound_mode_is_one_and_the_throttle(throttle: float, room: int) -> None:
    with Small(site(cores=50, mode="bound", job_throttle=throttle)) as small:
        small.submit(bag(20))
        first = small.take(SubmitAttempt)
        assert len(first) == room
        agent = small.bound(first[0])
        agent.succeed(first[0].ref.package)
        assert len(small.take(SubmitAttempt)) == 1
        assert len(small.standings()["live"]) == room
        agent.heard()


def test_room_is_counted_for_each_shape_by_itself() -> None:
    small_one, large_one = kind("small", cores_hundredths=50), kind("large", cores_hundredths=200)
    with Small(site(cores=4)) as small:
        small.submit(plan(stage(20, large_one), stage(20, small_one)))
        pilot = small.pilot()
        assert len(pilot.held) == 2
        busy = small.standings()
        of = [place for name in ("reserved", "live") for place in busy.get(name, ())]
        assert sum(place.startswith("1.") for place in of) == 1 + math.ceil(1.25 * 2)
        assert sum(place.startswith("2.") for place in of) == 1 + math.ceil(1.25 * 8)


def test_the_next_site_is_used_when_the_first_is_full() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(10))
        reserved = {name: sum(map(len, small.reserved(name).values())) for name in ("a", "b")}
        assert reserved == {"a": 3, "b": 3}
        assert len(small.standings()["ready"]) == 4
        assert {effect.site for effect in small.take(SubmitPilot)} == {"a", "b"}


def test_two_pilots_make_room_for_both() -> None:
    with Small(site(cores=2, pilots=2)) as small:
        small.submit(bag(20))
        one, two = small.pilot(), small.pilot()
        assert (len(one.held), len(two.held)) == (2, 2)
        assert len(small.standings()["reserved"]) == 1 + math.ceil(1.25 * 4) - 4


# --- what fits ------------------------------------------------------------------------------------------------------


def test_cores_are_shared_in_hundredths() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(9, kind(cores_hundredths=30)))
        assert len(small.pilot().held) == 6  # 6 · 30 ≤ 200 < 7 · 30


@pytest.mark.parametrize(
    "asked, has, fitting",
    [
        ({"memory_bytes": 3 * GIB}, {"memory_bytes": 8 * GIB}, 2),
        ({"gpus": 1}, {"gpus": 3}, 3),
        ({"scratch_bytes": 5 * GIB}, {"scratch_bytes": 5 * GIB}, 1),
        (
            {"memory_bytes": GIB, "gpus": 2, "scratch_bytes": GIB},
            dict.fromkeys(("memory_bytes", "scratch_bytes"), 9 * GIB) | {"gpus": 5},
            2,
        ),
    ],
)
def test_a_pilot_is_given_no_more_than_it_has(asked: dict[str, Any], has: dict[str, int], fitting: int) -> None:
    capacity = Capacity(cores_hundredths=800, **has)
    with Small(site(capacity=capacity)) as small:
        small.submit(bag(6, kind(demand=Demand(**asked))))
        pilot = small.pilot()
        assert len(pilot.held) == fitting
        pilot.succeed(pilot.packages[0])
        assert len(pilot.held) == fitting


def test_different_shapes_share_one_pilot_without_overfilling_it() -> None:
    capacity = Capacity(cores_hundredths=400, memory_bytes=8 * GIB)
    fat, thin = kind("fat", memory_bytes=6 * GIB), kind("thin", memory_bytes=GIB)
    with Small(site(capacity=capacity)) as small:
        small.submit(plan(stage(2, fat), stage(5, thin)))
        pilot = small.pilot()
        assert sorted(pilot.packages) == ["1.1.1", "2.1.1", "2.2.1"]


def test_a_pilot_gets_only_what_its_remaining_wall_time_allows() -> None:
    long, short = kind("long", wall_seconds=600.0), kind("short", wall_seconds=60.0)
    with Small(site(cores=4)) as small:
        small.submit(plan(stage(1, long), stage(1, short)))
        pilot = small.pilot(remaining_seconds=599.0)
        assert pilot.packages == ["2.1.1"]
        pilot.exchange(remaining_seconds=600.0)
        assert pilot.packages == ["2.1.1", "1.1.1"]


def test_a_backlog_is_filled_beyond_the_slots_and_no_further() -> None:
    with Small(site(cores=8)) as small:
        small.submit(bag(30, kind(run_seconds=0.01)))
        pilot = small.pilot(backlog=2)
        assert len(pilot.held) == 10
        pilot.succeed(pilot.packages[0])
        assert len(pilot.held) == 10


def test_what_waits_in_a_backlog_has_room_beside_the_slots() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(80, kind(run_seconds=0.01)))
        assert len(small.pilot(backlog=50).held) == 2 + 50


def test_a_pilot_that_leaves_is_given_nothing_more() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(4))
        pilot = small.pilot()
        pilot.end(pilot.ref("1.1.1"))
        pilot.exchange(leaving="idle")
        assert pilot.packages == ["1.2.1"]


def test_a_pilot_that_becomes_smaller_finishes_what_it_has_and_gets_less() -> None:
    with Small(site(cores=3)) as small:
        small.submit(bag(9))
        pilot = small.pilot()
        pilot.about["capacity"] = Capacity(cores_hundredths=100)
        pilot.exchange()
        assert len(pilot.held) == 3
        pilot.succeed(*pilot.packages[:2])
        assert len(pilot.held) == 1


# --- reservations that come to nothing ------------------------------------------------------------------------------


def test_without_a_fitting_slot_for_a_minute_a_site_is_closed_until_a_slot_is_live() -> None:
    with Small(site("a"), site("b", mode="bound", job_throttle=0.0)) as small:
        small.submit(bag(6))
        assert len(small.take(SubmitAttempt)) == 1
        assert len(small.standings()["reserved"]) == 3
        small.wait(59)
        assert len(small.standings()["reserved"]) == 3
        small.wait(1)
        assert small.standings() == {"live": ["1.4.1"], "ready": ["1.1.1", "1.2.1", "1.3.1", "1.5.1", "1.6.1"]}
        assert [why.code for why in small.explain("1.1.1").reasons] == ["site-closed", "site-full"]
        small.wait(200)
        assert "reserved" not in small.standings()
        small.effects[:-1] = []
        pilot = small.pilot("a")
        assert len(pilot.held) == 1
        assert len(small.standings()["reserved"]) == 2
        small.take(SubmitAttempt)


def test_a_site_that_was_closed_is_open_again_after_its_first_slot_though_that_is_gone() -> None:
    with Small(site()) as small:
        small.submit(bag(1))
        small.wait(60)
        assert small.status("1.1.1") == "ready"
        pilot = small.pilot()
        pilot.succeed("1.1.1")
        pilot.say(payloads.PilotEnded(reason="idle"))
        pilot.exchange(leaving="idle")
        pilot.unread.clear()
        small.submit(bag(1), job="next")
        assert small.status("1.1.1", job="next") == "reserved"
        small.effects.clear()


def test_a_minute_begins_anew_with_the_pilot_that_was_the_last_to_leave() -> None:
    with Small(site()) as small:
        small.submit(bag(4))
        pilot = small.pilot()
        small.wait(300, pilot)
        pilot.end(pilot.ref("1.1.1"))
        pilot.say(payloads.PilotEnded(reason="idle"))
        pilot.exchange(leaving="idle")
        assert len(small.standings()["reserved"]) == 3
        small.wait(59)
        assert len(small.standings()["reserved"]) == 3
        small.wait(1)
        assert "reserved" not in small.standings()
        small.take(SubmitPilot)


def test_what_no_pilot_has_the_time_for_gives_its_reservation_to_what_can_run() -> None:
    with Small(site(cores=2, wall_seconds=9000.0)) as small:
        small.submit(bag(20))
        pilot = small.pilot(remaining_seconds=100.0)
        for _ in range(2):
            small.wait(200, pilot)
            for package in pilot.packages:
                pilot.end(pilot.ref(package), reason="wall-time")
            pilot.exchange()
        small.wait(70, pilot)
        assert len(pilot.packages) == 2
        pilot.unread.clear()


def test_a_site_that_does_not_answer_and_has_no_pilot_gives_everything_back() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(3))
        assert small.reserved("b") == {}
        small.take(SubmitPilot)
        small.step(SiteSeen(site="a", answers=False))
        assert small.reserved("a") == {}
        assert len(small.standings()["reserved"]) == 3
        small.step(SiteSeen(site="b", answers=False))
        assert small.standings() == {"ready": ["1.1.1", "1.2.1", "1.3.1"]}
        small.step(SiteSeen(site="a", answers=True))
        assert len(small.standings()["reserved"]) == 3
        small.take(SubmitPilot)


def test_a_site_whose_pilots_speak_keeps_its_reservations_though_its_batch_system_is_silent() -> None:
    with Small(site()) as small:
        small.submit(bag(3))
        pilot = small.pilot()
        small.step(SiteSeen(site="a", answers=False))
        assert len(small.standings()["reserved"]) == 2
        pilot.succeed("1.1.1")
        assert len(pilot.held) == 1


def test_a_higher_priority_displaces_what_nobody_pulled() -> None:
    with Small(site()) as small:
        small.submit(bag(3), job="low")
        pilot = small.pilot()
        assert small.standings(job="low")["reserved"] == ["1.2.1", "1.3.1"]
        small.submit(bag(2, priority=1), job="high")
        assert small.standings(job="high") == {"reserved": ["1.1.1", "1.2.1"]}
        assert small.standings(job="low") == {"live": ["1.1.1"], "ready": ["1.2.1", "1.3.1"]}
        pilot.succeed("1.1.1")
        assert [ref.job for ref in pilot.held] == ["high"]


def test_an_equal_priority_displaces_nothing() -> None:
    with Small(site()) as small:
        small.submit(bag(4), job="first")
        small.submit(bag(1, kind(run_seconds=1e6)), job="second")
        assert small.standings(job="second") == {"ready": ["1.1.1"]}
        small.take(SubmitPilot)


def test_more_than_one_node_runs_bound_at_a_site_of_pilots() -> None:
    with Small(site("a", nodes=1), site("b", nodes=4)) as small:
        small.submit(bag(1, kind(nodes=3)))
        [effect] = small.take(SubmitAttempt)
        assert (effect.site, effect.demand.nodes) == ("b", 3)
        agent = small.bound(effect)
        assert agent.packages == ["1.1.1"]
        agent.succeed("1.1.1")
        assert small.status("1.1.1") == "done"


# --- limits ---------------------------------------------------------------------------------------------------------


def test_a_category_runs_no_more_than_its_limit_at_once() -> None:
    licensed = kind("licensed", category="licence")
    with Small(site(cores=8)) as small:
        small.submit(plan(stage(5, licensed), stage(2), limits={"licence": 2}))
        pilot = small.pilot()
        assert sorted(pilot.packages) == ["1.1.1", "1.2.1", "2.1.1", "2.2.1"]
        pilot.succeed("1.1.1")
        assert sorted(pilot.packages) == ["1.2.1", "1.3.1", "2.1.1", "2.2.1"]
        assert len(small.standings()["ready"]) == 2


def test_an_owner_runs_no_more_than_the_quota_over_all_jobs() -> None:
    with Small(site(cores=8), owner_running_max=3) as small:
        small.submit(bag(2), job="one", owner="ada")
        small.submit(bag(4), job="two", owner="ada")
        small.submit(bag(4), job="three", owner="emmy")
        pilot = small.pilot()
        held = sorted(ref.job for ref in pilot.held)
        assert held == ["one", "one", "three", "three", "three", "two"]
        first = next(ref for ref in pilot.held if ref.job == "one")
        pilot.end(first)
        pilot.exchange()
        assert sorted(ref.job for ref in pilot.held) == ["one", "three", "three", "three", "two", "two"]


def test_a_package_that_waits_too_long_for_a_site_is_given_up_and_takes_its_consumers_along() -> None:
    made = plan(stage(2, kind(executor="b")), stage(), edges=[("1.2.1", "2.1.1")])
    with Small(site("a"), site("b", mode="bound", job_throttle=0.0), waiting_seconds_max=100.0) as small:
        small.submit(made)
        assert len(small.take(SubmitAttempt)) == 1
        small.wait(99)
        assert small.status("1.2.1") == "ready"
        small.wait(1)
        assert small.standings() == {"live": ["1.1.1"], "aborted": ["1.2.1"], "upstream": ["2.1.1"]}
        [event] = small.told(payloads.Aborted, "1.2.1")
        assert b'"waited-too-long"' in bytes(event.data)


def test_time_on_hold_does_not_count_as_waiting() -> None:
    settings = {"waiting_seconds_max": 100.0, "submit_again_seconds": 1e6}
    with Small(site("b", mode="bound", job_throttle=0.0), **settings) as small:
        small.submit(bag(2))
        assert len(small.take(SubmitAttempt)) == 1
        small.wait(50)
        small.ask(Hold(job=JOB))
        small.wait(1000)
        small.ask(Release(job=JOB))
        small.wait(99)
        assert small.status("1.2.1") == "ready"
        small.wait(1)
        assert small.status("1.2.1") == "aborted"


def test_time_on_hold_of_a_package_does_not_count_as_waiting() -> None:
    settings = {"waiting_seconds_max": 100.0, "submit_again_seconds": 1e6}
    with Small(site("b", mode="bound", job_throttle=0.0), **settings) as small:
        small.submit(bag(2))
        assert len(small.take(SubmitAttempt)) == 1
        small.wait(50)
        small.ask(Hold(job=JOB, package="1.2.1"))
        small.wait(20)
        small.ask(Release(job=JOB, package="1.2.1"))
        small.wait(99)
        assert small.status("1.2.1") == "ready"
        small.wait(1)
        assert small.status("1.2.1") == "aborted"
