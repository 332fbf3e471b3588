"""What waits in the backlog of a pilot or is reserved at a site must not wait there while others have nothing to do."""

from __future__ import annotations

from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, kind, site


def test_what_takes_long_is_not_put_into_a_backlog_whatever_its_pilot_asks_for() -> None:
    with Small(site()) as small:
        small.submit(bag(6, kind(run_seconds=600.0)))
        pilot = small.pilot(backlog=64)
        assert pilot.packages == ["1.1.1"]


def test_of_a_kind_that_nobody_knows_nothing_waits_while_another_pilot_is_idle() -> None:
    with Small(site(cores=4, pilots=2)) as small:
        small.submit(bag(8))
        first, second = small.pilot(backlog=64), small.pilot(backlog=64)
        assert (len(first.packages), len(second.packages)) == (4, 4)


def test_what_turned_out_to_be_short_fills_a_backlog() -> None:
    with Small(site()) as small:
        small.submit(bag(40))
        pilot = small.pilot(backlog=20)
        assert len(pilot.packages) == 1
        pilot.succeed("1.1.1", after=0.01)
        assert len(pilot.packages) == 21


def test_what_turned_out_to_take_no_time_at_all_is_known_too() -> None:
    with Small(site()) as small:
        small.submit(bag(40))
        pilot = small.pilot(backlog=20)
        pilot.succeed("1.1.1", after=0.0)
        assert len(pilot.packages) == 21


def test_what_turned_out_to_take_long_is_not_put_into_a_backlog() -> None:
    with Small(site()) as small:
        small.submit(bag(40))
        pilot = small.pilot(backlog=64)
        pilot.succeed("1.1.1", after=60.0)
        assert pilot.packages == ["1.2.1"]


def test_what_is_short_fills_a_backlog() -> None:
    with Small(site()) as small:
        small.submit(bag(40, kind(run_seconds=0.01)))
        assert len(small.pilot(backlog=20).packages) == 21


def test_what_is_reserved_where_it_cannot_begin_is_begun_by_an_idle_pilot_elsewhere() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(executor="b")), job="k")
        other = small.pilot("b")
        small.wait(2.0, other)
        small.submit(bag(3, kind(run_seconds=600.0)))
        first = small.pilot("a")
        assert first.packages == ["1.1.1"]
        assert sum(map(len, small.reserved("a").values())) == 2
        other.succeed("1.1.1", after=5.0)
        assert other.packages == ["1.3.1"]


def test_what_avoids_a_site_is_not_fetched_by_its_pilots() -> None:
    with Small(site("a"), site("b")) as small:
        small.submit(bag(1, kind(executor="a")), job="k")
        idle = small.pilot("a")
        idle.succeed("1.1.1")
        small.wait(2.0, idle)
        small.submit(bag(1))
        idle.exchange()
        assert idle.packages == ["1.1.1"]
        idle.fail("1.1.1", "platform-failure", after=5.0)
        idle.exchange(after=11.0)
        assert idle.packages == []
        assert small.pilot("b").packages == ["1.1.1"]
