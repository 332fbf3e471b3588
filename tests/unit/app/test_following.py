"""A job is looked at less often the longer it runs, and a service that is away is waited for."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from pilotage.app.jobs import watch
from pilotage.app.jobs.watch import JobWatcher
from pilotage.client import Server
from pilotage.client.errors import ServerTroubled


class WatchedStop(threading.Event):
    """Notes how long is waited, and lets the clock go on by as much; set after so many waits."""

    def __init__(self, *, waits_max: int = 100) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.now = 0.0
        self._waits_max = waits_max

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        if len(self.waits) == self._waits_max:
            self.set()
        return self.is_set()


class ToldJob:
    """A service that tells of one job what it is given, one answer after the other, and then the last."""

    def __init__(self, *told: Any) -> None:
        self.told = list(told)
        self.asked: list[dict[str, Any]] = []
        self.closed = 0

    def get(self, path: str, parameters: dict[str, Any] | None = None) -> Any:
        if path.endswith("/events"):
            assert parameters is not None
            self.asked.append(parameters)
            return {"events": [], "after": 0, "more": False}
        found = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.closed += 1


def progress(state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"job": "j1", "state": state, **more}


def following(book: ToldJob, stop: WatchedStop) -> JobWatcher:
    return JobWatcher(lambda: cast("Server", book), "j1", stop=stop, clock=lambda: stop.now)


def test_pauses_between_looks_grow_with_the_age_of_the_job_up_to_the_longest() -> None:
    stop = WatchedStop(waits_max=200)
    list(following(ToldJob(progress()), stop).until_over())
    assert stop.waits[0] == watch.PAUSE_SECONDS_MIN
    assert stop.waits[1] == pytest.approx(watch.PAUSE_SECONDS_MIN + 0.02 * stop.waits[0])
    assert stop.waits == sorted(stop.waits)
    assert stop.waits[-1] == watch.PAUSE_SECONDS_MAX


def test_a_job_is_over_when_two_looks_say_so_and_the_last_is_told() -> None:
    stop = WatchedStop()
    book = ToldJob(progress(), progress("DONE"), progress("RUNNING"), progress("DONE"), progress("DONE"))
    assert [each.state for each in following(book, stop).until_over()] == ["RUNNING", "RUNNING", "DONE"]
    assert len(stop.waits) == 2


def test_a_job_that_looks_stuck_three_times_in_a_row_is_left() -> None:
    stuck = progress(stuck="nothing can run")
    book = ToldJob(stuck, stuck, progress(), stuck, stuck, stuck, progress("DONE"))
    assert len(list(following(book, WatchedStop()).until_over())) == 6


def test_a_service_that_is_away_is_asked_again_after_pauses_that_double() -> None:
    stop = WatchedStop()
    away = ServerTroubled("it is away")
    book = ToldJob(*[away] * 4, progress())
    assert following(book, stop).progress().state == "RUNNING"
    first = watch.PAUSE_SECONDS_MIN
    expected = [min(first * factor, watch.PAUSE_SECONDS_MAX) for factor in (1, 2, 4, 8)]
    assert stop.waits == pytest.approx(expected)
    assert book.closed == 4


def test_a_service_that_stays_away_is_not_waited_for_without_end() -> None:
    stop = WatchedStop(waits_max=100_000)
    with pytest.raises(ServerTroubled):
        following(ToldJob(ServerTroubled("it is away")), stop).progress()
    assert watch.GONE_SECONDS_MAX <= stop.now <= watch.GONE_SECONDS_MAX + watch.PAUSE_SECONDS_MAX


def test_events_are_waited_for_until_the_job_is_over() -> None:
    book = ToldJob(progress(), progress("DONE"))
    assert list(following(book, WatchedStop()).packages()) == []
    assert [each["wait_seconds"] for each in book.asked] == [10.0, 0.0]
