"""What the index of earlier work promises: what was made is found again, files are ours or not, and logs are kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.adapters.stores.work_index import DAMAGED, FILE, SqliteWorkIndex
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.ports import MadeWork, SeenFile, StoredFile, StoreError, WorkFields, WorkIndex

FOLDER = "/data"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[WorkIndex]:
    """An empty index."""
    made = SqliteWorkIndex(tmp_path)
    yield made
    made.close()


def sha(number: int) -> str:
    return f"{number:064x}"


def made(
    number: int, *, place: str = "1.1.1", argv: str = "a", names: tuple[str, ...] = ("out",), document: str = "d"
) -> MadeWork:
    return MadeWork(
        key=sha(number),
        fields=WorkFields(argv=argv, software="s", environment="e", outputs="o", inputs={"in": sha(9)}),
        folder=FOLDER,
        document=document,
        ref=AttemptRef(f"job-{number}", place, number),
        manifest=tuple(OutputFile(name=name, size_bytes=number, sha256=sha(number)) for name in names),
    )


def seen(name: str, number: int, *, modified_ns: int = 5) -> SeenFile:
    file = StoredFile(name=name, size_bytes=number, modified_ns=modified_ns, inode=2**64 - 1)
    return SeenFile(file=file, sha256=sha(number))


def log(attempt: int, stream: str, head: str, *, package: str = "1.1.1", job: str = "j") -> LogText:
    return LogText(ref=AttemptRef(job, package, attempt), stream=stream, head=head)


def test_what_was_made_is_found_by_its_key_in_its_folder(index: WorkIndex) -> None:
    index.keep([made(1), made(2, place="1.2.1")])
    assert index.find(FOLDER, [sha(1), sha(2), sha(3)]) == {sha(1): made(1), sha(2): made(2, place="1.2.1")}
    assert index.find("/elsewhere", [sha(1)]) == {}


def test_many_keys_are_one_question(index: WorkIndex) -> None:
    index.keep([made(number, place=f"1.{number}.1") for number in range(1, 2001)])
    assert len(index.find(FOLDER, [sha(number) for number in range(3000)])) == 2000


def test_a_folder_is_known_when_something_was_made_there(index: WorkIndex) -> None:
    index.saw(FOLDER, [seen("a", 1)], made=False)
    assert not index.knows(FOLDER)
    index.keep([made(1)])
    assert index.knows(FOLDER)
    assert not index.knows("/elsewhere")


def test_files_of_a_folder_are_known_when_one_was_made_there(index: WorkIndex) -> None:
    assert not index.knows_files(FOLDER)
    index.saw(FOLDER, [seen("a", 1)], made=False)
    index.keep([msgspec.structs.replace(made(1), manifest=())])
    assert not index.knows_files(FOLDER)
    index.keep([made(2)])
    assert index.knows_files(FOLDER)
    assert not index.knows_files("/elsewhere")


def test_the_latest_of_a_document_at_a_place_is_told(index: WorkIndex) -> None:
    index.keep([made(1, argv="old")])
    index.keep([made(2, argv="new"), made(3, argv="other", document="another")])
    assert index.latest(FOLDER, "d", ["1.1.1", "1.2.1"]) == {"1.1.1": made(2, argv="new").fields}
    index.keep([made(1, argv="old")])
    assert index.latest(FOLDER, "d", ["1.1.1"])["1.1.1"].argv == "old"
    assert index.latest("/elsewhere", "d", ["1.1.1"]) == {}


def test_the_files_of_what_was_made_are_ours(index: WorkIndex) -> None:
    index.keep([made(1, names=("a", "b"))])
    assert index.makers(FOLDER, ["a", "c"]) == {"a": (OutputFile(name="a", size_bytes=1, sha256=sha(1)),)}
    assert index.makers("/elsewhere", ["a"]) == {}


def test_a_file_that_was_seen_is_not_ours_by_that(index: WorkIndex) -> None:
    index.saw(FOLDER, [seen("a", 1)], made=False)
    index.saw(FOLDER, [seen("b", 2)], made=True)
    assert set(index.makers(FOLDER, ["a", "b"])) == {"b"}
    assert index.seen(FOLDER, ["a", "b", "c"]) == {"a": seen("a", 1), "b": seen("b", 2)}


def test_every_content_that_was_made_under_a_name_stays_ours(index: WorkIndex) -> None:
    index.saw(FOLDER, [seen("out", 1)], made=True)
    index.keep([made(2)])
    index.saw(FOLDER, [seen("out", 3)], made=False)
    assert [file.sha256 for file in index.makers(FOLDER, ["out"])["out"]] == [sha(1), sha(2)]


def test_of_a_file_the_last_that_was_seen_is_remembered(index: WorkIndex) -> None:
    index.saw(FOLDER, [seen("out", 1)], made=True)
    index.saw(FOLDER, [seen("out", 2, modified_ns=6)], made=False)
    index.keep([made(1)])
    assert index.seen(FOLDER, ["out"]) == {"out": seen("out", 2, modified_ns=6)}


def test_everything_that_was_made_in_a_folder_is_told_with_who_made_it_last(
    index: WorkIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.adapters.stores.work_index._PAGE", 2)
    index.keep([made(1, names=("b", "a")), made(2, names=("a", "c"))])
    index.claim(FOLDER, "later", [OutputFile(name="c", size_bytes=2, sha256=sha(2))])
    index.claim("/elsewhere", "x", [OutputFile(name="d", size_bytes=1, sha256=sha(1))])
    index.saw(FOLDER, [seen("e", 3)], made=True)
    index.saw(FOLDER, [seen("f", 3)], made=False)
    told = [(each.file.name, each.file.size_bytes, each.file.sha256, each.job) for each in index.made_files(FOLDER)]
    assert told == [
        ("a", 1, sha(1), "job-1"),
        ("a", 2, sha(2), "job-2"),
        ("b", 1, sha(1), "job-1"),
        ("c", 2, sha(2), "later"),
        ("e", 3, sha(3), ""),
    ]
    assert list(index.made_files("/unknown")) == []


def test_the_mean_time_of_an_activity_is_over_all_earlier_runs(index: WorkIndex) -> None:
    index.note_times(FOLDER, "d", {"reco": (2, 10.0), "merge": (1, 3.0)})
    index.note_times(FOLDER, "d", {"reco": (2, 30.0)})
    assert index.mean_seconds(FOLDER, "d") == {"reco": 10.0, "merge": 3.0}
    assert index.mean_seconds(FOLDER, "another") == {}


def test_logs_come_back_in_order_and_the_later_text_replaces_the_earlier(index: WorkIndex) -> None:
    index.put_logs([log(2, "stdout", "second"), log(1, "stderr", "bad"), log(1, "stdout", "half")])
    index.put_logs([log(1, "stdout", "whole"), log(1, "stdout", "x", package="1.1.2"), log(1, "stdout", "y", job="k")])
    assert [(each.ref.attempt, each.stream, each.head) for each in index.logs("j", "1.1.1")] == [
        (1, "stdout", "whole"),
        (1, "stderr", "bad"),
        (2, "stdout", "second"),
    ]
    assert index.logs("unknown", "1.1.1") == []


def test_the_logs_of_a_job_are_forgotten_alone(index: WorkIndex) -> None:
    index.put_logs([log(1, "stdout", "x"), log(1, "stdout", "y", job="k")])
    index.forget("j")
    index.forget("unknown")
    assert index.logs("j", "1.1.1") == []
    assert len(index.logs("k", "1.1.1")) == 1


def test_any_text_of_a_log_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    index = SqliteWorkIndex(tmp_path_factory.mktemp("state"))

    @given(head=st.text(max_size=600), tail=st.text(max_size=20), dropped=st.integers(0, 2**40), final=st.booleans())
    def holds(head: str, tail: str, dropped: int, *, final: bool) -> None:
        told = LogText(
            ref=AttemptRef("j", "1.1.1", 1), stream="stdout", head=head, tail=tail, dropped_bytes=dropped, final=final
        )
        index.put_logs([told])
        assert index.logs("j", "1.1.1") == [told]

    holds()
    index.put_logs([log(1, "stdout", "a\0b\udc80")])
    assert index.logs("j", "1.1.1")[0].head == "a\0b\udc80"
    index.close()


def test_everything_is_there_after_it_was_closed(tmp_path: Path) -> None:
    index = SqliteWorkIndex(tmp_path)
    index.keep([made(1)])
    index.close()
    again = SqliteWorkIndex(tmp_path)
    assert again.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_a_batch_with_a_fault_leaves_nothing_behind(index: WorkIndex) -> None:
    with pytest.raises(StoreError):
        index.keep([made(1), made(2, place="nowhere")])
    assert index.find(FOLDER, [sha(1)]) == {}
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}


def test_what_was_made_is_ours_when_it_is_seen_whatever_became_of_keeping_it(index: WorkIndex) -> None:
    with pytest.raises(StoreError):
        index.keep([made(1), made(2, place="nowhere")])
    index.saw(FOLDER, [seen("out", 1)], made=True)
    assert [each.sha256 for each in index.makers(FOLDER, ["out"])["out"]] == [sha(1)]
    index.keep([made(3)])
    index.saw(FOLDER, [seen("out", 3)], made=True)
    index.saw(FOLDER, [seen("out", 4)], made=True)  # as somebody else has made it meanwhile
    assert {each.sha256 for each in index.makers(FOLDER, ["out"])["out"]} == {sha(1), sha(3), sha(4)}
    assert index.seen(FOLDER, ["out"])["out"].sha256 == sha(4)


def test_a_network_file_system_gets_a_rollback_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    state = tmp_path / "state"
    index = SqliteWorkIndex(state, mounts=mounts)
    index.keep([made(1)])
    assert sorted(path.name for path in state.iterdir()) == [FILE]  # no shared memory beside it
    assert "rollback journal" in caplog.text
    index.close()


def test_the_job_that_made_a_content_last_is_known_by_it(index: WorkIndex) -> None:
    index.keep([made(1), made(2)])
    assert [index.maker(FOLDER, "out", sha256=sha(number)) for number in (1, 2, 3)] == ["job-1", "job-2", ""]
    assert index.maker("/elsewhere", "out", sha256=sha(1)) == ""
    assert index.maker(FOLDER, "other", sha256=sha(1)) == ""
    index.saw(FOLDER, [seen("out", 1), seen("seen", 4)], made=True)
    assert index.maker(FOLDER, "out", sha256=sha(1)) == "job-1"
    assert index.maker(FOLDER, "seen", sha256=sha(4)) == ""
    again = made(1)
    index.keep([msgspec.structs.replace(again, ref=AttemptRef("job-9", "1.1.1", 1))])
    assert index.maker(FOLDER, "out", sha256=sha(1)) == "job-9"


OLDER = {
    2: "ALTER TABLE files DROP COLUMN changed_ns; DROP TABLE folders;",
    1: "ALTER TABLE files DROP COLUMN changed_ns; DROP TABLE folders; ALTER TABLE ours DROP COLUMN job;",
}
"""What the tables of this version have and those of earlier ones had not."""


@pytest.mark.parametrize("version", OLDER)
def test_an_index_of_a_version_before_is_used_as_it_is(tmp_path: Path, version: int) -> None:
    first = SqliteWorkIndex(tmp_path)
    first.keep([made(1)])
    first.saw(FOLDER, [seen("in", 5)], made=False)
    first.close()
    book = sqlite3.connect(tmp_path / FILE)
    book.executescript(f"{OLDER[version]} PRAGMA user_version = {version};")
    book.close()
    for number in (2, 3):  # and once more when it is of this version
        index = SqliteWorkIndex(tmp_path)
        index.keep([made(number)])
        assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
        assert {file.sha256 for file in index.makers(FOLDER, ["out"])["out"]} >= {sha(1), sha(number)}
        makers = (index.maker(FOLDER, "out", sha256=sha(1)), index.maker(FOLDER, "out", sha256=sha(2)))
        assert makers == ("" if version == 1 else "job-1", "job-2")
        assert index.seen(FOLDER, ["in"])["in"].file.changed_ns == 0  # it was not known
        index.close()


def test_until_when_a_folder_was_used_is_known_at_once_and_to_who_opens_the_index_later(tmp_path: Path) -> None:
    for until_ns in (5_000, 7_000):
        index = SqliteWorkIndex(tmp_path)
        index.saw(FOLDER, [seen("in", 5)], made=False)
        index.used(FOLDER, until_ns=until_ns)
        assert index.seen(FOLDER, ["in"])["in"].used_ns == until_ns
        index.close()
        index = SqliteWorkIndex(tmp_path)
        assert index.seen(FOLDER, ["in"])["in"].used_ns == until_ns
        index.close()


def test_an_index_of_a_later_version_is_told_and_left_alone(tmp_path: Path) -> None:
    SqliteWorkIndex(tmp_path).close()
    book = sqlite3.connect(tmp_path / FILE)
    book.execute("PRAGMA user_version = 99")
    book.close()
    with pytest.raises(StoreError, match="later version"):
        SqliteWorkIndex(tmp_path)


def damage(path: Path) -> None:
    """Cut a file off in its midst, and write over what is left behind its first page."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
        file.seek(4096)
        file.write(b"x" * (path.stat().st_size - 4096))


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_a_damaged_index_is_set_aside_and_begun_anew(tmp_path: Path, content: bytes | None) -> None:
    before = SqliteWorkIndex(tmp_path)
    before.keep([made(number) for number in range(1, 200)])
    before.close()
    if content is None:
        damage(tmp_path / FILE)
    else:
        (tmp_path / FILE).write_bytes(content)
    index = SqliteWorkIndex(tmp_path)
    assert index.find(FOLDER, [sha(1)]) == {}
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    index.close()
    assert (tmp_path / DAMAGED).exists() == (content != b"")


def test_an_index_that_is_damaged_while_it_is_used_costs_what_it_knew_and_nothing_else(tmp_path: Path) -> None:
    SqliteWorkIndex(tmp_path).close()
    index = SqliteWorkIndex(tmp_path)
    index.keep([made(number, names=(f"out-{number}",)) for number in range(1, 2000)])
    index.put_logs([log(1, "stdout", "said")])
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(tmp_path / FILE)
    index._book.execute("PRAGMA cache_size = 1")  # what it remembers of its pages is no proof
    assert index.makers(FOLDER, [f"out-{number}" for number in range(1, 2000)]) == {}
    assert index.beginnings == 1
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}
    assert index.logs("j", "1.1.1") == []
    index.close()


def test_what_a_job_was_granted_is_ours_once_it_is_claimed(index: WorkIndex) -> None:
    index.claim(FOLDER, "job-1", made(1).manifest)
    index.claim(FOLDER, "job-2", made(1).manifest)
    assert index.makers(FOLDER, ["out"]) == {"out": made(1).manifest}
    assert index.maker(FOLDER, "out", sha256=sha(1)) == "job-2"
