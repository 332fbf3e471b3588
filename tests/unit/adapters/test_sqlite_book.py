"""The SQLite book itself: opening it, its indexes, readers beside the writer, full disks and network file systems."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.journals.network_folders import network_kind
from pilotage.adapters.journals.queries import DEFAULT_INDEXED
from pilotage.adapters.journals.sqlite import journal as sqlite
from pilotage.adapters.journals.sqlite import schema
from pilotage.adapters.journals.sqlite.connections import connect_writer
from pilotage.adapters.journals.sqlite.journal import BOOK, SqliteJournal
from pilotage.adapters.journals.sqlite.reader import SqliteReader
from pilotage.book.query import EVERYTHING, QueryError, QueryTooBroad, parse
from pilotage.book.rows.fast_rows import BegunLife
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import StatisticRow
from pilotage.book.rows.sketches import COARSE_SECONDS, FINE_SECONDS
from pilotage.book.statistics.statistics import KEPT_SECONDS
from pilotage.model.events.payloads import Aborted, Bound, Noted, Restarted, Tagged
from pilotage.ports import JournalBusy, JournalError, JournalFull
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import StandingClock, Stream, a_short_job
from tests.kit.sqlite_books import everything, keep, known, opened


def asked(folder: Path, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / BOOK)) as connection:
        return connection.execute(question).fetchall()


def indexes(folder: Path) -> set[str]:
    found = asked(folder, "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    return {name for (name,) in found}


def test_a_book_is_there_after_it_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path, durable=True) as journal:
        keep(journal, a_short_job())
        before = known(journal, "j1")
    with opened(tmp_path, durable=True) as journal:
        assert known(journal, "j1") == before
        assert journal.position() == 8


def test_one_process_writes(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(JournalBusy, match="another process"):
        SqliteJournal(tmp_path)
    with opened(tmp_path) as journal:
        assert journal.position() == 0


def test_others_may_read_beside_the_writer(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
        with closing(SqliteReader(tmp_path, indexed=DEFAULT_INDEXED)) as reader:
            assert reader.job("j1") == journal.job("j1")


def test_a_closed_book_is_not_read(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.position()
    journal.close()


def test_a_book_of_a_newer_pilotage_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / BOOK)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    with pytest.raises(JournalError, match="newer pilotage"):
        SqliteJournal(tmp_path)


def test_a_book_is_for_its_owner_only_wherever_it_is_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
        journal.seal("j1")
        made = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {f"{BOOK}{suffix}" for suffix in ("", "-wal", "-shm")} | {"j1.sqlite"} <= {path.name for path in made}
        assert {path.name: oct(path.stat().st_mode & 0o777) for path in made} == dict.fromkeys(
            (path.name for path in made), "0o600"
        )


def test_the_mode_that_somebody_gave_a_book_stays(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / BOOK).chmod(0o640)
    with opened(tmp_path):
        assert (tmp_path / BOOK).stat().st_mode & 0o777 == 0o640


def test_a_book_that_cannot_be_written_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path):
        pass

    def only_reading(path: Path, **_: bool) -> sqlite3.Connection:
        # What SQLite does with a file that it may read but not write, which root always may.
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)

    with monkeypatch.context() as changed:
        changed.setattr(sqlite, "connect_writer", only_reading)
        with pytest.raises(JournalError, match=r"can be read, but not written[\s\S]*let this user write"):
            SqliteJournal(tmp_path)
    with opened(tmp_path) as journal:  # nothing was held back
        keep(journal, a_short_job())


def test_a_file_that_is_no_book_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / BOOK).write_bytes(b"hello, this is no database at all" * 100)
    with pytest.raises(JournalError, match="cannot be used"):
        SqliteJournal(tmp_path)
    assert (tmp_path / BOOK).read_bytes().startswith(b"hello")


def test_an_older_book_is_brought_up_a_version_at_a_time() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.create(connection, indexed=frozenset())
        migrations = {
            schema.SCHEMA_VERSION: ["CREATE TABLE later (a)"],
            schema.SCHEMA_VERSION + 1: ["ALTER TABLE later ADD COLUMN b", "INSERT INTO later VALUES (1, 2)"],
        }
        schema.migrate(connection, to=schema.SCHEMA_VERSION + 2, migrations=migrations)
        assert connection.execute("SELECT a, b FROM later").fetchall() == [(1, 2)]
        assert schema.version_of(connection) == schema.SCHEMA_VERSION + 2


def test_a_book_of_the_same_version_whose_views_lack_later_facts_is_given_those_of_today(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
    with closing(sqlite3.connect(tmp_path / BOOK)) as book:
        whole = book.execute("SELECT * FROM attempts").description
        book.execute("DROP VIEW attempts")
        book.execute("CREATE VIEW attempts AS SELECT job_id, stage, line, number FROM package_facts")
        book.execute("DROP VIEW files")
    with opened(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / BOOK)) as book:
        assert book.execute("SELECT * FROM attempts").description == whole
        assert book.execute("SELECT count(*) FROM files").fetchone() is not None


def test_every_version_has_a_way_to_the_next() -> None:
    assert set(schema.MIGRATIONS) == set(range(1, schema.SCHEMA_VERSION))


# --- indexes --------------------------------------------------------------------------------------------------------


def test_indexes_follow_the_setting(tmp_path: Path) -> None:
    with opened(tmp_path, indexed=frozenset({"owner"})) as journal:
        keep(journal, a_short_job())
        assert {"jobs_owner_job", "jobs_job"} <= indexes(tmp_path)
        assert not indexes(tmp_path) & {"package_facts_state", "package_facts_site", "jobs_state_job"}
        with pytest.raises(QueryTooBroad):
            journal.find_packages(parse("site=lyon"), after=None, limit=9)
    with opened(tmp_path, indexed=frozenset({"site", "node", "tag.study"})) as journal:
        assert {"package_facts_site", "package_facts_node", "tags_of_jobs"} <= indexes(tmp_path)
        assert "jobs_owner_job" not in indexes(tmp_path)
        assert len(journal.find_packages(parse("site=lyon"), after=None, limit=9).items) == 2
        with pytest.raises(QueryTooBroad, match=r"tag\.study"):
            journal.find_packages(parse("tag.colour=red"), after=None, limit=9)
    before = indexes(tmp_path)
    with opened(tmp_path, indexed=frozenset({"site", "node", "tag.study"})):
        assert indexes(tmp_path) == before


def test_what_cannot_be_indexed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="type cannot be indexed"):
        SqliteJournal(tmp_path, indexed=frozenset({"owner", "type"}))


def test_a_query_that_no_index_serves_names_those_there_are(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for text in ("exit_code=SUCCESS", "all", "state!=RUNNING", "entered>0", "attempts>1"):
            with pytest.raises(QueryTooBroad):
                journal.count_packages(parse(text))
        with pytest.raises(QueryTooBroad):
            journal.find_events(parse("type=Tagged"), after=0, limit=9)
        with pytest.raises(QueryTooBroad):
            journal.find_jobs(parse("cause=quota"), after=None, limit=9)


def test_a_range_with_too_many_packages_to_sort_is_read_in_their_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.adapters.journals.sqlite.package_queries.COLLECTED_MAX", 5)
    with opened(tmp_path, indexed=frozenset({"entered", "updated", "attempts"})) as journal:
        keep(journal, [*a_short_job("j2", packages=7), *a_short_job("j1", packages=7)])
        for text in ("updated > 2000-01-01", "entered < 2100-01-01", "attempts >= 1 and site=lyon"):
            found, after = [], None
            while True:
                page = journal.find_packages(parse(text), after=after, limit=3)
                found += [(each.job, each.row.line) for each in page.items]
                if not page.more:
                    break
                after = page.scanned_to
            assert found == [(job, line) for job in ("j2", "j1") for line in range(1, 8)], text
            assert journal.count_packages(parse(text)) == 14


def test_attempts_are_counted_in_a_table_only_where_the_setting_asks_for_it(tmp_path: Path) -> None:
    named = "SELECT type, name FROM sqlite_master WHERE name LIKE 'package_attempts%'"
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
    assert asked(tmp_path, named) == []
    with opened(tmp_path, indexed=frozenset({"attempts"})):
        pass
    assert len(asked(tmp_path, named)) == 5
    assert asked(tmp_path, "SELECT DISTINCT attempts FROM package_attempts") == [(1,)]
    with opened(tmp_path):
        pass
    assert asked(tmp_path, named) == []


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_page_reads_so_much_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path, scanned_max=50) as journal:
        keep(journal, a_short_job("j1", packages=120))
        query = parse("job=j1 and node=nowhere")
        page = journal.find_packages(query, after=None, limit=10)
        assert (page.items, page.more) == ([], True)
        assert 45 <= page.scanned_to[1].line <= 50
        pages = 1
        while page.more:
            page = journal.find_packages(query, after=page.scanned_to, limit=10)
            pages += 1
        assert pages == 3
        rare = journal.find_events(parse("job=j1 and type=JobAccepted"), after=0, limit=10)
        assert (len(rare.items), rare.more, rare.scanned_to) == (1, True, 50)


def test_few_packages_among_many_are_found_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, scanned_max=50, indexed=DEFAULT_INDEXED | {"site"}) as journal:
        by = Stream(stream="core")
        keep(journal, a_short_job("j1", packages=120, stream=by))
        moved = [by.event(Restarted(cause="by-hand"), job="j1", package=f"1.{line}.1", epoch=2) for line in (90, 110)]
        keep(journal, [*moved, by.event(Bound(site="oslo"), job="j1", package="1.110.1", epoch=2)])
        texts = (
            "state=WAITING",
            "state in (WAITING, READY) and site!=lyon",
            "job=j1 and state=WAITING",
            "owner=ada and state=WAITING",
        )
        for text in texts:
            page = journal.find_packages(parse(text), after=None, limit=9)
            assert 90 in [each.row.line for each in page.items], text
        # All are at one site, two are in one state, and the other way round: whichever clause finds fewer is taken.
        few = journal.find_packages(parse("site=lyon and state=READY"), after=None, limit=9)
        assert (few.items, few.more) == ([], False)
        (one,) = journal.find_packages(parse("state in (READY, WAITING) and site=oslo"), after=None, limit=9).items
        assert one.row.line == 110
        journal.purge("j1", at=1.0)
        keep(
            journal,
            [
                *a_short_job("j2", packages=120, stream=by),
                by.event(Aborted(cause="quota"), job="j2", package="1.130.1"),
            ],
        )
        journal.seal("j2")
        (one,) = journal.find_packages(parse("job=j2 and state=ABORTED"), after=None, limit=9).items
        assert one.row.line == 130


def test_events_of_a_large_job_are_read_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotage.adapters.journals.sqlite.reader.FEW_PACKAGES", 3)
    with opened(tmp_path) as journal:
        for job, packages in (("first", 2), ("j1", 5), ("last", 2)):
            keep(journal, a_short_job(job, packages=packages))
        row = journal.job("j1")
        assert row is not None
        found = journal.find_events(EVERYTHING, after=0, limit=99, job=row).items
        assert [(each.job, each.row.position) for each in found] == [("j1", 8 + at) for at in range(1, 18)]


# --- beside the writer ----------------------------------------------------------------------------------------------


def test_a_reader_keeps_its_moment_and_holds_nobody_up(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job("j1"))
        dump = journal.dump("j1")
        first = next(dump)
        keep(journal, [Stream("client", "c").event(Tagged(name="a", value="b"), job="j1")])
        assert len([first, *dump]) == 10  # as it was when the dump began
        assert len(list(journal.dump("j1"))) == 11
        done = threading.Event()

        def read() -> None:
            journal.find_jobs(EVERYTHING, after=None, limit=9)
            done.set()

        with journal.transaction():
            threading.Thread(target=read).start()
            assert done.wait(60)


def test_readers_leave_no_snapshot_behind(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, [*a_short_job("j1", packages=50), *a_short_job("j2")])
        journal.find_packages(parse("owner=ada or job=j1"), after=None, limit=3)
        journal.find_events(parse("position>0"), after=0, limit=3)
        journal.find_jobs(EVERYTHING, after=None, limit=1)
        with closing(sqlite3.connect(tmp_path / BOOK, isolation_level=None)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0


# --- full, and far away ---------------------------------------------------------------------------------------------


def test_a_package_that_has_a_row_cannot_begin_again(tmp_path: Path) -> None:
    begun = BegunLife(1, "lyon", "sim", None, 60.0, None, 5.0, 1, (1.0, 2.0), 0, 1, 1, "s")
    with opened(tmp_path) as journal:
        with journal.transaction() as ledger:
            ledger.write(Changes(begun_packages={(1, 1, 1, 1): begun}))
        second = Changes(begun_packages={(1, 1, 1, 2): begun, (1, 1, 1, 1): begun})
        with pytest.raises(JournalError, match="UNIQUE"), journal.transaction() as ledger:
            ledger.write(second)
        with journal.transaction() as ledger:  # nothing of the second is left, and the book goes on
            assert [found.number for found in ledger.packages_of(1, stage=1)] == [1]


def test_slices_are_forgotten_as_soon_as_no_window_reaches_them(tmp_path: Path) -> None:
    def slices(journal: SqliteJournal, *, now: float) -> list[int]:
        """The fine slices that are kept when one is written now."""
        fine = int(now) // FINE_SECONDS
        row = StatisticRow(width_seconds=FINE_SECONDS, slice=fine, site="", activity="", sketch=b"")
        with journal.transaction() as ledger:
            ledger.write(Changes(received=now, statistics=[row]))
            return [found.slice for found in ledger.find_rows(StatisticRow, having={})]

    start = float(COARSE_SECONDS * 1000)
    last = start + KEPT_SECONDS[FINE_SECONDS] + FINE_SECONDS - 1
    first, other = int(start) // FINE_SECONDS, int(last) // FINE_SECONDS
    with opened(tmp_path) as journal:
        assert slices(journal, now=start) == [first]
        assert slices(journal, now=last) == [first, other]
        assert slices(journal, now=last + 1) == [other, other + 1]
        assert slices(journal, now=last + 2) == [other, other + 1]


def test_old_slices_are_looked_for_once_in_a_slice_and_not_with_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def traced(path: Path, **how: bool) -> sqlite3.Connection:
        connection = connect_writer(path, **how)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(sqlite, "connect_writer", traced)
    start = float(COARSE_SECONDS * 1000)
    looked = []
    with opened(tmp_path) as journal:
        for now in (start, start, start + 1, start + FINE_SECONDS):
            row = StatisticRow(
                width_seconds=FINE_SECONDS, slice=int(now) // FINE_SECONDS, site="", activity="", sketch=b""
            )
            said.clear()
            with journal.transaction() as ledger:
                ledger.write(Changes(received=now, statistics=[row]))
            looked.append(sum(statement.startswith("DELETE FROM statistics") for statement in said))
    assert looked == [len(KEPT_SECONDS), 0, 0, 1]


def test_a_full_disk_keeps_nothing_of_the_batch_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        by = Stream("client", "c")
        keep(journal, a_short_job())
        before = everything(tmp_path)
        keeper = BatchCommitter(journal, clock=StandingClock())
        batch = [by.event(Noted(text="x" * 9000), job="j1", package="1.1.1") for _ in range(40)]
        pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
        journal._writer.execute(f"PRAGMA max_page_count = {pages + 5}")
        with pytest.raises(JournalFull, match="no room left"):
            keeper.take(batch)
        assert everything(tmp_path) == before
        with pytest.raises(JournalFull):
            journal.put_content(b"x" * 900_000)
        assert journal.job("j1") is not None  # reading goes on
        journal._writer.execute("PRAGMA max_page_count = 1000000")
        receipt = keeper.take(batch)
        assert (receipt.kept, receipt.repeated) == (40, 0)
        assert keeper.take(batch).repeated == 40


MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
server:/home /mnt/home nfs4 rw 0 0
/dev/sdb1 /mnt/home/local xfs rw 0 0
fs /mnt/my\040lab lustre rw 0 0
me@host: /mnt/s fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    "folder, kind",
    [
        ("/mnt/home/ada/book", "nfs4"),
        ("/mnt/home", "nfs4"),
        ("/mnt/homes/ada", ""),
        ("/mnt/home/local/book", ""),
        ("/mnt/my lab/x", "lustre"),
        ("/mnt/s/x", "fuse.sshfs"),
        ("/var/book", ""),
    ],
)
def test_network_file_systems_are_known(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert network_kind(Path(folder), mounts=mounts) == kind
    assert network_kind(Path(folder), mounts=tmp_path / "none") == ""


def test_on_a_network_file_system_there_is_a_rollback_journal_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path.resolve()} nfs rw 0 0\n")
    with caplog.at_level(logging.WARNING), opened(tmp_path / "book", mounts=mounts) as journal:
        assert "a network file system (nfs)" in caplog.text
        assert journal._writer.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        keep(journal, a_short_job())
        before = known(journal, "j1")
        journal.seal("j1")
        assert known(journal, "j1") == before
        journal.unseal(["j1"])
        assert known(journal, "j1") == before
    caplog.clear()
    with opened(tmp_path / "other", mounts=tmp_path / "none") as journal:
        assert caplog.text == ""
        assert journal._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
