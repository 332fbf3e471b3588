"""A limit on how long a package may be ready goes on over restarts of the service, and is never shorter for one."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.model.exchange.operations import Drop, Hold, Release, SubmitAttempt
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, chain, site

SETTINGS: dict[str, Any] = {"waiting_seconds_max": 1000.0, "submit_again_seconds": 1e6}


def crowded() -> Small:
    """Two packages at a site with room for one, which is taken."""
    small = Small(site("b", mode="bound", job_throttle=0.0), **SETTINGS)
    small.submit(bag(2))
    assert len(small.take(SubmitAttempt)) == 1
    return small


def restart(small: Small) -> None:
    small.restart()
    small.take(SubmitAttempt)


def test_what_was_ready_before_a_restart_has_waited_since() -> None:
    small = crowded()
    for _ in range(3):
        small.wait(300.0)
        restart(small)
    small.wait(99.0)
    assert small.status("1.2.1") == "ready"
    small.wait(1.0)
    assert small.status("1.2.1") == "aborted"


def test_after_a_long_absence_sites_are_given_a_lease_to_take_what_waits() -> None:
    small = crowded()
    small.wait(500.0)
    small.now += 5000.0
    restart(small)
    small.wait(59.0)
    assert small.status("1.2.1") == "ready"
    small.wait(1.0)
    assert small.status("1.2.1") == "aborted"


def test_a_consumer_waits_since_its_producer_was_granted() -> None:
    small = Small(site("b", mode="bound", job_throttle=0.0), **SETTINGS)
    small.submit(chain(lines=2))
    [effect] = small.take(SubmitAttempt)
    agent = small.bound(effect)
    small.wait(500.0, agent)
    agent.succeed(effect.ref.package)  # the second of the first stage is next, and the room is taken again
    assert len(small.take(SubmitAttempt)) == 1
    small.wait(10.0)
    restart(small)
    ready = small.standings()["ready"]
    small.wait(980.0)
    assert small.standings()["ready"] == ready == ["2.1.1"]
    small.wait(20.0)
    assert "ready" not in small.standings()


@pytest.mark.parametrize("package", ["", "1.2.1"])
@pytest.mark.parametrize("restarts", [True, False])
def test_what_was_held_has_its_full_term_again_from_when_it_was_released(package: str, *, restarts: bool) -> None:
    small = crowded()
    small.wait(500.0)
    small.ask(Hold(job=JOB, package=package))
    small.wait(5000.0)
    small.ask(Release(job=JOB, package=package))
    small.wait(10.0)
    if restarts:
        restart(small)
    small.wait(989.0)
    assert small.status("1.2.1") == "ready"
    small.wait(1.0)
    assert small.status("1.2.1") == "aborted"


def test_what_waits_for_nobody_since_a_line_was_dropped_has_its_full_term_again() -> None:
    small = Small(site("b", mode="bound", job_throttle=0.0), **SETTINGS)
    small.submit(chain(lines=2))
    small.take(SubmitAttempt)
    small.ask(Drop(job=JOB, stage=1, line=2))
    small.wait(900.0)
    restart(small)
    small.wait(999.0)
    assert small.status("2.2.1") == "ready"
    small.wait(1.0)
    assert small.status("2.2.1") == "aborted"
