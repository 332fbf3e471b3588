"""What is expected of a job or an owner: how much longer it takes than alone."""

from __future__ import annotations

import pytest

from pilotage.engine.fairness import Share


def _share(*, since: float, left: float = 0.0, area: float = 0.0, critical: float = 0.0) -> Share:
    share = Share(since=since)
    share.left_seconds, share.area_seconds, share.critical_seconds = left, area, critical
    share.update_alone()
    return share


@pytest.mark.parametrize("area, critical, alone", [(5.0, 3.0, 5.0), (3.0, 5.0, 5.0), (0.0, 0.0, 0.001)])
def test_alone_it_takes_as_long_as_its_work_or_its_longest_way(area: float, critical: float, alone: float) -> None:
    assert _share(since=0.0, area=area, critical=critical).alone_seconds == alone


@pytest.mark.parametrize(
    "now, have, slowdown", [(10.0, 4.0, 2.5), (10.0, 0.0, 20.0), (10.0, 0.5, 20.0), (30.0, 4.0, 4.5), (0.0, 4.0, 2.5)]
)
def test_it_is_slowed_down_by_its_wait_and_by_what_is_left_for_the_slots_it_has(
    now: float, have: float, slowdown: float
) -> None:
    assert _share(since=10.0, left=100.0, area=10.0).slowdown(now, have) == slowdown


def test_nothing_is_known_of_a_job_that_has_just_come() -> None:
    assert Share(since=10.0).slowdown(15.0, 1.0) == 5.0


def test_jobs_of_one_owner_count_as_one() -> None:
    share = _share(since=10.0, left=100.0, area=10.0, critical=3.0)
    share.join(_share(since=5.0, left=7.0, area=2.0, critical=30.0))
    share.join(_share(since=20.0, left=1.0, area=1.0, critical=1.0))
    assert (share.since, share.left_seconds, share.area_seconds) == (5.0, 108.0, 13.0)
    assert (share.critical_seconds, share.alone_seconds) == (30.0, 30.0)
