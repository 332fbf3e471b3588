"""A damaged part of a folder of records is stored anew when its content comes again, once the damage was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.adapters.records.blocks import PACK_HEAD_BYTES
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.records import JobRecord
from pilotage.ports.records import DamagedPart
from tests.conformance.records.test_record_store import part, record_of, store_one

PROGRAM = b"the program" * 20
INPUT = b"an input" * 20


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, JobRecord]:
    """A folder with the record of a job, whose parts share a block that is damaged."""
    folder = tmp_path / "records"
    store = FolderRecords(folder)
    record = store_one(store, "j1", PROGRAM, INPUT)
    store.close()
    flip(folder, PACK_HEAD_BYTES + 60)
    return folder, record


def flip(folder: Path, place: int) -> None:
    pack = folder / "packs/000001.pack"
    content = bytearray(pack.read_bytes())
    content[place] ^= 1
    pack.write_bytes(content)


def test_a_part_that_a_read_found_damaged_is_stored_anew(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    store = FolderRecords(folder)
    with pytest.raises(DamagedPart):
        store.content(record.parts[0].sha256)
    assert store.missing([each.sha256 for each in record.parts]) == {each.sha256 for each in record.parts}
    store_one(store, "j2", PROGRAM, INPUT)
    assert [store.content(each.sha256) for each in record.parts] == [PROGRAM, INPUT]
    assert store.missing([each.sha256 for each in record.parts]) == set()
    store.close()


def test_damage_that_a_check_found_beside_a_writer_is_healed_by_that_writer(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    store = FolderRecords(folder)
    reader = FolderRecords(folder, writes=False)
    assert record.parts[0].sha256 in [each.sha256 for each in reader.check()]
    store_one(store, "j2", PROGRAM, INPUT)
    assert [reader.content(each.sha256) for each in record.parts] == [PROGRAM, INPUT]
    assert list(reader.check()) == []
    reader.close()
    store.close()


def test_what_is_known_to_be_damaged_is_known_to_the_next_process(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    reader = FolderRecords(folder, writes=False)
    with pytest.raises(DamagedPart):
        reader.content(record.parts[1].sha256)
    reader.close()
    store = FolderRecords(folder)
    store_one(store, "j2", PROGRAM)
    assert store.content(record.parts[0].sha256) == PROGRAM
    with pytest.raises(DamagedPart):
        store.content(record.parts[1].sha256)
    store.close()


def test_a_sound_part_is_stored_once_however_often_it_comes(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    store = FolderRecords(folder)
    with pytest.raises(DamagedPart):
        store.content(record.parts[0].sha256)
    store_one(store, "j2", PROGRAM, INPUT)
    size = (folder / "packs/000001.pack").stat().st_size
    store.add_parts([("file", PROGRAM), ("file", INPUT)])
    store.commit([])
    store.close()
    assert (folder / "packs/000001.pack").stat().st_size == size


def test_a_damaged_record_that_comes_again_is_read_again_and_told_to_indexes(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    store = FolderRecords(folder)
    record = store_one(store, "j1", PROGRAM)
    store.close()
    flip(folder, (folder / "packs/000001.pack").stat().st_size - 30)
    store = FolderRecords(folder)
    with pytest.raises(DamagedPart):
        store.record("j1")
    [position] = store.commit([record])
    assert store.record("j1") == record
    assert [each.position for each in store.changes(after=0, limit=10)] == [position]
    assert list(store.check()) == []
    store.close()


def test_gc_removes_a_damaged_block_of_which_all_was_stored_anew(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    store = FolderRecords(folder)
    with pytest.raises(DamagedPart):
        store.content(record.parts[0].sha256)
    assert store.collect(dry_run=False).left_packs == ("000001.pack",)
    assert (folder / "packs/000001.pack").exists()
    second = store_one(store, "j2", PROGRAM, INPUT)
    store.collect(dry_run=False)
    assert not (folder / "packs/000001.pack").exists()
    store.close()
    for each in folder.glob("catalogue.sqlite*"):
        each.unlink()
    store = FolderRecords(folder)
    assert (store.record("j1"), store.record("j2")) == (record, second)
    assert [store.content(each.sha256) for each in record.parts] == [PROGRAM, INPUT]
    assert list(store.check()) == []
    store.close()


def test_a_record_that_shares_a_damaged_part_may_come_without_it(damaged: tuple[Path, JobRecord]) -> None:
    folder, record = damaged
    store = FolderRecords(folder)
    with pytest.raises(DamagedPart):
        store.content(record.parts[0].sha256)
    store.commit([record_of("j2", part("file", "f0", PROGRAM))])
    assert store.record("j2") is not None
    store.close()
