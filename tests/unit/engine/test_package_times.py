"""When packages are expected to start and to end, as the engine explains them."""

from __future__ import annotations

import pytest

from pilotage.model.exchange.operations import Hold
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, chain, kind, site


def test_packages_of_one_slot_follow_each_other() -> None:
    with Small(site("a")) as small:
        small.submit(bag(3, kind(run_seconds=100.0)))
        pilot = small.pilot("a")
        running = small.explain("1.1.1")
        assert running.expected_start_at is None
        assert running.expected_end_at == pytest.approx(small.now + 100.0, rel=1e-3)
        second, third = small.explain("1.2.1"), small.explain("1.3.1")
        assert second.expected_start_at is not None
        assert third.expected_start_at is not None
        assert second.expected_start_at == pytest.approx(small.now + 100.0, abs=15.0)
        assert third.expected_start_at == pytest.approx(small.now + 200.0, abs=25.0)
        assert third.expected_end_at == pytest.approx(small.now + 300.0, abs=35.0)
        pilot.unread.clear()


def test_a_running_package_ends_sooner_the_longer_it_ran_and_sooner_at_a_quick_site() -> None:
    with Small(site("a", speed=2.0)) as small:
        small.submit(bag(1, kind(run_seconds=100.0)))
        pilot = small.pilot("a")
        began = small.now
        assert small.explain("1.1.1").expected_end_at == pytest.approx(began + 50.0)
        small.now += 20.0
        small.step()
        assert small.explain("1.1.1").expected_end_at == pytest.approx(began + 50.0)
        small.now += 80.0
        small.step()
        assert small.explain("1.1.1").expected_end_at == pytest.approx(small.now + 2.5)
        pilot.unread.clear()


def test_a_consumer_starts_after_its_producer() -> None:
    with Small(site("a", cores=4)) as small:
        small.submit(chain(kind(run_seconds=100.0), kind(run_seconds=100.0)))
        pilot = small.pilot("a")
        consumer = small.explain("2.1.1")
        assert consumer.expected_start_at is not None
        assert consumer.expected_start_at == pytest.approx(small.now + 100.0, abs=15.0)
        pilot.unread.clear()


def test_nothing_is_expected_of_unknown_run_times_held_jobs_and_what_is_over() -> None:
    with Small(site("a")) as small:
        small.submit(bag(2))
        pilot = small.pilot("a")
        assert small.explain("1.1.1").expected_end_at is None
        assert small.explain("1.2.1").expected_start_at is None
        pilot.succeed("1.1.1", after=30.0)
        assert small.explain("1.1.1").expected_end_at is None
        assert small.explain("1.2.1").expected_end_at is not None, "the first one says how long they take"
        small.ask(Hold(job=JOB))
        pilot.unread.clear()
        small.effects.clear()
