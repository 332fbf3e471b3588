"""What every storage of job records keeps to."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.records.copies import PackCopies
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.folder import FolderStore
from pilotage.model.records import RECORD_VERSION, Annotation, JobRecord, PartKind, RecordPart
from pilotage.ports.records import DamagedPart, IncompleteRecord, RecordStore, RecordStoreError, RecordTaken

Reopen = Callable[[], RecordStore]


def part(kind: PartKind, name: str, content: bytes) -> RecordPart:
    return RecordPart(kind=kind, name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def record_of(
    job: str,
    *parts: RecordPart,
    revision: int = 1,
    owner: str = "ada",
    submitted_at: float = 100.0,
    state: str = "DONE",
) -> JobRecord:
    return JobRecord(
        version=RECORD_VERSION, job=job, revision=revision, owner=owner, name=job, state=state, made_at=200.0,
        submitted_at=submitted_at, parts=parts,
    )  # fmt: skip


def store_one(store: RecordStore, job: str, *contents: bytes, **about: object) -> JobRecord:
    """A record with some files, committed."""
    store.add_parts(("file", content) for content in contents)
    record = record_of(job, *(part("file", f"f{at}", each) for at, each in enumerate(contents)), **about)  # type: ignore[arg-type]
    store.commit([record])
    return record


@pytest.fixture(params=["folder", "folder with copies"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    opened: list[RecordStore] = []

    def again() -> RecordStore:
        for each in opened:
            each.close()
        copies = PackCopies(FolderStore(), f"file://{tmp_path}/copies") if "copies" in request.param else None
        if copies is not None and opened:  # as on a new computer
            shutil.rmtree(tmp_path / "records")
        opened[:] = [FolderRecords(tmp_path / "records", copies=copies)]
        return opened[0]

    yield again
    for each in opened:
        each.close()


def test_a_record_is_read_as_it_was_committed_by_this_process_and_the_next(reopen: Reopen) -> None:
    store = reopen()
    record = store_one(store, "j1", b"program", b"")
    for _ in range(2):
        assert store.record("j1") == record
        assert [store.content(each.sha256) for each in record.parts] == [b"program", b""]
        assert store.record("j2") is None
        assert [each.change for each in store.changes(after=0, limit=10)] == ["record"]
        assert list(store.check()) == []
        store = reopen()


def test_the_same_content_is_stored_once(reopen: Reopen) -> None:
    store = reopen()
    program = bytes(range(256)) * 400
    digest = part("file", "program", program).sha256
    assert store.missing([digest]) == {digest}
    store_one(store, "j1", program)
    assert store.missing([digest]) == set()
    for number in range(50):
        store_one(store, f"k{number}", program)
    store.delete("j1", at=300.0, author="ada")
    assert store.collect(dry_run=True).part_bytes < len(program)
    store.collect(dry_run=False)
    assert store.content(digest) == program


def test_a_record_without_its_parts_is_refused_and_none_of_its_commit_is_visible(reopen: Reopen) -> None:
    store = reopen()
    whole, lacking = record_of("j1"), record_of("j2", part("file", "f", b"absent"))
    with pytest.raises(IncompleteRecord, match="1 of its parts"):
        store.commit([whole, lacking])
    assert store.record("j1") is None
    assert reopen().changes(after=0, limit=10) == []


def test_committing_again_changes_nothing_and_another_record_is_refused(reopen: Reopen) -> None:
    store = reopen()
    record = store_one(store, "j1", b"one")
    [first] = [each.position for each in store.changes(after=0, limit=10)]
    assert store.commit([record, record]) == [first, first]
    with pytest.raises(RecordTaken):
        store.commit([record_of("j1", state="ABORTED")])
    assert store.record("j1") == record


def test_a_later_revision_is_shown_and_the_earlier_one_stays(reopen: Reopen) -> None:
    store = reopen()
    first = store_one(store, "j1", b"one")
    second = store_one(store, "j1", b"two", revision=2)
    store = reopen()
    assert store.record("j1") == second
    assert store.record("j1", 1) == first
    assert [each.revision for each in store.revisions("j1")] == [1, 2]
    assert [each.revision for each in store.find(owner="ada", submitted_from=0.0, submitted_before=200.0)] == [2]


def test_records_are_found_by_owner_and_time_of_submission(reopen: Reopen) -> None:
    store = reopen()
    for number in range(10):
        store_one(store, f"j{number}", owner="ada" if number % 2 else "emmy", submitted_at=float(number))
    found = store.find(owner="ada", submitted_from=3.0, submitted_before=7.0)
    assert [each.job for each in found] == ["j3", "j5"]


def test_annotations_are_appended_in_order_and_stay(reopen: Reopen) -> None:
    store = reopen()
    with pytest.raises(RecordStoreError, match="no record"):
        store.annotate(Annotation(job="j1", name="a", at=1.0, author="ada", text="x"))
    store_one(store, "j1")
    store.add_parts([("custom", b"a table")])
    made = [
        Annotation(job="j1", name="a", at=1.0, author="ada", text="x"),
        Annotation(job="j1", name="a", at=2.0, author="emmy", text="y"),
        Annotation(job="j1", name="t", at=2.0, author="emmy", part=part("custom", "t.csv", b"a table")),
    ]
    for each in made:
        store.annotate(each)
    store.collect(dry_run=False)
    store = reopen()
    assert store.annotations("j1") == made
    assert [each.change for each in store.changes(after=1, limit=10)] == ["annotation"] * 3
    assert store.content(part("custom", "", b"a table").sha256) == b"a table"


def test_a_deleted_record_is_gone_and_its_job_may_be_recorded_again(reopen: Reopen) -> None:
    store = reopen()
    store_one(store, "j1", b"one")
    assert store.delete("j1", at=1.0, author="ada")
    assert not store.delete("j1", at=1.0, author="ada")
    assert reopen().record("j1") is None
    store = reopen()
    again = store_one(store, "j1", b"two", state="ABORTED")
    for _ in range(2):
        assert store.record("j1") == again
        assert [each.change for each in store.changes(after=0, limit=10)] == ["deletion", "record"]
        store.collect(dry_run=False)
        store = reopen()


def test_collecting_frees_what_nobody_shares_and_a_dry_run_frees_nothing(reopen: Reopen) -> None:
    store = reopen()
    own, shared = b"own" * 1000, b"shared" * 1000
    store_one(store, "j1", own, shared)
    kept = store_one(store, "j2", shared)
    assert store.collect(dry_run=True).parts == 0
    store.delete("j1", at=1.0, author="ada")
    counted = store.collect(dry_run=True)
    assert counted.parts == 2  # its own file, and the record itself
    assert len(own) < counted.part_bytes < len(own) + 1000
    assert store.content(part("file", "", own).sha256) == own
    assert store.collect(dry_run=False).parts == 2
    assert store.collect(dry_run=True).parts == 0
    with pytest.raises(DamagedPart, match="not stored"):
        store.content(part("file", "", own).sha256)
    store = reopen()
    assert store.record("j2") == kept
    assert store.content(part("file", "", shared).sha256) == shared
    assert list(store.check()) == []


def test_parts_of_an_upload_that_is_not_committed_yet_are_not_collected(reopen: Reopen) -> None:
    store = reopen()
    store_one(store, "j1", b"one")
    store.add_parts([("file", b"on its way")])
    store.collect(dry_run=False)
    store.commit([record_of("j2", part("file", "f", b"on its way"))])
    assert reopen().content(part("file", "", b"on its way").sha256) == b"on its way"


def test_hundreds_of_records_train_a_dictionary_and_are_read_with_it(reopen: Reopen) -> None:
    store = reopen()
    logs = [f"job {n} began at {n}, ran program {n % 7} and ended well\n".encode() * (1 + n % 3) for n in range(300)]
    for number, text in enumerate(logs):
        store.add_parts([("life-log", text)])
        store.commit([record_of(f"j{number}", part("life-log", "", text))])
    store = reopen()
    assert [store.content(part("life-log", "", text).sha256) for text in logs] == logs
    assert list(store.check()) == []


def test_the_newest_record_of_a_name_is_found_by_the_name_that_it_states(reopen: Reopen) -> None:
    store = reopen()
    for job, name, at in (
        ("a-1", "a", 1.0),
        ("a-3", "a", 3.0),
        ("a-2", "a", 2.0),
        ("a-b-1", "a-b", 9.0),
        ("b-1", "b", 9.0),
    ):
        store.commit([msgspec.structs.replace(record_of(job, submitted_at=at), name=name)])
    for _ in range(2):
        found = [store.newest(name) for name in ("a", "a-b", "b", "c", "")]
        assert [each and each.job for each in found] == ["a-3", "a-b-1", "b-1", None, None]
        older = store.newest("a", readable=lambda record: record.job != "a-3")
        assert older is not None
        assert older.job == "a-2"
        store = reopen()
