"""What is asked for plainly is answered without the framework, and as the application does it."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.model.records import RECORD_VERSION, JobRecord, RecordPart
from pilotage.service.http.dispatcher import Dispatcher
from pilotage.service.http.framework import make_app
from pilotage.service.http.route_table import API_ROUTES
from tests.kit.asked_app import Answer, ask
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import TOKEN
from tests.kit.service_clients import ServiceClient, a_bad_day, service_client_in

PARTS = {
    "job": "j", "package": "1.2.1", "line": "1.2", "attempt": "1", "stream": "stdout", "site": "local", "subscription": "s",
    "sha256": hashlib.sha256(b"custom").hexdigest(),
}  # fmt: skip
BROAD = ("/v1/events", "/v1/packages", "/v1/counts/packages")  # no index serves all of them
NOT_THERE = {  # there is no such content or feed, and the file has no name or no pattern
    "/v1/feeds/{name:str}": 404,
    "/v1/content/{sha256:str}": 404,
    "/v1/files/why": 400,
    "/v1/jobs/{job:str}/packages/{package:str}/file": 400,
}
READ = [route.path for route in API_ROUTES if route.method == "GET"]

QUERIES = [
    "", "limit=2", "query=state%3DDONE&limit=5", "query=state+in+%28DONE%2C+CLEARED%29", "query=tag.x%3D%C3%A9",
    "query=name%3D%22a%26b%22", "query=all", "query=state%3D", "query=nonsense%3D1", "cursor=x", "after=3", "after=3&limit=1",
    "wait_seconds=0.1", "wait_seconds=0", "job=j", "window=1m", "attempt=2", "site=local&activity=reco",
]  # fmt: skip
ODD = [
    "limit=-1", "limit=10001", "limit=1.0", "limit=007", "wait_seconds=00.1", "limit=%EF%BC%95", "limit=1e1", "limit=", "query=", "query", "limit=1&limit=2", "x=1",
    "wait_seconds=61", "wait_seconds=nan", "query=%FF", "query=%zz", "&limit=1", "window=2h", "attempt=0",
    "query=" + "a" * 10_000,
]  # fmt: skip


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    with service_client_in(tmp_path) as made:
        a_bad_day(made)
        made.jobs.kept.kept = [
            LogText(
                ref=AttemptRef("j", "1.2.1", 1), stream="stdout", head="a\n", tail="ü\n", dropped_bytes=0, final=True
            )
        ]
        keep_a_record(made)
        yield made


def keep_a_record(service: ServiceClient) -> None:
    """A record of the job, of another service: the job itself is not over."""
    assert service.services.records is not None
    store = service.services.records.store()
    [sha256] = store.add_parts([("custom", b"custom")])
    part = RecordPart(kind="custom", name="custom", sha256=sha256, size_bytes=6)
    about: dict[str, Any] = {"job": "j", "owner": "ann", "name": "n", "state": "DONE", "made_at": 1.0}
    store.commit([JobRecord(version=RECORD_VERSION, revision=1, parts=(part,), **about)])


def filled(path: str) -> str:
    for name, part in PARTS.items():
        path = path.replace(f"{{{name}:str}}", part)
    return path


def both(service: ServiceClient, path: str, *, must_be_plain: bool = True, **more: Any) -> tuple[Answer, Answer]:
    """The answer that needs no application where it need not, and that of the application."""

    async def asked() -> tuple[Answer, Answer]:
        made = make_app(service.services)
        late = Dispatcher(
            service.services, make_framework=lambda: pytest.fail("it was needed") if must_be_plain else made
        )
        return await ask(late, path, **more), await ask(FrameworkAnswers(service.services), path, **more)

    return asyncio.run(asked())


def assert_alike(early: Answer, later: Answer) -> None:
    assert early[0] == later[0], (early, later)
    for name in (b"content-type", b"content-length", b"etag", b"www-authenticate", b"retry-after"):
        if name != b"content-length" or b'"now"' not in early[2]:
            assert early[1].get(name) == later[1].get(name), (name, early, later)
    if early[1].get(b"content-type") != b"application/json":
        assert early[2] == later[2]
        return
    said, repeated = (msgspec.json.decode(each[2]) for each in (early, later))
    assert (said.pop("now", 0) > 0) == (repeated.pop("now", 0) > 0)
    assert len(said.pop("next", None) or "") == len(repeated.pop("next", None) or "")  # a cursor says when it was made
    assert said == repeated


@pytest.mark.parametrize("path", READ)
def test_whatever_is_read_is_told_as_the_application_tells_it(service: ServiceClient, path: str) -> None:
    early, later = both(service, filled(path), method="GET")
    assert_alike(early, later)
    assert early[0] == NOT_THERE.get(path, 400 if "subscription" in path else 422 if path in BROAD else 200), early


@pytest.mark.parametrize("path", READ)
def test_who_may_not_read_is_refused_alike(service: ServiceClient, path: str) -> None:
    for token in ("", "Bearer nobody", "Bearer reads-only"):
        assert_alike(*both(service, filled(path), method="GET", authorization=token))


@pytest.mark.parametrize("query", [*QUERIES, *ODD])
def test_whatever_a_query_says_it_means_the_same(service: ServiceClient, query: str) -> None:
    for path in ("/v1/jobs", "/v1/jobs/j/events", "/v1/jobs/j/packages", "/v1/statistics", "/v1/counts/packages"):
        assert_alike(
            *both(service, path, must_be_plain=query not in ODD and _fits(path, query), method="GET", query=query)
        )
    assert_alike(*both(service, "/v1/jobs/j/packages/1.1.1/logs", must_be_plain=False, method="GET", query=query))


def _fits(path: str, query: str) -> bool:
    known = {
        "/v1/jobs": {"query", "cursor", "limit"},
        "/v1/jobs/j/events": {"query", "after", "limit", "wait_seconds"},
        "/v1/jobs/j/packages": {"query", "cursor", "limit"},
        "/v1/statistics": {"window", "site", "activity"},
        "/v1/counts/packages": {"query", "job"},
    }
    return {part.partition("=")[0] for part in query.split("&") if part} <= known[path]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/",
        "/v1/jobs/no job",
        "/v1/jobs/ü",
        "/v1/jobs/..",
        "/v1//jobs",
        "/v2/jobs",
        "/v1/jobs/j/",
        "/",
        "/schema",
    ],
)
def test_an_odd_path_is_left_to_the_application(service: ServiceClient, path: str) -> None:
    assert_alike(*both(service, path, must_be_plain=False, method="GET"))


def test_what_is_unchanged_is_not_told_again(service: ServiceClient) -> None:
    first, _ = both(service, "/v1/jobs/j", method="GET")
    early, later = both(service, "/v1/jobs/j", method="GET", if_none_match=first[1][b"etag"].decode())
    assert (early[0], early[2]) == (later[0], later[2]) == (304, b"")
    assert early[1] == later[1] == {b"etag": first[1][b"etag"]}


POSTS: dict[str, tuple[str, bytes]] = {
    "no batch": ("/v1/events", b"{"),
    "an empty batch": ("/v1/events", b'{"events":[]}'),
    "a bad event": ("/v1/events", b'{"events":[{"source":"x"}]}'),
    "a plan": ("/v1/plan", b'{"definition":{},"lists":{},"folder":"/f"}'),
    "no plan": ("/v1/plan", b"3"),
    "what to clean": ("/v1/clean", b'{"submission":{"definition":{},"lists":{},"folder":"/f"},"remove":{"a":"b"}}'),
    "nothing to clean": ("/v1/clean", b'{"remove":{"a":"b"}}'),
    "an operation": ("/v1/jobs/j/operations", b'{"operation":"kill"}'),
    "an operation that is none": ("/v1/jobs/j/operations", b'{"operation":"sing"}'),
    "an operation on nothing": ("/v1/operations", b'{"operation":"kill","where":"state=RUNNING and site=nowhere"}'),
    "a site that is unknown": ("/v1/sites/nowhere/wake", b""),
    "a job that is not cleared": ("/v1/jobs/j/purge", b""),
}


@pytest.mark.parametrize("which", POSTS)
def test_what_is_sent_is_answered_alike(service: ServiceClient, which: str) -> None:
    path, body = POSTS[which]
    for token in ("", "Bearer of-bob", "Bearer reads-only"):
        assert_alike(*both(service, path, body=body, authorization=token, content_length=str(len(body))))
    early, later = both(service, path, body=body, content_length=str(len(body)))
    assert early[0] == later[0]
    if which == "an operation":  # it was done twice, and each has its number
        assert len(service.jobs.operations) == 2
    else:
        assert_alike(early, later)


@pytest.mark.parametrize("path", [route.path for route in API_ROUTES if route.method == "POST"])
def test_who_may_not_send_is_refused_alike(service: ServiceClient, path: str) -> None:
    for token in ("", "Bearer nobody", "Basic x", "Bearer reads-only"):
        early, later = both(
            service, filled(path), must_be_plain=False, body=b"{}", authorization=token, content_length="2"
        )
        assert_alike(early, later)
        assert early[0] == 401 or token == "Bearer reads-only"
    assert not service.jobs.operations
    assert not service.jobs.submitted


def test_an_empty_key_is_none(service: ServiceClient) -> None:
    body = b'{"operation":"kill"}'
    for _ in range(2):
        early, later = both(
            service, "/v1/jobs/j/operations", body=body, idempotency_key="", content_length=str(len(body))
        )
        assert (early[0], later[0]) == (200, 200)
    assert len(service.jobs.operations) == 4


@pytest.mark.parametrize("length", ["", "x", "-1", "9" * 12])
def test_a_body_of_a_length_that_is_odd_or_too_large_is_left_to_the_application(
    service: ServiceClient, length: str
) -> None:
    early, later = both(service, "/v1/events", must_be_plain=False, body=b'{"events":[]}', content_length=length)
    assert_alike(early, later)


def test_only_who_hung_up_is_told_nothing(service: ServiceClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"h"), (b"authorization", f"Bearer {TOKEN}".encode()), (b"content-length", b"3")]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/events", "scheme": "http", "query_string": b"", "headers": headers,
    }  # fmt: skip
    late = Dispatcher(service.services, make_framework=lambda: pytest.fail("it was needed"))
    asyncio.run(late(scope, gone, send))
    assert sent == []

    def reset(_: object) -> None:
        raise ConnectionResetError("of the disk")

    monkeypatch.setattr(service.services.reader, "position", reset)
    early, later = both(service, "/v1/position", method="GET")
    assert_alike(early, later)
    assert early[0] == 500


class NeedsFramework(Exception):
    pass


def test_a_stream_is_left_to_the_framework(service: ServiceClient) -> None:
    def needed() -> Any:
        raise NeedsFramework

    dispatcher = Dispatcher(service.services, make_framework=needed)
    assert asyncio.run(ask(dispatcher, "/v1/jobs/j/events", method="GET"))[0] == 200
    with pytest.raises(NeedsFramework):
        asyncio.run(ask(dispatcher, "/v1/jobs/j/events", method="GET", accept="text/event-stream"))


def test_no_route_needs_the_framework() -> None:
    look = "import sys, pilotage.service.http.dispatcher, pilotage.service.http.dispatcher; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "pilotage.service.http.route_table" in modules
    assert modules & {"litestar", "pilotage.service.http.framework", "pilotage.engine.engine", "numpy"} == set()
