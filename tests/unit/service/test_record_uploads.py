"""Uploads of records by users who are not believed: whose contents they get, whose records they replace, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from pilotage.model.records import FOREIGN_PARTS_MAX
from tests.kit.served_book import event, registered
from tests.unit.service.test_http_records import Client, asked, recorded
from tests.unit.service.test_http_records import client as client  # noqa: PLC0414 # a fixture
from tests.unit.service.test_http_records import other as other  # noqa: PLC0414 # a fixture

SECRET = b"a secret input"


def record_of(client: Client, job: str, owner: str, *, rules: Any = ()) -> dict[str, Any]:
    """A record that was made elsewhere, of a job of this owner."""
    events = [registered(1, job, owner=owner), event(3, "CancelAccepted", job=job)]
    if rules:
        events.insert(1, event(2, "AccessSet", {"rules": rules}, job=job))
    for each in events:
        assert asked(client, "POST", "/v1/events", user=owner, json={"events": [each]}).status_code == 200
    answer = asked(client, "POST", f"/v1/jobs/{job}/record", user=owner)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["record"]
    return found


def put(client: Client, record: dict[str, Any], *, user: str = "eve") -> Any:
    return asked(client, "PUT", f"/v1/records/{record['job']}", user=user, content=msgspec.json.encode(record))


def send(client: Client, source: Client, record: dict[str, Any], *, user: str = "eve", owner: str = "") -> Any:
    """Upload a record with those parts that its source has; the last answer."""
    answer = put(client, record, user=user)
    for sha256 in answer.json().get("missing", ()):
        path = f"/v1/records/{record['job']}/parts/{sha256}"
        found = asked(source, "GET", path, user=owner or user)
        if found.status_code == 200:
            answer = asked(client, "PUT", path, user=user, content=found.content)
    return answer


def part_of(content: bytes, **changed: Any) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {"kind": "output", "name": "s", "sha256": sha256, "size_bytes": len(content)} | changed


def test_who_knows_a_digest_does_not_get_the_content(client: Client, other: Client) -> None:
    recorded(other)
    assert asked(other, "POST", "/v1/records/j/annotations/secret", content=SECRET).status_code == 201
    record = record_of(client, "k", "eve")
    for content in (SECRET, b"nobody has this"):
        part = part_of(content)
        answer = send(other, client, record | {"parts": [*record["parts"], part]}).json()
        assert answer == {"state": "uploading", "missing": [part["sha256"]]}
        assert asked(other, "GET", f"/v1/records/k/parts/{part['sha256']}", user="eve").status_code == 404


def test_a_later_revision_needs_only_its_new_parts(client: Client, other: Client) -> None:
    record = record_of(client, "k", "eve")
    assert send(other, client, record).json()["state"] == "committed"
    second = record | {"revision": 2, "parts": [*record["parts"], part_of(SECRET)]}
    assert put(other, second).json()["missing"] == [part_of(SECRET)["sha256"]]
    path = f"/v1/records/k/parts/{part_of(SECRET)['sha256']}"
    assert asked(other, "PUT", path, user="eve", content=SECRET).json()["state"] == "committed"


def test_uploads_of_two_users_do_not_disturb_each_other(client: Client, other: Client) -> None:
    record = recorded(client)
    missing = put(other, record, user="ann").json()["missing"]
    assert put(other, record | {"owner": "eve", "parts": [part_of(SECRET)]}).status_code == 200
    for sha256 in missing:
        path = f"/v1/records/j/parts/{sha256}"
        answer = asked(other, "PUT", path, content=asked(client, "GET", path).content)
        assert answer.status_code == 200, answer.text
    assert asked(other, "GET", "/v1/records/j").json()["record"]["owner"] == "ann"


def test_who_may_modify_a_record_does_not_take_it_over(client: Client, other: Client) -> None:
    record = record_of(client, "k", "ann", rules=[{"principal": "eve", "rights": ["modify"]}])
    assert send(other, client, record, user="ann").json()["state"] == "committed"
    assert put(other, record | {"revision": 2, "owner": "eve"}).status_code == 403
    assert put(other, record | {"revision": 2, "access": []}).status_code == 403
    assert put(other, record | {"revision": 2}).json()["state"] == "committed"
    assert asked(other, "GET", "/v1/records/k").json()["record"]["owner"] == "ann"


def test_a_record_that_was_uploaded_before_does_not_count_as_that_of_the_job(client: Client, other: Client) -> None:
    forged = record_of(client, "k", "eve") | {"book_position": 2**50}
    forged |= {"heard_at": forged["heard_at"] + 3600}
    assert send(other, client, forged).json()["state"] == "committed"
    made = record_of(other, "k", "eve")
    assert (made["revision"], made["heard_at"] < forged["heard_at"]) == (2, True)


@pytest.mark.parametrize(
    "changed",
    [
        {"revision": 2**63},
        {"revision": 2**31 - 1},
        {"revision": 0},
        {"made_at": 1e308},
        {"heard_at": 1e308},
        {"heard_at": 4e9},  # of the future
        {"submitted_at": -1e308},
        {"nodes": [{"node": "n", "cores": 2**62}]},
        {"nodes": [{"node": "n", "memory_bytes": -5}]},
        {"version": "1"},
        {"name": "a\nb"},
        {"tags": {"x" * 5000: "y"}},
        {"parts": [part_of(b"", size_bytes=-5)]},
        {"parts": [part_of(b"x"), part_of(b"x", size_bytes=2)]},
        {"parts": [part_of(b"", name="../../x")]},
        {"parts": [part_of(b"", name="/etc/x")]},
        {"parts": [part_of(b"", name="a\0b")]},
        {"parts": [part_of(b"")] * (FOREIGN_PARTS_MAX + 1)},
    ],
    ids=lambda changed: str(changed)[:50],
)
def test_numbers_and_names_that_cannot_be_are_refused(client: Client, changed: dict[str, Any]) -> None:
    record = {"version": 1, "job": "k", "revision": 1, "owner": "eve", "name": "n", "state": "DONE", "made_at": 1.0}
    answer = put(client, record | changed)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed")


@pytest.mark.parametrize(
    "body", [b'{"version":1,"x":' + b"[" * 200_000, b'{"version":1e999}'], ids=("deep", "infinite")
)
def test_bodies_that_cannot_be_read_are_refused(client: Client, body: bytes) -> None:
    assert asked(client, "PUT", "/v1/records/k", content=body).status_code == 400


@pytest.mark.parametrize("changed", [{"state": "DONE"}, {"name": "other"}, {"tags": {"a": "b"}}, {"submitted_at": 5.0}])
def test_a_record_says_of_its_job_what_the_life_log_does(
    client: Client, other: Client, changed: dict[str, Any]
) -> None:
    answer = send(other, client, record_of(client, "k", "eve") | changed)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_record")
    assert asked(other, "GET", "/v1/records/k", user="eve").status_code == 404


def test_an_event_that_cannot_be_read_is_refused(client: Client, other: Client) -> None:
    record = record_of(client, "k", "eve")
    bad = b'{"job":"k"}\n{"event":\xff{{{\n'
    part = part_of(bad, kind="life-log", name="events-1.jsonl")
    assert put(other, record | {"parts": [part]}).status_code == 200
    answer = asked(other, "PUT", f"/v1/records/k/parts/{part['sha256']}", user="eve", content=bad)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_record")


def test_a_record_that_one_may_not_read_is_answered_as_one_that_is_not_there(client: Client) -> None:
    recorded(client)
    for query in ("", "?revision=1", "?revision=7"):
        hidden, unknown = (asked(client, "GET", f"/v1/records/{job}{query}", user="eve") for job in ("j", "x"))
        assert hidden.status_code == 404
        assert hidden.text.replace("job j", "job x") == unknown.text


@pytest.mark.parametrize("user", ["attempt", "site"])
def test_tokens_of_attempts_and_sites_see_no_records(client: Client, user: str) -> None:
    record = recorded(client)
    assert asked(client, "GET", "/v1/records", user=user).status_code == 403
    assert put(client, record | {"job": "k"}, user=user).status_code == 403


def test_a_job_may_have_any_name(client: Client) -> None:
    assert record_of(client, "feeds", "ann")["job"] == "feeds"
    assert asked(client, "GET", "/v1/records/feeds").json()["record"]["job"] == "feeds"


def life_log(client: Client, record: dict[str, Any], *, user: str = "eve") -> list[bytes]:
    """The lines of the life log of a record."""
    [log] = [part for part in record["parts"] if part["kind"] == "life-log"]
    path = f"/v1/records/{record['job']}/parts/{log['sha256']}"
    lines: list[bytes] = asked(client, "GET", path, user=user).content.splitlines(keepends=True)
    return lines


def sent_with(client: Client, record: dict[str, Any], lines: list[bytes]) -> Any:
    """Upload a record with another life log; the answer to its last part."""
    content = b"".join(lines)
    part = part_of(content, kind="life-log", name="events-1.jsonl")
    assert put(client, record | {"parts": [part]}).status_code == 200
    return asked(client, "PUT", f"/v1/records/k/parts/{part['sha256']}", user="eve", content=content)


def forged_logs(lines: list[bytes]) -> dict[str, list[bytes]]:
    """Life logs that no service would write."""
    header, first, *rest = lines
    alien = first.replace(b'"job":"k"', b'"job":"j"')
    return {
        "events of another job, too": [header, first, alien.replace(b'"n":1,', b'"n":901,'), *rest],
        "of another job alone": [header, alien, *rest],
        "deep nesting in an event": [header, first, b'{"event":' + b"[" * 100_000 + b"\n"],
        "deep nesting in the header": [b"[" * 100_000 + b"\n", first, *rest],
        "deep nesting in the data": [header, first.replace(b'"data":{', b'"data":{"x":' + b"[" * 100_000)],
        "an event twice": [header, first, first, *rest],
        "an end in the middle": [header, b'{"end":true,"contents":0,"events":0,"sha256":""}\n', first, *rest],
        "no events": [header],
        "nothing": [b""],
        "a number without end": [header, first.replace(b'"received":', b'"received":1e999,"received":')],
        "a time that cannot be": [header, first.replace(b'"received":', b'"received":-1e308,"x":')],
        "an object for a text": [header, first.replace(b'"job":"k"', b'"job":{"a":1}'), *rest],
        "a zero in a name": [header, first.replace(b'"owner":"eve"', b'"owner":"e\\u0000ve"'), *rest],
        "an unregistered job": [header, *rest],
    }


def test_forged_life_logs_are_refused_and_leave_nothing_that_can_be_seen(client: Client, other: Client) -> None:
    record = record_of(client, "k", "eve")
    recorded(other)
    before = asked(other, "GET", "/v1/records/j").json()
    for what, lines in forged_logs(life_log(client, record)).items():
        answer = sent_with(other, record, lines)
        assert answer.status_code == 400, (what, answer.text)
        assert answer.json()["error"]["code"] == "bad_record", what
        assert asked(other, "GET", "/v1/records/k", user="eve").status_code == 404, what
    assert asked(other, "GET", "/v1/records/j").json() == before
    assert asked(other, "GET", "/v1/records").json()["records"] == [before["revisions"][0]]
    assert send(other, client, record).json()["state"] == "committed", "the true one is taken"


def test_a_job_that_was_submitted_in_the_future_is_refused(client: Client) -> None:
    record = {"version": 1, "job": "k", "revision": 1, "owner": "eve", "name": "n", "state": "DONE", "made_at": 1.0}
    answer = put(client, record | {"submitted_at": 4e9})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed")
