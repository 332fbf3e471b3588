"""A folder of records after damage and crashes: every flipped byte is found, and nothing half-written is visible."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.adapters.records import folder as folder_module
from pilotage.adapters.records import packs as packs_module
from pilotage.adapters.records.blocks import PACK_HEAD_BYTES
from pilotage.adapters.records.folder import FolderRecords
from pilotage.ports.records import DamagedPart, RecordStoreError
from tests.conformance.records.test_record_store import part, record_of, store_one

PACK = "packs/000001.pack"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


def opened(folder: Path) -> FolderRecords:
    return FolderRecords(folder)


def test_a_flipped_byte_anywhere_in_a_pack_is_found_and_whose_record_it_is(folder: Path) -> None:
    store = opened(folder)
    store_one(store, "j1", b"the program" * 20, b"an input")
    store_one(store, "j2", b"another program" * 20)
    store.close()
    pack = folder / PACK
    whole = pack.read_bytes()
    silent, unnamed = [], []
    for place in range(len(whole)):
        pack.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        reader = FolderRecords(folder, writes=False)
        found = list(reader.check())
        reader.close()
        if not found:
            silent.append(place)
        if place >= PACK_HEAD_BYTES and not any(each.jobs for each in found):
            unnamed.append(place)  # a copy of the key is nobody's
    assert silent == []
    assert unnamed == []


def test_a_damaged_part_is_refused_when_it_is_read_and_the_others_are_not(folder: Path) -> None:
    store = opened(folder)
    first = store_one(store, "j1", b"the program" * 20)
    second = store_one(store, "j2", b"another" * 20)
    store.close()
    pack = folder / PACK
    content = bytearray(pack.read_bytes())
    content[PACK_HEAD_BYTES + 60] ^= 1
    pack.write_bytes(content)
    store = opened(folder)
    with pytest.raises(DamagedPart):
        store.content(first.parts[0].sha256)
    assert store.content(second.parts[0].sha256) == b"another" * 20
    store.close()


def test_wherever_a_crash_cuts_off_a_commit_it_is_whole_or_not_there(folder: Path, tmp_path: Path) -> None:
    store = opened(folder)
    first = store_one(store, "j1", b"the program" * 20)
    store.close()
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    start = (folder / PACK).stat().st_size
    store = opened(folder)
    second = store_one(store, "j2", b"another" * 20, b"more of it" * 3)
    store.close()
    whole = (folder / PACK).read_bytes()
    seen = set()
    for cut in range(start, len(whole) + 1):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(before, copy)
        (copy / PACK).write_bytes(whole[:cut])
        store = opened(copy)
        assert store.record("j1") == first
        found = store.record("j2")
        seen.add(found is not None)
        if found is not None:
            assert found == second
            assert [len(store.content(each.sha256)) for each in found.parts] == [140, 30]
        else:
            store_one(store, "j2", b"another" * 20, b"more of it" * 3)
            assert store.record("j2") == second
        assert list(store.check()) == []
        store.close()
    assert seen == {True, False}


def test_a_lost_or_damaged_catalogue_is_made_again(folder: Path) -> None:
    store = opened(folder)
    records = [store_one(store, f"j{number}", f"file {number}".encode()) for number in range(5)]
    store.delete("j1", at=1.0, author="ada")
    again = store_one(store, "j1", b"again", state="ABORTED")
    changes = store.changes(after=0, limit=100)
    store.close()
    catalogue = folder / "catalogue.sqlite"
    for damage in ("lost", "damaged"):
        for each in folder.glob("catalogue.sqlite*"):
            each.unlink()
        if damage == "damaged":
            catalogue.write_bytes(b"this is no database" * 1000)
        store = opened(folder)
        assert store.changes(after=0, limit=100) == changes
        assert store.record("j1") == again
        assert store.record("j2") == records[2]
        assert list(store.check()) == []
        store.close()


def test_what_the_catalogue_lost_is_found(folder: Path) -> None:
    store = opened(folder)
    store_one(store, "j1", b"one")
    store_one(store, "j2", b"two")
    store.close()
    connection = sqlite3.connect(folder / "catalogue.sqlite")
    connection.execute("DELETE FROM records WHERE job = 'j1'")
    connection.execute("DELETE FROM parts WHERE size_bytes = 3")
    connection.commit()
    connection.close()
    reader = FolderRecords(folder, writes=False)
    found = {(each.place, each.what, each.jobs) for each in reader.check()}
    assert ("catalogue.sqlite", "it is not catalogued", ("j2",)) in found
    assert any("the record at position 1 is missing" in what for _, what, _ in found)
    reader.close()


def test_one_process_writes_and_others_read(folder: Path) -> None:
    store = opened(folder)
    record = store_one(store, "j1", b"one")
    reader = FolderRecords(folder, writes=False)
    assert reader.record("j1") == record
    with pytest.raises(RecordStoreError, match="another process writes there"):
        opened(folder)
    kept = store_one(store, "j2", b"two")
    store.delete("j1", at=1.0, author="ada")
    store.collect(dry_run=False)
    assert reader.record("j2") == kept
    assert reader.content(kept.parts[0].sha256) == b"two"
    reader.close()
    store.close()
    with pytest.raises(RecordStoreError, match="there are no records"):
        FolderRecords(folder / "elsewhere", writes=False)


def test_a_full_disk_leaves_the_pack_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(folder)
    first = store_one(store, "j1", b"one")
    size = (folder / PACK).stat().st_size
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "pwrite", full)
        with pytest.raises(RecordStoreError, match="No space left"):
            store_one(store, "j2", b"two")
    assert (folder / PACK).stat().st_size == size
    second = store_one(store, "j2", b"two")
    assert [store.record("j1"), store.record("j2")] == [first, second]
    store.close()


def test_after_a_fault_of_the_disk_nothing_more_is_written_until_it_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder)
    first = store_one(store, "j1", b"one")
    with monkeypatch.context() as patch:

        def broken(_: int) -> None:
            raise OSError(5, "Input/output error")

        patch.setattr(os, "fsync", broken)
        with pytest.raises(RecordStoreError, match="Input/output error"):
            store_one(store, "j2", b"two")
    with pytest.raises(RecordStoreError, match="open the folder again"):
        store_one(store, "j3", b"three")
    store.close()
    store = opened(folder)
    assert store.record("j1") == first
    assert list(store.check()) == []
    store.close()


def test_packs_have_a_size_and_all_of_them_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 2000)
    monkeypatch.setattr(packs_module, "BLOCK_BYTES", 500)
    monkeypatch.setattr(folder_module, "PENDING_BYTES_MAX", 3000)
    store = opened(folder)
    contents = [bytes([number]) * 7 + bytes(range(number, 200)) for number in range(60)]
    for first in range(0, 60, 10):
        store_one(store, f"j{first}", *contents[first : first + 10])
    store.close()
    assert len(list((folder / "packs").iterdir())) > 3
    store = opened(folder)
    store.delete("j20", at=1.0, author="ada")
    store.collect(dry_run=False)
    assert list(store.check()) == []
    kept = [each for number, each in enumerate(contents) if number // 10 != 2]
    assert [store.content(part("file", "", each).sha256) for each in kept] == kept
    store.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 4), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("delete"), st.integers(0, 4), st.just([])),
        st.tuples(st.sampled_from(["collect", "reopen", "lose catalogue"]), st.just(0), st.just([])),
    ),
    max_size=25,
)


@given(OPERATIONS)
@settings(deadline=None, max_examples=40)
def test_collecting_never_removes_what_a_record_needs(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("records")
    store, expected, revisions = opened(folder), dict[str, dict[int, list[bytes]]](), dict[str, int]()
    for what, number, contents in operations:
        job = f"j{number}"
        if what == "commit":
            revisions[job] = revisions.get(job, 0) + 1
            files = [f"content {each} ".encode() * 30 for each in contents]
            store_one(store, job, *files, revision=revisions[job])
            expected.setdefault(job, {})[revisions[job]] = files
        elif what == "delete":
            assert store.delete(job, at=1.0, author="ada") == (job in expected)
            expected.pop(job, None)
        elif what == "collect":
            store.collect(dry_run=False)
            assert store.collect(dry_run=True).parts == 0
        else:
            store.close()
            if what == "lose catalogue":
                for file in folder.glob("catalogue.sqlite*"):
                    file.unlink()
            store = opened(folder)
        for each in range(5):
            record = store.record(f"j{each}")
            assert (record.revision if record else 0) == max(expected.get(f"j{each}", {}), default=0)
    for job, made in expected.items():
        for revision, files in made.items():
            record = store.record(job, revision)
            assert record is not None
            assert [store.content(each.sha256) for each in record.parts] == files
    assert list(store.check()) == []
    store.close()


def test_its_files_are_closed_to_other_users(folder: Path) -> None:
    store = opened(folder)
    store.add_parts([("file", b"x")])
    store.commit([record_of("j1", part("file", "x", b"x"))])
    store.close()
    assert {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()} == {
        "catalogue.sqlite", "lock", PACK,
    }  # fmt: skip
    assert {oct(each.stat().st_mode & 0o077) for each in folder.rglob("*")} == {"0o0"}


def read_bytes() -> int:
    """How much this process has read from files so far."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


def test_gc_reads_each_pack_once(folder: Path) -> None:
    store = opened(folder)
    for number in range(8):
        store_one(store, f"j{number}", os.urandom(1_000_000))
    before = read_bytes()
    store.collect(dry_run=False)
    assert read_bytes() - before < 1.5 * (folder / PACK).stat().st_size
    before = read_bytes()
    store.collect(dry_run=True)
    assert read_bytes() - before < 0.5 * (folder / PACK).stat().st_size  # nothing is removed, so nothing is checked
    store.close()
