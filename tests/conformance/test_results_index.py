"""What the index of results promises: what was made is found again, and files are ours or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import MeasuredRun, ResultsIndex, RunKind, StoreError
from pilotage.ports.results_index import RUNS_KEPT
from tests.kit.made_work import FOLDER, made, seen, sha


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ResultsIndex]:
    """An empty index."""
    made = SqliteResultsIndex(WorkDatabase(tmp_path))
    yield made
    made.close()


def test_what_was_made_is_found_by_its_key_in_its_folder(index: ResultsIndex) -> None:
    index.keep([made(1), made(2, place="1.2.1")])
    assert index.find(FOLDER, [sha(1), sha(2), sha(3)]) == {sha(1): made(1), sha(2): made(2, place="1.2.1")}
    assert index.find("/elsewhere", [sha(1)]) == {}


def test_many_keys_are_one_question(index: ResultsIndex) -> None:
    index.keep([made(number, place=f"1.{number}.1") for number in range(1, 2001)])
    assert len(index.find(FOLDER, [sha(number) for number in range(3000)])) == 2000


def test_a_folder_is_known_when_something_was_made_there(index: ResultsIndex) -> None:
    index.saw(FOLDER, [seen("a", 1)], made=False)
    assert not index.knows(FOLDER)
    index.keep([made(1)])
    assert index.knows(FOLDER)
    assert not index.knows("/elsewhere")


def test_files_of_a_folder_are_known_when_one_was_made_there(index: ResultsIndex) -> None:
    assert not index.knows_files(FOLDER)
    index.saw(FOLDER, [seen("a", 1)], made=False)
    index.keep([msgspec.structs.replace(made(1), manifest=())])
    assert not index.knows_files(FOLDER)
    index.keep([made(2)])
    assert index.knows_files(FOLDER)
    assert not index.knows_files("/elsewhere")


def test_the_latest_of_a_document_at_a_place_is_told(index: ResultsIndex) -> None:
    index.keep([made(1, argv="old")])
    index.keep([made(2, argv="new"), made(3, argv="other", document="another")])
    assert index.latest(FOLDER, "d", ["1.1.1", "1.2.1"]) == {"1.1.1": made(2, argv="new").fields}
    index.keep([made(1, argv="old")])
    assert index.latest(FOLDER, "d", ["1.1.1"])["1.1.1"].argv == "old"
    assert index.latest("/elsewhere", "d", ["1.1.1"]) == {}


def test_the_files_of_what_was_made_are_ours(index: ResultsIndex) -> None:
    index.keep([made(1, names=("a", "b"))])
    assert index.makers(FOLDER, ["a", "c"]) == {"a": (OutputFile(name="a", size_bytes=1, sha256=sha(1)),)}
    assert index.makers("/elsewhere", ["a"]) == {}


def test_a_file_that_was_seen_is_not_ours_by_that(index: ResultsIndex) -> None:
    index.saw(FOLDER, [seen("a", 1)], made=False)
    index.saw(FOLDER, [seen("b", 2)], made=True)
    assert set(index.makers(FOLDER, ["a", "b"])) == {"b"}
    assert index.known_files(FOLDER, ["a", "b", "c"]) == {"a": seen("a", 1), "b": seen("b", 2)}


def test_every_content_that_was_made_under_a_name_stays_ours(index: ResultsIndex) -> None:
    index.saw(FOLDER, [seen("out", 1)], made=True)
    index.keep([made(2)])
    index.saw(FOLDER, [seen("out", 3)], made=False)
    assert [file.sha256 for file in index.makers(FOLDER, ["out"])["out"]] == [sha(1), sha(2)]


def test_of_a_file_the_last_that_was_seen_is_remembered(index: ResultsIndex) -> None:
    index.saw(FOLDER, [seen("out", 1)], made=True)
    index.saw(FOLDER, [seen("out", 2, modified_ns=6)], made=False)
    index.keep([made(1)])
    assert index.known_files(FOLDER, ["out"]) == {"out": seen("out", 2, modified_ns=6)}


def test_everything_that_was_made_in_a_folder_is_told_with_who_made_it_last(
    index: ResultsIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.adapters.stores.results_index._PAGE", 2)
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


def test_the_mean_time_of_an_activity_is_over_all_earlier_runs(index: ResultsIndex) -> None:
    index.note_times(FOLDER, "d", {"reco": (2, 10.0), "merge": (1, 3.0)})
    index.note_times(FOLDER, "d", {"reco": (2, 30.0)})
    assert index.mean_seconds(FOLDER, "d") == {"reco": 10.0, "merge": 3.0}
    assert index.mean_seconds(FOLDER, "another") == {}


def test_a_batch_with_a_fault_leaves_nothing_behind(index: ResultsIndex) -> None:
    with pytest.raises(StoreError):
        index.keep([made(1), made(2, place="nowhere")])
    assert index.find(FOLDER, [sha(1)]) == {}
    index.keep([made(1)])
    assert index.find(FOLDER, [sha(1)]) == {sha(1): made(1)}


def test_what_was_made_is_ours_when_it_is_seen_whatever_became_of_keeping_it(index: ResultsIndex) -> None:
    with pytest.raises(StoreError):
        index.keep([made(1), made(2, place="nowhere")])
    index.saw(FOLDER, [seen("out", 1)], made=True)
    assert [each.sha256 for each in index.makers(FOLDER, ["out"])["out"]] == [sha(1)]
    index.keep([made(3)])
    index.saw(FOLDER, [seen("out", 3)], made=True)
    index.saw(FOLDER, [seen("out", 4)], made=True)  # as somebody else has made it meanwhile
    assert {each.sha256 for each in index.makers(FOLDER, ["out"])["out"]} == {sha(1), sha(3), sha(4)}
    assert index.known_files(FOLDER, ["out"])["out"].sha256 == sha(4)


def test_the_job_that_made_a_content_last_is_known_by_it(index: ResultsIndex) -> None:
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


def test_what_a_job_was_granted_is_ours_once_it_is_claimed(index: ResultsIndex) -> None:
    index.claim(FOLDER, "job-1", made(1).manifest)
    index.claim(FOLDER, "job-2", made(1).manifest)
    assert index.makers(FOLDER, ["out"]) == {"out": made(1).manifest}
    assert index.maker(FOLDER, "out", sha256=sha(1)) == "job-2"


def test_a_content_that_was_disposed_of_is_known_until_it_is_made_again(index: ResultsIndex) -> None:
    index.keep([made(1)])
    files = made(1).manifest
    index.note_disposed(FOLDER, files)
    index.note_disposed(FOLDER, files)
    names = [file.name for file in files]
    assert index.disposed(FOLDER, [*names, "other"]) == {file.name: {file.sha256} for file in files}
    assert index.disposed("/elsewhere", names) == {}
    index.keep([made(2)])
    index.keep([made(1)])
    assert index.disposed(FOLDER, names) == {}


def measured(seconds: float, *, input_bytes: int | None = 1000) -> MeasuredRun:
    return MeasuredRun(seconds=seconds, input_bytes=input_bytes, output_bytes=10, scratch_bytes=1010, memory_bytes=None)


RECO = RunKind("reco", "")
ALIGN = RunKind("align", "align/2.1")


def test_runs_are_told_by_document_and_kind_and_those_of_a_software_in_any_document(index: ResultsIndex) -> None:
    index.note_runs(FOLDER, "d", {RECO: [measured(1.0)], ALIGN: [measured(2.0), measured(3.0, input_bytes=None)]})
    index.note_runs("/elsewhere", "e", {ALIGN: [measured(4.0)], RunKind("align", "align/2.0"): [measured(5.0)]})
    assert index.runs(FOLDER, "d", RECO) == [measured(1.0)]
    assert index.runs(FOLDER, "d", ALIGN) == [measured(2.0), measured(3.0, input_bytes=None)]
    assert index.runs("/elsewhere", "d", ALIGN) == []
    assert [each.seconds for each in index.software_runs("align/2.1")] == [2.0, 3.0, 4.0]
    assert index.software_runs("") == []


def test_the_latest_runs_of_each_size_are_kept(index: ResultsIndex) -> None:
    index.note_runs(FOLDER, "d", {RECO: [measured(0.5, input_bytes=2**30)]})
    for start in (0, 20):
        index.note_runs(FOLDER, "d", {RECO: [measured(float(each)) for each in range(start, start + 20)]})
    index.note_runs(FOLDER, "d", {ALIGN: [measured(99.0)]})
    found = [each.seconds for each in index.runs(FOLDER, "d", RECO)]
    assert found == [0.5, *map(float, range(40 - RUNS_KEPT, 40))]
