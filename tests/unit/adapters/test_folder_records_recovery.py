"""A folder of records after faults that come together: nothing that was acknowledged is lost, whatever is made again."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from pilotage.adapters.records import blocks
from pilotage.adapters.records import folder as folder_module
from pilotage.adapters.records import packs as packs_module
from pilotage.adapters.records.catalogue import Catalogue
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.records import Annotation
from pilotage.ports.records import RecordStoreError
from tests.conformance.records.test_record_store import part, record_of, store_one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


def store_log(store: FolderRecords, job: str, content: bytes) -> None:
    """A record with a life log, which is a sample for a dictionary."""
    store.add_parts([("life-log", content)])
    store.commit([record_of(job, part("life-log", "events-1.jsonl", content))])


def lose_catalogue(folder: Path) -> None:
    for file in folder.glob("catalogue.sqlite*"):
        file.unlink()


def jobs_in(store: FolderRecords) -> set[str]:
    return {each.job for each in store.changes(after=0, limit=10_000) if each.change == "record"}


def test_a_catalogue_that_is_made_again_is_complete_or_not_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 1000)
    store = FolderRecords(folder)
    for number in range(12):
        store_one(store, f"j{number}", secrets.token_bytes(400))
    store.close()
    packs = len(list((folder / "packs").iterdir()))
    assert packs > 4
    lose_catalogue(folder)
    add_block = Catalogue.add_block

    def killed(self: Catalogue, pack: int, *rest: Any) -> None:
        if pack == 4:
            raise KeyboardInterrupt
        add_block(self, pack, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "add_block", killed)
        with pytest.raises(KeyboardInterrupt):
            FolderRecords(folder)
    store = FolderRecords(folder)
    assert jobs_in(store) == {f"j{number}" for number in range(12)}
    assert store.collect(dry_run=False).parts == 0
    assert list(store.check()) == []
    store.close()


def test_after_a_collection_with_a_dictionary_a_lost_catalogue_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SAMPLED_RECORDS_MIN", 20)
    store = FolderRecords(folder)
    for number in range(30):
        store_log(store, f"j{number}", b"an event of package %d at site a\n" % number * 30)
    assert (folder / "dictionary").is_file()
    for number in range(5):
        store.delete(f"j{number}", at=1.0, author="ada")
    store.collect(dry_run=False)
    store.close()
    lose_catalogue(folder)
    store = FolderRecords(folder)
    assert jobs_in(store) == {f"j{number}" for number in range(5, 30)}
    assert list(store.check()) == []
    store.close()


def test_a_commit_that_the_catalogue_refuses_takes_no_position_from_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderRecords(folder)
    store_one(store, "j1", b"one")
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Catalogue, "add_record", full)
        with pytest.raises(RecordStoreError, match="No space left"):
            store_one(store, "j2", b"two")
    assert store.broken
    with pytest.raises(RecordStoreError, match="open the folder again"):
        store_one(store, "j3", b"three")
    store.close()
    store = FolderRecords(folder)
    store_one(store, "j3", b"three")
    store.close()
    for lost in (False, True):
        if lost:
            lose_catalogue(folder)
        store = FolderRecords(folder)
        assert jobs_in(store) == {"j1", "j2", "j3"}  # j2 was durable, and is told when the folder is opened again
        assert list(store.check()) == []
        store.close()


def test_a_record_that_was_deleted_and_came_again_outlives_collection_and_a_lost_catalogue(folder: Path) -> None:
    store = FolderRecords(folder)
    store_one(store, "j1", b"one")
    store.delete("j1", at=5.0, author="ada")
    deletion = store.deletion("j1")
    assert deletion is not None
    assert deletion.at == 5.0
    store_one(store, "j1", b"one")
    store.annotate(Annotation(job="j1", name="n", at=6.0, author="ada", text="x"))
    store.collect(dry_run=False)
    store.close()
    lose_catalogue(folder)
    store = FolderRecords(folder)
    assert jobs_in(store) == {"j1"}
    assert [each.text for each in store.annotations("j1")] == ["x"]
    store.close()


def forged_deletion() -> bytes:
    """A block that deletes the record of a victim, as somebody who cannot read the pack would make it."""
    content = b'{"job":"victim","at":1.0,"author":"mallory"}'
    key, _ = blocks.new_pack()
    entry = blocks.Entry(kind="deletion", sha256=secrets.token_bytes(32), size_bytes=len(content), position=10**6)
    return blocks.packed([entry], blocks.Compression().compress(content, b""), dictionary=b"", key=key)


def test_a_block_that_is_hidden_in_a_content_is_not_believed_after_a_crash(folder: Path) -> None:
    store = FolderRecords(folder)
    store_one(store, "victim", b"precious")
    store.close()
    pack = folder / "packs" / "000001.pack"
    before = pack.stat().st_size
    store = FolderRecords(folder)
    store_one(store, "of-mallory", secrets.token_bytes(2000) + forged_deletion() + secrets.token_bytes(2000))
    store.close()
    os.truncate(pack, before + 3000)  # the write of mallory's part was torn
    lose_catalogue(folder)
    store = FolderRecords(folder)
    assert jobs_in(store) == {"victim"}
    assert list((folder / "packs").glob("*.torn-*"))  # a copy of what was cut off
    store.close()


def test_a_pack_that_was_shortened_is_not_appended_to(folder: Path) -> None:
    store = FolderRecords(folder)
    store_one(store, "j1", b"one")
    end = (folder / "packs" / "000001.pack").stat().st_size
    store_one(store, "j2", b"two")
    store.close()
    os.truncate(folder / "packs" / "000001.pack", end)
    store = FolderRecords(folder)
    store_one(store, "j3", b"three")
    assert (folder / "packs" / "000002.pack").is_file()
    assert any("j2" in each.jobs for each in store.check())
    store.close()
    store = FolderRecords(folder)
    assert store.record("j3") is not None
    store.close()


def test_damaged_samples_do_not_keep_a_dictionary_from_being_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "SAMPLED_RECORDS_MIN", 20)
    store = FolderRecords(folder)
    store_log(store, "first", b"an event\n" * 50)
    store.close()
    pack = folder / "packs" / "000001.pack"
    content = bytearray(pack.read_bytes())
    content[blocks.PACK_HEAD_BYTES + 60] ^= 1
    pack.write_bytes(content)
    store = FolderRecords(folder)
    for number in range(25):
        store_log(store, f"j{number}", b"an event of %d\n" % number * 50)
    assert (folder / "dictionary").is_file()
    store.close()


def test_a_pack_that_has_lost_its_key_stays_as_it_is(folder: Path) -> None:
    store = FolderRecords(folder)
    store_one(store, "j1", b"one")
    store.close()
    pack = folder / "packs" / "000001.pack"
    damaged = bytes(blocks.PACK_HEAD_BYTES) + pack.read_bytes()[blocks.PACK_HEAD_BYTES :]
    pack.write_bytes(damaged)
    lose_catalogue(folder)
    store = FolderRecords(folder)
    store_one(store, "j2", b"two")
    assert pack.read_bytes() == damaged
    assert list(store.check()) != []
    store.close()
