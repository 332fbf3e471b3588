from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.ports import Journal, JournalError, JournalFull, JournalUnavailable
from pilotage.reading.access import READ, WRITE, Principal, local_principal
from pilotage.service.http.services import Services
from pilotage.service.journal.writer import WriterBusy
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import TOKEN, WallClock, access_of, event, registered, sqlite_journal

SETTINGS = Settings(service=ServiceSettings(batch_events_max=20, batch_bytes_max=2_000_000, tag_bytes_max=1000))
PRINCIPALS = {
    TOKEN: local_principal("ann"),
    "of-bob": Principal(user="bob", scopes=frozenset({READ, WRITE})),
    "only-reads": Principal(user="eve", scopes=frozenset({READ})),
}

Client = TestClient[FrameworkAnswers]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with sqlite_journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def services(journal: Journal) -> Services:
    return Services(journal, access=access_of(PRINCIPALS), settings=SETTINGS, clock=WallClock())


@pytest.fixture
def client(services: Services) -> Iterator[Client]:
    with TestClient(FrameworkAnswers(services), raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


def note(n: int, **more: Any) -> dict[str, Any]:
    return event(n, "Noted", {"text": str(n)}, **more)


def post(client: Client, *events: Any, **more: Any) -> tuple[int, Any]:
    answer = client.post("/v1/events", json={"events": events}, **more)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


def test_good_events_are_acknowledged_and_repeats_too(client: Client, journal: Journal) -> None:
    assert post(client, registered(1, "j"), note(2)) == (
        200,
        {"position": 2, "kept": 2, "repeated": 0, "parked": 0, "refused": []},
    )
    assert post(client, note(2), registered(1, "j")) == (
        200,
        {"position": 2, "kept": 0, "repeated": 2, "parked": 0, "refused": []},
    )
    assert journal.position() == 2


def test_an_empty_batch_tells_how_far_the_book_is(client: Client) -> None:
    post(client, note(1))
    assert post(client)[1]["position"] == 1


BAD_EVENTS: dict[str, tuple[Any, str]] = {
    "no event": (3, "malformed"),
    "an empty object": ({}, "malformed"),
    "an unknown type": (event(9, "Nonsense"), "unknown_type"),
    "an unknown version": (note(9, version=2), "unknown_version"),
    "a malformed job id": (event(9, "JobAccepted", job="../etc"), "malformed"),
    "a malformed package": (event(9, "Unbound", job="j", package="1.2"), "malformed"),
    "a malformed stream": (note(9, stream="a b"), "malformed"),
    "a number out of range": (note(2**53), "malformed"),
    "an unknown field": ({**note(9), "colour": "red"}, "malformed"),
    "a payload that is not one": (event(9, "Noted", {"txt": "x"}), "malformed"),
    "a decision of somebody else": (note(9, source="nobody"), "malformed"),
    "a megabyte in a tag": (event(9, "Tagged", {"name": "a", "value": "x" * 1_000_000}, job="j"), "too_large"),
}


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_a_bad_event_is_named_by_its_index_and_the_good_ones_are_kept(
    client: Client, journal: Journal, name: str
) -> None:
    bad, code = BAD_EVENTS[name]
    status, answer = post(client, note(1), bad, note(2))
    assert status == 422
    assert [(each["index"], each["code"]) for each in answer["refused"]] == [(1, code)]
    assert answer["refused"][0]["message"]
    assert answer["kept"] == 2
    assert journal.position() == 2


def test_invalid_utf_8_in_one_event_does_not_take_the_others_with_it(client: Client, journal: Journal) -> None:
    texts = [msgspec.json.encode(note(n)) for n in (1, 2, 3)]
    texts[1] = texts[1].replace(b'"2"', b'"\xff\xfe"')
    answer = client.post("/v1/events", content=b'{"events":[' + b",".join(texts) + b"]}")
    assert answer.status_code == 422
    assert [each["index"] for each in answer.json()["refused"]] == [1]
    assert journal.position() == 2


def test_the_same_identity_with_other_content_is_a_conflict(client: Client, journal: Journal) -> None:
    post(client, note(1))
    status, answer = post(client, {**note(1), "time": 1.0}, note(2))
    assert status == 409
    assert [(each["index"], each["code"]) for each in answer["refused"]] == [(0, "conflict")]
    assert post(client, {**note(1), "time": 1.0}, event(3, "Nonsense"))[0] == 422
    assert journal.position() == 2


def test_events_of_a_job_that_is_not_registered_yet_wait_for_it(client: Client) -> None:
    assert post(client, event(1, "JobAccepted", job="j"))[1]["parked"] == 1
    post(client, registered(2, "j"))
    assert client.get("/v1/jobs/j").json()["accepted_at"] is not None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"events":3}',
        b'{"events":[],"more":1}',
        b'{"events":[}',
        b"\xff\xfe",
        b'{"events":[' + b"[" * 5000,
        b'{"events":[' + b"," * 50,
    ],
)
def test_a_body_that_is_no_batch_is_refused_as_a_whole(client: Client, body: bytes, journal: Journal) -> None:
    answer = client.post("/v1/events", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed"
    assert journal.position() == 0


def test_more_events_than_a_batch_may_have_are_refused_and_nothing_is_kept(client: Client, journal: Journal) -> None:
    assert post(client, *[note(n) for n in range(1, 21)])[1]["kept"] == 20
    status, answer = post(client, *[note(n) for n in range(21, 42)])
    assert (status, answer["error"]["code"]) == (413, "too_large")
    assert "at most 20 events, got 21" in answer["error"]["message"]
    assert client.post("/v1/events", content=b'{"events":[' + b"1," * 500_000 + b"1]}").status_code == 413
    deep = b"[" * 5_000 + b"]" * 5_000
    assert client.post("/v1/events", content=b'{"events":[%b' % deep + b",1" * 50_000 + b"]}").status_code == 413
    assert journal.position() == 20


@pytest.mark.parametrize("chunked", ["with its length", "in chunks"])
def test_more_bytes_than_a_batch_may_have_are_refused_and_nothing_is_kept(
    client: Client, journal: Journal, chunked: str
) -> None:
    body = b'{"events":[' + b" " * 2_000_000 + msgspec.json.encode(note(1)) + b"]}"
    content: Any = body if chunked == "with its length" else iter([body[:1_000_000], body[1_000_000:]])
    answer = client.post("/v1/events", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert journal.position() == 0


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
def test_without_a_token_nothing_is_kept(client: Client, journal: Journal, authorization: str) -> None:
    answer = client.post("/v1/events", json={"events": [note(1)]}, headers={"Authorization": authorization})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert journal.position() == 0


def test_a_token_for_reading_does_not_log(client: Client) -> None:
    status, answer = post(client, note(1), headers={"Authorization": "Bearer only-reads"})
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert "book.write" in answer["error"]["message"]


def test_what_a_user_may_not_say_is_refused_event_by_event(client: Client) -> None:
    post(client, registered(1, "of-ann", owner="ann"))
    bob = {"Authorization": "Bearer of-bob"}
    mine = registered(1, "of-bob", owner="bob", source="client", stream="bob")
    theirs = event(2, "Tagged", {"name": "a", "value": "b"}, job="of-ann", source="client", stream="bob")
    status, answer = post(client, theirs, mine, note(3), headers=bob)
    assert status == 422
    assert [(each["index"], each["code"]) for each in answer["refused"]] == [(0, "forbidden"), (2, "forbidden")]
    assert client.get("/v1/jobs/of-bob", headers=bob).json()["owner"] == "bob"


@pytest.mark.parametrize(
    "fault, status, code",
    [
        (JournalFull("disk full", subject="/secret/place"), 507, "full"),
        (JournalUnavailable("password=hunter2"), 503, "unavailable"),
        (WriterBusy("too many"), 503, "busy"),
        (RuntimeError("hunter2"), 500, "internal"),
    ],
)
def test_a_fault_of_the_service_is_told_without_secrets(
    client: Client, services: Services, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    def fails(*_: Any) -> Callable[..., Any]:
        raise fault

    monkeypatch.setattr(services.writer._committer, "commit_together", fails)
    answer = client.post("/v1/events", json={"events": [note(1)]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "secret" not in answer.text
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert ("retry-after" in answer.headers) == (status in (503, 507))


@pytest.mark.parametrize(
    "fault, words",
    [
        (JournalFull("hunter2"), "the disk is full"),
        (JournalUnavailable("hunter2"), "it does not answer"),
        (JournalError("hunter2"), "the log of the service says why"),
    ],
)
def test_health_tells_that_the_book_cannot_be_written_until_it_can(
    client: Client, services: Services, monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str
) -> None:
    def fails(*_: Any) -> Callable[..., Any]:
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr(services.writer._committer, "commit_together", fails)
        client.post("/v1/events", json={"events": [note(1)]})
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_well")
    assert words in answer.json()["error"]["message"]
    client.post("/v1/events", json={"events": [note(1)]})
    assert client.get("/healthz").status_code == 200


def test_health_tells_that_the_disk_is_full(
    client: Client, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "is_full", lambda: True)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the disk of the service is full")


def test_a_service_that_stops_says_so(client: Client, services: Services) -> None:
    services.writer.stop()
    answer = client.post("/v1/events", json={"events": [note(1)]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
    assert client.get("/healthz").status_code == 503
