"""The SQLite file of the index of results and of the logs: versions, damage, network file systems, and who closes it."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import DAMAGED, FILE, WorkDatabase
from pilotage.ports import StoreError
from tests.kit.made_work import FOLDER, log, made, seen, sha


def test_everything_is_there_after_it_was_closed(tmp_path: Path) -> None:
    index = SqliteResultsIndex(WorkDatabase(tmp_path))
    index.keep([made(1)])
    index.close()
    again = SqliteResultsIndex(WorkDatabase(tmp_path))
    assert again.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_another_file_system_gets_a_write_ahead_log(tmp_path: Path) -> None:
    index = SqliteResultsIndex(WorkDatabase(tmp_path))
    index.keep([made(1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}-shm", f"{FILE}-wal"]
    index.close()


def test_a_network_file_system_gets_a_rollback_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    state = tmp_path / "state"
    index = SqliteResultsIndex(WorkDatabase(state, mounts=mounts))
    index.keep([made(1)])
    assert sorted(path.name for path in state.iterdir()) == [FILE]  # no shared memory beside it
    assert "rollback journal" in caplog.text
    index.close()


OLDER = {
    2: "ALTER TABLE files DROP COLUMN changed_ns; DROP TABLE folders;",
    1: "ALTER TABLE files DROP COLUMN changed_ns; DROP TABLE folders; ALTER TABLE ours DROP COLUMN job;",
}
"""What the tables of this version have and those of earlier ones had not."""


@pytest.mark.parametrize("version", OLDER)
def test_an_index_of_a_version_before_is_used_as_it_is(tmp_path: Path, version: int) -> None:
    first = SqliteResultsIndex(WorkDatabase(tmp_path))
    first.keep([made(1)])
    first.saw(FOLDER, [seen("in", 5)], made=False)
    first.close()
    book = sqlite3.connect(tmp_path / FILE)
    book.executescript(f"{OLDER[version]} PRAGMA user_version = {version};")
    book.close()
    for number in (2, 3):  # and once more when it is of this version
        index = SqliteResultsIndex(WorkDatabase(tmp_path))
        index.keep([made(number)])
        assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
        assert {file.sha256 for file in index.makers(FOLDER, ["out"])["out"]} >= {sha(1), sha(number)}
        makers = (index.maker(FOLDER, "out", sha256=sha(1)), index.maker(FOLDER, "out", sha256=sha(2)))
        assert makers == ("" if version == 1 else "job-1", "job-2")
        assert index.known_files(FOLDER, ["in"])["in"].file.changed_ns == 0  # it was not known
        index.close()


def test_until_when_a_folder_was_used_is_known_at_once_and_to_who_opens_the_index_later(tmp_path: Path) -> None:
    for until_ns in (5_000, 7_000):
        index = SqliteResultsIndex(WorkDatabase(tmp_path))
        index.saw(FOLDER, [seen("in", 5)], made=False)
        index.used(FOLDER, until_ns=until_ns)
        assert index.known_files(FOLDER, ["in"])["in"].used_ns == until_ns
        index.close()
        index = SqliteResultsIndex(WorkDatabase(tmp_path))
        assert index.known_files(FOLDER, ["in"])["in"].used_ns == until_ns
        index.close()


def test_an_index_of_a_later_version_is_told_and_left_alone(tmp_path: Path) -> None:
    SqliteResultsIndex(WorkDatabase(tmp_path)).close()
    book = sqlite3.connect(tmp_path / FILE)
    book.execute("PRAGMA user_version = 99")
    book.close()
    with pytest.raises(StoreError, match="later version"):
        SqliteResultsIndex(WorkDatabase(tmp_path))


def damage(path: Path) -> None:
    """Cut a file off in its midst, and write over what is left behind its first page."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
        file.seek(4096)
        file.write(b"x" * (path.stat().st_size - 4096))


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_a_damaged_index_is_set_aside_and_begun_anew(tmp_path: Path, content: bytes | None) -> None:
    before = SqliteResultsIndex(WorkDatabase(tmp_path))
    before.keep([made(number) for number in range(1, 200)])
    before.close()
    if content is None:
        damage(tmp_path / FILE)
    else:
        (tmp_path / FILE).write_bytes(content)
    index = SqliteResultsIndex(WorkDatabase(tmp_path))
    assert index.find(FOLDER, [sha(1)]) == {}
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    index.close()
    assert (tmp_path / DAMAGED).exists() == (content != b"")


def test_an_index_that_is_damaged_while_it_is_used_costs_what_it_knew_and_nothing_else(tmp_path: Path) -> None:
    SqliteResultsIndex(WorkDatabase(tmp_path)).close()
    database = WorkDatabase(tmp_path)
    index, logs = SqliteResultsIndex(database), SqliteLogs(database)
    index.keep([made(number, names=(f"out-{number}",)) for number in range(1, 2000)])
    logs.put([log(1, "stdout", "said")])
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(tmp_path / FILE)
    database._book.execute("PRAGMA cache_size = 1")  # what it remembers of its pages is no proof
    assert index.makers(FOLDER, [f"out-{number}" for number in range(1, 2000)]) == {}
    assert index.beginnings == 1
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    assert logs.read("j", "1.1.1") == []
    index.close()
    logs.close()


def test_damage_that_two_threads_meet_at_once_is_set_aside_once(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    class Met(WorkDatabase):
        """Begins anew when both threads have met the damage."""

        def begin_anew(self, damage: StoreError, *, beginning: int) -> None:
            both.wait(60)
            super().begin_anew(damage, beginning=beginning)

    database = Met(tmp_path)
    index, logs = SqliteResultsIndex(database), SqliteLogs(database)
    names = [f"out-{number}" for number in range(1, 2000)]
    index.keep([made(number, names=(name,)) for number, name in enumerate(names, start=1)])
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(tmp_path / FILE)
    damaged = (tmp_path / FILE).read_bytes()
    database._book.execute("PRAGMA cache_size = 1")  # what it remembers of its pages is no proof
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(index.makers, FOLDER, names) for _ in range(2)]
        assert [each.result() for each in answers] == [{}, {}]
    assert database.beginnings == 1
    assert (tmp_path / DAMAGED).read_bytes() == damaged
    index.close()
    logs.close()


@pytest.mark.parametrize("first", ["index", "logs"])
def test_it_is_open_until_both_the_index_and_the_logs_are_closed(tmp_path: Path, first: str) -> None:
    database = WorkDatabase(tmp_path)
    index, logs = SqliteResultsIndex(database), SqliteLogs(database)
    if first == "index":
        index.close()
        logs.put([log(1, "stdout", "said")])
        assert len(logs.read("j", "1.1.1")) == 1
        logs.close()
    else:
        logs.close()
        index.keep([made(1)])
        assert index.knows(FOLDER)
        index.close()
    with pytest.raises(StoreError, match="closed"):
        index.knows(FOLDER)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]  # what was written lies there, not beside it


def test_what_was_kept_in_a_damaged_database_is_ours_again_when_it_is_seen(tmp_path: Path) -> None:
    database = WorkDatabase(tmp_path)
    index, logs = SqliteResultsIndex(database), SqliteLogs(database)
    index.keep([made(1)])
    database.begin_anew(StoreError("it is damaged"), beginning=0)  # as the logs may have found it to be
    index.saw(FOLDER, [seen("out", 1)], made=True)
    assert set(index.makers(FOLDER, ["out"])) == {"out"}
    index.close()
    logs.close()
