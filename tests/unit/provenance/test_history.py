"""A record opened as values says what a real job was, what ran, and what was read and made."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.query import EVERYTHING
from pilotage.model.jobs.layout import PackageId
from pilotage.model.records import JobRecord
from pilotage.provenance.assembly import assemble
from pilotage.provenance.history import History, UnreadableRecord, history_of
from tests.kit.events import Stream, a_short_job, cut, delivered, random_history
from tests.kit.real_records import SPLIT, recorded_survey
from tests.kit.sqlite_books import keep, opened


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def recorded(book: SqliteJournal, job: str) -> tuple[JobRecord, dict[str, bytes]]:
    """The record of a job in a book, and its parts."""
    contents: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> str:
        contents[sha256(content)] = content
        return sha256(content)

    row = book.job(job)
    assert row is not None
    record = assemble(row, book.dump(job), add_part=add, nodes=lambda _: [], made_at=5.0, revision=1)
    return record, contents


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with recorded_survey(tmp_path_factory.mktemp("survey")) as (store, record):
        yield history_of(record, store.content)


def test_the_job_is_told_as_it_was_submitted(history: History) -> None:
    job = history.job
    assert (job.id, job.name, job.state) == (history.record.job, "survey", "DONE")
    assert (job.dialect, job.document, job.parameters) == ("yaml", "pilotage.yaml", {"limit": "2"})
    assert (job.description, job.tags) == ("Counts words, and fails once", {"group": "B"})
    assert job.definition is not None
    assert msgspec.json.decode(job.definition_text)["job"] == "survey"
    assert job.captured["split.sh"].sha256 == sha256(SPLIT.encode())
    times = (job.submitted_at, job.started_at, job.finished_at)
    assert None not in times
    assert list(times) == sorted(times, key=lambda time: time or 0.0)


def test_packages_have_names_commands_and_edges(history: History) -> None:
    packages = list(history.packages())
    assert history.package_count == len(packages) == 5
    assert [(each.id, each.name, each.state) for each in packages] == [
        ("1.1.1", "split", "DONE"),
        ("2.1.1", "count-0", "DONE"),
        ("2.2.1", "count-1", "DONE"),
        ("3.1.1", "total", "DONE"),
        ("4.1.1", "broken", "ABORTED"),
    ]
    split, first, second, total, _ = packages
    assert split.commands[0].argv == ("./split.sh", "2", "text.txt")
    assert (first.activity, first.parameters) == ("counting", {"part": "part-1.txt"})
    assert first.commands[0].stdout == "part-1.count"
    assert [each.argv for each in total.commands] == [("cat", "part-1.count", "part-2.count"), ("wc", "-l")]
    assert total.after == ("2.1.1", "2.2.1")
    assert second.after == ("1.1.1",)
    assert history.package("2.2.1") == second
    assert history.package("2.3.1") is None
    assert history.package("nonsense") is None


def test_attempts_say_where_and_when_they_ran_and_how_they_ended(history: History) -> None:
    retried = history.package("2.2.1")
    assert retried is not None
    first, second = retried.attempts
    assert (first.granted, first.exit_status, first.files) == (False, 3, ())
    assert retried.granted == second
    assert second.granted
    assert second.exit_status == 0
    assert second.site == "local"
    assert second.node in {each.node for each in history.nodes}
    assert second.started_at is not None
    assert second.ended_at is not None
    assert first.ended_at is not None
    assert first.ended_at <= second.started_at <= second.ended_at
    assert {each.phase for each in second.phases} >= {"application"}
    assert second.measured.cpu_seconds is not None


def test_files_have_a_direction_a_checksum_and_a_source(history: History) -> None:
    def used(package: str) -> dict[str, tuple[str, str, str, str | None]]:
        found = history.package(package)
        assert found is not None
        return {each.name: (each.direction, each.source, each.package, each.sha256) for each in found.files}

    part = sha256(b"two words\n")
    assert used("1.1.1") == {
        "text.txt": ("consumed", "captured", "", sha256(b"one\ntwo words\nthree words here\nfour\n")),
        "large.dat": ("consumed", "outside", "", sha256(b"x" * 300_000)),
        "split.sh": ("consumed", "captured", "", sha256(SPLIT.encode())),
        "part-1.txt": ("produced", "package", "1.1.1", sha256(b"one\n")),
        "part-2.txt": ("produced", "package", "1.1.1", part),
    }
    assert used("2.2.1")["part-2.txt"] == ("consumed", "package", "1.1.1", part)
    assert used("3.1.1") == {
        "part-1.count": ("consumed", "package", "2.1.1", sha256(b"1\n")),
        "part-2.count": ("consumed", "package", "2.2.1", sha256(b"2\n")),
        "all.txt": ("produced", "package", "3.1.1", sha256(b"1\n2\n")),
        "total.txt": ("produced", "package", "3.1.1", sha256(b"2\n")),
    }
    assert used("4.1.1") == {"total.txt": ("consumed", "package", "3.1.1", sha256(b"2\n"))}


@pytest.mark.parametrize("seed", range(10))
def test_any_life_log_gives_the_rows_of_the_book(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with opened(tmp_path / "book") as book:
        for batch in cut(delivered(random_history(chance), chance), chance):
            keep(book, batch)
        for job in ("job-1", "job-2"):
            row = book.job(job)
            assert row is not None
            made, contents = recorded(book, job)
            history = history_of(made, contents.__getitem__)
            told = {each.id: each for each in history.packages()}
            assert (history.job.state, history.job.tags) == (row.state, made.tags)
            assert history.job.finished_at == row.finished_at
            page = book.find_packages(EVERYTHING, after=None, limit=1000, job=row)
            for each in page.items:
                facts = each.row.facts
                shown = told[PackageId(each.row.stage, each.row.line, each.row.number).dotted]
                assert (shown.state, shown.reason, shown.activity) == (facts.state, facts.reason, facts.activity)
                assert [(a.number, a.site, a.granted_at, a.exit_code) for a in shown.attempts] == [
                    (number, a.site, a.granted_at, a.exit_code) for number, a in sorted(facts.attempts.items())
                ]
            assert history.package_count == len(told)


def test_a_life_log_that_is_none_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "book") as book:
        keep(book, a_short_job(stream=Stream("service", "core")))
        made, contents = recorded(book, "j1")
    [log] = [part.sha256 for part in made.parts if part.kind == "life-log"]
    head, *events = contents[log].splitlines(keepends=True)
    for wrong in ([head], [head, *events[1:]], [head, *events, events[-1]], [head, b"{}\n", *events]):
        with pytest.raises(UnreadableRecord):
            history_of(made, {log: b"".join(wrong)}.__getitem__)
