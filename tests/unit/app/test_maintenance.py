"""Jobs leave one book as lines and come into another, all or none; what is not over waits there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.adapters.journals.dump import DumpError
from pilotage.adapters.settings.settings_files import load_settings
from pilotage.app.maintenance import (
    NoBook,
    check_book,
    dump_all,
    dump_job,
    load_jobs,
    rebuild_book,
    seal_jobs,
)
from pilotage.model.settings.settings import Settings
from tests.kit.events import a_short_job
from tests.kit.sqlite_books import keep, opened


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def book_in(folder: Path) -> Settings:
    return load_settings(environment={"XDG_CONFIG_DIRS": "/nowhere"}, folder=Path.cwd(), flags={"journal.url": f"sqlite:{folder}"})  # fmt: skip


@pytest.fixture
def book(tmp_path: Path) -> Settings:
    """A book with two jobs, of which one is sealed."""
    with opened(tmp_path / "book") as journal:
        keep(journal, [*a_short_job("j1"), *a_short_job("j2")])
        journal.seal("j2")
    return book_in(tmp_path / "book")


def places(settings: Settings, *jobs: str) -> list[str | None]:
    with opened(Path(settings.journal.address.folder)) as journal:
        rows = [journal.job(job) for job in jobs]
        return [row.place if row is not None else None for row in rows]


def test_every_job_of_a_book_comes_into_a_new_one_as_it_was(book: Settings, tmp_path: Path) -> None:
    lines = list(dump_all(book))
    assert lines == [*dump_job(book, "j1"), *dump_job(book, "j2")]
    new = book_in(tmp_path / "not" / "yet")
    loaded = load_jobs(new, lines)
    assert [(each.job, each.held) for each in loaded] == [("j1", False), ("j2", False)]
    assert list(dump_all(new)) == lines
    assert sorted(each.name for each in (tmp_path / "not").iterdir()) == ["yet"]


def test_a_purged_job_is_not_dumped(book: Settings, tmp_path: Path) -> None:
    with opened(tmp_path / "book") as journal:
        journal.purge("j2", at=9.0)
    assert list(dump_all(book)) == list(dump_job(book, "j1"))


@pytest.mark.parametrize(
    "chosen, message",
    [
        (["j1", "j1"], "this job is in the dump twice"),
        (["j2", "j1"], "a job of this id is known here already"),
        ([], "it contains no dump of a job"),
    ],
)
def test_nothing_is_loaded_where_one_of_the_jobs_cannot_be(
    book: Settings, tmp_path: Path, chosen: list[str], message: str
) -> None:
    with opened(tmp_path / "other") as journal:
        keep(journal, a_short_job("j1"))
    other = book_in(tmp_path / "other" if message.startswith("a job") else tmp_path / "new")
    with pytest.raises(DumpError, match=message):
        load_jobs(other, [line for job in chosen for line in dump_job(book, job)])
    if message.startswith("a job"):
        assert places(other, "j1", "j2") == ["live", None]
    else:
        assert not (tmp_path / "new").exists()


def test_a_book_is_whole_and_stays_so_when_it_is_folded_anew(book: Settings) -> None:
    assert check_book(book).sound
    before = list(dump_all(book))
    assert rebuild_book(book).sound
    assert list(dump_all(book)) == before


def test_a_job_is_sealed_by_its_id(book: Settings) -> None:
    assert places(book, "j1", "j2") == ["live", "sealed"]
    seal_jobs(book, ["j1"])
    assert places(book, "j1", "j2") == ["sealed", "sealed"]


def test_where_there_is_no_book_none_is_made(tmp_path: Path) -> None:
    for read in (check_book, rebuild_book, lambda settings: list(dump_all(settings))):
        with pytest.raises(NoBook):
            read(book_in(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
