"""Feeds over HTTP: an index registers, and is fed with what it wants of what its user may read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.events.payloads import AccessRule
from pilotage.model.records import RECORD_VERSION, JobRecord
from pilotage.model.settings.settings import Settings
from pilotage.provenance.index.attributes import DEFAULT
from pilotage.provenance.index.feed import FeedBatch
from pilotage.reading.access import ANY_OWNER, READ, SUBSCRIBE, Principal
from pilotage.service.http.services import Services
from pilotage.service.index_server import Feeder, IndexApplication
from pilotage.service.journal import record_feeds
from tests.kit.framework_answers import FrameworkAnswers
from tests.kit.served_book import WallClock, access_of, sqlite_journal

PRINCIPALS = {
    "ann": Principal(user="ann", scopes=frozenset({READ, SUBSCRIBE})),
    "bob": Principal(user="bob", scopes=frozenset({READ, SUBSCRIBE})),
    "site": Principal(user="ann", scopes=frozenset({READ, SUBSCRIBE}), site="lyon"),
    "root": Principal(user="root", scopes=frozenset({READ, SUBSCRIBE, ANY_OWNER})),
}
FEEDS = "/v1/feeds"

Client = TestClient[FrameworkAnswers]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """A service with a record of ann's, one of bob's, and one of ann's that bob may read."""

    def open_records(*, writes: bool) -> FolderRecords:
        return FolderRecords(tmp_path / "records", writes=writes)

    store = open_records(writes=True)
    store.commit(
        [
            JobRecord(
                version=RECORD_VERSION, job=job, revision=1, owner=owner, name="n", state="DONE", made_at=1.0, tags={"group": job},
                access=(AccessRule(principal="bob", rights=("read",)),) if job == "j3" else (),
            )
            for job, owner in (("j1", "ann"), ("j2", "bob"), ("j3", "ann"))
        ]
    )  # fmt: skip
    store.close()
    with sqlite_journal(tmp_path) as journal:
        yield Services(
            journal, access=access_of(PRINCIPALS), settings=Settings(), clock=WallClock(), open_records=open_records
        )


@pytest.fixture
def client(services: Services) -> Iterator[Client]:
    with TestClient(FrameworkAnswers(services), raise_server_exceptions=False) as client:
        yield client


def asked(client: Client, method: str, path: str = "", *, user: str = "ann", status: int = 200, **more: Any) -> Any:
    answer = client.request(method, FEEDS + path, headers={"Authorization": f"Bearer {user}"}, **more)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def jobs(answer: dict[str, Any]) -> list[str]:
    return [each["job"] for each in answer["entries"]]


def test_an_index_is_fed_from_the_beginning_and_after_a_position(client: Client) -> None:
    asked(client, "POST", user="root", status=201, json={"name": "one", "attributes": ["tag"]})
    first = asked(client, "GET", "/one?limit=2", user="root")
    assert (jobs(first), first["position"], first["end"]) == (["j1", "j2"], 2, False)
    assert first["entries"][0]["values"] == {"job": ["j1"], "tag.group": ["j1"]}
    rest = asked(client, "GET", "/one?after=2", user="root")
    assert (jobs(rest), rest["position"], rest["end"], rest["restart"]) == (["j3"], 3, True, False)
    assert rest["entries"][0]["access"] == [{"principal": "bob", "rights": ["read"]}]
    assert asked(client, "GET", "/one?after=3", user="root")["entries"] == []
    assert asked(client, "GET", "/one?after=4", user="root")["restart"] is True


def test_a_feed_has_what_its_user_may_read_and_its_query_finds(client: Client) -> None:
    asked(client, "POST", user="bob", status=201, json={"name": "one"})
    assert jobs(asked(client, "GET", "/one", user="bob")) == ["j2", "j3"]
    asked(client, "POST", user="bob", status=201, json={"name": "one", "query": "tag.group=j3"})
    assert jobs(asked(client, "GET", "/one", user="bob")) == ["j3"]


class OverHttp:
    """The storage, as an index that a user runs is fed from it."""

    def __init__(self, client: Client, user: str) -> None:
        self._client, self._user = client, user
        asked(client, "POST", user=user, status=201, json={"name": "one"})

    def batch(self, *, after: int) -> FeedBatch:
        return msgspec.convert(asked(self._client, "GET", f"/one?after={after}&limit=1", user=self._user), FeedBatch)


@pytest.mark.parametrize(
    "operator, told",
    [
        ("root", {"root": ["j1", "j2", "j3"], "ann": ["j1", "j3"], "bob": ["j2", "j3"]}),
        ("bob", {"root": ["j2", "j3"], "ann": ["j3"], "bob": ["j2", "j3"]}),  # bob cannot show what he may not read
        ("ann", {"root": ["j1", "j3"], "ann": ["j1", "j3"], "bob": ["j3"]}),
    ],
)
def test_an_index_tells_nobody_more_than_both_who_runs_it_and_who_asks_may_read(
    client: Client, tmp_path: Path, operator: str, told: dict[str, list[str]]
) -> None:
    with closing(SqliteRecordIndex(tmp_path / "index.sqlite", attributes=DEFAULT)) as index:
        feeder = Feeder(index, {"http://storage": OverHttp(client, operator)}, poll_seconds=1.0)
        feeder.feed_once()
        application: Any = IndexApplication(index, feeder, name="one", access=access_of(PRINCIPALS))
        with TestClient(application) as asks:
            for user, expected in {**told, "site": None, "nobody": None}.items():
                answer = asks.get(
                    "/v1/records/find?query=state%3DDONE", headers={"Authorization": f"Bearer {user}"}
                ).json()
                found = sorted(each["job"] for each in answer.get("records", []))
                assert found == (expected or []), user


def test_a_feed_does_not_tell_of_records_that_its_user_could_never_read(client: Client, services: Services) -> None:
    assert services.records is not None
    store = services.records.store()
    first, third = store.record("j1"), store.record("j3")
    assert first is not None
    assert third is not None
    store.commit([msgspec.structs.replace(first, revision=2)])  # ann's alone, before and now
    store.commit([msgspec.structs.replace(third, revision=2, access=())])  # bob could read it before
    store.commit([msgspec.structs.replace(first, job="j4")])
    store.delete("j4", at=1.0, author="ann")
    for user, told in (("bob", ["j2", "j3"]), ("ann", ["j1", "j3", "j4"]), ("root", ["j2", "j1", "j3", "j4"])):
        asked(client, "POST", user=user, status=201, json={"name": "one"})
        assert jobs(asked(client, "GET", "/one", user=user)) == told


def test_who_could_read_an_upload_is_told_that_it_was_deleted(client: Client, services: Services) -> None:
    assert services.records is not None
    store = services.records.store()
    third = store.record("j3")
    assert third is not None
    store.commit([msgspec.structs.replace(third, revision=2, access=())])  # bob could read the first revision
    store.delete("j2", at=1.0, author="root")
    store.delete("j3", at=1.0, author="root")
    for user, gone in (("bob", ["j2", "j3"]), ("ann", ["j3"])):
        asked(client, "POST", user=user, status=201, json={"name": "one"})
        entries = asked(client, "GET", "/one?after=4", user=user)["entries"]
        assert [(each["job"], each["removed"]) for each in entries] == [(job, True) for job in gone]


def test_tokens_of_sites_have_no_feeds(client: Client) -> None:
    asked(client, "POST", user="site", status=403, json={"name": "one"})
    for path in ("", "/one"):
        asked(client, "GET", path, user="site", status=403)
    asked(client, "DELETE", "/one", user="site", status=403)


def test_feeds_belong_to_their_users(client: Client) -> None:
    registration = {"name": "one", "attributes": ["site"], "query": "owner=ann"}
    asked(client, "POST", status=201, json=registration)
    assert asked(client, "GET")["feeds"] == [registration]
    assert asked(client, "GET", user="bob")["feeds"] == []
    assert asked(client, "GET", "/one", user="bob", status=404)["error"]["code"] == "unknown_feed"
    asked(client, "DELETE", "/one", user="bob", status=404)
    asked(client, "DELETE", "/one", status=204)
    asked(client, "GET", "/one", status=404)


@pytest.mark.parametrize(
    "body, code",
    [
        ({"name": "one", "attributes": ["sites"]}, "bad_attribute"),
        ({"name": "one", "query": "stat=DONE"}, "bad_query"),
        ({"name": "one", "query": "submitted within 2h"}, "bad_query"),
        ({"name": "a/b"}, "bad_parameter"),
        ({"name": "one", "more": 1}, "bad_parameter"),
    ],
)
def test_faulty_registrations_are_refused(client: Client, body: dict[str, Any], code: str) -> None:
    assert asked(client, "POST", status=400, json=body)["error"]["code"] == code


def test_a_feed_that_nobody_asked_for_long_is_forgotten(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_feeds, "FEEDS_MAX", 2)
    for name in ("one", "two"):
        asked(client, "POST", status=201, json={"name": name})
    asked(client, "GET", "/one")
    asked(client, "POST", status=201, json={"name": "three"})
    assert [each["name"] for each in asked(client, "GET")["feeds"]] == ["one", "three"]
