"""Pilots end at the wall of their batch system: what would not end before it is not begun there, and who fits nothing leaves."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest

from pilotage.model.events import payloads
from pilotage.model.exchange.operations import Refused, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Gone
from pilotage.model.jobs.definition import Retry
from pilotage.model.states import PILOT_WALL_OVER
from pilotage.service.messages import SitesChanged
from tests.kit.small_engine import Small
from tests.kit.small_plans import IN_ORDER, bag, kind, site


def test_what_is_estimated_to_last_longer_than_a_pilot_is_not_given_to_it() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(run_seconds=150.0)))
        pilot = small.pilot(remaining_seconds=120.0)
        assert pilot.packages == []
        assert pilot.left
        pilot.say(payloads.PilotEnded(reason="asked-to-leave"))
        pilot.exchange()
        small.wait(2.0)
        assert small.pilot(remaining_seconds=600.0).packages == ["1.1.1"]


def test_an_estimate_counts_by_the_speed_of_a_site() -> None:
    with Small(site(wall_seconds=600.0, speed=0.5)) as small:
        small.submit(bag(1, kind(run_seconds=150.0)))
        pilot = small.pilot(remaining_seconds=290.0)
        assert pilot.packages == []
        pilot.say(payloads.PilotEnded(reason="asked-to-leave"))
        pilot.exchange()
        small.wait(2.0)
        assert small.pilot(remaining_seconds=310.0).packages == ["1.1.1"]


def test_an_estimate_that_no_pilot_there_could_keep_keeps_nothing_back() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(run_seconds=5000.0)))
        assert small.pilot(remaining_seconds=500.0).packages == ["1.1.1"]


def test_of_several_sites_one_is_chosen_that_lasts_as_long_as_the_estimate_by_its_speed() -> None:
    sites = site("a", mode="bound", wall_seconds=600.0), site("b", mode="bound", wall_seconds=600.0, speed=4.0)
    with Small(*sites) as small:
        small.submit(bag(3, kind(run_seconds=2000.0)))
        assert [each.site for each in small.take(SubmitAttempt)] == ["b"] * 3
        small.submit(bag(1, kind(run_seconds=500.0)), job="short")
        assert [each.site for each in small.take(SubmitAttempt)] == ["a"]


def test_an_estimate_beyond_the_own_wall_time_of_a_package_counts_no_further_than_that() -> None:
    with Small(site("a", mode="bound", wall_seconds=600.0), site("b", mode="bound", wall_seconds=0.0)) as small:
        small.submit(bag(1, kind(run_seconds=2000.0, wall_seconds=500.0)))
        assert [each.site for each in small.take(SubmitAttempt)] == ["a"]
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(run_seconds=560.0, wall_seconds=200.0)))
        assert small.pilot(remaining_seconds=250.0).packages == ["1.1.1"]


def test_where_no_site_lasts_as_long_as_the_estimate_it_is_tried_all_the_same_and_not_given_up() -> None:
    with Small(site("a", mode="bound", wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(run_seconds=5000.0)), job="one")
        small.submit(bag(1, kind(run_seconds=4000.0)), job="other", owner="eve")
        assert [each.site for each in small.take(SubmitAttempt)] == ["a", "a"]


def test_what_is_tried_in_spite_of_its_estimate_and_fails_is_tried_again() -> None:
    with Small(site("a", wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(run_seconds=5000.0)))
        pilot = small.pilot()
        pilot.fail("1.1.1", "platform-failure")
        assert small.told(payloads.Aborted, "1.1.1") == []
        assert len(small.told(payloads.AttemptCreated, "1.1.1")) == 2


@pytest.mark.parametrize("comes", ["new", "changed", "back"])
def test_an_estimate_counts_again_when_a_site_comes_that_lasts_so_long(comes: str) -> None:
    short, long = site("a", wall_seconds=600.0), site("b", mode="bound", wall_seconds=9000.0)
    sites = {"new": [short], "changed": [short, site("b", mode="bound", wall_seconds=300.0)], "back": [short, long]}
    with Small(*sites[comes], selection=IN_ORDER) as small:
        if comes == "back":
            small.step(SitesChanged(sites=(short,)))
        small.submit(bag(2, kind(run_seconds=5000.0)))
        assert {name for name in small.engine.state.sites.by_name if small.reserved(name)} == {"a"}
        small.sites = (short, long)
        small.step(SitesChanged(sites=small.sites))
        assert [each.site for each in small.take(SubmitAttempt)] == ["b"] * 2
        assert small.reserved("a") == {}
        small.effects.clear()


def test_what_was_cut_off_and_waits_again_hears_of_a_site_that_lasts_as_long_as_the_estimate() -> None:
    short, long = site("a", wall_seconds=600.0), site("b", mode="bound", wall_seconds=9000.0)
    with Small(short, selection=IN_ORDER) as small:
        small.submit(bag(1, kind(run_seconds=5000.0)))
        pilot = small.pilot(remaining_seconds=530.0)
        pilot.fail("1.1.1", "wall-time")
        assert list(small.reserved("a").values()) == [deque([0])]
        small.sites = (short, long)
        small.step(SitesChanged(sites=small.sites))
        assert [each.site for each in small.take(SubmitAttempt)] == ["b"]
        small.effects.clear()


@pytest.mark.parametrize("comes", ["new", "changed"])
def test_what_found_no_room_hears_of_a_site_that_will_do(comes: str) -> None:
    full, other = site("a", mode="bound", job_throttle=0.0, platform="arm"), site("b", mode="bound", platform="arm")
    with Small(full, *([site("b", mode="bound", platform="x86")] if comes == "changed" else [])) as small:
        small.step(SitesChanged(sites=small.sites))
        small.submit(bag(2, kind(platform="arm")))
        assert [each.site for each in small.take(SubmitAttempt)] == ["a"]
        small.sites = (full, other)
        small.step(SitesChanged(sites=small.sites))
        assert [each.site for each in small.take(SubmitAttempt)] == ["b"]


def test_why_a_site_that_is_too_short_is_not_chosen_is_told() -> None:
    sites = site("a", wall_seconds=600.0, speed=0.5), site("b", mode="bound", wall_seconds=0.0)
    with Small(*sites) as small:
        small.submit(bag(9, kind(run_seconds=300.0)))
        small.take(SubmitAttempt)
        told = [each.message for each in small.explain("1.9.1").reasons if each.subject == "a"]
        assert told == ["it is expected to take 600 s at a, of speed 0.5, and a allows 540 s"]


def test_the_nearest_site_of_a_job_that_none_can_run_is_one_that_lasts_as_long_as_the_estimate() -> None:
    with Small(site("a", wall_seconds=600.0), site("b", wall_seconds=6000.0)) as small:
        refused = small.submit(bag(1, kind(run_seconds=3000.0, gpus=1)))
        assert isinstance(refused, Refused)
        assert "nearest is b" in refused.next_step
    with Small(site("a", wall_seconds=600.0)) as small:
        refused = small.submit(bag(1, kind(run_seconds=3000.0, gpus=1)))
        assert isinstance(refused, Refused)
        assert "it is expected to take 3000 s, and a allows 540 s" in refused.message


def test_what_would_have_to_wait_for_others_needs_their_time_as_well() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(3, kind(wall_seconds=150.0, run_seconds=0.01)))
        pilot = small.pilot(remaining_seconds=400.0, backlog=8)
        assert pilot.packages == ["1.1.1", "1.2.1"]  # one runs, one waits for it, and a third would end after the wall


def test_who_waits_in_a_backlog_is_not_said_to_have_all_of_the_time() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(2, kind(run_seconds=0.01)))
        assert len(small.pilot(remaining_seconds=400.0, backlog=8).packages) == 2
        told = [
            msgspec.json.decode(small.told(payloads.AttemptCreated, name)[0].data)["remaining_seconds"]
            for name in ("1.1.1", "1.2.1")
        ]
        assert told == [400.0, 200.0]


def test_a_pilot_that_works_or_could_do_something_stays() -> None:
    with Small(site(cores=2, wall_seconds=600.0)) as small:
        small.submit(bag(3, kind(wall_seconds=100.0)))
        pilot = small.pilot(remaining_seconds=120.0)
        assert len(pilot.packages) == 2
        pilot.succeed("1.1.1", after=30.0)
        pilot.exchange(remaining_seconds=90.0)
        assert not pilot.left


def test_what_took_long_is_not_begun_shortly_before_the_wall_though_nobody_declared_it() -> None:
    with Small(site(wall_seconds=6000.0, pilots=2)) as small:
        small.submit(bag(9))
        pilot = small.pilot(remaining_seconds=5000.0)
        for number in range(1, 6):
            pilot.succeed(f"1.{number}.1", after=600.0)
        late = small.pilot(instance=2, remaining_seconds=500.0)
        assert late.packages == []
        assert late.left
        assert small.pilot(instance=3, remaining_seconds=700.0).packages == ["1.7.1"]


def test_what_took_longer_than_a_pilot_lasts_is_begun_where_half_of_that_is_left() -> None:
    with Small(site(wall_seconds=600.0, pilots=2)) as small:
        small.submit(bag(9))
        pilot = small.pilot()
        for number in range(1, 6):
            pilot.succeed(f"1.{number}.1", after=5000.0)
        assert small.pilot(instance=2, remaining_seconds=200.0).packages == []
        assert small.pilot(instance=3, remaining_seconds=400.0).packages == ["1.7.1"]


def test_what_its_pilot_took_along_is_tried_again_and_not_said_to_be_ended_by_its_own_limit() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(wall_seconds=60.0)))
        pilot = small.pilot(remaining_seconds=61.0)  # its inputs take two seconds, say
        pilot.fail("1.1.1", "wall-time", message=PILOT_WALL_OVER, after=61.0)
        assert small.told(payloads.Aborted, "1.1.1") == []
        small.restart()
        assert small.told(payloads.Aborted, "1.1.1") == []


def test_what_a_batch_system_ended_with_its_pilot_is_tried_again_whatever_its_own_limit_is() -> None:
    with Small(site(cores=2)) as small:
        small.submit(bag(2, kind(wall_seconds=3600.0)))
        pilot = small.pilot()
        small.step(Gone(site="a", key=pilot.request, reason="wall-time", stderr=""), after=30.0)
        small.wait(300.0)
        assert len(small.told(payloads.AttemptLost, "1.1.1")) == 1
        assert [small.told(payloads.Aborted, each) for each in ("1.1.1", "1.2.1")] == [[], []]
        assert small.take(SubmitPilot)


def test_what_ran_into_its_own_limit_is_given_up() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(wall_seconds=60.0)))
        small.pilot(remaining_seconds=61.0).fail(
            "1.1.1", "wall-time", message="it ran longer than its 60 s", after=60.0
        )
        assert len(small.told(payloads.Aborted, "1.1.1")) == 1


def test_what_hangs_now_and_then_is_tried_as_often_as_it_says_where_its_limit_just_fits() -> None:
    with Small(site("a", mode="bound", wall_seconds=600.0)) as small:
        small.submit(bag(1, kind(wall_seconds=600.0, retry=Retry(attempts_max=3))))
        for _ in range(3):
            [effect] = small.take(SubmitAttempt)
            small.bound(effect).fail("1.1.1", "wall-time", message="it ran longer than its 600 s", after=600.0)
        assert len(small.told(payloads.AttemptCreated, "1.1.1")) == 3
        assert len(small.told(payloads.Aborted, "1.1.1")) == 1
