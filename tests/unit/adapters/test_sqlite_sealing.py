"""Sealed jobs: moved into files of their own and back, whole at every moment, whatever breaks off."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite import locations, schema
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.journals.sqlite.locations import sealed_name, sealed_path
from pilotage.book.query import EVERYTHING, parse
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Aborted, Cleared, NodeDescribed, Noted, Tagged
from pilotage.ports import JournalError, JournalFull, JournalUnavailable, SealedLost
from tests.kit.events import START, Stream, a_short_job, registered, shape
from tests.kit.sqlite_books import everything, keep, known, opened, power_cuts, rows_of

CONTENT = b"one\ntwo\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "SLICE_ROWS", 2)
    monkeypatch.setattr(locations, "ARRIVING_ROWS", 4)
    monkeypatch.setattr("pilotage.adapters.journals.sqlite.sealing.SLICE_ROWS", 2)


def finished_job(job: str = "j1", *, packages: int = 5) -> list[Event]:
    """A job of several slices with tags and a list, all of which is over."""
    by = Stream(stream=f"{job}-service")
    events = a_short_job(job, packages=packages, stream=by)
    events.append(by.event(registered(shape("simulate", lines=packages), lists={"l": SHA256}), job=job, seen=1))
    events += [by.event(Tagged(name="study", value="A12"), job=job), by.event(Noted(text="by hand"), job=job)]
    events.append(by.event(Tagged(name="colour", value="red"), job=job, package="1.2.1"))
    events.append(by.event(NodeDescribed(node="n1", cores=4), job=job, package="1.2.1", attempt=1))
    return events


def a_book(journal: SqliteJournal) -> None:
    journal.put_content(CONTENT)
    first, second = finished_job("j1"), finished_job("j2")
    # Two jobs whose events lie between each other's.
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]
    for start in range(0, len(mixed), 10):
        keep(journal, mixed[start : start + 10])


def test_a_sealed_job_reads_as_before_and_leaves_the_live_book(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        before, other = known(journal, "j1"), known(journal, "j2")
        journal.seal("j1")
        row = journal.job("j1")
        assert row is not None
        assert row.place == "sealed"
        assert known(journal, "j1") == before
        assert known(journal, "j2") == other
        assert rows_of(tmp_path, row) == {"events": 0, "package_facts": 0, "stages": 0}
        assert journal.line_counts(row, stage=1, line=1).done == 1
        assert journal.count_packages(parse("job=j1 and state=DONE")) == 5
        assert [each.job for each in journal.find_jobs(parse("tag.study=A12"), after=None, limit=9).items] == [
            "j1",
            "j2",
        ]


def test_the_file_of_a_small_job_is_small(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, [*finished_job("small", packages=2), *finished_job("large", packages=150)])
        for job in ("small", "large"):
            journal.seal(job)
        assert sealed_path(tmp_path, "small").stat().st_size < 50_000
        with closing(sqlite3.connect(sealed_path(tmp_path, "large"))) as book:
            assert book.execute("PRAGMA page_size").fetchone() == (locations.PAGE_BYTES,)


def test_the_file_of_a_sealed_job_has_no_tables_that_stay_empty(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
    with closing(sqlite3.connect(sealed_path(tmp_path, "j1"))) as book:
        tables = {name for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        views = {name for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
        assert book.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert tables == {
        "contents", "counters", "events", "jobs", "nodes", "package_facts", "pilots", "sites", "stages", "streams", "tags",
    }  # fmt: skip
    assert views == {"attempts", "files", "packages", "phases"}


def test_packages_of_a_sealed_job_are_found_only_where_it_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
        of_owner = journal.find_packages(parse("owner=ada"), after=None, limit=100).items
        assert {each.job for each in of_owner} == {"j2"}
        both = journal.find_packages(parse("job in (j1, j2)"), after=None, limit=100).items
        assert {each.job for each in both} == {"j1", "j2"}
        events = journal.find_events(parse("position>0"), after=0, limit=1000).items
        assert {each.job for each in events} == {"j2"}
        mixed = journal.find_events(parse("job in (j1, j2)"), after=0, limit=1000).items
        positions = [each.row.position for each in mixed]
        assert positions == sorted(positions)
        assert {each.job for each in mixed} == {"j1", "j2"}


def test_the_file_of_a_sealed_job_can_be_read_by_itself(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
    with closing(sqlite3.connect(tmp_path / "jobs" / "j1.sqlite")) as connection:

        def count(what: str) -> int:
            return int(connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])

        assert connection.execute("SELECT job, state, place FROM jobs").fetchall() == [("j1", "DONE", "sealed")]
        tables = ("packages", "attempts", "phases", "files", "tags", "nodes", "contents")
        assert {each: count(each) for each in tables} == {
            "packages": 5, "attempts": 5, "phases": 10, "files": 5, "tags": 2, "nodes": 0, "contents": 1,
        }  # fmt: skip
        joined = "events AS e JOIN streams AS s ON s.stream_id = e.stream_id"
        assert count(joined) == count("events") == len(finished_job())
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["j1.sqlite"]


def test_a_late_event_brings_a_sealed_job_back(tmp_path: Path) -> None:
    with opened(tmp_path) as journal, opened(tmp_path / "plain") as plain:
        late = [Stream("client", "late").event(Tagged(name="colour", value="blue"), job="j1", package="1.3.1")]
        for each in (journal, plain):
            a_book(each)
        journal.seal("j1")
        keep(journal, late)
        keep(plain, late)
        row = journal.job("j1")
        assert row is not None
        assert row.place == "live"
        assert everything(tmp_path) == everything(tmp_path / "plain")
        assert list((tmp_path / "jobs").iterdir()) == []


def test_a_repeated_event_of_a_sealed_job_is_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        before = known(journal, "j1")
        journal.seal("j1")
        keep(journal, finished_job("j1"))
        assert known(journal, "j1") == before


@pytest.mark.parametrize("move", ["seal", "unseal", "purge", "purge sealed"])
def test_after_a_power_cut_at_any_point_the_job_is_whole_and_in_one_place(tmp_path: Path, move: str) -> None:
    book = tmp_path / "book"
    with opened(book) as journal:
        a_book(journal)
        before, other = known(journal, "j1"), known(journal, "j2")
        if move in ("unseal", "purge sealed"):
            journal.seal("j1")
        cuts = power_cuts(book, tmp_path / "cuts", journal)
        match move:
            case "seal":
                journal.seal("j1")
            case "unseal":
                journal.unseal(["j1"])
            case _:
                journal.purge("j1", at=9.0)
        copies = cuts()
    assert len(copies) > 3
    for copy in copies:
        with opened(copy) as journal:
            row = journal.job("j1")
            assert row is not None
            left = rows_of(copy, row)
            files = [path.name for path in (copy / "jobs").iterdir()] if (copy / "jobs").exists() else []
            assert known(journal, "j2") == other
            if row.place == "purged":
                assert (left, files) == ({"events": 0, "package_facts": 0, "stages": 0}, [])
                assert journal.forgotten() == len(finished_job())
                continue
            assert known(journal, "j1") == before, copy.name
            if row.place == "sealed":
                assert (left, files) == ({"events": 0, "package_facts": 0, "stages": 0}, ["j1.sqlite"])
            else:
                assert (left["package_facts"], files) == (5, [])
            # Nothing of the move is left behind: the next one goes through, and the book is as if nothing had been.
            journal.unseal(["j1"])
            keep(journal, [Stream("client", "late").event(Cleared(by="user"), job="j1")])
            journal.seal("j1")
            assert journal.stages(row)[0].done == 5


def test_readers_see_a_job_once_at_every_point_of_a_move(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        by = Stream("service", "other")
        places = [f"1.{line}.1" for line in range(10, 17)]
        keep(journal, [by.event(Aborted(cause="quota"), job="j1", package=place) for place in places])
        before = known(journal, "j1")
        stale = journal.job("j1")
        assert stale is not None
        seen: list[str] = []

        def look(point: str) -> None:
            seen.append(point)
            assert known(journal, "j1") == before
            assert len(journal.find_packages(EVERYTHING, after=None, limit=99, job=stale).items) == 12
            everywhere = journal.find_packages(parse("owner=ada"), after=None, limit=99).items
            assert len(everywhere) == len({(each.job, each.row.line) for each in everywhere})
            assert len([each for each in everywhere if each.job == "j2"]) == 5
            # Where jobs are not named, one that is on its way is there as a whole, or not at all.
            aborted = journal.find_packages(parse("state=ABORTED"), after=None, limit=99).items
            assert len(aborted) == journal.count_packages(parse("state=ABORTED"))
            events = [each.job for each in journal.find_events(parse("position>0"), after=0, limit=999).items]
            assert (len(aborted), events.count("j1")) in ((7, len(before["events"])), (0, 0))

        journal._sealing.reached = look
        journal.seal("j1")
        journal.unseal(["j1"])
        assert {"written", "in place", "sealed", "clearing", "cleared", "arriving", "arrived", "removed"} <= set(seen)


@pytest.mark.parametrize("moment", ["written", "in place", "looked"])
def test_a_job_that_hears_something_while_it_is_copied_stays_whole(tmp_path: Path, moment: str) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        # The event is as old as the job, so that nothing in the job's row changes.
        late = Stream("client", "late")
        said: list[str] = []

        def interrupt(point: str) -> None:
            if point == moment and not said:
                said.append(point)
                keep(journal, [late.event(Noted(text="late"), job="j1", package="1.1.1", time=START)])

        journal._sealing.reached = interrupt
        journal.seal("j1")
        row = journal.job("j1")
        assert row is not None
        assert row.place == "sealed"
        assert len(journal.find_events(EVERYTHING, after=0, limit=999, job=row).items) == len(finished_job()) + 1


def test_a_job_that_never_comes_to_rest_is_not_sealed(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        late = Stream("client", "late")

        def interrupt(point: str) -> None:
            if point == "in place":
                keep(journal, [late.event(Noted(text="again"), job="j1", package="1.1.1", time=START)])

        journal._sealing.reached = interrupt
        with pytest.raises(JournalUnavailable, match="still receives events"):
            journal.seal("j1")
        row = journal.job("j1")
        assert row is not None
        assert row.place == "live"
        assert list((tmp_path / "jobs").iterdir()) == []


def test_only_a_job_that_is_over_is_sealed(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, finished_job()[:-12])
        with pytest.raises(JournalError, match="that has ended"):
            journal.seal("j1")
        with pytest.raises(JournalError, match="no such job"):
            journal.seal("j9")


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
        written = sealed_path(tmp_path, "j1").stat().st_mtime_ns
        journal.seal("j1")
        assert sealed_path(tmp_path, "j1").stat().st_mtime_ns == written


def test_contents_that_others_use_stay_and_the_last_user_takes_them(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)

        def live() -> int:
            return len(everything(tmp_path)["contents"])

        journal.seal("j1")
        assert live() == 1
        journal.seal("j2")
        assert live() == 0
        assert journal.content(SHA256) == CONTENT
        journal.purge("j1", at=1.0)
        assert journal.content(SHA256) == CONTENT
        keep(journal, finished_job("j3"))  # which speaks of what only a sealed job has
        journal.purge("j2", at=1.0)
        assert journal.content(SHA256) == CONTENT
        journal.purge("j3", at=1.0)
        assert journal.content(SHA256) is None


def test_two_threads_may_move_a_job_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        before = known(journal, "j1")
        faults: list[BaseException] = []

        def move() -> None:
            try:
                for _ in range(3):
                    journal.seal("j1")
                    journal.unseal(["j1"])
            except JournalError as fault:
                faults.append(fault)

        threads = [threading.Thread(target=move) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert known(journal, "j1") == before
        for thread in threads:
            thread.join()
        assert not faults


def test_a_full_disk_leaves_the_job_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        before = known(journal, "j1")

        def full(*paths: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(locations, "put_in_place", full)
        with pytest.raises(JournalFull, match="No space left"):
            journal.seal("j1")
        assert known(journal, "j1") == before
        assert list((tmp_path / "jobs").iterdir()) == []
        monkeypatch.undo()
        journal.seal("j1")
        assert known(journal, "j1") == before


def test_a_job_that_is_sealed_or_comes_back_is_on_disk_with_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        file, real, synced = sealed_path(tmp_path, "j1"), os.fsync, list[tuple[str, bool]]()

        def sync(descriptor: int) -> None:
            real(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(file.parent):
                synced.append(("folder" if path.is_dir() else "file", file.exists()))

        monkeypatch.setattr(os, "fsync", sync)
        journal.seal("j1")
        assert synced == [("file", False), ("folder", True)]  # what has a name is whole, and the name stays
        synced.clear()
        journal.unseal(["j1"])
        assert synced == [("folder", False)]


def test_the_views_of_a_sealed_file_name_the_job_and_the_package(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
    with closing(sqlite3.connect(sealed_path(tmp_path, "j1"))) as connection:
        for view in ("packages", "attempts"):
            found = connection.execute(
                f"SELECT DISTINCT job, package = stage || '.' || line || '.' || number FROM {view}"
            )
            assert found.fetchall() == [("j1", 1)], view


def test_a_file_of_an_older_pilotage_is_brought_up_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        before = known(journal, "j1")
        journal.seal("j1")
        journal.seal("j2")
    with monkeypatch.context() as later:
        version = schema.SCHEMA_VERSION
        later.setattr(schema, "SCHEMA_VERSION", version + 1)
        later.setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, version: ["CREATE TABLE later (a)"]})
        with opened(tmp_path) as journal:
            assert known(journal, "j1") == before
            with closing(sqlite3.connect(sealed_path(tmp_path, "j1"))) as connection:
                assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
            journal.unseal(["j1"])
            assert known(journal, "j1") == before
            row = journal.job("j2")
            assert row is not None
            journal.stages(row)
        assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["j2.sqlite"]
        assert sealed_path(tmp_path, "j2").stat().st_mode & 0o777 == 0o600
    with pytest.raises(JournalError, match="newer pilotage"), locations.opened(sealed_path(tmp_path, "j2")):
        pass


def test_a_missing_file_is_said_and_nothing_is_made_up(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        a_book(journal)
        journal.seal("j1")
        path = sealed_path(tmp_path, "j1")
        kept = path.read_bytes()
        path.unlink()
        row = journal.job("j1")
        assert row is not None
        with pytest.raises(JournalUnavailable, match="file of a sealed job is missing"):
            journal.stages(row)
        with pytest.raises(SealedLost, match="file of a sealed job is missing"):
            journal.unseal(["j1"])
        path.write_bytes(kept)
        assert journal.stages(row)[0].done == 5


def test_names_of_files_are_safe_and_differ_when_ids_do() -> None:
    ids = [
        "a",
        "A",
        "job-1",
        "Job-1",
        "JOB-1",
        "con",
        "CON",
        "con.1",
        "nul",
        "aux.txt",
        "com1",
        "lpt9.x",
        "a.",
        "a..b",
        "0",
    ]
    names = [sealed_name(job) for job in ids]
    assert len({name.lower() for name in names}) == len(ids)
    assert sealed_name("job-1") == "job-1"
    for name in names:
        assert "/" not in name
        assert name.partition(".")[0] not in {"con", "nul", "aux", "com1", "lpt9"}
