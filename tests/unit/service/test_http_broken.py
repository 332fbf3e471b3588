"""A service that can do nothing any more ends, by force where it must, and is not started again for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from pilotage.app.service.background import BROKEN_MAX, NotStarted, RestartLimit
from pilotage.service.announcement import Ended, note_end, why_ended
from pilotage.service.http.listener import Listener
from pilotage.service.http.watchdogs import end_when_broken, failure_of
from tests.kit.running_jobs import running_services

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.005


class FakeListener:
    """Is told to end."""

    started = True
    should_exit = False
    broken = ""


class StoppedListener:
    """Ends already, and says when it was asked."""

    started = True
    broken = ""

    def __init__(self) -> None:
        self.looked = threading.Event()

    @property
    def should_exit(self) -> bool:
        self.looked.set()
        return True


class Left:
    """Notes why a service ends, and with which exit status it leaves."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.statuses: list[int] = []
        self.left = threading.Event()

    def leave(self, status: int) -> None:
        self.statuses.append(status)
        self.left.set()


def test_one_that_does_not_end_in_good_order_leaves() -> None:
    listener, left = FakeListener(), Left()
    end = end_when_broken(
        cast("Listener", listener),
        lambda: "ValueError: a bug",
        note=left.reasons.append,
        leave=left.leave,
        look_seconds=LOOK_SECONDS,
        end_seconds=LOOK_SECONDS,
    )
    assert left.left.wait(WAIT_SECONDS)
    end()
    assert (listener.should_exit, listener.broken) == (True, "ValueError: a bug")
    assert (left.reasons, left.statuses) == (["ValueError: a bug"], [3])


def test_one_that_was_asked_to_stop_is_not_broken() -> None:
    left = Left()
    stopped = StoppedListener()
    end = end_when_broken(
        cast("Listener", stopped), lambda: "it ends", note=left.reasons.append, look_seconds=LOOK_SECONDS
    )
    assert stopped.looked.wait(WAIT_SECONDS)
    end()
    assert (left.reasons, stopped.broken) == ([], "")


def test_what_is_broken_says_why(tmp_path: Path) -> None:
    with running_services(tmp_path) as (services, jobs):
        services.writer.start()
        assert failure_of(services) == ""
        jobs.broken = "KeyError: 'x'"
        assert failure_of(services) == "KeyError: 'x'"
        jobs.broken = ""
        services.writer.stop()
        assert failure_of(services) == "the writer of the book has ended"


def test_a_service_that_ends_by_itself_is_started_again_a_few_times(tmp_path: Path) -> None:
    broken = RestartLimit()
    broken.refuse(tmp_path)  # somebody ended it
    note_end(tmp_path, Ended(at=1.0, reason="KeyError:\n  'x'"))
    assert why_ended(tmp_path) == "KeyError: 'x'"
    for _ in range(BROKEN_MAX):
        broken.refuse(tmp_path)
    with pytest.raises(NotStarted, match=r"ended by itself 4 times: KeyError: 'x'\n.*service\.log"):
        broken.refuse(tmp_path)
