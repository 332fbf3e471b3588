"""What is answered before the application is there: as the application would, and everything else when it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.reading.access import READ, WRITE, Principal, local_principal
from pilotage.service.http.dispatcher import Dispatcher
from pilotage.service.http.framework import make_app
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import Batch
from tests.kit.asked_app import ask
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.running_jobs import FakeJobs, running_services
from tests.kit.served_book import TOKEN, registered

PRINCIPALS = {
    TOKEN: local_principal("ann"),
    "reads-only": Principal(user="bob", scopes=frozenset({READ})),
    "writes-only": Principal(user="bob", scopes=frozenset({WRITE})),
}
WAIT_SECONDS = 60.0
SUBMISSION = msgspec.json.encode({"definition": {}, "lists": {}, "folder": "/f"})


@pytest.fixture
def here(tmp_path: Path) -> Iterator[tuple[Services, FakeJobs]]:
    with running_services(tmp_path, principals=PRINCIPALS) as made:
        yield made


def under(late: Dispatcher, act: Callable[[], Awaitable[None]]) -> None:
    """Have the services started as a server does, act, and have them stopped."""

    async def live() -> None:
        come: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        living = asyncio.ensure_future(late({"type": "lifespan"}, come.get, told.put))  # type: ignore[arg-type]
        await come.put({"type": "lifespan.startup"})
        assert (await told.get())["type"] == "lifespan.startup.complete"
        await act()
        await come.put({"type": "lifespan.shutdown"})
        assert (await told.get())["type"] == "lifespan.shutdown.complete"
        await living

    asyncio.run(asyncio.wait_for(live(), WAIT_SECONDS))


_REQUESTS: dict[str, dict[str, Any]] = {
    "a job": {"path": "/v1/jobs", "body": SUBMISSION},
    "a job under a key": {"path": "/v1/jobs", "body": SUBMISSION, "idempotency_key": "k"},
    "content": {"path": "/v1/content", "body": b"#!/bin/sh\n"},
    "no submission": {"path": "/v1/jobs", "body": b"{"},
    "nothing": {"path": "/v1/jobs", "body": b""},
    "a job of somebody else's": {
        "path": "/v1/jobs",
        "body": msgspec.json.encode({"definition": {}, "lists": {}, "folder": "/f", "owner": "eve"}),
        "authorization": "Bearer reads-only",
    },
    "no token": {"path": "/v1/jobs", "body": SUBMISSION, "authorization": ""},
    "a token that is not known": {"path": "/v1/content", "body": b"x", "authorization": "Bearer other"},
    "a token that may only read": {"path": "/v1/content", "body": b"x", "authorization": "Bearer reads-only"},
    "how far a job is": {"path": "/v1/jobs/a/progress", "method": "GET"},
    "how far a job is that nobody knows": {"path": "/v1/jobs/b/progress", "method": "GET"},
    "how far a job of somebody else's is": {
        "path": "/v1/jobs/a/progress",
        "method": "GET",
        "authorization": "Bearer reads-only",
    },
    "how far a job is, without a token": {"path": "/v1/jobs/a/progress", "method": "GET", "authorization": ""},
}


REQUESTS = {
    which: {**said, "content_length": str(len(said["body"]))} if "body" in said else said
    for which, said in _REQUESTS.items()
}


@pytest.mark.parametrize("which", REQUESTS)
def test_what_comes_early_is_answered_as_the_application_does(here: tuple[Services, FakeJobs], which: str) -> None:
    services, jobs = here

    async def never() -> None:
        checked, refused, _ = services.codec.read_batch(msgspec.json.encode({"events": [registered(1, "a")]}))
        assert not refused
        await asyncio.wrap_future(services.writer.submit(Batch(checked)))
        early = await ask(late, **REQUESTS[which])
        jobs.submitted.clear()
        later = await ask(FrameworkAnswers(services), **REQUESTS[which])
        assert early[0] == later[0] == (200 if which == "how far a job is" else early[0])
        if "key" not in which:  # under one key it is done once
            said, repeated = (msgspec.json.decode(each[2]) for each in (early, later))
            assert (said.pop("now", 0) > 0) == (repeated.pop("now", 0) > 0)
            assert said == repeated
        for name in (b"content-type", b"www-authenticate"):
            assert early[1].get(name) == later[1].get(name)

    late = Dispatcher(services, make_framework=lambda: pytest.fail("it was asked for"), late_seconds=1000.0)
    under(late, never)


def test_a_key_is_remembered_over_the_making_of_the_application(here: tuple[Services, FakeJobs]) -> None:
    services, jobs = here
    late = Dispatcher(services, make_framework=lambda: make_app(services), late_seconds=1000.0)

    async def twice() -> None:
        first = await ask(late, **REQUESTS["a job under a key"])
        assert (await ask(late, "/v1/health", method="GET"))[0] in (200, 404)  # by the application
        assert (await ask(late, **REQUESTS["a job under a key"]))[2] == first[2]

    under(late, twice)
    assert len(jobs.submitted) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"query": "more=1"},
        {"method": "GET", "query": "limit=-1"},
        {"method": "PUT"},
        {"idempotency_key": "k" * 129},
        {"content_length": str(2**30 + 1)},
        {"path": "/v1/plan"},
        {"path": "/v1/jobs/a/progress"},
        {"path": "/v1/jobs/a/progress", "method": "GET", "query": "more=1"},
    ],
)
def test_everything_else_waits_for_the_application(here: tuple[Services, FakeJobs], odd: dict[str, str]) -> None:
    services, _ = here
    made, may_be_made = threading.Event(), threading.Event()

    def make() -> Any:
        assert may_be_made.wait(WAIT_SECONDS)
        made.set()
        return make_app(services)

    async def asked() -> None:
        waiting = asyncio.ensure_future(ask(late, **{"path": "/v1/jobs", "body": SUBMISSION, **odd}))  # type: ignore[arg-type]
        # Agents' side and early requests are answered meanwhile.
        assert (await ask(late, **REQUESTS["content"]))[0] == 201
        assert not waiting.done()
        may_be_made.set()
        assert (await waiting)[0] != 201
        assert made.is_set()

    late = Dispatcher(services, make_framework=make, late_seconds=1000.0)
    under(late, asked)


def test_the_application_is_made_soon_also_if_nobody_asks(here: tuple[Services, FakeJobs]) -> None:
    services, _ = here
    made = threading.Event()

    def make() -> Any:
        made.set()
        return make_app(services)

    async def wait() -> None:
        assert await asyncio.to_thread(made.wait, WAIT_SECONDS)

    under(Dispatcher(services, make_framework=make, late_seconds=0.0), wait)


def test_the_application_is_made_also_while_jobs_come_in_all_the_time(here: tuple[Services, FakeJobs]) -> None:
    services, _ = here
    late = Dispatcher(services, make_framework=lambda: make_app(services), late_seconds=1000.0)

    async def asked() -> None:
        await ask(late, **REQUESTS["a job"])
        waiting = asyncio.ensure_future(ask(late, "/schema", method="GET"))
        while not waiting.done():
            assert (await ask(late, **REQUESTS["a job"]))[0] == 201
        assert (await waiting)[0] == 200

    under(late, asked)


def test_an_application_that_cannot_be_made_is_tried_again(here: tuple[Services, FakeJobs]) -> None:
    services, _ = here
    faults = [OSError("not now")]

    def make() -> Any:
        if faults:
            raise faults.pop()
        return make_app(services)

    async def twice() -> None:
        with pytest.raises(OSError, match="not now"):
            await ask(late, "/schema", method="GET")
        assert (await ask(late, "/schema", method="GET"))[0] == 200

    late = Dispatcher(services, make_framework=make, late_seconds=1000.0)
    under(late, twice)


@pytest.mark.parametrize("path", ["/v1/jobs/", "//v1//jobs", "/v1/jobs/a/progress/"])
@pytest.mark.parametrize("token, status", [("", 401), ("Bearer other", 401), ("Bearer writes-only", 403)])
def test_who_may_not_come_in_is_refused_before_the_framework_in_whatever_form_the_path_is(
    here: tuple[Services, FakeJobs], path: str, token: str, status: int
) -> None:
    services, _ = here
    door = Dispatcher(services, make_framework=lambda: pytest.fail("it was asked for"))
    assert asyncio.run(ask(door, path, method="GET", authorization=token))[0] == status


def test_the_framework_authenticates_nobody_and_answers_nobody_who_was_not_let_in(
    here: tuple[Services, FakeJobs], caplog: pytest.LogCaptureFixture
) -> None:
    services, _ = here
    assert asyncio.run(ask(make_app(services), "/v1/jobs", method="GET"))[0] == 500
    assert "GET /v1/jobs was not admitted" in caplog.text
    assert asyncio.run(ask(make_app(services), "/schema", method="GET"))[0] == 200
