"""Index servers are processes of their own: fed from several storages, killed at any moment, and complete in the end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.adapters.records.folder import FolderRecords
from pilotage.app.service.credentials import tokens_of
from pilotage.model.events.payloads import AccessRule
from pilotage.model.records import RECORD_VERSION, Annotation, JobRecord
from pilotage.model.settings.settings import Settings
from pilotage.ports.record_index import RecordEntry
from pilotage.provenance.index.attributes import DEFAULT
from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in, wait_until

RECORDS = 80
NEWS = 5


def commit(place: Place, prefix: str, numbers: range, *, owner: str = "ada") -> None:
    """Records of a storage whose service does not run."""
    with closing(FolderRecords(place.state / "records")) as store:
        store.commit(
            [
                JobRecord(
                    version=RECORD_VERSION, job=f"{prefix}{n}", revision=1, owner=owner, name=prefix, state="DONE", made_at=9.0,
                    submitted_at=1767225600.0 + n * 86_400, tags={"group": "AB"[n % 2]}, sites=("lyon",),
                    access=(AccessRule(principal="emmy", rights=("read",)),) if n % 10 == 0 else (),
                )
                for n in numbers
            ]
        )  # fmt: skip
        store.annotate(Annotation(job=f"{prefix}{numbers[0]}", name="group", at=10.0, author="ada", text="C"))
        store.delete(f"{prefix}{numbers[1]}", at=11.0, author="ada")


def serve(place: Place) -> None:
    place.run("serve", "--book-only", "--port", "0", "--background")


@contextmanager
def storage(folder: Path, name: str) -> Iterator[Place]:
    """A service that keeps records."""
    (folder / name).mkdir()
    with place_in(folder / name, environment={"HOME": str(folder)}) as place:
        place.state.mkdir(mode=0o700)
        commit(place, name, range(RECORDS))
        serve(place)
        yield place


@pytest.fixture
def storages(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    with storage(tmp_path, "one") as first, storage(tmp_path, "two") as second:
        yield first, second


def begin_index(place: Place, name: str, storages: tuple[Place, Place], *more: str) -> subprocess.Popen[str]:
    """Start an index server that is fed with one change at a time."""
    named = [word for each in storages for word in ("--storage", str(each.folder))]
    return place.begin(
        "provenance", "index", "--name", name, "--folder", name, "--batch", "1", "--poll-seconds", "0.1", *named, *more
    )


def positions(folder: Path) -> dict[str, int]:
    """How far the index of a folder has read its storages."""
    file = folder / "index.sqlite"
    if not file.exists():
        return {}
    with closing(sqlite3.connect(file)) as connection:
        try:
            return dict(connection.execute("SELECT name, position FROM index_storages"))
        except sqlite3.OperationalError:  # it is being made
            return {}


def last_positions(storages: tuple[Place, Place]) -> dict[str, int]:
    found = {}
    for each in storages:
        with closing(FolderRecords(each.state / "records", writes=False)) as store:
            found[str(each.folder)] = store.changes(after=0, limit=10_000)[-1].position
    return found


def contents(folder: Path) -> list[tuple[str, RecordEntry]]:
    with closing(SqliteRecordIndex(folder / "index.sqlite", attributes=DEFAULT)) as index:
        return list(index.contents())


def stop(place: Place, process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGTERM)
    place.ended(process)


def found(place: Place, name: str, query: str) -> list[str]:
    told: dict[str, Any] = place.told(
        "provenance", "find", query, "--index", str(place.folder / name), "--limit", "1000"
    )
    return sorted(each["job"] for each in told["records"])


def test_two_indexes_of_two_storages_are_equal_though_one_was_killed_while_it_was_fed(
    place: Place, storages: tuple[Place, Place]
) -> None:
    whole = last_positions(storages)
    steady = begin_index(place, "steady", storages)
    killed = begin_index(place, "killed", storages)
    reached = 0
    for _ in range(2):
        wait_until(lambda: sum(positions(place.folder / "killed").values()) > reached + 8, "some of the feed")  # noqa: B023
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        reached = sum(positions(place.folder / "killed").values())
        assert 0 < reached < sum(whole.values())  # in the middle of its feed
        killed = begin_index(place, "killed", storages)
    for name in ("steady", "killed"):
        wait_until(lambda: positions(place.folder / name) == whole, f"all of the feed of {name}")  # noqa: B023
        assert found(place, name, "tag.group=C") == ["one0", "two0"]
        assert (
            len(found(place, name, "site=lyon and submitted within 2026-01")) == 2 * 30
        )  # without those that are deleted
    # What comes later reaches both, also after a storage was away for a while.
    storages[0].run("serve", "--stop")
    commit(storages[0], "new", range(NEWS))
    serve(storages[0])
    whole = last_positions(storages)
    for name in ("steady", "killed"):
        wait_until(lambda: positions(place.folder / name) == whole, f"the news at {name}")  # noqa: B023
        assert found(place, name, "name=new") == ["new0", "new2", "new3", "new4"]
    for process in (steady, killed):
        stop(place, process)
    first, second = contents(place.folder / "steady"), contents(place.folder / "killed")
    assert first == second
    assert len(first) == 2 * (RECORDS - 1) + NEWS - 1
    rebuilt = begin_index(place, "killed", storages, "--rebuild", "--once", "--batch", "500")
    place.ended(rebuilt)
    assert contents(place.folder / "killed") == first


def test_an_index_keeps_what_it_is_configured_for_and_answers_with_a_token_only(place: Place, tmp_path: Path) -> None:
    with storage(tmp_path, "one") as one:
        _ask_a_small_index(place, one)


def _ask_a_small_index(place: Place, one: Place) -> None:
    (place.folder / "index.toml").write_text(
        'name = "few"\nfolder = "few"\nattributes = ["state", "tag"]\nindexed = ["tag.group"]\nquery = "tag.group=A"\n'
        f'[[storages]]\nserver = "{one.folder}"\n'
    )
    process = place.begin("provenance", "index", "--config", "index.toml")
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    wait_until(lambda: positions(place.folder / "few") == {str(one.folder): RECORDS + 2}, "the feed")
    assert len(found(place, "few", "tag.group=A")) == RECORDS // 2 - 1  # one has another group since
    refused = place.run("provenance", "find", "state=DONE", "--index", str(place.folder / "few"), code=2)
    assert "state, which is not indexed" in refused.stderr
    assert "on one of job, tag.group" in refused.stderr
    unknown = place.run("provenance", "find", "site=lyon", "--index", str(place.folder / "few"), code=2)
    assert "this index does not have site" in unknown.stderr
    (place.folder / "wrong").write_text("x" * 40)
    (place.folder / "wrong").chmod(0o600)
    stranger = place.run("provenance", "find", "tag.group=A", "--index", url, "--token-file", "wrong", code=2)
    assert "token" in stranger.stderr
    second = place.begin("provenance", "index", "--config", "index.toml")
    assert "another process" in place.ended(second, code=2).stderr
    stop(place, process)


def answered(url: str, token: str, *, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    """What a server answers to a request that is made by hand."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def signed_tokens(folder: Path) -> list[str]:
    """Tokens of a pilot and of the agent of a site, for another user, as a service with this state folder signs them."""
    tokens = tokens_of(folder, Settings())
    return [tokens.for_pilot("lyon", user="ada"), tokens.for_site_agent("lyon", user="ada")]


def test_requests_by_hand_get_nothing_that_their_token_does_not_allow(place: Place, tmp_path: Path) -> None:
    with storage(tmp_path, "one") as one:
        process = place.begin(
            "provenance", "index", "--folder", "open", "--storage", str(one.folder), "--poll-seconds", "0.1"
        )
        assert process.stdout is not None
        index = process.stdout.readline().split()[-1]
        wait_until(lambda: positions(place.folder / "open") == {str(one.folder): RECORDS + 2}, "the feed")
        own = (place.folder / "open/token").read_text().strip()
        query = f"{index}/v1/records/find?query=owner%3Dada&limit=1000"
        status, found = answered(query, own)
        assert (status, len(found["records"])) == (200, RECORDS - 1)
        of_storage = (one.state / "token").read_text().strip()
        for token in ("", "x", of_storage, own[:-1], *signed_tokens(one.state)):
            status, found = answered(query, token)
            assert (status, "records" in found) == (401, False)
        for token in signed_tokens(place.folder / "open"):  # ada's, but for her pilots alone
            for path in (query, f"{index}/v1/index"):
                status, found = answered(path, token)
                assert (status, found["error"]["code"]) == (403, "forbidden")
        for method in ("PUT", "POST", "DELETE"):
            status, found = answered(f"{index}/v1/records/one0", own, method=method, body=b"{}")
            assert (status, found["error"]["code"]) == (400, "bad_parameter")
        service = find_service(one.state)
        assert service is not None
        record = msgspec.json.encode(
            JobRecord(version=RECORD_VERSION, job="k", revision=1, owner="ada", name="k", state="DONE", made_at=1.0)
        )
        feed = msgspec.json.encode({"name": "spy"})
        for token, expected in (("", 401), (own, 401), *((each, 403) for each in signed_tokens(one.state))):
            assert answered(f"{service.url}/v1/records/k", token, method="PUT", body=record)[0] == expected
            assert answered(f"{service.url}/v1/records/one0", token)[0] in (401, 403, 404)
            assert answered(f"{service.url}/v1/feeds", token, method="POST", body=feed)[0] == expected
            assert answered(f"{service.url}/v1/feeds/index", token)[0] == expected
        assert answered(f"{service.url}/v1/records/k", of_storage, method="PUT", body=record[:-1])[0] == 400
        assert answered(f"{service.url}/v1/records/one0", of_storage)[1]["record"]["owner"] == "ada"
        stop(place, process)
