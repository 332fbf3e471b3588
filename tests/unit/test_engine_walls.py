"""Pilots end at the wall of their batch system: what would not end before it is not begun there, and who fits nothing leaves."""

from __future__ import annotations

import msgspec

from pilotage.model import payloads
from tests.small_engine import Small
from tests.small_plans import bag, kind, site


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


def test_what_would_have_to_wait_for_others_needs_their_time_as_well() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(3, kind(wall_seconds=150.0)))
        pilot = small.pilot(remaining_seconds=400.0, backlog=8)
        assert pilot.packages == ["1.1.1", "1.2.1"]  # one runs, one waits for it, and a third would end after the wall


def test_who_waits_in_a_backlog_is_not_said_to_have_all_of_the_time() -> None:
    with Small(site(wall_seconds=600.0)) as small:
        small.submit(bag(2))
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
