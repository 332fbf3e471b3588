"""Records over HTTP: who may read, annotate, upload and delete them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.events.payloads import AccessRule
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.records import RECORD_VERSION, JobRecord
from pilotage.model.settings.settings import Settings
from pilotage.ports import Journal
from pilotage.reading.access import DECIDE, OPERATE, READ, WRITE, Principal
from pilotage.service.http.services import Services
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import WallClock, access_of, event, registered, sqlite_journal

SCOPES = frozenset({READ, WRITE, OPERATE, DECIDE})
PRINCIPALS = {
    user: Principal(user=user, groups=frozenset({"physics"} if user == "bob" else ()), scopes=SCOPES)
    for user in ("ann", "bob", "eve")
} | {
    "attempt": Principal(user="ann", scopes=SCOPES, package=AttemptRef("j", "1.1.1", 1)),
    "site": Principal(user="ann", scopes=SCOPES, site="lyon"),
}

Client = TestClient[FrameworkAnswers]


def service_at(folder: Path, journal: Journal) -> Services:
    def open_records(*, writes: bool) -> FolderRecords:
        return FolderRecords(folder / "records", writes=writes)

    return Services(
        journal, access=access_of(PRINCIPALS), settings=Settings(), clock=WallClock(), open_records=open_records
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with (
        sqlite_journal(tmp_path) as journal,
        TestClient(FrameworkAnswers(service_at(tmp_path, journal)), raise_server_exceptions=False) as client,
    ):
        yield client


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("other")
    with (
        sqlite_journal(folder) as journal,
        TestClient(FrameworkAnswers(service_at(folder, journal)), raise_server_exceptions=False) as client,
    ):
        yield client


def asked(client: Client, method: str, path: str, *, user: str = "ann", **more: Any) -> Any:
    return client.request(method, path, headers={"Authorization": f"Bearer {user}"}, **more)


def over(client: Client) -> None:
    """A job of ann's that is over, readable by physicists."""
    rules = [{"principal": "group:physics", "rights": ["read"]}]
    events = [
        registered(1, "j"),
        event(2, "AccessSet", {"rules": rules}, job="j"),
        event(3, "CancelAccepted", job="j"),
    ]
    for each in events:  # one by one: only the owner of a registered job sets its access list
        answer = asked(client, "POST", "/v1/events", json={"events": [each]})
        assert answer.status_code == 200, answer.text


def recorded(client: Client) -> dict[str, Any]:
    over(client)
    answer = asked(client, "POST", "/v1/jobs/j/record")
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()["record"]
    return record


def test_a_record_is_made_on_request_and_read_by_those_who_may(client: Client) -> None:
    assert asked(client, "GET", "/v1/records/j").status_code == 404
    record = recorded(client)
    assert (record["job"], record["state"], record["revision"]) == ("j", "CANCELLED", 1)
    assert asked(client, "POST", "/v1/jobs/j/record").json()["record"] == record
    for user, status in (("ann", 200), ("bob", 200), ("eve", 404)):
        assert asked(client, "GET", "/v1/records/j", user=user).status_code == status
        part = record["parts"][0]
        content = asked(client, "GET", f"/v1/records/j/parts/{part['sha256']}", user=user)
        assert content.status_code == status
        assert status != 200 or hashlib.sha256(content.content).hexdigest() == part["sha256"]
    assert asked(client, "GET", f"/v1/records/j/parts/{'0' * 64}").status_code == 404
    assert asked(client, "GET", "/v1/records/j?revision=2").status_code == 404


def test_a_job_that_is_not_over_has_no_record(client: Client) -> None:
    asked(client, "POST", "/v1/events", json={"events": [registered(1, "j")]})
    answer = asked(client, "POST", "/v1/jobs/j/record")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_record")


def test_records_are_listed_by_owner_and_time_to_those_who_may_read_them(client: Client) -> None:
    record = recorded(client)
    for user, expected in (("ann", ["j"]), ("bob", ["j"]), ("eve", [])):
        found = asked(client, "GET", "/v1/records?owner=ann", user=user).json()["records"]
        assert [each["job"] for each in found] == expected
    at = record["submitted_at"]
    assert asked(client, "GET", f"/v1/records?submitted_from={at + 1}").json()["records"] == []
    assert len(asked(client, "GET", f"/v1/records?submitted_before={at + 1}").json()["records"]) == 1


def test_annotations_stay_with_their_author_and_time(client: Client) -> None:
    recorded(client)
    for value in ("B", "C"):
        answer = asked(client, "POST", "/v1/records/j/annotations", json={"name": "group", "text": value})
        assert answer.status_code == 201, answer.text
    assert asked(client, "POST", "/v1/records/j/annotations/plot", content=b"PNG").status_code == 201
    added = asked(client, "GET", "/v1/records/j").json()["annotations"]
    assert [(each["name"], each.get("text"), each["author"]) for each in added] == [
        ("group", "B", "ann"),
        ("group", "C", "ann"),
        ("plot", None, "ann"),
    ]
    assert asked(client, "GET", f"/v1/records/j/parts/{added[2]['part']['sha256']}", user="bob").content == b"PNG"


@pytest.mark.parametrize("user, status", [("bob", 403), ("eve", 404)])
def test_who_may_not_modify_neither_annotates_nor_deletes(client: Client, user: str, status: int) -> None:
    recorded(client)
    body = {"name": "group", "text": "B"}
    assert asked(client, "POST", "/v1/records/j/annotations", user=user, json=body).status_code == status
    assert asked(client, "POST", "/v1/records/j/annotations/x", user=user, content=b"x").status_code == status
    assert asked(client, "DELETE", "/v1/records/j", user=user).status_code == status
    assert asked(client, "GET", "/v1/records/j").json()["annotations"] == []


def test_a_deleted_record_is_gone(client: Client) -> None:
    recorded(client)
    assert asked(client, "DELETE", "/v1/records/j").status_code == 204
    assert asked(client, "GET", "/v1/records/j").status_code == 404
    assert asked(client, "DELETE", "/v1/records/j").status_code == 404
    again = asked(client, "POST", "/v1/jobs/j/record")  # it stays deleted until more is heard of the job
    assert (again.status_code, again.json()["error"]["message"]) == (404, "job j: its record was deleted")


def test_a_record_of_another_service_is_seen_when_its_last_part_has_come(client: Client, other: Client) -> None:
    record = recorded(client)
    body = msgspec.json.encode(record)
    answer = asked(other, "PUT", "/v1/records/j", content=body).json()
    assert answer["state"] == "registered"
    states = []
    for sha256 in answer["missing"]:
        assert asked(other, "GET", "/v1/records/j").status_code == 404
        content = asked(client, "GET", f"/v1/records/j/parts/{sha256}").content
        states.append(asked(other, "PUT", f"/v1/records/j/parts/{sha256}", content=content).json()["state"])
    assert states == ["uploading"] * (len(states) - 1) + ["committed"]
    assert record.pop("book_position") > 0  # of the book that it was made from, which is not the one here
    assert asked(other, "GET", "/v1/records/j").json()["record"] == record
    assert asked(other, "PUT", "/v1/records/j", content=body).json() == {"state": "committed", "missing": []}


def test_uploads_are_checked_as_records_made_here(client: Client, other: Client) -> None:
    record = recorded(client)
    part = record["parts"][0]["sha256"]
    content = asked(client, "GET", f"/v1/records/j/parts/{part}").content
    assert asked(other, "PUT", f"/v1/records/j/parts/{part}", content=content).status_code == 409  # not registered
    for wrong in (b"{}", b"[1]", b"\xff", msgspec.json.encode(record | {"version": 99, "job": "j"})):
        assert asked(other, "PUT", "/v1/records/j", content=wrong).status_code == 400
    assert asked(other, "PUT", "/v1/records/k", content=msgspec.json.encode(record)).status_code == 400
    assert asked(other, "PUT", "/v1/records/j", user="eve", content=msgspec.json.encode(record)).status_code == 403
    assert asked(client, "PUT", "/v1/records/j", content=msgspec.json.encode(record)).status_code == 403  # its own job
    assert asked(other, "PUT", "/v1/records/j", content=msgspec.json.encode(record)).status_code == 200
    assert asked(other, "PUT", f"/v1/records/j/parts/{part}", content=content + b" ").status_code == 409
    assert asked(other, "PUT", f"/v1/records/j/parts/{part}", user="eve", content=content).status_code == 409
    assert asked(other, "GET", "/v1/records/j").status_code == 404


def test_a_life_log_of_another_job_is_refused(client: Client, other: Client) -> None:
    record = recorded(client) | {"job": "k"}
    answer = asked(other, "PUT", "/v1/records/k", content=msgspec.json.encode(record)).json()
    answers = []
    for sha256 in answer["missing"]:
        content = asked(client, "GET", f"/v1/records/j/parts/{sha256}").content
        answers.append(asked(other, "PUT", f"/v1/records/k/parts/{sha256}", content=content))
    last = answers[-1]
    assert (last.status_code, last.json()["error"]["code"]) == (400, "bad_record")
    assert asked(other, "GET", "/v1/records/k").status_code == 404


def test_a_service_that_keeps_no_records_says_so(tmp_path: Path) -> None:
    with sqlite_journal(tmp_path) as journal:
        services = Services(journal, access=access_of(PRINCIPALS), settings=Settings(), clock=WallClock())
        with TestClient(FrameworkAnswers(services)) as client:
            answer = asked(client, "GET", "/v1/records/j")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_records")


def test_the_newest_record_of_a_name_is_found_by_whoever_may_read_it(client: Client, tmp_path: Path) -> None:
    rules = (AccessRule(principal="group:physics", rights=("read",)),)
    record = JobRecord(
        version=RECORD_VERSION, job="n-abcdef", revision=1, owner="ann", name="n", state="DONE", made_at=1.0, access=rules
    )  # fmt: skip
    with closing(FolderRecords(tmp_path / "records")) as store:
        store.commit([record])

    def found(user: str, query: str) -> list[str]:
        return [each["job"] for each in asked(client, "GET", f"/v1/records?{query}", user=user).json()["records"]]

    assert found("ann", "name=n") == found("bob", "name=n") == ["n-abcdef"]
    assert found("eve", "name=n") == found("bob", "name=n&owner=bob") == found("ann", "name=other") == []


def test_a_record_that_another_user_shares_does_not_stand_before_ones_own_of_the_same_name(
    client: Client, tmp_path: Path
) -> None:
    own = JobRecord(
        version=RECORD_VERSION, job="n-abcdef", revision=1, owner="ann", name="n", state="DONE", made_at=1.0, submitted_at=5.0
    )  # fmt: skip
    rules = (AccessRule(principal="ann", rights=("read",)),)
    forged = msgspec.structs.replace(own, job="n-zzzzzz", owner="eve", access=rules, submitted_at=9.0)
    with closing(FolderRecords(tmp_path / "records")) as store:
        store.commit([own, forged])
    for query, job in (("name=n", "n-abcdef"), ("name=n&owner=eve", "n-zzzzzz")):
        [found] = asked(client, "GET", f"/v1/records?{query}").json()["records"]
        assert found["job"] == job
