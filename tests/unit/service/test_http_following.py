from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pilotage.model.settings.settings import Settings
from pilotage.service.http.services import CommitSignal, Services, Waiter
from tests.kit.served_book import TOKEN, WallClock, access_of, event, listening, registered, sqlite_journal

ANSWER_SECONDS = 30
TOKEN_HEADER = {"Authorization": f"Bearer {TOKEN}"}


class Served:
    """A service on a port, and what is known of those who wait in it."""

    def __init__(self, services: Services, url: str) -> None:
        self.services = services
        self.port = int(url.rpartition(":")[2])
        self.looks = 0
        self.waiting = threading.Semaphore(0)

    @contextmanager
    def asked(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", path, headers={**TOKEN_HEADER, **headers})
            yield connection.getresponse()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        with self.asked(path) as answer:
            assert answer.status == 200
            return json.loads(answer.read())

    def log(self, *events: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        connection.request("POST", "/v1/events", json.dumps({"events": events}), TOKEN_HEADER)
        assert connection.getresponse().status == 200
        connection.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with sqlite_journal(tmp_path) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
        with listening(services) as url:
            served = Served(services, url)
            wait, job_events = Waiter.wait, services.reader.job_events

            async def waits(self: Waiter, *, wait_seconds: float) -> bool:
                served.waiting.release()
                return await wait(self, wait_seconds=wait_seconds)

            def looks(*arguments: Any, **more: Any) -> Any:
                served.looks += 1
                return job_events(*arguments, **more)

            monkeypatch.setattr(Waiter, "wait", waits)
            monkeypatch.setattr(services.reader, "job_events", looks)
            served.log(registered(1, "j"), registered(2, "other"))
            yield served


class Poll(threading.Thread):
    """A question that waits for its answer beside the test."""

    def __init__(self, served: Served, path: str) -> None:
        super().__init__()
        self._served = served
        self._path = path
        self._answer: Any = None
        self.start()

    def run(self) -> None:
        self._answer = self._served.get(self._path)

    def answer(self) -> Any:
        self.join(ANSWER_SECONDS)
        return self._answer


def test_a_long_poll_is_woken_by_the_commit_and_looks_no_more_often(served: Served) -> None:
    poll = Poll(served, "/v1/jobs/j/events?after=2&wait_seconds=60")
    assert served.waiting.acquire(timeout=ANSWER_SECONDS)
    served.log(event(3, "JobAccepted", job="other"))
    served.log(event(4, "JobAccepted", job="j"))
    answer = poll.answer()
    assert ([each["n"] for each in answer["events"]], answer["after"]) == ([4], 4)
    assert served.looks == 2


def test_a_long_poll_with_something_to_say_does_not_wait(served: Served) -> None:
    assert len(served.get("/v1/jobs/j/events?wait_seconds=60")["events"]) == 1
    assert not served.waiting.acquire(blocking=False)


def test_a_long_poll_ends_with_nothing_when_its_time_is_over(served: Served) -> None:
    assert served.get("/v1/jobs/j/events?after=2&wait_seconds=0.05") == {"events": [], "after": 2, "more": False}
    assert served.looks == 1


def test_who_waits_for_a_package_is_not_answered_with_another(served: Served) -> None:
    poll = Poll(served, "/v1/jobs/j/packages/1.1.1/events?after=2&wait_seconds=60")
    assert served.waiting.acquire(timeout=ANSWER_SECONDS)
    served.log(event(3, "Held", {"operation": 1}, job="j", package="1.1.2"))
    assert served.waiting.acquire(timeout=ANSWER_SECONDS)
    served.log(event(4, "Held", {"operation": 1}, job="j", package="1.1.1"))
    assert [each["n"] for each in poll.answer()["events"]] == [4]


def next_message(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The next server-sent event that is more than a comment."""
    fields: dict[str, str] = {}
    while True:
        line = answer.readline().decode().rstrip("\n")
        if not line and "data" in fields:
            return fields
        name, _, value = line.partition(": ")
        fields[name] = value


def test_a_stream_sends_what_is_there_and_what_comes_and_continues_where_it_was_broken_off(served: Served) -> None:
    stream = {"Accept": "text/event-stream"}
    with served.asked("/v1/jobs/j/events", **stream) as answer:
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")
        first = next_message(answer)
        assert served.waiting.acquire(timeout=ANSWER_SECONDS)
        served.log(event(3, "JobAccepted", job="j"))
        second = next_message(answer)
    assert [(each["id"], json.loads(each["data"])["type"]) for each in (first, second)] == [
        ("1", "JobRegistered"),
        ("3", "JobAccepted"),
    ]
    served.log(event(4, "Held", {"operation": 1}, job="j"))
    with served.asked("/v1/jobs/j/events", **stream, **{"Last-Event-ID": "3"}) as answer:
        assert next_message(answer)["id"] == "4"


def test_a_stream_of_an_unknown_job_is_an_error_and_no_stream(served: Served) -> None:
    with served.asked("/v1/jobs/nothing/events", Accept="text/event-stream") as answer:
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (404, "unknown_job")
    with served.asked("/v1/jobs/j/events", **{"Accept": "text/event-stream", "Last-Event-ID": "x"}) as answer:
        assert answer.status == 400


def test_a_stream_ends_when_the_job_is_purged(served: Served) -> None:
    served.log(event(3, "CancelAccepted", job="j"))
    with served.asked("/v1/jobs/j/events?after=3", Accept="text/event-stream") as answer:
        assert served.waiting.acquire(timeout=ANSWER_SECONDS)
        served.services.journal.purge("j", at=1.0)
        served.services.commits.notify(["j"])
        assert answer.read() == b"retry: 2000\n\n"


def test_those_who_wait_are_let_go_when_the_service_stops(tmp_path: Path) -> None:
    with sqlite_journal(tmp_path) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
        with listening(services) as url:
            served = Served(services, url)
            served.log(registered(1, "j"))
            with served.asked("/v1/jobs/j/events", Accept="text/event-stream") as answer:
                next_message(answer)
                services.commits.stop()
                assert answer.read() == b""  # the stream is over, and whole
            assert served.get("/v1/jobs/j/events?after=1&wait_seconds=60")["events"] == []


def test_a_bell_that_rings_between_looking_and_waiting_is_heard() -> None:
    async def look_and_wait() -> tuple[bool, bool, bool]:
        commits = CommitSignal()
        with commits.waiting_for("j") as waiter:
            commits.notify(["k"])
            not_ours = await waiter.wait(wait_seconds=0.0)
            commits.notify(["k", "j", "j"])
            ours = await waiter.wait(wait_seconds=ANSWER_SECONDS)
            again = await waiter.wait(wait_seconds=0.0)
        commits.notify(["j"])
        return not_ours, ours, again

    assert asyncio.run(look_and_wait()) == (False, True, False)
