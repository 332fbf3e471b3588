"""An index server: what it answers, and how it goes on when a storage fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.model.errors import PilotageError
from pilotage.ports.record_index import RecordEntry, RecordIndex
from pilotage.provenance.index.attributes import chosen_attributes
from pilotage.provenance.index.feed import FeedBatch
from pilotage.reading.access import READ, SUBMIT, Principal
from pilotage.service.index_server import Feeder, IndexApplication
from tests.kit.real_runs import wait_until
from tests.kit.served_book import access_of

PRINCIPALS = {
    "ann": Principal(user="ann", scopes=frozenset({READ})),
    "bob": Principal(user="bob", scopes=frozenset({READ})),
    "eve": Principal(user="eve", scopes=frozenset({SUBMIT})),
}


class Storage:
    """A storage that has one record for each position, and fails when it is told to."""

    def __init__(self) -> None:
        self.fault: PilotageError | None = None
        self.records = 2

    def batch(self, *, after: int) -> FeedBatch:
        if self.fault is not None:
            raise self.fault
        entries = tuple(
            RecordEntry(
                job=f"j{position}", position=position, revision=1, owner="ann", name="n", state="DONE",
                values={"job": (f"j{position}",), "site": ("lyon",)},
            )
            for position in range(after + 1, self.records + 1)
        )  # fmt: skip
        return FeedBatch(entries=entries, position=self.records, end=True)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RecordIndex]:
    made = SqliteRecordIndex(tmp_path / "index.sqlite", attributes=chosen_attributes(["site", "state"], ["site"]))
    yield made
    made.close()


@pytest.fixture
def storages() -> dict[str, Storage]:
    return {"http://one": Storage(), "http://two": Storage()}


@pytest.fixture
def feeder(index: RecordIndex, storages: dict[str, Storage]) -> Feeder:
    return Feeder(index, storages, poll_seconds=0.01, now=lambda: 5.0)


@pytest.fixture
def client(index: RecordIndex, feeder: Feeder) -> Iterator[TestClient[Any]]:
    application: Any = IndexApplication(index, feeder, name="small", access=access_of(PRINCIPALS))
    with TestClient(application) as made:
        yield made


def asked(client: TestClient[Any], path: str, *, user: str = "ann", status: int = 200, method: str = "GET") -> Any:
    answer = client.request(method, path, headers={"Authorization": f"Bearer {user}"})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_it_answers_with_job_ids_and_where_their_records_lie(client: TestClient[Any], feeder: Feeder) -> None:
    feeder.feed_once()
    found = asked(client, "/v1/records/find?query=site%3Dlyon&limit=3")
    assert len(found["records"]) == 3
    rest = asked(client, f"/v1/records/find?query=site%3Dlyon&limit=3&cursor={found['next']}")
    assert rest["next"] is None
    places = {(each["job"], each["storage"]) for each in [*found["records"], *rest["records"]]}
    assert places == {(job, storage) for job in ("j1", "j2") for storage in ("http://one", "http://two")}


def test_it_answers_only_what_the_asker_may_read(client: TestClient[Any], feeder: Feeder) -> None:
    feeder.feed_once()
    assert asked(client, "/v1/records/find?query=site%3Dlyon", user="bob")["records"] == []
    assert asked(client, "/v1/records/find?query=site%3Dlyon", user="eve", status=403)["error"]["code"] == "forbidden"
    assert asked(client, "/v1/records/find?query=site%3Dlyon", user="nobody", status=401)
    assert asked(client, "/healthz", user="nobody") == {"status": "ok"}


@pytest.mark.parametrize(
    "path, status, words",
    [
        ("/v1/records/find", 400, "the query is empty"),
        ("/v1/records/find?query=sit%3D1", 400, "did you mean site?"),
        ("/v1/records/find?query=state%3DDONE", 422, "not indexed"),
        ("/v1/records/find?query=site%3D1&limit=0", 400, "from 1 to 10000"),
        ("/v1/records/find?query=site%3D1&limit=%C2%B2", 400, "from 1 to 10000"),
        ("/v1/records/find?query=site%3D1&cursor=x", 400, "cursor"),
        ("/v1/records/find?querry=1", 400, "did you mean 'query'?"),
        ("/v1/records/find?query=a&query=b", 400, "more than once"),
        ("/v1/jobs", 400, "/v1/records/find"),
    ],
)
def test_faulty_requests_are_told_what_to_do(client: TestClient[Any], path: str, status: int, words: str) -> None:
    assert words in str(asked(client, path, status=status))
    assert asked(client, "/v1/records/find?query=site%3D1", method="POST", status=400)


def test_a_storage_that_fails_does_not_keep_others_from_feeding_and_is_tried_again(
    client: TestClient[Any], feeder: Feeder, storages: dict[str, Storage]
) -> None:
    storages["http://one"].fault = PilotageError("no answer: connection refused")
    feeder.feed_once()
    one, two = asked(client, "/v1/index")["storages"]
    assert one == {"storage": "http://one", "position": 0, "fault": "no answer: connection refused"}
    assert two == {"storage": "http://two", "position": 2, "fed_at": 5.0}
    storages["http://one"].fault = None
    feeder.feed_once()
    assert [each["position"] for each in asked(client, "/v1/index")["storages"]] == [2, 2]
    assert asked(client, "/v1/index")["indexed"] == ["site"]


def test_it_feeds_by_itself_until_it_is_stopped(
    feeder: Feeder, index: RecordIndex, storages: dict[str, Storage]
) -> None:
    feeder.start()
    wait_until(lambda: index.position("http://two") == 2, "the feed")
    storages["http://two"].records = 4
    wait_until(lambda: index.position("http://two") == 4, "the news")
    feeder.stop()
