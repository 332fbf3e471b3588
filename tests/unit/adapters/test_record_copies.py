"""Records with a copy in a store: nothing counts before it is there, and a folder is made again from the store alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.adapters.records import copies as copies_module
from pilotage.adapters.records import packs as packs_module
from pilotage.adapters.records.copies import PackCopies
from pilotage.adapters.records.folder import FolderRecords
from pilotage.adapters.stores.folder import FolderStore
from pilotage.ports import StoreObject, StoreUnreachable
from pilotage.ports.records import NoRecords, RecordStoreError
from tests.conformance.records.test_record_store import store_one
from tests.conformance.stores.places import Place, bucket_place
from tests.engines.s3 import S3Server

PROGRAM = b"the program" * 20


class Cut(FolderStore):
    """A store that can be out of reach."""

    def __init__(self) -> None:
        self.is_cut = False

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        if self.is_cut:
            raise StoreUnreachable("no route to it")
        return super().put(source, locator, replaces=replaces, sent=sent)


@pytest.fixture
def store() -> Cut:
    return Cut()


@pytest.fixture
def copies(store: Cut, tmp_path: Path) -> PackCopies:
    return PackCopies(store, f"file://{tmp_path}/copies")


def objects(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "copies").glob("0*/*") if path.is_file())


@contextmanager
def opened(folder: Path, copies: PackCopies, *, writes: bool = True) -> Iterator[FolderRecords]:
    records = FolderRecords(folder, writes=writes, copies=copies)
    try:
        yield records
    finally:
        records.close()


def faults(folder: Path, copies: PackCopies) -> list[tuple[str, str]]:
    with opened(folder, copies, writes=False) as records:
        return [(each.place, each.what) for each in records.check()]


def test_a_record_counts_only_when_its_copy_is_there_and_what_was_cut_off_is_copied_later(
    store: Cut, copies: PackCopies, tmp_path: Path
) -> None:
    with opened(tmp_path / "records", copies) as records:
        store_one(records, "j1", PROGRAM)
        store.is_cut = True
        with pytest.raises(RecordStoreError, match="no route to it"):
            store_one(records, "j2", b"other")
        assert records.record("j2") is None, "nobody sees what has no copy"
        assert records.record("j1") is not None
        assert records.broken
    with pytest.raises(RecordStoreError, match="no route to it"):
        FolderRecords(tmp_path / "records", copies=copies)
    store.is_cut = False
    with opened(tmp_path / "records", copies) as records:
        assert records.record("j2") is not None
    with opened(tmp_path / "new", copies) as records:
        assert [each.job for each in records.changes(after=0, limit=9)] == ["j1", "j2"]
    assert faults(tmp_path / "new", copies) == faults(tmp_path / "records", copies) == []


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_byte_in_the_store_is_named_and_not_brought_back(
    place: str, copies: PackCopies, tmp_path: Path
) -> None:
    with opened(tmp_path / "records", copies) as records:
        for job in ("j1", "j2", "j3"):
            store_one(records, job, os.urandom(100))
    file = objects(tmp_path)[0 if place == "first" else -1]
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    ((where, what),) = faults(tmp_path / "records", copies)
    assert where.endswith(file.name)
    assert what == "its content does not match its name"
    with pytest.raises(RecordStoreError, match=file.name):
        FolderRecords(tmp_path / "new", copies=copies)
    assert not list((tmp_path / "new/packs").glob("*"))


def test_lost_segments_and_lost_packs_of_the_store_are_named(
    copies: PackCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 2_000)
    with opened(tmp_path / "records", copies) as records:
        for number in range(6):
            store_one(records, f"j{number}", os.urandom(700))
    first, *_ = [each for each in objects(tmp_path) if each.suffix == ".segment"]
    assert len(list((tmp_path / "copies").iterdir())) > 2
    place, words = f"file://{tmp_path}/copies/000001", "bytes of the pack are missing in the store from"
    for lost in [each for each in objects(tmp_path) if each.suffix == ".segment" and each.parent == first.parent]:
        lost.rename(tmp_path / "aside")
        assert faults(tmp_path / "records", copies) == [(place, f"{words} {int(lost.name[:12]):,} on")]
        with pytest.raises(RecordStoreError, match=words):
            FolderRecords(tmp_path / "new", copies=copies)
        (tmp_path / "aside").rename(lost)
    lost.unlink()
    with opened(tmp_path / "records", copies):  # the folder has what the store has lost
        pass
    assert faults(tmp_path / "records", copies) == []
    shutil.rmtree(first.parent)
    assert faults(tmp_path / "records", copies) == [(place, "the pack is missing in the store")]
    with pytest.raises(RecordStoreError, match="the pack is missing in the store"):
        FolderRecords(tmp_path / "new", copies=copies)
    with opened(tmp_path / "records", copies):  # the folder has it still
        pass
    assert faults(tmp_path / "records", copies) == []
    shutil.rmtree(tmp_path / "new")
    with opened(tmp_path / "new", copies) as records:
        assert len(records.changes(after=0, limit=9)) == 6


def test_a_folder_that_lost_packs_or_a_part_of_one_gets_them_back(copies: PackCopies, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    with opened(folder, copies) as records:
        store_one(records, "j1", PROGRAM)
        store_one(records, "j2", b"other")
    pack = folder / "packs/000001.pack"
    whole = pack.read_bytes()
    for kept in (b"", whole[:-5]):
        pack.unlink()
        if kept:
            pack.write_bytes(kept)
        with opened(folder, copies) as records:
            assert records.record("j2") is not None
        assert pack.read_bytes() == whole
        assert faults(folder, copies) == []


def test_what_is_collected_goes_from_the_store_and_deleted_records_do_not_come_back(
    copies: PackCopies, tmp_path: Path
) -> None:
    with opened(tmp_path / "records", copies) as records:
        store_one(records, "j1", os.urandom(5000))
        store_one(records, "j2", b"other")
        assert records.delete("j1", at=1.0, author="ada")
        before = sum(each.stat().st_size for each in objects(tmp_path))
        assert records.collect(dry_run=False).parts
    assert sum(each.stat().st_size for each in objects(tmp_path)) < before - 4000
    assert faults(tmp_path / "records", copies) == []
    with opened(tmp_path / "new", copies) as records:
        assert (records.record("j1"), records.record("j2") is None) == (None, False)


def test_records_of_another_folder_are_not_mixed_with_those_of_the_store(copies: PackCopies, tmp_path: Path) -> None:
    with opened(tmp_path / "records", copies) as records:
        store_one(records, "j1", PROGRAM)
    other = FolderRecords(tmp_path / "other")
    store_one(other, "j2", PROGRAM * 9)
    store_one(other, "j3", b"more" * 99)
    other.close()
    with pytest.raises(RecordStoreError, match="other records"):
        FolderRecords(tmp_path / "other", copies=copies)
    assert faults(tmp_path / "records", copies) == []


def test_records_that_were_there_before_the_store_are_copied_in_segments_of_limited_size(
    copies: PackCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "SEGMENT_BYTES_MAX", 1000)
    records = FolderRecords(tmp_path / "records")
    store_one(records, "j1", os.urandom(5000))
    assert records.delete("j1", at=1.0, author="ada")
    store_one(records, "j2", os.urandom(5000))
    records.collect(dry_run=False)  # the first pack goes
    records.close()
    with opened(tmp_path / "records", copies):
        pass
    assert max(each.stat().st_size for each in objects(tmp_path)) == 1000
    with opened(tmp_path / "new", copies) as again:
        assert again.record("j2") is not None


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path) -> Iterator[Place]:
    with bucket_place(s3_server, tmp_path) as place:
        yield place


def test_records_lie_on_s3_and_are_opened_from_there_alone(bucket: Place, tmp_path: Path) -> None:
    copies = PackCopies(bucket.store, bucket.at("records é"))
    with pytest.raises(NoRecords):
        copies.refuse_empty()
    with opened(tmp_path / "records", copies) as records:
        made = [store_one(records, f"j{number}", os.urandom(3000)) for number in range(3)]
    copies.refuse_empty()
    assert faults(tmp_path / "records", copies) == []
    with opened(tmp_path / "new", PackCopies(bucket.store, bucket.at("records é"))) as records:
        assert [records.record(each.job) for each in made] == made
    name = min(bucket.content())
    content = bytearray(bucket.content()[name])
    content[-1] ^= 1
    bucket.write(name, bytes(content))
    ((where, what),) = faults(tmp_path / "records", copies)
    assert (where.rpartition("/")[2], what) == (name.rpartition("/")[2], "its content does not match its name")
