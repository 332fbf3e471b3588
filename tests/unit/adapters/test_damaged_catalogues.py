"""The catalogue of a folder of records after damage: it is compared with the packs, and nothing is lost by it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pilotage.adapters.records import folder as folder_module
from pilotage.adapters.records import packs as packs_module
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.records import Annotation
from pilotage.ports.records import Damage, RecordStoreError
from tests.conformance.records.test_record_store import part, store_one

JOBS = [f"job-{number}" for number in range(8)]
FLIPS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records of several jobs, with a second revision, an annotation and a deletion."""
    made = tmp_path / "records"
    with closing(FolderRecords(made)) as store:
        for number, job in enumerate(JOBS):
            store_one(store, job, f"program {number}".encode() * 20, b"shared" * 50, submitted_at=100.0 + number)
        store_one(store, JOBS[2], b"more" * 30, revision=2)
        store.add_parts([("file", b"a plot")])
        store.annotate(Annotation(job=JOBS[3], name="plot", author="ada", at=5.0, part=part("file", "plot", b"a plot")))
        store.delete(JOBS[4], at=6.0, author="ada")
    return made


def everything(store: FolderRecords) -> Iterator[object]:
    """All that a reader can ask for."""
    for job in JOBS:
        yield store.revisions(job)
        yield store.annotations(job)
        for revision in (None, 1, 2):
            record = store.record(job, revision)
            yield record
            yield [store.content(each.sha256) for each in record.parts] if record else []
    yield store.changes(after=0, limit=100)
    yield store.unheard_since(1e9)
    yield store.find(owner="ada", submitted_from=0.0, submitted_before=1e9)


def checked(folder: Path) -> list[Damage]:
    with closing(FolderRecords(folder, writes=False)) as reader:
        return list(reader.check())


def changed(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "catalogue.sqlite")) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


def write_catalogue(folder: Path, content: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        (folder / f"catalogue.sqlite{suffix}").unlink(missing_ok=True)
    (folder / "catalogue.sqlite").write_bytes(content)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_flipped_bit_of_the_catalogue_changes_nothing_or_is_found(folder: Path, seed: int) -> None:
    with closing(FolderRecords(folder, writes=False)) as reader:
        expected = list(everything(reader))
    whole = (folder / "catalogue.sqlite").read_bytes()
    places = [place for place, byte in enumerate(whole) if byte]
    drawn, found = random.Random(seed), 0
    for _ in range(FLIPS):
        place, bit = drawn.choice(places), 1 << drawn.randrange(8)
        write_catalogue(folder, whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        with closing(FolderRecords(folder, writes=False)) as reader:
            damage = list(reader.check())
            found += bool(damage)
            try:
                same = list(everything(reader)) == expected
            except RecordStoreError:
                same = False
        assert same or damage, (place, bit)
    assert found > FLIPS // 20


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_where_a_writer_opens_and_collects_with_a_flipped_bit(folder: Path, seed: int) -> None:
    with closing(FolderRecords(folder)) as store:
        expected = list(everything(store))
    packs = {each: each.read_bytes() for each in (folder / "packs").iterdir()}
    whole = (folder / "catalogue.sqlite").read_bytes()
    places = [place for place, byte in enumerate(whole) if byte]
    drawn, refused = random.Random(seed), 0
    for _ in range(FLIPS // 5):
        for each in (folder / "packs").iterdir():
            each.unlink()
        for each, content in packs.items():
            each.write_bytes(content)
        place, bit = drawn.choice(places), 1 << drawn.randrange(8)
        write_catalogue(folder, whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            with closing(FolderRecords(folder)) as store:
                store.collect(dry_run=False)
        except RecordStoreError:
            refused += 1
        for each in folder.glob("catalogue.sqlite*"):
            each.unlink()
        with closing(FolderRecords(folder)) as store:
            assert list(everything(store)) == expected, (place, bit)
    assert refused


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE parts SET size_bytes = size_bytes + 1 WHERE start = 0",
        "UPDATE parts SET start = start + 1",
        "UPDATE parts SET block = 99 WHERE start = 0",
        "UPDATE packs SET end = end - 1",
        "UPDATE packs SET pack = 7",
        "UPDATE blocks SET pack = 7 WHERE block = 1",
        "UPDATE records SET heard_at = 7.0 WHERE position = 1",
        "UPDATE records SET owner = 'eve' WHERE position = 1",
        "UPDATE records SET sha256 = 'text' WHERE position = 1",
        "UPDATE records SET job = CAST(x'ff' AS TEXT) WHERE position = 1",
        "DELETE FROM annotations",
        "DELETE FROM deletions",
        "DROP TABLE deletions",
        "PRAGMA user_version = 9",
    ],
)
def test_a_wrong_row_is_found_and_nothing_is_collected_by_it(folder: Path, statement: str) -> None:
    with closing(FolderRecords(folder, writes=False)) as reader:
        expected = list(everything(reader))
    assert checked(folder) == []
    changed(folder, statement)
    assert "catalogue.sqlite" in {each.place for each in checked(folder)}
    # It is refused, or was made again as the writer opened it.
    with suppress(RecordStoreError), closing(FolderRecords(folder)) as store:
        store.collect(dry_run=False)
    for each in folder.glob("catalogue.sqlite*"):
        each.unlink()
    with closing(FolderRecords(folder)) as store:
        assert list(everything(store)) == expected


def test_jobs_are_named_whose_parts_are_not_where_the_catalogue_says(folder: Path) -> None:
    digest = part("file", "", b"program 1" * 20).sha256
    changed(folder, f"UPDATE parts SET size_bytes = 3 WHERE sha256 = x'{digest}'")
    [damage] = checked(folder)
    assert (damage.sha256, damage.jobs, damage.what) == (digest, (JOBS[1],), "it is not where the catalogue says")


def test_a_file_that_is_no_catalogue_is_damage_and_the_packs_are_checked_too(folder: Path) -> None:
    write_catalogue(folder, b"this is no database" * 1000)
    pack = folder / "packs" / "000001.pack"
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.write_bytes(content)
    assert {each.place.partition(" ")[0] for each in checked(folder)} >= {"catalogue.sqlite", "000001.pack"}
    with (
        closing(FolderRecords(folder, writes=False)) as reader,
        pytest.raises(RecordStoreError, match="made again from the packs"),
    ):
        reader.record(JOBS[0])


def test_a_check_makes_a_removed_catalogue_again(folder: Path) -> None:
    with closing(FolderRecords(folder, writes=False)) as reader:
        expected = list(everything(reader))
    for each in folder.glob("catalogue.sqlite*"):
        each.unlink()
    with closing(FolderRecords(folder, writes=False)) as reader:
        with pytest.raises(RecordStoreError, match="the catalogue is missing"):
            reader.record(JOBS[0])
        assert list(reader.check()) == []
        assert list(everything(reader)) == expected


def test_what_a_writer_appends_meanwhile_is_no_damage(folder: Path) -> None:
    with closing(FolderRecords(folder)) as store, closing(FolderRecords(folder, writes=False)) as reader:
        pack = folder / "packs" / "000001.pack"
        size = pack.stat().st_size
        store_one(store, "later", b"later" * 10)
        assert list(reader.check()) == []
        whole = pack.read_bytes()
        with pack.open("ab") as file:
            file.write(whole[size : size + 40])  # a block of which a part is written
        assert list(reader.check()) == []
        changed(folder, "UPDATE records SET owner = 'eve' WHERE position = 1")
        found = iter(reader.check())
        assert next(found).place == "catalogue.sqlite"
        store.delete(JOBS[0], at=9.0, author="ada")  # behind the moment that is checked
        assert {each.jobs for each in found} == {()}  # nothing but the block that was torn


def test_a_dictionary_that_stands_behind_its_blocks_is_found_without_a_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "records"
    monkeypatch.setattr(folder_module, "SAMPLED_RECORDS_MIN", 12)
    monkeypatch.setattr(folder_module, "DICTIONARY_BYTES", 2048)
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 6000)
    with closing(FolderRecords(folder)) as store:
        for number in range(60):
            store_one(store, f"n{number}", f"log of {number}: all is well ".encode() * 40)
        assert (folder / "dictionary").exists()
        for number in range(12):
            store.delete(f"n{number}", at=1.0, author="ada")
        store.collect(dry_run=False)
        expected = store.changes(after=0, limit=500)
        assert list(store.check()) == []
    for each in folder.glob("catalogue.sqlite*"):
        each.unlink()
    with closing(FolderRecords(folder)) as store:
        assert store.changes(after=0, limit=500) == expected
        assert list(store.check()) == []
