"""A service that was started for a run ends by itself, and not while there is something to do or somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pilotage.engine.engine import Engine
from pilotage.model.exchange.operations import Kill, SubmitPilot
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.watchdogs import IDLE_LOOKS as LOOKS
from pilotage.service.http.watchdogs import end_when_idle, has_work
from tests.kit.running_jobs import FakeJobs, running_services
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, site

WAIT_SECONDS = 60.0


class FakeListener:
    """Says when it is told to end."""

    def __init__(self) -> None:
        self.started = True
        self.ended = threading.Event()

    @property
    def should_exit(self) -> bool:
        return self.ended.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        assert value
        self.ended.set()


class Looked(FakeJobs):
    """Counts how often it was asked whether there is anything to do, and says what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = threading.Semaphore(0)
        self.busy = True

    def ask(self, question: Callable[[Engine], Any]) -> Future[Any]:
        self.looks.release()
        assert question is has_work
        return super().ask(lambda _: self.busy)


def await_looks(jobs: Looked, count: int) -> None:
    for _ in range(count):
        assert jobs.looks.acquire(timeout=WAIT_SECONDS)


def test_it_ends_when_nothing_is_left_to_do_and_not_before(tmp_path: Path) -> None:
    with running_services(tmp_path) as (services, _):
        jobs, listener = Looked(), FakeListener()
        running = JobBackend(jobs, journal=services.journal, plan=lambda _: None)  # type: ignore[arg-type, return-value]
        end = end_when_idle(listener, running, idle_seconds=0.1)  # type: ignore[arg-type]
        await_looks(jobs, 2 * LOOKS)
        assert not listener.ended.is_set()
        jobs.busy = False
        assert listener.ended.wait(WAIT_SECONDS)
        end()


def test_it_does_not_end_while_somebody_asks(tmp_path: Path) -> None:
    with running_services(tmp_path) as (services, _):
        jobs, listener = Looked(), FakeListener()
        jobs.busy = False
        running = JobBackend(jobs, journal=services.journal, plan=lambda _: None)  # type: ignore[arg-type, return-value]
        with running.activity:
            end = end_when_idle(listener, running, idle_seconds=0.1)  # type: ignore[arg-type]
            await_looks(jobs, 2 * LOOKS)
            assert not listener.ended.is_set()
        assert listener.ended.wait(WAIT_SECONDS)
        end()


def test_a_watch_that_is_ended_ends_nothing_else(tmp_path: Path) -> None:
    with running_services(tmp_path) as (services, _):
        jobs, listener = Looked(), FakeListener()
        running = JobBackend(jobs, journal=services.journal, plan=lambda _: None)  # type: ignore[arg-type, return-value]
        end_when_idle(listener, running, idle_seconds=60.0)()  # type: ignore[arg-type]
        assert not listener.ended.is_set()


def test_what_is_not_over_is_something_to_do() -> None:
    with Small(site()) as small:
        engine: Engine = small.core.engine
        assert not has_work(engine)
        small.submit(bag(1))
        assert has_work(engine)
        small.ask(Kill(job=JOB))
        assert not has_work(engine)
        small.take(SubmitPilot)
