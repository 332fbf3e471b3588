"""A job that ran before is found by its id, or as the newest finished one of a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pilotage.app.documents.earlier_jobs import BookedJobs, _cached_files, _in_tree, _job
from pilotage.client import Server, ServerRefused
from pilotage.language.folder import CachedFile
from pilotage.model.errors import PilotageError


class ToldBook:
    """A service that knows one job by its id, and answers the search for a name page by page."""

    def __init__(
        self, *pages: list[dict[str, Any]], job: dict[str, Any] | None = None, code: str = "unknown_job"
    ) -> None:
        self.pages = list(pages)
        self.job = job
        self.code = code
        self.asked: list[dict[str, Any]] = []

    def get(self, path: str, parameters: dict[str, Any] | None = None) -> Any:
        if path != "/v1/jobs":
            if self.job is None:
                raise ServerRefused("no such job", subject=path, status=404, code=self.code)
            return self.job
        assert parameters is not None
        self.asked.append(parameters)
        return {"jobs": self.pages[len(self.asked) - 1], "next": f"page-{len(self.asked)}" if len(self.asked) < len(self.pages) else None}  # fmt: skip


def found(book: ToldBook, word: str = "raw") -> dict[str, Any] | None:
    return _job(cast("Server", book), word)


def job(name: str, submitted_at: float | None, *, place: str = "live") -> dict[str, Any]:
    return {"id": name, "submitted_at": submitted_at, "place": place}


@pytest.mark.parametrize("state", ["DONE", "ABORTED", "CANCELLED", "CLEARED"])
def test_a_job_that_is_over_is_found_by_its_id(state: str) -> None:
    known = {"id": "j1", "state": state}
    assert found(ToldBook(job=known), "j1") == known


def test_a_job_that_is_not_over_is_refused() -> None:
    with pytest.raises(PilotageError, match="the job j1 is not over: RUNNING"):
        found(ToldBook(job={"id": "j1", "state": "RUNNING"}), "j1")


def test_a_refusal_that_is_not_about_the_name_is_told() -> None:
    with pytest.raises(ServerRefused):
        found(ToldBook([], code="forbidden"))


def test_the_newest_finished_job_of_a_name_is_taken_from_all_pages_unless_it_was_purged() -> None:
    book = ToldBook([job("a", 1.0), job("b", 7.0)], [job("c", 3.0), job("d", 9.0, place="purged")], [job("e", None)])
    newest = found(book)
    assert newest is not None
    assert newest["id"] == "b"
    assert [each["cursor"] for each in book.asked] == [None, "page-1", "page-2"]
    assert book.asked[0]["query"] == 'name="raw" and state in (DONE, CLEARED)'


def test_where_no_job_has_the_name_none_is_found() -> None:
    assert found(ToldBook([])) is None
    assert found(ToldBook([job("d", 9.0, place="purged")])) is None


def test_a_file_is_named_from_the_folder_of_the_document(tmp_path: Path) -> None:
    below = tmp_path / "runs" / "one"
    assert _in_tree(str(tmp_path), "a.root", job="j1", tree=tmp_path) == "a.root"
    assert _in_tree(str(below), "a.root", job="j1", tree=tmp_path) == "runs/one/a.root"
    with pytest.raises(PilotageError, match="not below the folder of this document"):
        _in_tree(str(tmp_path), "a.root", job="j1", tree=below)


def test_where_there_is_no_book_no_job_is_known(tmp_path: Path) -> None:
    assert BookedJobs(tmp_path).outputs("raw", "*") is None


class ToldSites:
    """A service that lists the cached files of one site page by page."""

    def __init__(self, *pages: list[dict[str, Any]], code: str = "unknown_site") -> None:
        self.pages = list(pages)
        self.code = code
        self.asked: list[dict[str, Any]] = []

    def get(self, path: str, parameters: dict[str, Any] | None = None) -> Any:
        assert path == "/v1/files"
        assert parameters is not None
        self.asked.append(parameters)
        if parameters["site"] != "farm":
            raise ServerRefused("no such site", subject=path, status=404, code=self.code)
        at = len(self.asked)
        return {"files": self.pages[at - 1], "next": f"page-{at}" if at < len(self.pages) else None}


def cached(site: ToldSites, name: str = "farm") -> list[CachedFile] | None:
    return _cached_files(cast("Server", site), name)


def test_only_files_that_are_there_are_cached_ones_and_all_pages_are_read() -> None:
    told = ToldSites(
        [
            {"locator": "s3://b/a", "size_bytes": 7, "state": "present"},
            {"locator": "s3://b/b", "size_bytes": None, "state": "ordered"},
        ],
        [{"locator": "job:J1/c", "size_bytes": 0, "state": "present"}],
    )
    assert cached(told) == [CachedFile("s3://b/a", 7), CachedFile("job:J1/c", 0)]
    assert [each["cursor"] for each in told.asked] == [None, "page-1"]


def test_an_unknown_site_has_no_list_and_another_refusal_is_told() -> None:
    assert cached(ToldSites(), "fram") is None
    with pytest.raises(ServerRefused):
        cached(ToldSites(code="forbidden"), "fram")


def test_a_folder_without_a_book_knows_no_site(tmp_path: Path) -> None:
    assert BookedJobs(tmp_path).cached_files("farm") is None
