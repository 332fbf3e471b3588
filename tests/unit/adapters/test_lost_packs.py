"""A folder of records that lost a pack or a record: what is lost is named, and everything else can be read, found and looked after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotage.adapters.records import packs as packs_module
from pilotage.adapters.records.copies import PackCopies
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.folder import FolderStore
from pilotage.model.records import Annotation, JobRecord
from pilotage.ports.records import DamagedPart
from tests.conformance.records.test_record_store import part, store_one

Open = Callable[[], FolderRecords]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    """Opens the folder anew, and closes what was opened before."""
    stores: list[FolderRecords] = []

    def again() -> FolderRecords:
        for each in stores:
            each.close()
        stores[:] = [FolderRecords(folder)]
        return stores[0]

    yield again
    for each in stores:
        each.close()


def three_packs(store: FolderRecords, monkeypatch: pytest.MonkeyPatch) -> list[JobRecord]:
    """Records in packs of their own, which share a program of the first."""
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 5_000)
    made = [store_one(store, f"j{number}", b"the program", os.urandom(4_000)) for number in (1, 2, 3)]
    assert len(list(store._packs.numbers())) == 3
    return made


def damage(folder: Path, content: bytes) -> None:
    """Flip a byte of the block that has a content, which is stored as it is: nothing compresses it."""
    for pack in (folder / "packs").iterdir():
        whole = bytearray(pack.read_bytes())
        place = whole.find(content[:64])
        if place >= 0:
            whole[place] ^= 1
            pack.write_bytes(whole)
            return
    raise AssertionError("it is in no pack")


def damage_record(folder: Path, store: FolderRecords, job: str, revision: int) -> None:
    """Flip a byte of the block of a record that was committed alone."""
    sha256 = next(each.sha256 for each in store.revisions(job) if each.revision == revision)
    place = store._catalogue.place(bytes.fromhex(sha256))
    assert place is not None
    store.close()
    pack = folder / "packs" / f"{place.pack:06}.pack"
    whole = bytearray(pack.read_bytes())
    whole[place.offset + 70] ^= 1
    pack.write_bytes(whole)


def test_of_a_lost_pack_each_record_and_part_is_named_and_the_other_records_are_read(
    folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three_packs(opened(), monkeypatch)
    lost = [each.sha256 for each in opened().revisions("j2")] + [second.parts[1].sha256]
    (folder / "packs/000002.pack").unlink()
    store = opened()
    found = list(store.check())
    assert "the pack is missing" in [each.what for each in found if each.place == "000002.pack"]
    assert {each.sha256 for each in found} - {""} == set(lost)
    assert {job for each in found for job in each.jobs} == {"j2"}
    assert (store.record("j1"), store.record("j3")) == (first, third)
    assert len(store.content(third.parts[1].sha256)) == 4_000
    with pytest.raises(DamagedPart):
        store.record("j2")


def test_of_a_lost_pack_the_parts_that_whole_records_need_are_named_with_their_jobs(
    folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = three_packs(opened(), monkeypatch)
    (folder / "packs/000001.pack").unlink()
    found = list(opened().check())
    jobs = {each.sha256: each.jobs for each in found}
    assert jobs[first.parts[0].sha256] == ("j2", "j3"), "the shared program"
    assert first.parts[1].sha256 in jobs


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_service_goes_on_after_a_pack_was_lost_and_gives_no_position_twice(
    lost: int, folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = three_packs(opened(), monkeypatch)
    (folder / f"packs/{lost:06}.pack").rename(folder / "aside")
    fourth = store_one(opened(), "j4", os.urandom(4_000))
    store = opened()
    assert store.record("j4") == fourth
    assert [each.position for each in store.changes(after=0, limit=9)] == [1, 2, 3, 4]
    (folder / "aside").rename(folder / f"packs/{lost:06}.pack")  # from a copy
    store = opened()
    assert list(store.check()) == []
    assert [store.record(each.job) for each in made] == made
    store.delete("j1", at=1.0, author="ada")
    assert store.collect(dry_run=False).unreadable == ()
    assert opened().record("j2") == made[1]


def test_gc_of_a_storage_that_lost_a_pack_keeps_whatever_its_records_may_need(
    folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = three_packs(opened(), monkeypatch)
    opened().delete("j3", at=1.0, author="ada")
    (folder / "packs/000002.pack").rename(folder / "aside")
    collected = opened().collect(dry_run=False)
    assert (collected.parts, collected.unreadable, collected.left_packs) == (0, ("j2",), ("000002.pack",))
    (folder / "aside").rename(folder / "packs/000002.pack")
    store = opened()
    assert list(store.check()) == []
    assert store.collect(dry_run=False).parts >= 2
    assert (store.record("j1"), store.record("j2")) == (made[0], made[1])
    assert [len(store.content(each.sha256)) for each in made[1].parts] == [11, 4_000]
    assert list(store.check()) == []


def test_a_record_that_is_given_up_blocks_no_collection_any_more(
    folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = three_packs(opened(), monkeypatch)
    (folder / "packs/000002.pack").unlink()
    store = opened()
    assert store.delete("j2", at=1.0, author="ada")
    assert store.delete("j3", at=1.0, author="ada")
    collected = store.collect(dry_run=False)
    assert collected.unreadable == ()
    assert collected.parts >= 2
    assert opened().record("j1") == made[0]


def test_a_damaged_earlier_revision_blocks_no_collection(folder: Path, opened: Open) -> None:
    store = opened()
    store_one(store, "j1", os.urandom(500))
    newest = store_one(store, "j1", b"the whole life", revision=2)
    store_one(store, "j2", os.urandom(9_000))
    damage_record(folder, store, "j1", 1)
    store = opened()
    store.delete("j2", at=1.0, author="ada")
    assert [each.jobs for each in store.check() if each.jobs] == [("j1",)]
    # Its pack has lost something that may come back, and stays; another one does not.
    assert store.collect(dry_run=False).unreadable == ()
    assert store.record("j1") == newest
    with pytest.raises(DamagedPart):
        store.record("j1", 1)


def test_packs_without_damage_are_collected_beside_a_damaged_earlier_revision(
    folder: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store_one(store, "j1", b"one")
    newest = store_one(store, "j1", b"the whole life", revision=2)
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 1_000)
    store_one(store, "j2", os.urandom(9_000))
    damage_record(folder, store, "j1", 1)
    store = opened()
    store.delete("j2", at=1.0, author="ada")
    collected = store.collect(dry_run=False)
    assert collected.freed_bytes > 9_000
    assert collected.left_packs == ("000001.pack",)
    assert store.record("j1") == newest


def test_a_damaged_annotation_keeps_the_file_that_it_may_name(folder: Path, opened: Open) -> None:
    store = opened()
    store_one(store, "j1", b"one")
    content = os.urandom(300)
    store.add_parts([("custom", content)])
    added = part("custom", "scan", content)
    store.annotate(Annotation(job="j1", name="scan", at=1.0, author="ada", part=added))
    [sha256] = [each.sha256 for each in store.changes(after=1, limit=1)]
    place = store._catalogue.place(bytes.fromhex(sha256))
    assert place is not None
    store.close()
    whole = bytearray((folder / "packs/000001.pack").read_bytes())
    whole[place.offset + 70] ^= 1
    (folder / "packs/000001.pack").write_bytes(whole)
    store = opened()
    assert store.collect(dry_run=False).unreadable == ("j1",)
    assert store.content(added.sha256) == content


def test_a_record_that_lost_parts_before_it_was_catalogued_keeps_the_others(folder: Path, opened: Open) -> None:
    store = opened()
    content = os.urandom(4_000)
    record = store_one(store, "j1", content)
    store.close()
    damage(folder, content)
    for each in folder.glob("catalogue.sqlite*"):
        each.unlink()
    store = opened()
    assert store.record("j1") is None, "it lacks a part"
    store.collect(dry_run=False)
    store.add_parts([("file", content)])
    store.commit([record])
    assert store.record("j1") == record
    assert [each.jobs for each in opened().check()] == [()], "the damaged block, which nobody needs any more"


def test_a_copy_in_a_store_brings_a_lost_pack_back_with_all_of_its_records(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied() -> FolderRecords:
        return FolderRecords(folder, copies=PackCopies(FolderStore(), f"file://{tmp_path}/copies"))

    store = copied()
    made = three_packs(store, monkeypatch)
    store.close()
    (folder / "packs/000002.pack").unlink()
    store = copied()
    assert [store.record(each.job) for each in made] == made
    assert list(store.check()) == []
    store.close()
