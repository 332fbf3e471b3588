"""The book of a folder whose service has ended answers as the service would, and steers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.app.service.offline import NoRunner, OfflineServer, is_readable, ran_jobs, server_or_book
from pilotage.client import Address, ServerRefused, ServerUnreachable
from pilotage.client.errors import ServerTroubled
from pilotage.client.finding import SERVICE_FILE
from pilotage.client.jobs import Jobs
from pilotage.model.exchange.operations import Kill
from pilotage.model.settings.settings import Settings
from pilotage.service.errors import NotRunning
from tests.kit.events import a_short_job
from tests.kit.sqlite_books import keep, opened


@pytest.fixture
def book(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    with opened(folder) as journal:
        keep(journal, a_short_job())
    return folder


@pytest.fixture
def looking(book: Path) -> Iterator[OfflineServer]:
    found = server_or_book(Address(url="http://127.0.0.1:7", origin=str(book), runs=False))
    assert isinstance(found, OfflineServer)
    yield found
    found.close()


def test_only_a_book_of_this_version_is_read(book: Path, tmp_path: Path) -> None:
    assert is_readable(book)
    assert not is_readable(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "book.sqlite").write_bytes(b"")
    assert not is_readable(tmp_path / "other")


@pytest.mark.parametrize("change", [{"runs": True}, {"origin": ""}, {"origin": "/nowhere"}])
def test_the_service_is_asked_where_it_runs_or_there_is_no_book(book: Path, change: dict[str, object]) -> None:
    address = msgspec.structs.replace(Address(url="http://127.0.0.1:7", origin=str(book), runs=False), **change)
    try:
        found = server_or_book(address)
    except ServerUnreachable:
        return
    assert not isinstance(found, OfflineServer)


def test_a_job_is_told_of_and_an_unknown_one_is_refused(looking: OfflineServer) -> None:
    assert looking.get("/v1/jobs/j1")["id"] == "j1"
    assert [each["id"] for each in looking.get("/v1/jobs", {"query": "name=sweep"})["jobs"]] == ["j1"]
    assert looking.get("/v1/jobs", {"query": "name=other"})["jobs"] == []
    with pytest.raises(ServerRefused) as refused:
        looking.get("/v1/jobs/j2")
    assert (refused.value.status, refused.value.code) == (404, "unknown_job")


def test_the_book_is_opened_again_after_it_was_closed(looking: OfflineServer) -> None:
    assert looking.get("/v1/jobs/j1")["id"] == "j1"
    looking.close()
    looking.close()
    assert looking.get("/v1/jobs/j1")["id"] == "j1"


def test_nothing_is_waited_for_and_nothing_steered(looking: OfflineServer) -> None:
    with pytest.raises(ServerUnreachable, match="does not run"):
        looking.lines("/v1/events", quiet_seconds=1.0)
    with pytest.raises(ServerTroubled, match="no service runs in this folder"):
        Jobs(looking).operate(Kill(job="j1", message="enough"))


@pytest.mark.parametrize(
    "text, expected",
    [(None, True), ("no JSON", True), ('{"socket": "/s"}', True), ('{"socket": ""}', False), ("{}", False)],
)
def test_whether_the_last_service_ran_jobs_is_what_it_announced(
    tmp_path: Path, text: str | None, expected: object
) -> None:
    if text is not None:
        (tmp_path / SERVICE_FILE).write_text(text, "utf-8")
    assert ran_jobs(tmp_path) is expected


def test_whoever_rests_has_nothing_under_way_and_refuses_to_work(book: Path) -> None:
    resting = NoRunner(book, Settings())
    logs = resting.logs
    assert resting.logs is logs
    resting.stop()
    assert resting.logs is not logs
    resting.stop()
    assert not resting.alive
    assert resting.site_message("a") == ""
    with pytest.raises(NotRunning, match="no service runs"):
        resting.unpublished("j1")
    with pytest.raises(NotRunning, match="no service runs"):
        resting.publishing_fault("j1")
